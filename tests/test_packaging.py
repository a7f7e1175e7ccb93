"""The wheel is pure Python, typed, complete and usable as one zip; the lock fits pyproject.toml."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Without the compiled twin, which runs on one platform only."""
    return build(tmp_path_factory.mktemp("wheel"), PENSTOCK_SPEEDUPS="0")


def build(target, **environment):
    """Build the wheel with the locked hatchling: no network, no isolation."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        check=True,
    )
    (built,) = target.glob("*.whl")
    return built


def test_the_wheel_runs_anywhere(wheel):
    assert wheel.name == f"penstock-{PROJECT['version']}-py3-none-any.whl"


def test_the_wheel_holds_every_module_and_nothing_else(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    expected = {str(path.relative_to(source)) for path in source.rglob("*.py")}
    assert names == expected | {"penstock/py.typed"}


def test_the_wheel_says_what_it_is(wheel):
    archive = zipfile.ZipFile(wheel)
    folder = f"penstock-{PROJECT['version']}.dist-info"
    metadata = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert f"{folder}/licenses/LICENSE" in archive.namelist()

    core = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    assert {one.name for one in core if one.marker is None} == {"crc32c", "msgspec", "numpy"}


def test_penstock_runs_from_the_zip(wheel, tmp_path):
    """Spark executors get the package as one file on their path."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import penstock; print(penstock.__file__)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, str(wheel)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout.startswith(str(wheel))


# --------------------------------------------------------------------------------- the lock


def locked_entries(name):
    """Yield (requirement, hashes) of a lock file."""
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if line and not line.lstrip().startswith("#"):
            requirement, *hashes = line.split("--hash=")
            yield Requirement(requirement.strip()), [one.strip() for one in hashes]


def wanted():
    """Every requirement that somebody wrote down: dependencies, extras and requirements/*.in."""
    lines = list(PROJECT["dependencies"])
    for extra in PROJECT["optional-dependencies"].values():
        lines += extra
    for file in sorted((ROOT / "requirements").glob("*.in")):
        lines += file.read_text(encoding="utf-8").splitlines()
    for line in lines:
        requirement = line.partition("#")[0].strip()
        if requirement and not requirement.startswith(("-r", "penstock[")):
            yield Requirement(requirement)


@pytest.mark.parametrize("name", ["uv.txt", "dev.txt"])
def test_every_locked_package_has_one_version_and_hashes(name):
    for requirement, hashes in locked_entries(name):
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), requirement


@pytest.mark.parametrize("python", ["3.11.7", "3.12.1", "3.13.0"])
def test_the_lock_satisfies_what_is_asked_for(python):
    """Fails when pyproject.toml or an .in file changed and `make lock` was not run."""
    here = {**default_environment(), "python_full_version": python, "python_version": python[:4]}
    versions = {
        canonicalize_name(locked.name): str(locked.specifier).removeprefix("==")
        for locked, _ in locked_entries("dev.txt")
        if locked.marker is None or locked.marker.evaluate(here)
    }
    for requirement in wanted():
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not locked: run make lock"
        assert requirement.specifier.contains(version, prereleases=True), requirement


def test_all_is_the_sum_of_the_extras():
    extras = dict(PROJECT["optional-dependencies"])
    (everything,) = extras.pop("all")
    assert Requirement(everything).extras == set(extras)


# ------------------------------------------------------------------------------ the twin


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_wheel_for_this_platform_has_the_compiled_twin_as_well(tmp_path):
    platform = build(tmp_path, PENSTOCK_SPEEDUPS="1")
    assert not platform.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(platform).namelist()
    assert any(re.fullmatch(r"penstock/_speedups\..*\.so", name) for name in names)
    assert "penstock/scaling/cells.py" in names


def test_without_a_compiler_the_wheel_is_the_one_that_runs_anywhere(tmp_path):
    broken = build(tmp_path, CC="/nowhere/cc", PENSTOCK_SPEEDUPS="1")
    assert broken.name.endswith("-py3-none-any.whl")
