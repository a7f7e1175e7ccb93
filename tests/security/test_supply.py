"""What Penstock stands on: few packages, each by its hash, and a list of all of them."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
CORE = {"crc32c", "msgspec", "numpy"}
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")


def requirements(text: str) -> list[str]:
    """Each requirement with all that belongs to it, in one line."""
    lines = text.replace("\\\n", " ").splitlines()
    return [one for one in lines if one.strip() and not one.lstrip().startswith("#")]


def test_each_package_of_the_lock_has_a_version_and_hashes(findings):
    findings.check(len(LOCKS) >= 2, f"there are {len(LOCKS)} locks")
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


def test_there_is_a_list_of_what_it_is_made_of(findings, tmp_path):
    """As `make sbom` writes it; this needs no network."""
    recipe = (ROOT / "Makefile").read_text()
    findings.check("cyclonedx-py environment" in recipe, "make sbom is gone")
    program = Path(sys.executable).with_name("cyclonedx-py")
    if not program.exists():
        pytest.skip("needs cyclonedx-bom")
    target = tmp_path / "sbom.json"
    subprocess.run(
        [program, "environment", "--pyproject", "pyproject.toml", "--short-PURLs",
         "--output-reproducible", "--no-validate", "--of", "JSON", "--output-file", target, sys.executable],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    told = json.loads(target.read_text())
    findings.check(told["bomFormat"] == "CycloneDX", "it is no CycloneDX")
    findings.check(told["metadata"]["component"]["name"] == "penstock", "it is of something else")
    names = {one["name"].lower().replace("_", "-") for one in told["components"]}
    findings.check(names >= CORE, f"it lacks {CORE - names}")
    versions = [one for one in told["components"] if not one.get("version")]
    findings.check(not versions, f"without a version: {versions}")


def test_the_audit_never_calls_a_lookup_that_failed_good(findings):
    script = (ROOT / "scripts" / "audit").read_text()
    findings.check("pip-audit --strict" in script, "without --strict nothing found is called good")
    findings.check("scripts/audit" in (ROOT / "Makefile").read_text(), "make lint does not run it")
