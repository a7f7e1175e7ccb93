"""Runs cases interleaved: a round measures each of them once, so that noise hits all alike."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.model import Case, Missing, Sample, Scale, Workload
from benchmarks.results import Result, best, ratio_to_bound

Tell = Callable[[str], None]


class Runner:
    """Measures the cases of workloads in a folder of the disk that is to be measured."""

    def __init__(self, folder: Path, scale: Scale, tell: Tell = lambda _: None) -> None:
        self.failures: dict[str, str] = {}
        self.skipped: dict[str, str] = {}
        self._folder = folder
        self._scale = scale
        self._tell = tell
        self._prepared: dict[str, Path] = {}

    def measure(self, cases: Sequence[Case]) -> list[Result]:
        """All rounds of some cases."""
        samples: dict[str, list[Sample]] = {case.name: [] for case in cases}
        try:
            for number in range(self._scale.rounds):
                for case in _rotated(cases, number):
                    self._tell(case.name)
                    self._measure_one(case, samples[case.name])
        finally:
            self._drop_prepared()
        left_out = self.failures.keys() | self.skipped.keys()
        good = [case for case in cases if case.name not in left_out]
        return results_of(good, samples)

    def _measure_one(self, case: Case, samples: list[Sample]) -> None:
        left_out = case.name in self.failures or case.name in self.skipped
        if left_out or (case.once and samples):
            return
        try:
            with self._folder_of(case) as folder:
                gc.collect()
                if self._scale.settle:
                    os.sync()  # let the disk finish what earlier cases left to it
                samples.append(case.run(folder))
        except Missing as missing:
            self.skipped[case.name] = str(missing)
        except Exception as error:
            self.failures[case.name] = f"{type(error).__name__}: {error}"

    @contextmanager
    def _folder_of(self, case: Case) -> Iterator[Path]:
        if case.prepared is not None:
            name = case.prepared.name
            if name not in self._prepared:
                self._prepared[name] = self._new_folder()
                case.prepared.build(self._prepared[name])
            yield self._prepared[name]
            return
        folder = self._new_folder()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))

    def _drop_prepared(self) -> None:
        for folder in self._prepared.values():
            shutil.rmtree(folder, ignore_errors=True)
        self._prepared.clear()


def _rotated(cases: Sequence[Case], number: int) -> Sequence[Case]:
    """Another case is first in each round."""
    start = number * len(cases) // 3 % len(cases) if cases else 0
    return [*cases[start:], *cases[:start]]


def selected(workloads: Sequence[Workload], scale: Scale, only: str | None) -> list[list[Case]]:
    """The cases of each workload; with ``only``, those whose name contains it."""
    found = [workload.cases(scale) for workload in workloads]
    chosen = [[case for case in cases if only is None or only in case.name] for cases in found]
    return [cases for cases in chosen if cases]


def results_of(cases: Sequence[Case], samples: dict[str, list[Sample]]) -> list[Result]:
    """The samples of the cases, summed up."""
    values = {name: [one.value for one in found] for name, found in samples.items()}
    bounds = {(case.group, case.unit): case.name for case in cases if case.bound}
    return [
        Result(
            name=case.name, workload=case.workload, payload_bytes=case.payload_bytes,
            point=case.point, contender=case.contender, what=case.what, unit=case.unit,
            bound=case.bound, samples=values[case.name],
            best=best(values[case.name], case.unit), median=median(values[case.name]),
            to_bound=ratio_to_bound(values, case.name, bounds.get((case.group, case.unit), "")),
            notes=_notes(samples[case.name]), durability=case.durability,
        )
        for case in cases
    ]  # fmt: skip


def _notes(samples: Sequence[Sample]) -> dict[str, float]:
    names = samples[0].notes
    return {name: float(median(one.notes.get(name, 0) for one in samples)) for name in names}
