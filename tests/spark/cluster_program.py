"""A driver in a cluster: a topic to a topic and to a table; run by test_cluster.py."""

from __future__ import annotations

import json
import sys
import warnings

from penstock.spark import spark_session
from penstock.spark.session import JAVA_OPTIONS
from tests.spark.conftest import QUICK


def where_from(_: object) -> str:
    """In a task: where the package comes from."""
    import penstock

    return str(penstock.__file__)


def main(master: str, log: str, folder: str, batch: str, zipped: str) -> None:
    warnings.simplefilter("ignore")
    settings = {
        JAVA_OPTIONS: QUICK,
        "spark.executor.extraJavaOptions": QUICK,
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        # One that is killed more than a few times is not the point here.
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.task.maxFailures": "8",
    }
    if zipped:
        settings["spark.submit.pyFiles"] = zipped
    spark = spark_session("cluster", master=master, config=settings)
    context = spark.sparkContext
    places = context.parallelize(range(8), 8).map(where_from).distinct().collect()
    print(json.dumps({"places": places}), flush=True)
    rows = spark.readStream.format("penstock").options(
        path=log, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=batch,
        minPartitions="4", groupId="cluster",
    )  # fmt: skip
    for sink, target in (
        ("penstock", {"path": log, "topic": "copy", "partitions": "2"}),
        ("penstock_table", {"path": f"{folder}/table"}),
    ):
        writer = rows.load().select("key", "value").writeStream.format(sink).options(**target)
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint-{sink}")
        query = writer.trigger(availableNow=True).start()
        while not query.lastProgress and query.isActive:
            query.awaitTermination(1)
        print(json.dumps({"running": sink}), flush=True)
        query.awaitTermination(200)
    print(json.dumps({"done": True}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
