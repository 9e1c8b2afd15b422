"""Sweeps played against recorded learning curves, and the recorder of those curves."""
