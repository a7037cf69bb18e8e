"""Benchmark room: whole `prism-cp solve` processes, their wall time and peak memory, as tables and JSON."""
