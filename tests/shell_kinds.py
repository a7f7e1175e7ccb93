"""What becomes of each kind of line in the documents' blocks of shell: it is run with its page, or it is not.

A pattern fits the words of one command, without variables before it and without ``.venv/bin/``. A command that fits
none is undecided, and its page fails: whoever writes it adds it here. What is left out says so above its block in the
page, too, with the file that does the same: ``<!-- not executed: tests/test_examples.py runs it -->``.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple

from tests.shell_lines import bare, commands_of


class Left(NamedTuple):
    """Commands that are not run with their page."""

    pattern: str
    because: str
    done_by: str = ""
    """Who does the same, as ``file::what stands in it``; empty when nothing does."""

    @property
    def file(self) -> str:
        return self.done_by.partition("::")[0]


class Undecided(Exception):
    """Nobody has said yet whether such a line is run."""


RUN = (
    "cd *",
    "export *",
    "find . -type f *",
    "penstock *",
    "python -m hatchling build -t sdist",
    "python -m penstock --version",
    "python -m tests.*",
    "python examples/*/main.py *",
    "ruff format *",
    "tar --null *",
)
SERVERS = ("penstock dashboard*",)
"""Of those that are run: they go on until they are stopped, which is done when they have answered."""

_INSTALLED = "tests/test_installation.py::def test_it_works_in_a_fresh_environment"
_EXAMPLES = "tests/test_examples.py::def test_the_example_ends_well"
_PIPELINE = "tests/cli/test_pipeline.py::def test_a_pipeline_runs_until_it_is_asked_to_end"
_NETWORK = "it changes the environment, and fetches packages"
_OWN = "the environment is that of the tests"
_KUBERNETES = "it needs a Kubernetes cluster"
_BROKER = "it needs a broker"

LEFT = (
    Left("make demo", "it takes minutes", "tests/test_tour.py::def test_make_demo_is_the_tour"),
    Left("make demo *", "it takes minutes", "tests/test_tour.py::def test_make_demo_is_the_tour"),
    Left("make lint", "it takes minutes", ".ci/run::target lint"),
    Left(
        "make sbom",
        "make may make the environment anew",
        "tests/security/test_supply.py::scripts/sbom.py build/sbom.json",
    ),
    Left("make test", "it is the run that executes the pages"),
    Left("make test ARGS=*", "it is the run that executes the pages"),
    Left("make torture", "it takes hours"),
    Left("python3 -m venv env", _OWN, "tests/test_installation.py::def installed("),
    Left(". env/bin/activate", _OWN, "tests/test_installation.py::def installed("),
    Left("pip install *", _NETWORK, _INSTALLED),
    Left("pip wheel *", _NETWORK, _INSTALLED),
    Left("kubectl apply *", _KUBERNETES, "tests/spark/test_kubernetes.py::def manifest("),
    Left(
        "spark-submit --master k8s://*",
        _KUBERNETES,
        "tests/spark/test_kubernetes.py::def test_the_page_shows_the_very_line",
    ),
    Left(
        "spark-submit --master spark://*",
        "it needs a cluster",
        "tests/spark/test_cluster.py::def test_the_package_comes_as_a_zip",
    ),
    Left("penstock pipeline run *.py", "it runs until it is stopped", _PIPELINE),
    Left(
        "penstock pipeline stop *",
        "it fails where nothing runs",
        "tests/cli/test_pipeline.py::def test_stop_waits_until_the_pipeline_has_ended",
    ),
    Left("python examples/*/main.py", "it would run twice", _EXAMPLES),
    Left(
        "python examples/exactly_once_payments/main.py postgresql://*",
        "it needs a server",
        "tests/test_examples.py::def test_payments_are_booked_once_in_postgresql",
    ),
    Left(
        "python examples/shop_pipeline/main.py --keep *",
        "it takes minutes",
        "tests/test_tour.py::def test_the_whole_tour_ends_well",
    ),
    Left(
        "python examples/shop_pipeline/main.py --url kafka://*",
        _BROKER,
        "tests/spark/test_kafka_example.py::def test_the_shop_counts_the_same_on_kafka",
    ),
    *(
        Left(
            f"python examples/move_to_a_broker/main.py {name}://*",
            _BROKER,
            f"tests/transports/test_{name}.py::check_application(",
        )
        for name in ("kafka", "nats", "rabbitmq", "redis", "pulsar")
    ),
)


def left_out(line: str) -> list[Left]:
    """Why a line is not run, for each of its commands that forbids it; nothing when it is run."""
    found = []
    for words in commands_of(line):
        command = " ".join(bare(words))
        if one := next((one for one in LEFT if fnmatchcase(command, one.pattern)), None):
            found.append(one)
        elif not any(fnmatchcase(command, pattern) for pattern in RUN):
            raise Undecided(command)
    return found


def is_server(line: str) -> bool:
    commands = [" ".join(bare(words)) for words in commands_of(line)]
    return any(fnmatchcase(one, pattern) for one in commands for pattern in SERVERS)
