"""The session: settings that suit topics, one Spark in a process."""

import os
import sys
from importlib import metadata

import pytest

from penstock.errors import InvalidOption, NotSupported
from penstock.spark import spark_session
from penstock.spark.session import JAVA_OPTIONS, _prepare, settings


def test_a_local_session_has_as_many_shuffle_partitions_as_cores():
    assert settings("local[8]")["spark.sql.shuffle.partitions"] == "8"
    assert settings("local")["spark.sql.shuffle.partitions"] == "2"
    assert "spark.sql.shuffle.partitions" not in settings("spark://master:7077")
    assert "spark.driver.host" not in settings("spark://master:7077")


def test_what_is_asked_for_goes_before_what_is_chosen():
    found = settings("local[2]", {"spark.ui.enabled": "true", JAVA_OPTIONS: "-Xmx3g"})
    assert found["spark.ui.enabled"] == "true"
    assert "-Xmx3g" in found[JAVA_OPTIONS]
    assert "-Xss4m" in found[JAVA_OPTIONS]


def test_a_pyspark_that_is_too_old_is_told(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "3.5.1")
    with pytest.raises(NotSupported, match=r"pyspark 3\.5\.1 is too old, 4\.3 is needed"):
        spark_session()


def test_there_is_one_spark_in_a_process(spark):
    assert spark_session(master="local[2]") is spark
    with pytest.raises(InvalidOption, match=r"a Spark session on local\[2\] runs in this process"):
        spark_session(master="local[1]")


def test_the_session_has_the_settings(spark):
    for name, value in settings("local[2]").items():
        if name != JAVA_OPTIONS:
            assert spark.conf.get(name) == value, name


@pytest.mark.parametrize("given", [None, "/opt/shop/bin/python"])
def test_workers_use_this_python_if_no_other_is_named(given, spark, monkeypatch):
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(variable, raising=False)
    if given is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", given)
    _prepare(local=True)
    assert os.environ["PYSPARK_PYTHON"] == (given or sys.executable)
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
