"""Two ways to compute one thing: time in turn, peak memory of each, one table and one JSON shape.

Time: every variant runs once unmeasured, then all of them run in turn, `repeats` times, in one process; a
variant's figure is the median of its runs. So a machine that slows down slows all of them down. On CUDA the
device is synchronised before each reading of the clock.

Peak memory: the most bytes of tensors that one run holds beyond what was there before it (weights, inputs).
On the CPU torch's profiler reports each allocation and release of torch's allocator; the peak of their running
sum does not depend on what else the process or the machine does, as a resident size would. It leaves out what
matrix libraries take for themselves. On CUDA it is `torch.cuda.max_memory_allocated`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    # A dependency of torch; in the standard library from Python 3.11 on.
    from typing_extensions import Self

Run = Callable[[], object]


@dataclass(frozen=True)
class Cost:
    """What one variant costs: median seconds and peak bytes of one run."""

    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Row:
    """One line of the result: ours against one baseline; `ratio` is ours over baseline, in time."""

    case: str
    ours_s: float
    baseline_s: float
    ratio: float
    ours_peak_bytes: int
    baseline_peak_bytes: int

    @classmethod
    def of(cls, case: str, ours: Cost, baseline: Cost) -> Self:
        """Set two costs side by side."""
        return cls(
            case=case,
            ours_s=ours.seconds,
            baseline_s=baseline.seconds,
            ratio=ours.seconds / baseline.seconds,
            ours_peak_bytes=ours.peak_bytes,
            baseline_peak_bytes=baseline.peak_bytes,
        )

    @property
    def peak_ratio(self) -> float:
        """Ours over baseline, in peak bytes."""
        return self.ours_peak_bytes / self.baseline_peak_bytes


@dataclass(frozen=True)
class Goal:
    """A figure that a case should reach: `measure` is "time" or "peak", `at_most` a ratio."""

    case: str
    measure: str
    at_most: float

    def sentence(self, rows: Sequence[Row]) -> str:
        """Say whether the goal is met."""
        row = next(row for row in rows if row.case == self.case)
        ratio = row.ratio if self.measure == "time" else row.peak_ratio
        return verdict(f"{self.case}: {self.measure} against the baseline's", ratio, at_most=self.at_most)


def verdict(
    what: str, figure: float, *, at_most: float = float("inf"), at_least: float = float("-inf")
) -> str:
    """Say whether a figure is within its bound; NaN never is."""
    met = "met" if at_least <= figure <= at_most else "MISSED"
    wanted = f"at least {at_least:g}" if at_most == float("inf") else f"at most {at_most:g}"
    return f"goal {met}: {what} {figure:.3f}, {wanted} wanted"


def peak_bytes(run: Run, device: torch.device) -> int:
    """Return the most bytes of tensors on `device` that `run` holds beyond those before it."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    # Read when the profiler first starts; below this level it logs every start and stop.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        run()
    changes = [
        (event.start_ns(), event.nbytes())
        for event in profile.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    held = peak = 0
    for _, change in sorted(changes, key=lambda change: change[0]):
        held += change
        peak = max(peak, held)
    return peak


def _seconds(run: Run, device: torch.device) -> float:
    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    start = now()
    run()
    return now() - start


def timings(variants: Mapping[str, Run], repeats: int, device: torch.device) -> dict[str, list[float]]:
    """Return the seconds of `repeats` runs of each variant, by name; the variants run in turn."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, run in variants.items():
            times[name].append(_seconds(run, device))
    return times


def measure(variants: Mapping[str, Run], repeats: int, device: torch.device) -> dict[str, Cost]:
    """Return the cost of each variant, by name; the run that finds the peak is the unmeasured one."""
    peaks = {name: peak_bytes(run, device) for name, run in variants.items()}
    times = timings(variants, repeats, device)
    return {name: Cost(statistics.median(times[name]), peaks[name]) for name in variants}


def relative_error(value: torch.Tensor, truth: torch.Tensor) -> float:
    """Return ||value - truth|| / ||truth||, in float64."""
    truth = truth.double()
    return float((value.double() - truth).norm() / truth.norm())


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the options that every benchmark takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--threads", type=int, help="torch's CPU threads (default: torch's own choice)")
    parser.add_argument("--repeats", type=int, default=5, help="measured runs of each variant (default: 5)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: checks the code, measures nothing")
    return parser


def machine(device: torch.device, dtype: torch.dtype) -> str:
    """Return what the figures depend on besides the code."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    chip = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{chip}, {torch.get_num_threads()} CPU threads{load}, {dtype}, {versions}, Python {platform.python_version()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def default_device() -> tuple[torch.device, torch.dtype]:
    """Return CUDA in bfloat16 where a GPU is visible, else the CPU in float32."""
    if torch.cuda.is_available():
        return torch.device("cuda"), torch.bfloat16
    return torch.device("cpu"), torch.float32


def report(
    title: str, setting: Sequence[str], rows: Sequence[Row], goals: Sequence[Goal], file: Path | None
) -> None:
    """Print the table and the goals, and write the rows as JSON if a file is given."""
    table = Table("case", title=title)
    for heading in ("ours s", "baseline s", "ratio", "ours MB", "baseline MB", "ratio"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.case,
            f"{row.ours_s:.3f}",
            f"{row.baseline_s:.3f}",
            f"{row.ratio:.2f}",
            f"{row.ours_peak_bytes / 1e6:,.1f}",
            f"{row.baseline_peak_bytes / 1e6:,.1f}",
            f"{row.peak_ratio:.2f}",
        )
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(table)
    console.print("\n".join(setting), soft_wrap=True, highlight=False)
    for goal in goals:
        console.print(goal.sentence(rows), soft_wrap=True, highlight=False)
    if file is not None:
        file.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
