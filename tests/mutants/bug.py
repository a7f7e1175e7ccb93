"""What a seeded bug is: a small change of the source, and the tests that must notice it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"


class Bug(NamedTuple):
    """The text ``old`` stands once in the file, and becomes ``new``."""

    name: str
    file: str
    """Below src/penstock."""
    old: str
    new: str
    tests: tuple[str, ...]
    """Below tests, as pytest names them. At least one of them must fail, and none without the bug."""

    @property
    def area(self) -> str:
        """The part of Penstock that it is in."""
        return self.file.partition("/")[0]

    def path_in(self, source: Path) -> Path:
        """The file that it changes, in a copy of the source."""
        return source / "penstock" / self.file

    def problem(self, source: Path = SOURCE) -> str | None:
        """Why the change cannot be made; None when it can."""
        path = self.path_in(source)
        if not path.is_file():
            return f"{self.name}: there is no {self.file}"
        count = path.read_text().count(self.old)
        if count != 1:
            return f"{self.name}: the old text stands {count} times in {self.file}"
        return None

    def put_in(self, source: Path) -> None:
        """Make the change in a copy of the source."""
        problem = self.problem(source)
        assert problem is None, problem
        path = self.path_in(source)
        path.write_text(path.read_text().replace(self.old, self.new))
