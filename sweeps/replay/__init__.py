"""Sweeps played against recorded learning curves, in virtual time (docs/replay.md)."""
