"""``format("penstock")``: topics as a Spark source."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


class PenstockDataSource(DataSource):
    """Topics of a log, as Spark's tables and streams."""

    @classmethod
    def name(cls) -> str:
        """What stands in ``format(...)``."""
        return "penstock"
