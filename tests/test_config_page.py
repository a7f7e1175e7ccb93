"""The table of settings in docs/configuration.md is what the code says.

``python -m tests.test_config_page`` writes it.
"""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pydantic_settings", reason="settings need: pip install 'penstock[config]'")

from pydantic import BaseModel, SecretStr

from penstock.config import DashboardSettings, Settings, ThresholdSettings

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
BEGIN = "<!-- settings: python -m tests.test_config_page writes them -->"
END = "<!-- end of the settings -->"
TABLES: dict[str, type[BaseModel]] = {
    "dashboard": DashboardSettings,
    "thresholds": ThresholdSettings,
}


def meanings(kind: type[BaseModel]) -> dict[str, str]:
    """What each setting means: the text below it in the code."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for one, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(one, ast.AnnAssign)
            and isinstance(one.target, ast.Name)
            and isinstance(after, ast.Expr)
        ):
            text = inspect.cleandoc(ast.literal_eval(after.value))
            found[one.target.id] = " ".join(text.replace("``", "`").split())
    return found


def rows(kind: type[BaseModel], table: str = "") -> Iterator[str]:
    texts = meanings(kind)
    for name, field in kind.model_fields.items():
        if name in TABLES and not table:
            yield from rows(TABLES[name], f"{name}.")
            continue
        default = "" if field.default is None else f"`{field.default}`"
        secret = " (secret)" if SecretStr.__name__ in str(field.annotation) else ""
        yield f"| `{table}{name}`{secret} | {default} | {texts[name]} |"


def table() -> str:
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows(Settings)])


def test_the_page_says_what_the_code_says():
    text = PAGE.read_text()
    written = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()
    assert written == table(), "python -m tests.test_config_page"


def main() -> None:
    text = PAGE.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(f"{text[:start]}\n{table()}\n{text[end:]}")


if __name__ == "__main__":
    main()
