"""Where Spark finds ``format("penstock_table")``: it looks into every module named ``pyspark_…``."""

from __future__ import annotations

from penstock.spark.table_sink import TableDataSource as DefaultSource

__all__ = ["DefaultSource"]
