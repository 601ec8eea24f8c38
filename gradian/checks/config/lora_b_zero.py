"""Adapted modules that do nothing.

What it detects
    In the adapter's weights, `lora_B` of some or all modules is exactly zero. All of them: critical. Some: high,
    or low where they are all in a vision or audio part, which text alone never reaches.

Why it matters
    LoRA starts with B at zero, and any gradient moves it. A module whose B is still exactly zero got none: the
    layer was frozen or detached, or the weights were lost when they were saved or merged. An adapter that is zero
    everywhere is the base model, and there is nothing to attribute.

What to do
    Check that these layers were trained (requires_grad, target_modules, gradient checkpointing with
    enable_input_require_grads), and save the adapter again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell, Need, check
from gradian.types import Finding, Severity

_NOT_TEXT = re.compile(r"(?i)vision|visual|audio|image")


@check("config.lora_b_zero", "Adapted modules whose lora_B is exactly zero", needs=(Need.RUN,), addition=True)
def lora_b_zero(audit: Audit) -> Iterator[Finding]:
    """Count the modules that are still as they were made."""
    lora = audit.artifact.lora
    if lora is None or not lora.n_modules:
        raise CannotTell("no adapter weights were read")
    zero = lora.zero_b
    if not zero:
        return
    dead = len(zero) == lora.n_modules
    severity = Severity.LOW if all(map(_NOT_TEXT.search, zero)) else Severity.HIGH
    yield Finding(
        "config.lora_b_zero",
        Severity.CRITICAL if dead else severity,
        f"`lora_B` is exactly zero in {'all' if dead else len(zero)} of {lora.n_modules} modules: "
        + ("the adapter does nothing" if dead else "the adapter does nothing there"),
        f"They are as LoRA starts them, for instance {', '.join(zero[:3])}.",
        "Check that these modules got gradients in training (requires_grad, enable_input_require_grads with "
        "gradient checkpointing) and that the adapter was saved after it.",
        figures={"count": len(zero), "modules": lora.n_modules, "zero": list(zero[:20])},
    )
