"""A pipeline from the file that declares it."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from types import ModuleType

from penstock.errors import InvalidOption, UsageError
from penstock.spark.pipeline import Pipeline
from penstock.system import OsFiles


def load_pipeline(place: str) -> Pipeline:
    """The pipeline that a file declares: ``shop.py``, or ``shop.py:orders`` when there are several.

    The file is imported, once, so do not load one that you would not run. What it defines travels to
    Spark's processes by value; modules that it imports have to be installed where they run.
    """
    path, _, name = place.partition(":")
    module = _import(os.path.abspath(path))
    found = {key: one for key, one in vars(module).items() if isinstance(one, Pipeline)}
    if name and name not in found:
        raise InvalidOption(
            f"{path} has no pipeline {name!r}: there is {', '.join(found) or 'none'}", option="file"
        )
    different = {id(one) for one in found.values()}
    if not name and len(different) != 1:
        raise InvalidOption(
            f"{path} has {len(different)} pipelines: say which one, {path}:{'|'.join(found) or 'NAME'}",
            option="file",
        )
    return found[name] if name else next(iter(found.values()))


def _import(path: str) -> ModuleType:
    if not OsFiles().exists(path):
        raise InvalidOption(f"there is no file {path}", option="file")
    name = os.path.basename(path).removesuffix(".py")
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == path:
        return _by_value(known)
    if known is not None or not name.isidentifier():
        raise InvalidOption(
            f"{path}: a module {name!r} cannot be imported under that name: rename the file",
            option="file",
        )
    return _by_value(_run(name, path))


def _run(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidOption(f"{path} is no Python file", option="file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # As Python does for the program that it starts.
    sys.path.insert(0, os.path.dirname(path))
    try:
        spec.loader.exec_module(module)
    except Exception as cause:
        del sys.modules[name]
        raise UsageError(f"{path} cannot be imported: {_told(cause, path)}") from cause
    finally:
        sys.path.remove(os.path.dirname(path))
    return module


def _by_value(module: ModuleType) -> ModuleType:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def _told(cause: Exception, path: str) -> str:
    lines = [
        one.lineno for one in traceback.extract_tb(cause.__traceback__) if one.filename == path
    ]
    place = f"line {lines[-1]}: " if lines else ""
    return f"{place}{type(cause).__name__}: {cause}"
