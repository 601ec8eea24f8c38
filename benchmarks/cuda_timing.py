"""Times on a CUDA device: by its own events, each run on fresh inputs and with a cold cache.

Before each run the inputs are copied (a kernel may write over its own, and what it leaves must not be what the
next run reads) and a buffer larger than the L2 cache is written. Neither is measured. While the device writes
the buffer, the host already submits what is measured, so that launches cost nothing unless they take longer
than that. Runs of all variants alternate, as in `side_by_side`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

WARM_UP = 3
_LEAST_FLUSH = 256 << 20
_LARGEST_COPY = 1 << 30

Run = Callable[..., object]


@dataclass(frozen=True)
class Seconds:
    """Median, least and most of the measured runs."""

    median: float
    least: float
    most: float


def time_in_turn(
    variants: Mapping[str, Run], inputs: Sequence[Tensor], repeats: int, device: torch.device
) -> dict[str, Seconds]:
    """Return what each variant takes on copies of the inputs, by name."""
    l2 = torch.cuda.get_device_properties(device).L2_cache_size
    flush = torch.empty(max(2 * l2, _LEAST_FLUSH), dtype=torch.int8, device=device)
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(WARM_UP + repeats):
        for name, run in variants.items():
            copies = [each.clone() for each in inputs]
            start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            flush.zero_()
            start.record()
            run(*copies)
            end.record()
            torch.cuda.synchronize(device)
            if turn >= WARM_UP:
                times[name].append(start.elapsed_time(end) / 1e3)
    return {name: Seconds(statistics.median(each), min(each), max(each)) for name, each in times.items()}


def copy_bandwidth(repeats: int, device: torch.device) -> float:
    """Return the bytes per second, read and written, of a copy on the device, by the median."""
    size = min(_LARGEST_COPY, torch.cuda.mem_get_info(device)[0] // 8)
    source = torch.empty(size, dtype=torch.int8, device=device).random_()
    target = torch.empty_like(source)
    times = time_in_turn({"copy": lambda: target.copy_(source)}, (), repeats, device)
    return 2 * size / times["copy"].median
