"""A client of Spark Connect that reads a topic as table, stream and view; run by test_connect.py."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

from pyspark.errors import PySparkException

from penstock.spark import spark_session
from penstock.spark.session import JAVA_OPTIONS
from tests.java import QUICK


def told(reader: Any) -> bool:
    """Whether a misspelled option is told with the right one."""
    try:
        reader.load().count()
    except PySparkException as failure:
        return "Did you mean subscribe" in str(failure)
    return False


def main(path: str, folder: str) -> None:
    warnings.simplefilter("ignore")
    spark = spark_session("connect", remote="local[2]", config={JAVA_OPTIONS: " ".join(QUICK)})
    table = spark.read.format("penstock").options(path=path, subscribe="orders").load()
    spark.sql(
        "CREATE TEMPORARY VIEW orders USING penstock "
        f"OPTIONS (path '{path}', subscribe 'orders', startingOffsets '{{\"orders\": {{\"0\": 3}}}}')"
    )
    stream = spark.readStream.format("penstock").options(path=path, subscribe="orders")
    rows = stream.option("startingOffsets", "earliest").option("groupId", "remote").load()
    writer = rows.writeStream.format("json").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.trigger(availableNow=True).start(f"{folder}/output")
    query.awaitTermination(100)
    found = {
        "class": type(spark).__module__,
        "table": table.count(),
        "view": spark.sql("SELECT count(*) AS found FROM orders").collect()[0]["found"],
        "stream": spark.read.json(f"{folder}/output").count(),
        "misspelled": told(spark.read.format("penstock").options(path=path, subscrbe="orders")),
    }
    print(json.dumps(found))
    spark.stop()


main(*sys.argv[1:])
