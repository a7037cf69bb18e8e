"""Provably optimal training plans for large neural networks, offline and without profiling."""

__version__ = "0.1.0"
