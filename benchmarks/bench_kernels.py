"""Each Triton kernel: first whether it is right, then, on a GPU, what it takes beside what else one could run.

    python benchmarks/bench_kernels.py --json benchmarks/results/kernels-h100.json

Right means: the kernel's and the reference's outputs are within the tests' bounds of the float64 truth; if not,
nothing is measured and the exit code is 1. Measured are seconds (CUDA events; see `cuda_timing`), bytes that
must move per second as a share of what a copy on the same device reaches in the same run, and peak memory, of
the kernel, the pure torch reference, torch as one would write it, the same under torch.compile, and Liger's
kernel where it is installed. A row's ratio is the kernel's time over that way's.

Without a GPU the kernels run in Triton's interpreter on small shapes, and nothing is timed.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch import Tensor

if not torch.cuda.is_available():
    # Before triton is imported, which reads this once.
    os.environ["TRITON_INTERPRET"] = "1"
# The tests' bounds.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from cuda_timing import Seconds, copy_bandwidth, time_in_turn
from kernel_cases import KERNELS, OURS, REFERENCE, Case, Way
from rich.console import Console
from rich.table import Table
from side_by_side import arguments, peak_bytes, verdict

from gradian.ops._dispatch import OPS

NOT_TIMED = (
    "No GPU is visible: the kernels ran in Triton's interpreter on small shapes. Nothing was timed, and no figure "
    "here says anything about speed."
)
# The kernel's time over that of the fastest other way, at most, and its share of a copy's bandwidth, at least.
SLOWEST = 1.0
LEAST_SHARE = {"cross_entropy": 0.7}


@dataclass(frozen=True)
class Row:
    """One way of one case.

    Attributes:
        case: kernel, dtype and shape.
        way: who computes it.
        worst_error: of its outputs from the float64 truth, in units of the bound.
        seconds: median, or None where nothing was timed, as in all that follows.
        least_seconds: of the measured runs.
        most_seconds: of the measured runs.
        bytes_per_second: fewest bytes that must move over the median.
        share_of_copy: that over the bandwidth of a copy.
        flops_per_second: of matrix products, the fewest that must be done.
        peak_bytes: held beyond the inputs.
        ratio: the kernel's median over this one.
    """

    case: str
    way: str
    worst_error: float
    seconds: float | None = None
    least_seconds: float | None = None
    most_seconds: float | None = None
    bytes_per_second: float | None = None
    share_of_copy: float | None = None
    flops_per_second: float | None = None
    peak_bytes: int | None = None
    ratio: float | None = None


def cases(device: torch.device, small: bool) -> Iterator[Case]:
    """Make one case after the other."""
    for kernel in KERNELS:
        for shape in kernel.quick_shapes if small else kernel.shapes:
            for dtype in kernel.dtypes:
                yield kernel.make(shape, dtype, device)


def outputs(case: Case, ways: Mapping[str, Way]) -> dict[str, tuple[Tensor | None, ...]]:
    """Run each way once."""
    return {name: way(*(each.clone() for each in case.inputs)) for name, way in ways.items()}


def worst_errors(case: Case, made: Mapping[str, tuple[Tensor | None, ...]]) -> dict[str, float]:
    """Return each way's largest error from the float64 truth in units of its bound."""
    truths = case.truths()
    return {
        name: max(
            truth.excess(value) for truth, value in zip(truths, values, strict=True) if value is not None
        )
        for name, values in made.items()
    }


def peaks(case: Case, ways: Mapping[str, Way], device: torch.device) -> dict[str, int]:
    """Return the bytes that each way holds at most beyond its inputs."""
    found = {}
    for name, way in ways.items():
        copies = [each.clone() for each in case.inputs]
        found[name] = peak_bytes(partial(way, *copies), device)
    return found


def timed_rows(
    case: Case,
    errors: Mapping[str, float],
    peaks: Mapping[str, int],
    times: Mapping[str, Seconds],
    copy: float,
) -> list[Row]:
    """Set what was measured of a case's ways side by side."""
    return [
        Row(
            case=case.name,
            way=name,
            worst_error=errors[name],
            seconds=each.median,
            least_seconds=each.least,
            most_seconds=each.most,
            bytes_per_second=case.least_bytes / each.median,
            share_of_copy=case.least_bytes / each.median / copy,
            flops_per_second=case.least_flops / each.median if case.least_flops else None,
            peak_bytes=peaks[name],
            ratio=times[OURS].median / each.median,
        )
        for name, each in times.items()
    ]


