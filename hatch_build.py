"""Builds penstock._speedups where there is Cython and a compiler; elsewhere the Python beside it is used.

``PENSTOCK_SPEEDUPS=0`` leaves it out: that wheel runs anywhere. Nothing here fails a build.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULE = "penstock._speedups"
SOURCE = "src/penstock/_speedups.pyx"
PROGRAM = """
import sys
from Cython.Build import cythonize
from setuptools import Extension, setup

module, source, place, work = sys.argv[1:]
made = cythonize([Extension(module, [source])], build_dir=work, quiet=True)
setup(script_args=["-q", "build_ext", "-b", place, "-t", work], ext_modules=made)
"""


def build(root: Path, place: Path) -> Path | None:
    """The compiled module, below ``place``; None when that cannot be had here."""
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-c", PROGRAM, MODULE, SOURCE, str(place), work]
        done = subprocess.run(command, cwd=root, capture_output=True, check=False)  # noqa: S603
    found = sorted((place / "penstock").glob("_speedups.*.so")) if done.returncode == 0 else []
    return found[0] if found else None


class Speedups(BuildHookInterface[Any]):
    """For wheels: one with the module for this platform. An editable install has it in its folder."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or os.environ.get("PENSTOCK_SPEEDUPS") == "0":
            return
        root = Path(self.root)
        place = root / "src" if version == "editable" else Path(self.directory) / "speedups"
        made = build(root, place)
        if made is None or version == "editable":
            return
        build_data["force_include"][str(made)] = f"penstock/{made.name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
