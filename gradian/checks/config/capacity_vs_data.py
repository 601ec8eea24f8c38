"""Far more trained parameters than tokens to learn from.

What it detects
    The adapter has `parameters_per_token` (1000) or more parameters for each supervised token of the dataset;
    ten times that is medium, less is low. Without a tokenizer a token is taken as four characters of an answer.

Why it matters
    An adapter that large can store every answer word for word, and with a few epochs does. Usual runs have 10
    to 300 parameters a token: 42 million (8B, r=16) over 2000 answers of 200 tokens are 105.

What to do
    Lower r (8 is enough for most small datasets), narrow target_modules, or add rows; then lora_alpha in
    proportion.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell, Need, check
from gradian.types import Finding, Severity

_CHARACTERS_A_TOKEN = 4
_FAR = 10


@check(
    "config.capacity_vs_data",
    "Adapter capacity large relative to the data",
    needs=(Need.RUN, Need.DATASET),
)
def capacity_vs_data(audit: Audit) -> Iterator[Finding]:
    """Compare the parameters with the supervised tokens."""
    lora, limit = audit.artifact.lora, audit.limits.config.parameters_per_token
    if lora is None or not lora.n_parameters:
        raise CannotTell("the number of trained parameters is not known: no adapter weights were read")
    tokens, how = _supervised_tokens(audit)
    if not tokens:
        raise CannotTell("the dataset has no supervised tokens")
    ratio = lora.n_parameters / tokens
    if ratio < limit:
        return
    whole = f" It counts {', '.join(lora.modules_to_save)}, trained whole." if lora.modules_to_save else ""
    yield Finding(
        "config.capacity_vs_data",
        Severity.MEDIUM if ratio >= _FAR * limit else Severity.LOW,
        f"The adapter trains {ratio:.0f} parameters for each supervised token "
        f"({lora.n_parameters} for {tokens})",
        f"The tokens are {how}.{whole} From {limit:g} on an adapter can store its rows word for word.",
        f"Lower r{f' from {lora.r} to {max(1, lora.r // 4)}' if lora.r else ''}, or add rows.",
        figures={"parameters": lora.n_parameters, "supervised_tokens": tokens, "ratio": ratio},
    )


def _supervised_tokens(audit: Audit) -> tuple[int, str]:
    if audit.encoder is not None:
        return sum(row.n_supervised for row in audit.encoded), "counted by the tokenizer"
    characters = sum(
        sum(len(turn.content) for turn in row.messages if turn.role == "assistant") + len(row.text or "")
        for row in audit.dataset or ()
    )
    return characters // _CHARACTERS_A_TOKEN, f"an estimate from {characters} characters of answers"
