"""Measured tables: whole processes, their wall time and peak memory, as Markdown under `results/`."""
