"""Measures the log and the bus beside others: ``python -m benchmarks --help``."""
