"""Sweeps that other tools recorded, in the frames of ``analysis.Sweep``."""
