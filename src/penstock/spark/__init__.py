"""Penstock on Spark: topics as tables and streams."""
