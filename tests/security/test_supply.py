"""What Penstock stands on: few packages, each by its hash, and a list of all of them."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = [*sorted((ROOT / "requirements").glob("*.txt")), ROOT / "benchmarks" / "requirements.txt"]
CORE = {"crc32c", "msgspec", "numpy"}
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")


def requirements(text: str) -> list[str]:
    """Each requirement with all that belongs to it, in one line."""
    lines = text.replace("\\\n", " ").splitlines()
    return [one for one in lines if one.strip() and not one.lstrip().startswith("#")]


def test_each_package_of_the_lock_has_a_version_and_hashes(findings):
    findings.check(len(LOCKS) >= 3, f"there are {len(LOCKS)} locks")
    for lock in LOCKS:
        text = lock.read_text()
        findings.check("://" not in text and "index-url" not in text, f"{lock.name} names a host")
        for line in requirements(text):
            name = line.split()[0]
            findings.check("==" in name, f"{lock.name}: {name} has no version")
            findings.check(_HASH.search(line), f"{lock.name}: {name} has no hash")


def test_a_line_without_a_hash_is_found():
    good, bad = requirements("a==1 \\\n    --hash=sha256:" + "0" * 64 + "\n# x\nb==2\n")
    assert _HASH.search(good)
    assert not _HASH.search(bad)


def test_the_environment_is_made_with_hashes_alone(findings):
    script = (ROOT / "scripts" / "environment").read_text()
    installs = [one for one in script.split("\n") if re.search(r"pip (install|sync)", one)]
    text = script.replace("\\\n", " ")
    for line in installs:
        whole = next(one for one in text.split("\n") if line.strip(" \\") in one)
        fine = "--require-hashes" in whole or "--offline --no-deps" in whole
        findings.check(fine, f"installed without hashes: {whole.strip()}")


def test_the_core_stays_small(findings):
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=!~\[ ;]", one)[0] for one in settings["dependencies"]}
    findings.check(names == CORE, f"the core needs {names}")
    program = (
        "import sys; import penstock, penstock.log.queue, penstock.scaling.bus, penstock.opening; "
        "print(*{one.partition('.')[0] for one in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    ours = {"penstock", "cython_runtime", "typing_extensions", *CORE}  # numpy and msgspec load two
    loaded = set(done.stdout.split()) - set(sys.stdlib_module_names) - ours
    loaded = {one for one in loaded if not one.startswith(("_", "sitecustomize"))}
    findings.check(not loaded, f"the core imports {loaded}")


ALL = CORE | {"confluent-kafka", "nicegui", "pyarrow", "pyspark", "redis", "typer", "uvicorn"}
"""Some of what penstock[all] brings, or what that needs: nicegui asks for uvicorn."""
NOT_OURS = {"cyclonedx-bom", "hypothesis", "mkdocs", "mypy", "pip", "pytest", "ruff", "setuptools"}


def test_there_is_a_list_of_what_it_is_made_of(findings, tmp_path):
    """As `make sbom` and `make lint` write it; this needs no network."""
    recipes = (ROOT / "Makefile").read_text().split("\n\n")
    for target in ("lint", "sbom"):
        (recipe,) = [one for one in recipes if one.startswith(f"{target}: ")]
        findings.check("scripts/sbom.py build/sbom.json" in recipe, f"make {target} writes none")
    if not Path(sys.executable).with_name("cyclonedx-py").exists():
        pytest.skip("needs cyclonedx-bom")
    target = tmp_path / "build" / "sbom.json"
    subprocess.run([sys.executable, "scripts/sbom.py", target], cwd=ROOT, check=True)
    told = json.loads(target.read_text())
    findings.check(told["bomFormat"] == "CycloneDX", "it is no CycloneDX")
    findings.check(told["metadata"]["component"]["name"] == "penstock", "it is of something else")
    names = {one["name"].lower().replace("_", "-") for one in told["components"]}
    findings.check(names >= ALL, f"it lacks {ALL - names}")
    findings.check(not names & NOT_OURS, f"development alone needs {names & NOT_OURS}")
    versions = [one for one in told["components"] if not one.get("version")]
    findings.check(not versions, f"without a version: {versions}")
    refs = {one["bom-ref"] for one in (told["metadata"]["component"], *told["components"])}
    edges = {one["ref"]: set(one.get("dependsOn", ())) for one in told["dependencies"]}
    findings.check(edges.keys() == refs, f"who needs what: {edges.keys() ^ refs}")
    needed = set().union(*edges.values())
    findings.check(needed == refs - {"root-component"}, f"needed by none: {refs - needed}")


# ---------------------------------------------------------------------------------- the audit

UNKNOWN = "ERROR:pip_audit._cli:{0}: Dependency not found on PyPI and could not be audited: {0} (1)"
REFUSED = "requests.exceptions.ConnectionError: HTTPSConnectionPool: Max retries exceeded"
ASKED = 'case "$*" in *dev.txt*) name=numpy;; *) name=pip;; esac'
"""The audit asks for the lock; when PyPI does not know a package of it, for pip alone."""


def test_make_lint_looks_for_known_weaknesses():
    """Of packages of Python; code in Rust would need cargo audit beside it."""
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^lint: .*\n(\t.*\n)*\t@scripts/audit\n", makefile, re.MULTILINE)
    rust = [*ROOT.glob("Cargo.*"), *ROOT.glob("src/**/*.rs"), *ROOT.glob("src/**/Cargo.*")]
    assert rust == []


def audited(folder: Path, pip_audit: str | None) -> tuple[int, str]:
    """The audit in a repository of its own, whose pip-audit is this program of bash."""
    for name in ("scripts", "requirements", ".venv/bin"):
        (folder / name).mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "audit", folder / "scripts")
    if pip_audit is not None:
        program = folder / ".venv" / "bin" / "pip-audit"
        program.write_text(f"#!/usr/bin/env bash\n{pip_audit}\n")
        program.chmod(0o755)
    done = subprocess.run(
        [folder / "scripts" / "audit"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("pip_audit", "reason"),
    [
        (f'echo "{REFUSED}" >&2; exit 1', "cannot be reached"),
        ('echo "ERROR: Could not connect to PyPI\'s vulnerability feed" >&2; exit 1', "reached"),
        ("exit 124", "did not answer within two minutes"),
        (f'{ASKED}; echo "{UNKNOWN.format("$name")}" >&2; exit 1', "knows no package"),
    ],
    ids=["refused", "no connection", "timeout", "a mirror without the database"],
)
def test_an_audit_that_reaches_no_database_passes_and_says_why(tmp_path, pip_audit, reason):
    code, said = audited(tmp_path, pip_audit)
    assert code == 0, said
    assert "skipped" in said
    assert reason in said


@pytest.mark.parametrize(
    ("pip_audit", "reason"),
    [
        (None, "No such file"),
        ("echo 'Found 1 known vulnerability in 1 package' >&2; exit 1", "Found 1 known"),
        (f'echo "{REFUSED}"; echo "Found 2 known vulnerabilities in 1 package"; exit 1', "Found 2"),
        ("echo 'invalid requirements input: requirements/dev.txt' >&2; exit 1", "invalid"),
        ("echo 'KeyError: aliases' >&2; exit 1", "KeyError"),
        ("echo 'error: unrecognized arguments: --strict' >&2; exit 2", "unrecognized"),
        ("kill -9 $$", "exit code 137"),
        (
            f'{ASKED}; [ $name = pip ] || echo "{UNKNOWN.format("$name")}" >&2; exit 1',
            "numpy: Dependency not found",
        ),
    ],
    ids=[
        "no pip-audit", "weak", "weak, and a connection lost", "no lock", "crash", "usage", "killed",
        "a package that PyPI does not know",
    ],
)  # fmt: skip
def test_an_audit_that_fails_otherwise_fails(tmp_path, pip_audit, reason):
    code, said = audited(tmp_path, pip_audit)
    assert code == 1, said
    assert "skipped" not in said
    assert reason in said


def test_an_audit_that_finds_nothing_passes(tmp_path):
    code, said = audited(tmp_path, "echo 'No known vulnerabilities found' >&2")
    assert (code, said) == (0, "Known weaknesses (pip-audit): none in requirements/dev.txt.\n")


def test_the_audit_never_calls_a_lookup_that_failed_good(findings, tmp_path):
    """Without --strict, pip-audit leaves out what it cannot look up."""
    words = '[[ " $* " = *" --strict "* && " $* " = *" --require-hashes "* ]]'
    code, said = audited(tmp_path, words)
    findings.check(code == 0, f"without --strict nothing found is called good: {said}")
    findings.check("scripts/audit" in (ROOT / "Makefile").read_text(), "make lint does not run it")
