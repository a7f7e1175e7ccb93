"""Reading the source as the house rules do: files, imports, names, sizes and words."""

import ast
import re
import subprocess
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "penstock"


@dataclass(frozen=True)
class Import:
    """One imported name: `from module import name` (name is None for `import module`)."""

    module: str
    name: str | None
    line: int


@cache
def tree_of(path: Path) -> ast.Module:
    with tokenize.open(path) as file:
        return ast.parse(file.read(), str(path))


def python_files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST) -> Iterator[Import]:
    """Yield every import, also those inside functions and under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, None, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            for alias in node.names:
                yield Import(node.module or "", alias.name, node.lineno)


def room_of(module: str) -> str:
    """The package or module directly under penstock; the root is `penstock` itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "penstock"


def full_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield (dotted name, line) of what is used, with import aliases resolved.

    `open` alone is `builtins.open`. Names that the file binds itself are not looked at further.
    """
    origin = {name: f"builtins.{name}" for name in ("open", "eval", "exec", "compile")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                origin[local] = alias.name if alias.asname else local
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                origin[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        dotted = dotted_name(node)
        head, _, rest = dotted.partition(".")
        if head in origin:
            yield f"{origin[head]}.{rest}".rstrip("."), getattr(node, "lineno", 0)


def dotted_name(node: ast.AST) -> str:
    """`os.path.exists` of an attribute chain that starts with a plain name that is read."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted_name(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body without the docstring; 0 for a stub (`...`, `pass` or only a docstring)."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) else function.body
    real = [node for node in body if not is_stub_statement(node)]
    if not real:
        return 0
    return (real[-1].end_lineno or 0) - real[0].lineno + 1


def is_stub_statement(node: ast.stmt) -> bool:
    ellipsis = isinstance(node, ast.Expr) and getattr(node.value, "value", None) is Ellipsis
    return ellipsis or isinstance(node, ast.Pass)


def function_sizes() -> list[tuple[int, str]]:
    """Lines and place of every function in src/, longest last."""
    return sorted(
        (body_lines(node), f"{shown(path)}:{node.lineno} {node.name}")
        for path in python_files(SOURCE)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node)
    )


def file_sizes(*folders: Path) -> list[tuple[int, str]]:
    return sorted(
        (len(path.read_text(encoding="utf-8").splitlines()), shown(path))
        for path in python_files(*folders)
    )


@cache
def text_files() -> list[Path]:
    """Every text file that is or would be committed; without git, the files of the known folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
        paths = {ROOT / name for name in listed.decode().split("\0") if name}
    except (OSError, subprocess.CalledProcessError):
        folders = ["src", "tests", "docs", "examples", "benchmarks", "requirements", "scripts"]
        paths = {path for folder in folders for path in (ROOT / folder).rglob("*")}
        paths |= set(ROOT.glob("*"))
    return sorted(path for path in paths if path.is_file() and is_text(path))


def is_text(path: Path) -> bool:
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return "\0" not in path.read_text(encoding="utf-8")


def places(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    found = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := pattern.search(line):
                found.append(f"{shown(path)}:{number}: {match[0]}")
    return found


def none_of(found: Sequence[object]) -> None:
    """Fail with one line for each thing found."""
    assert not found, "\n" + "\n".join(str(one) for one in found)
