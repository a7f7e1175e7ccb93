"""What the source never does: run what it reads, ask a shell, or leave TLS unchecked."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
CYTHON = sorted(one for end in ("*.pyx", "*.pxd", "*.pxi") for one in (ROOT / "src").rglob(end))

BANNED_MODULES = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "jsonpickle", "joblib", "marshal", "shelve",
    "dbm", "xml", "lxml", "yaml", "ruamel", "telnetlib", "ftplib", "xmlrpc", "imp", "code", "codeop",
    "pty", "lua", "js2py", "jinja2",
}  # fmt: skip
BANNED_CALLS = {
    "eval", "exec", "compile", "__import__", "input", "breakpoint", "os.system", "os.popen",
    "os.execv", "os.execve", "os.execl", "os.spawnv", "os.spawnl", "subprocess.getoutput",
    "subprocess.getstatusoutput", "tempfile.mktemp", "ssl._create_unverified_context",
    "pickle.loads", "yaml.load", "runpy.run_path", "runpy.run_module", "types.FunctionType",
    "types.CodeType", "hashlib.md5", "hashlib.sha1", "random.seed",
}  # fmt: skip
BANNED_KEYWORDS = {
    "shell": "a shell would read names",
    "verify": "TLS must be verified",
    "check_hostname": "TLS must be verified",
    "verify_mode": "TLS must be verified",
    "ssl_cert_reqs": "TLS must be verified",
    "tls_allow_insecure_connection": "TLS must be verified",
}
BANNED_IN_C = {
    "system", "popen", "execve", "dlopen", "PyRun_SimpleString", "PyRun_String", "PyEval_EvalCode",
    "Py_CompileString", "PyMarshal_ReadObjectFromString",
}  # fmt: skip
BANNED_ATTRIBUTES = {"CERT_NONE", "CERT_OPTIONAL", "_create_unverified_context"}

# Modules are imported by name where the name stands in the code, or where the user installed it.
MAY_IMPORT_BY_NAME = {
    "penstock/__init__.py": "the names of the public door",
    "penstock/cli/dashboard.py": "the dashboard, which is an extra",
    "penstock/config/__init__.py": "the names of a door",
    "penstock/spark/__init__.py": "the names of a door",
    "penstock/speedups.py": "the compiled twins, whose names stand in the code",
    "penstock/testing/__init__.py": "the names of a door",
    "penstock/transports/registry.py": "transports that are installed: an entry point, or a call",
    "penstock/streaming/process_protocol.py": "the handler that the program names for a process of its own",
}


def findings_in(source: str) -> Iterator[str]:
    """What a file does that it must not."""
    names: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for one in node.names:
                names[one.asname or one.name.partition(".")[0]] = one.name
                if one.name.partition(".")[0] in BANNED_MODULES:
                    yield f"line {node.lineno} imports {one.name}"
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                names[one.asname or one.name] = f"{node.module}.{one.name}"
            if (node.module or "").partition(".")[0] in BANNED_MODULES:
                yield f"line {node.lineno} imports from {node.module}"
        elif isinstance(node, ast.Attribute) and node.attr in BANNED_ATTRIBUTES:
            yield f"line {node.lineno} uses {node.attr}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield from findings_in_call(node, names)


def findings_in_call(node: ast.Call, names: dict[str, str]) -> Iterator[str]:
    called = dotted(node.func, names)
    if called in BANNED_CALLS:
        yield f"line {node.lineno} calls {called}"
    for keyword in node.keywords:
        value = keyword.value
        plain = isinstance(value, ast.Constant) and value.value
        if keyword.arg == "shell" and plain:
            yield f"line {node.lineno}: {BANNED_KEYWORDS['shell']}"
        elif keyword.arg in BANNED_KEYWORDS and isinstance(value, ast.Constant) and not value.value:
            yield f"line {node.lineno}: {BANNED_KEYWORDS[keyword.arg]}"


def findings_in_cython(source: str) -> Iterator[str]:
    """The same for a file that Python cannot parse, by its words. Calls of C that run code are among them."""
    modules, calls = "|".join(BANNED_MODULES), "|".join(map(re.escape, BANNED_CALLS | BANNED_IN_C))
    for pattern, what in (
        (rf"^\s*(?:from|c?import)\s+(?:{modules})\b", "imports"),
        (rf"(?<![\w.])(?:{calls})\s*\(", "calls"),
        (rf"\b(?:{'|'.join(BANNED_ATTRIBUTES)})\b", "uses"),
    ):
        for found in re.finditer(pattern, source, re.MULTILINE):
            line = source.count("\n", 0, found.start()) + 1
            yield f"line {line} {what} {found[0].strip()}"


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, names)}.{node.attr}"
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def imports_by_name(source: str) -> bool:
    return "import_module(" in source or "__import__(" in source


def test_no_file_runs_what_it_reads_or_leaves_tls_unchecked(findings):
    for path in SOURCES:
        name = str(path.relative_to(ROOT / "src"))
        source = path.read_text()
        found = list(findings_in(source))
        if imports_by_name(source) and name not in MAY_IMPORT_BY_NAME:
            found.append("imports a module by a name that is made up")
        findings.check(not found, f"{name}: {'; '.join(found)}")


def test_no_file_of_cython_does_either(findings):
    findings.check(CYTHON, "there is none")
    for path in CYTHON:
        found = list(findings_in_cython(path.read_text()))
        findings.check(not found, f"{path.name}: {'; '.join(found)}")


@pytest.mark.parametrize(
    "bad",
    [
        "import pickle", "from pickle cimport loads", "cimport yaml", "  import marshal", "x = eval(text)",
        "exec (text)", "os.system(x)", "pickle.loads(data)", "yaml.load(data)", "PyRun_SimpleString(text)",
        "PyMarshal_ReadObjectFromString(a, b)", "popen(x)", "ssl.CERT_NONE",
    ],
)  # fmt: skip
def test_the_check_of_cython_finds_what_it_looks_for(bad):
    assert list(findings_in_cython(f"cdef int x = 1\n{bad}\n"))
    assert not list(findings_in_cython("cdef int evaluate(int x):\n    return self.compiled(x)\n"))


def test_what_may_import_by_name_does(findings):
    for name in MAY_IMPORT_BY_NAME:
        source = (ROOT / "src" / name).read_text()
        findings.check(imports_by_name(source), f"{name} does not any more: take it off the list")


@pytest.mark.parametrize(
    "bad",
    [
        "import pickle", "from pickle import loads", "import yaml", "eval('1')", "exec(text)",
        "import subprocess\nsubprocess.run(x, shell=True)", "import os\nos.system(x)",
        "from os import system as run\nrun(x)", "client(verify=False)", "client(check_hostname=False)",
        "import ssl\ncontext.verify_mode = ssl.CERT_NONE", "import hashlib as h\nh.md5(x)",
        "__import__(name)", "import xml.etree.ElementTree",
    ],
)  # fmt: skip
def test_the_check_finds_what_it_looks_for(bad):
    assert list(findings_in(bad))


def test_the_linter_looks_for_the_same(findings):
    """The rules of ruff called S are those of bandit; `make lint` runs them over the source."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    findings.check("ALL" in settings["select"], "not all rules are on")
    off = [rule for rule in settings["ignore"] if rule.startswith("S") and rule[1:2].isdigit()]
    findings.check(off == ["S101"], f"rules of security are off: {off}")
    for files, rules in settings["per-file-ignores"].items():
        touched = [
            rule for rule in rules if rule == "S" or rule[:2] in ("S1", "S2", "S3", "S5", "S6")
        ]
        fine = not touched or files.startswith(
            ("tests", "benchmarks", "examples", "scripts", "docs")
        )
        findings.check(fine, f"{files} may do {touched}")
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--quiet", "--select", "S", "--ignore", "S101", "src"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    findings.check(done.returncode == 0, done.stdout[-500:])
