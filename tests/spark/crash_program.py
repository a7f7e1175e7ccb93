"""A driver that is killed again and again: a topic to a table and to a topic; run by test_crash_kills.py.

It runs until there is a file ``stop`` in the folder and all that was published is written. A third
argument asks for the quicker form: one executor, and Pythons that are forked, so that one that was killed is there again
sooner.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from penstock import Event, topic
from penstock.errors import HandlerFailed
from penstock.spark import Pipeline, spark_session
from penstock.spark.session import JAVA_OPTIONS
from tests.spark.conftest import QUICK
from tests.spark.forks import NAME, forks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark import RunningPipeline

RECORDS_MAX = 1_000
FAILURES_MAX = 1_000


@topic("sold", key="item")
class Sold(Event):
    item: str
    amount: int


def shop(log: str, folder: str) -> Pipeline:
    pipeline = Pipeline("shop", log=log, folder=folder, records_max=RECORDS_MAX)
    sold = pipeline.source(Sold)

    @pipeline.table("sold")
    def to_table() -> DataFrame:
        return sold.frame().selectExpr("item", "amount", "_record.partition", "_record.offset")

    @pipeline.topic("sold-again", key="item", partitions="2")
    def to_topic() -> DataFrame:
        return sold.frame().selectExpr("item", "amount", "_record.partition", "_record.offset")

    return pipeline


def is_stopped(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "stop"))


SETTINGS = {
    JAVA_OPTIONS: QUICK,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    # A master gives up an application whose executors die again and again.
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.task.maxFailures": "8",
}


def has_failed(running: RunningPipeline) -> bool:
    return any(query.exception() is not None for query in running.queries.values())


def must_end(running: RunningPipeline, folder: str) -> bool:
    return is_stopped(folder) or has_failed(running)


def main(log: str, folder: str, forked: str = "") -> None:
    warnings.simplefilter("ignore")
    with forks() if forked else nullcontext("") as name:
        os.environ[NAME] = name
        run(log, folder, "1,2,512" if forked else "2,1,512")


def run(log: str, folder: str, executors: str) -> None:
    # Executors that are processes: the death of one, or of a worker, is no end of the query.
    spark = spark_session("crash", master=f"local-cluster[{executors}]", config=SETTINGS)
    pipeline = shop(log, folder)
    for _ in range(FAILURES_MAX):
        running = pipeline.start(spark)
        print("running", flush=True)
        try:
            running.serve(partial(must_end, running, folder))
            break
        except HandlerFailed as failure:
            print("failed", str(failure)[:200].replace("\n", " "), flush=True)
    pipeline.run(spark, timeout=240.0)
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
