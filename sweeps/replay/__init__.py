"""Sweeps played against recorded curves in virtual time (docs/replay.md), and the recorder of such curves."""
