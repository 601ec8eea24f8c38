"""Half precision with five bits of exponent.

What it detects
    The run trained in fp16 and not in bf16. It is medium, or low where the log has gradient norms and all of
    them are finite. `bf16: auto`, and unsloth runs with neither set, leave the choice to the machine and are
    not judged.

Why it matters
    fp16 overflows at 65504, which models trained in bf16 (Llama, Qwen, Gemma, Mistral) exceed inside. A loss
    scaler then skips steps, and in the worst case the loss is NaN. bf16 has the range of float32.

What to do
    Set bf16 to true and fp16 to false on any GPU since Ampere (A100, RTX 30); on older ones keep fp16 and watch
    the log for NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell, Need, check
from gradian.types import Finding, Severity


@check("config.fp16_precision", "fp16 rather than bf16", needs=(Need.RUN,))
def fp16_precision(audit: Audit) -> Iterator[Finding]:
    """Look at the two precision switches."""
    run = audit.artifact
    fp16, bf16 = run.hyper.fp16, run.hyper.bf16
    if fp16 and bf16 is not True:
        norms = [row.grad_norm for row in run.train_log if row.grad_norm is not None]
        finite = sum(map(math.isfinite, norms))
        yield Finding(
            "config.fp16_precision",
            Severity.LOW if norms and finite == len(norms) else Severity.MEDIUM,
            "The run trained in `fp16` rather than bf16",
            f"{finite} of {len(norms)} logged gradient norms are finite."
            if norms
            else "No norms are logged.",
            "Set bf16 to true and fp16 to false where the GPU has bf16.",
            figures={"fp16": True, "finite_norms": finite, "logged_norms": len(norms)},
        )
    elif bf16 == "auto" and fp16 is not False:
        raise CannotTell("bf16 is auto, which leaves the precision to the machine")
    elif run.trainer == "unsloth" and not bf16:
        raise CannotTell("unsloth chose the precision when it ran, and the settings do not say which")
    elif fp16 is None and bf16 is None:
        raise CannotTell("the run folder records no precision")
