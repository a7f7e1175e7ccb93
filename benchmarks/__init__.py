"""Measures the log beside raw writes, SQLite and LMDB: ``python -m benchmarks --help``."""