def disagreements(
    case: Case, made: Mapping[str, tuple[Tensor | None, ...]], errors: Mapping[str, float]
) -> list[str]:
    """Say what is wrong with Gradian's own ways."""
    found = [
        f"{case.name}: {way} differs from the truth by {errors[way]:.2g} times its bound"
        for way in case.ways
        # Written so that NaN fails.
        if not errors[way] <= 1
    ]
    pairs = zip(made[OURS], made[REFERENCE], strict=True)
    if case.same_bits and not all(torch.equal(ours, theirs) for ours, theirs in pairs):  # type: ignore[arg-type]
        found.append(f"{case.name}: {OURS} differs from {REFERENCE} in some bit")
    return found


def goals(op: str, rows: Sequence[Row]) -> Iterator[str]:
    """Say whether the kernel is the fastest way, and near a copy where moving bytes is all it does."""
    ours = next(row for row in rows if row.way == OURS)
    ratio, way = max((row.ratio or 0.0, row.way) for row in rows if row is not ours)
    yield verdict(f"{ours.case}: time against the fastest other way's ({way})", ratio, at_most=SLOWEST)
    if op in LEAST_SHARE:
        yield verdict(
            f"{ours.case}: share of a copy's bandwidth", ours.share_of_copy or 0.0, at_least=LEAST_SHARE[op]
        )


def setting(device: torch.device) -> dict[str, str]:
    """Return what the figures depend on besides the code."""
    found = {"python": platform.python_version()}
    for name in ("torch", "triton", "liger-kernel"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["device"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        found["toolkit"] = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    else:
        found["device"] = "Triton's interpreter on the CPU"
    return found


def _cells(row: Row) -> tuple[str, ...]:
    def shown(value: float | None, scale: float, digits: int) -> str:
        return "" if value is None else f"{value * scale:,.{digits}f}"

    return (
        shown(row.worst_error, 1, 2),
        shown(row.seconds, 1e3, 3),
        shown(row.bytes_per_second, 1e-9, 0),
        shown(row.share_of_copy, 1, 2),
        shown(row.flops_per_second, 1e-12, 1),
        shown(row.peak_bytes, 1e-6, 1),
        shown(row.ratio, 1, 2),
    )


def report(rows: Sequence[Row], sentences: Sequence[str]) -> None:
    """Print the rows and what is to be said of them."""
    table = Table("case", "way", title="Triton kernels")
    for heading in ("error / bound", "ms", "GB/s", "of a copy", "TFLOP/s", "peak MB", "ratio"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(row.case, row.way, *_cells(row))
    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(table)
    console.print("\n".join(sentences), soft_wrap=True, highlight=False)


def main(argv: list[str] | None = None) -> int:
    """Check, measure where there is a GPU, and print; return the exit code."""
    options = arguments(__doc__).parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    copy = copy_bandwidth(options.repeats, device) if device.type == "cuda" else None
    rows: list[Row] = []
    sentences = [", ".join(f"{name} {value}" for name, value in setting(device).items())]
    sentences.append(NOT_TIMED if copy is None else f"A copy on the device moves {copy / 1e9:,.0f} GB/s.")
    for case in cases(device, small=options.quick or copy is None):
        obstacle = OPS[case.op].obstacle(OURS, device, case.inputs[0].dtype)
        if obstacle is not None:
            sentences.append(f"{case.name} was not run: {obstacle}")
            continue
        ways = case.ways if copy is None else {**case.ways, **case.baselines()}
        made = outputs(case, ways)
        errors = worst_errors(case, made)
        found = disagreements(case, made, errors)
        del made
        if found:
            print("\n".join(found), file=sys.stderr)
            return 1
        if copy is None:
            rows += [Row(case.name, way, error) for way, error in errors.items()]
        else:
            times = time_in_turn(ways, case.inputs, options.repeats, device)
            beside = timed_rows(case, errors, peaks(case, ways, device), times, copy)
            rows += beside
            sentences += () if options.quick else goals(case.op, beside)
    report(rows, sentences)
    if options.json is not None:
        document = {
            "timed": copy is not None,
            "setting": setting(device),
            "copy_bytes_per_second": copy,
            "rows": [asdict(row) for row in rows],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
