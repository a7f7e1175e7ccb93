"""Where Spark finds ``format("penstock")``: it looks into every module named ``pyspark_…``."""

from __future__ import annotations

from penstock.spark.source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
