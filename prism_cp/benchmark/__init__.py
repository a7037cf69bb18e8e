"""Benchmark room: whole `prism-cp solve` processes and single stage problems, measured: tables and JSON."""
