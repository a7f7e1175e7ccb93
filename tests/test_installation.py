"""What is built installs in a fresh environment away from the repository, where no compiler is, and works."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
UV = Path(sys.executable).parent / "uv"
NO_COMPILER = {"CC": "/nowhere/cc", "PENSTOCK_SPEEDUPS": "1"}

PROGRAM = """
import asyncio, pathlib, sys
import penstock
from penstock import WalMessageQueue

assert pathlib.Path(sys.prefix) in pathlib.Path(penstock.__file__).parents, penstock.__file__


async def main():
    async with WalMessageQueue("data") as queue:
        await queue.publish_many("orders", [b"one", b"two"])
    async with WalMessageQueue("data") as queue, queue.subscribe("orders", "billing") as orders:
        for wanted in (b"one", b"two"):
            order = await anext(orders)
            assert order.value == wanted
            await orders.commit(order)


asyncio.run(main())
print("published and consumed")
"""

TWIN = """
import pathlib, sys
from penstock.scaling.cells import Cells
from penstock.speedups import compiled

if compiled is None:
    print("Python alone")
else:
    assert pathlib.Path(sys.prefix) in pathlib.Path(compiled.__file__).parents, compiled.__file__
    print("the twin" if Cells is compiled.Cells else "the twin, beside what is used")
"""


def build(target: Path, *kinds: str, **environment: str) -> list[Path]:
    """Built with the locked hatchling: no network, no isolation."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target)]
    command += [word for kind in kinds for word in ("-t", kind)]
    subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, check=True)
    return [*target.glob("*.whl"), *target.glob("*.tar.gz")]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist, made where there is no compiler."""
    wheel, sdist = build(tmp_path_factory.mktemp("built"), "sdist", "wheel", **NO_COMPILER)
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture(scope="module")
def platform_wheel(tmp_path_factory):
    """The wheel that a machine with a compiler makes."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    (wheel,) = build(tmp_path_factory.mktemp("platform"), "wheel", PENSTOCK_SPEEDUPS="1")
    assert not wheel.name.endswith("-py3-none-any.whl")
    return wheel


def locked() -> list[str]:
    """The versions of the lock, for this Python."""
    text = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
    found = []
    for line in re.findall(r"^[a-zA-Z].*?(?= \\$| *--hash)", text, re.MULTILINE):
        one = Requirement(line.strip())
        if one.marker is None or one.marker.evaluate():
            found.append(f"{one.name}{one.specifier}")
    return found


def run(command, folder, **environment):
    """In a folder of its own; nothing of the repository is on its way."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean.pop("VIRTUAL_ENV", None)
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def installed(folder: Path, what: Path, *options: str) -> Path:
    """A fresh environment with this in it; its Python. What others need comes from uv's cache, or is fetched."""
    made = run([UV, "venv", "--python", sys.executable, folder / "venv"], folder)
    assert made.returncode == 0, made.stderr
    python = folder / "venv" / "bin" / "python"
    versions = folder / "versions.txt"
    versions.write_text("\n".join(locked()))
    command = [UV, "pip", "install", "--python", python, "--constraint", versions]
    command += ["--build-constraint", versions, *options, what]
    done = run([*command, "--offline"], folder, **NO_COMPILER)
    if done.returncode:
        done = run(command, folder, **NO_COMPILER)
    if "Failed to fetch" in done.stderr:
        pytest.skip(f"what the core needs cannot be had here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    return python


@pytest.mark.parametrize(
    ("what", "options", "runs"),
    [
        ("wheel", ["--no-build"], "Python alone"),
        ("sdist", [], "Python alone"),
        ("platform wheel", ["--no-build"], "the twin"),
    ],
)
def test_it_works_in_a_fresh_environment_without_a_compiler(request, tmp_path, what, options, runs):
    platform = what == "platform wheel"
    file = request.getfixturevalue("platform_wheel" if platform else "built")
    python = installed(tmp_path, file if platform else file[what], *options)
    told = run([python, "-m", "penstock", "--version"], tmp_path)
    assert (told.returncode, told.stdout.split()[-1]) == (0, PROJECT["version"]), told.stderr
    assert run([python.parent / "penstock", "--version"], tmp_path).stdout == told.stdout

    loops = run([python, "-W", "error", "-c", TWIN], tmp_path, PENSTOCK_SPEEDUPS="1")
    assert loops.stdout == f"{runs}\n", loops.stderr
    finished = run([python, "-W", "error", "-c", PROGRAM], tmp_path, PENSTOCK_SPEEDUPS="1")
    assert finished.stdout == "published and consumed\n", finished.stderr

    verb = run([python, "-m", "penstock", "topic", "list"], tmp_path)
    assert verb.returncode != 0
    assert "pip install 'penstock[cli]'" in verb.stderr


def test_the_sdist_has_what_a_build_needs_and_nothing_that_was_built(built):
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE"} <= names
    assert {"src/penstock/__init__.py", "src/penstock/_speedups.pyx"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc", "_speedups.c"))]
    # They need benchmarks, examples and scripts, which are not in it either.
    assert not [name for name in names if name.startswith("tests")]


# ------------------------------------------------------------------------------ the page of extras


def documented() -> dict[str, set[str]]:
    """The extras of the page, with the packages that it names."""
    page = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page, re.MULTILINE)
    return {name: set(packages.split(", ")) for name, packages in rows}


def test_the_page_names_every_extra_and_no_other():
    assert set(documented()) == set(PROJECT["optional-dependencies"])


def test_the_page_names_what_each_extra_brings():
    shown = documented()
    for name, lines in PROJECT["optional-dependencies"].items():
        packages = {Requirement(line).name for line in lines}
        if packages != {"penstock"}:
            assert shown[name] == packages, name


def test_the_readme_leads_to_the_page():
    assert "(docs/installation.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
