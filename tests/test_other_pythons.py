"""The tests of the core on other Pythons; pyproject.toml names those on which they pass.

Debian has one Python. Maven has others, as jars with the whole of CPython (org.bytedeco:cpython); the tests keep
them in their cache, beside Kafka and Pulsar. The packages are those of the lock.
"""

import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tests.java import CACHE
from tests.running import run_program

ROOT = Path(__file__).parent.parent
JARS = {"3.12": "3.12.1-1.5.10", "3.13": "3.13.5-1.5.12"}
INSIDE = "org/bytedeco/cpython/linux-x86_64"
PACKAGES = [
    "asyncpg", "boto3", "moto[server]", "obstore",
    "crc32c", "msgspec", "numpy", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis",
    "cronsim", "lz4", "opentelemetry-api", "opentelemetry-sdk", "prometheus-client", "pyarrow", "pydantic",
    "pydantic-settings", "rich", "typer", "zstandard",
]  # fmt: skip
FOLDERS = [
    "tests/log",
    "tests/stores",
    "tests/bus",
    "tests/resilience",
    "tests/scaling",
    "tests/pressure",
]


def test_the_pythons_that_are_named_are_those_that_are_run():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    assert named == ["3.11", *JARS]
    page = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    assert (
        f"all tests run on 3.11, those of the bus, the log and its stores on {' and '.join(JARS)} too"
        in page
    )


def python_of(version: str) -> Path:
    """That Python, unpacked in the cache; a test that cannot get it is skipped."""
    home = CACHE / f"cpython-{JARS[version]}"
    if not (home / ".complete").exists():
        maven = shutil.which("mvn")
        if maven is None:
            pytest.skip(f"there is no Maven, which gets Python {version}")
        artifact = f"org.bytedeco:cpython:{JARS[version]}:jar:linux-x86_64"
        options = [f"-Dartifact={artifact}", f"-DoutputDirectory={home}"]
        got = run_program(maven, "-q", "-B", "dependency:copy", *options, folder=ROOT)
        if got.returncode:
            pytest.skip(f"Maven cannot get Python {version}: {got.stdout[:200]}")
        [jar] = home.glob("*.jar")
        with zipfile.ZipFile(jar) as packed:
            packed.extractall(home, [one for one in packed.namelist() if one.startswith(INSIDE)])
        jar.unlink()
        (home / INSIDE / "bin" / f"python{version}").chmod(0o755)
        (home / ".complete").touch()
    return home / INSIDE / "bin" / f"python{version}"


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", list(JARS))
def test_the_tests_of_the_core_pass(version, tmp_path):
    python, inner = python_of(version), tmp_path / "venv"
    environment = {
        "LD_LIBRARY_PATH": str(python.parent.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_PROFILE": "quick",
    }

    def run(*command: str | Path) -> None:
        ended = run_program(*command, folder=ROOT, environment=environment, seconds=3500)
        assert ended.returncode == 0, ended.stdout[-4000:]
        print(*ended.stdout.splitlines()[-1:])  # how many passed, and how many were left out

    run(python, "-m", "venv", "--without-pip", inner)
    lock = re.sub(r" *\\\n *--hash=\S+", "", (ROOT / "requirements" / "dev.txt").read_text())
    (tmp_path / "lock.txt").write_text(lock)
    there = ["--quiet", "--python", inner / "bin" / "python", "-c", tmp_path / "lock.txt"]
    run(Path(sys.executable).parent / "uv", "pip", "install", *there, *PACKAGES)
    (site,) = inner.glob("lib/python3*/site-packages")
    (site / "penstock.pth").write_text(f"{ROOT / 'src'}\n")
    options = ["-q", "-n", "2", "--dist", "loadfile", "-p", "penstock.testing.plugin"]
    options += ["-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    run(inner / "bin" / "python", "-m", "pytest", *options, "-m", "not torture", *FOLDERS)
