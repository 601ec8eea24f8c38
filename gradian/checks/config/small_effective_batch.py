"""Steps of one or two rows with a high learning rate.

What it detects
    Batch size times accumulation times devices is at most `small_batch` (2) while the learning rate is at
    `high_learning_rate` (0.0003) or above. Packed rows hold several examples each and are not judged.

Why it matters
    A gradient of one row is mostly noise, and a high rate follows it all the way. Recorded run: 800 clean rows,
    batches of one, rate 5e-4: the capability fell by 2.43 nats, 15 of 16 items flipped and the norm was clipped
    on 97% of the steps. The damage is spread over all rows, so no row is to blame.

What to do
    Raise gradient_accumulation_steps until a step has 8 to 32 rows; it costs no memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.config._rate import configured_rate
from gradian.checks.registry import CannotTell, Need, check
from gradian.types import Finding, Severity

_ROWS_A_STEP = 16


@check("config.small_effective_batch", "Effective batch size of 1-2 with a high LR", needs=(Need.RUN,))
def small_effective_batch(audit: Audit) -> Iterator[Finding]:
    """Compare the rows behind a step, and the rate, with their thresholds."""
    run, limits = audit.artifact, audit.limits.config
    batch = run.hyper.effective_batch
    if batch is None:
        raise CannotTell("the run folder records no batch size")
    if batch > limits.small_batch or run.hyper.packing:
        return
    rate = configured_rate(run)
    if rate < limits.high_learning_rate:
        return
    accumulation = _ROWS_A_STEP * (run.hyper.grad_accum or 1) // batch
    yield Finding(
        "config.small_effective_batch",
        Severity.MEDIUM,
        f"An effective batch size of {batch} with lr={rate:g} is unstable",
        f"Each step follows the gradient of {batch} row(s): batch {run.hyper.per_device_batch} x accumulation "
        f"{run.hyper.grad_accum or 1} x devices {run.hyper.n_devices}.",
        f"Set gradient_accumulation_steps to {accumulation}, for {_ROWS_A_STEP} rows a step.",
        figures={"effective_batch": batch, "learning_rate": rate},
    )
