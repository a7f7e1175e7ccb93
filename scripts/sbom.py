"""Write what Penstock with all of its extras is made of: ``python scripts/sbom.py build/sbom.json`` (CycloneDX).

The environment of development has all of that, and much more. So cyclonedx-py lists the environment, and of
its list stays what ``penstock[all]`` leads to by the requirements of each package, on this Python and platform.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PENSTOCK = "penstock"


def needs(name: str, extras: frozenset[str]) -> list[Requirement]:
    """What a package asks for here, with these extras of it."""
    asked = [Requirement(line) for line in distribution(name).requires or ()]
    chosen = ("", *extras)
    return [
        one
        for one in asked
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in chosen)
    ]


def closure() -> dict[str, set[str]]:
    """Every package that ``penstock[all]`` leads to, and itself, each with those that it needs."""
    found: dict[str, set[str]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    ahead = [(PENSTOCK, frozenset({"all"}))]
    while ahead:
        name, extras = ahead.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        mine = found.setdefault(name, set())
        for one in needs(name, extras):
            other = canonicalize_name(one.name)
            ahead.append((other, frozenset(one.extras)))
            mine |= {other} - {name}
    return found


def only(bom: dict[str, Any], found: dict[str, set[str]]) -> dict[str, Any]:
    """The list without the other packages; each that stays says what it needs."""
    root = bom["metadata"]["component"]["bom-ref"]
    kept = [one for one in bom["components"] if canonicalize_name(one["name"]) in found]
    refs = {canonicalize_name(one["name"]): one["bom-ref"] for one in kept} | {PENSTOCK: root}
    if missing := found.keys() - refs.keys():
        raise SystemExit(f"sbom: the environment lacks {', '.join(sorted(missing))}")
    edges: list[dict[str, Any]] = []
    for name, ref in sorted(refs.items(), key=lambda one: one[1]):
        others = sorted(refs[other] for other in found[name])
        edges.append({"ref": ref} | ({"dependsOn": others} if others else {}))
    return bom | {"components": kept, "dependencies": edges}


def main() -> None:
    """Write the list into the file that is named."""
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    words = (
        "environment --pyproject pyproject.toml --mc-type library --short-PURLs --spec-version 1.6"
    )
    words += " --output-reproducible --no-validate --of JSON"
    program = Path(sys.executable).with_name("cyclonedx-py")
    listed = subprocess.run(
        [program, *words.split(), sys.executable],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        raise SystemExit(f"sbom: {listed.stderr}")
    text = json.dumps(only(json.loads(listed.stdout), closure()), indent=2) + "\n"
    if wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise SystemExit(f"sbom: {wrong}")
    target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
