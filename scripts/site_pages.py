"""What the documentation site has beside docs/: mkdocs.yml names this file as a hook.

Pages link to the programs in examples/, to the changelog and so on, as they do in the repository. The
site gets copies of these, and the links are turned to them. A build tells of what is wrong, and of
nothing else.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
BESIDE = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "deploy/**/*",
    "examples/*.md",
    "examples/*/*.md",
    "examples/*/*.py",
]
LINK = re.compile(r"(?<=\]\()(?P<target>[^):#\s]+)(?=[)#])")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def beside() -> list[str]:
    """Files outside of docs/ that pages link to, from the root of the repository."""
    found = {path for pattern in BESIDE for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def place_of(path: str) -> str:
    """Where a file of the repository is on the site."""
    return path.removeprefix("docs/")


def turned(page: str, target: str, added: frozenset[str]) -> str:
    """The link as it is on the site, for a page of the site."""
    home = page if page in added else f"docs/{page}"
    meant = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
    if meant not in added and not meant.startswith("docs/"):
        return target
    return posixpath.relpath(place_of(meant), posixpath.dirname(page) or ".")


def on_startup(**_: Any) -> None:
    """Leave out what goes well; the option --quiet would leave out the warnings too."""
    logging.getLogger("mkdocs").setLevel(logging.WARNING)


def on_files(files: Files, *, config: Any) -> Files:
    """Add the files beside docs/."""
    for path in beside():
        if files.get_file_from_path(path) is None:
            files.append(File.generated(config, path, abs_src_path=os.fspath(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Turn the links of a page; those in blocks of code stay."""
    added = frozenset(beside())

    def turn(match: re.Match[str]) -> str:
        return turned(page.file.src_uri, match["target"], added)

    parts = re.split(f"({FENCE.pattern})", markdown, flags=FENCE.flags)
    return "".join(one if one.startswith("```") else LINK.sub(turn, one) for one in parts)
