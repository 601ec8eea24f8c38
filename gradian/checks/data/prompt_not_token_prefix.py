"""A prompt whose tokens are not the beginning of the whole row's tokens.

What it detects
    Rows of plain prompt and completion whose texts are joined and tokenised as one: the tokenizer merges the
    prompt's last characters with the completion's first, mostly because the prompt ends in a space. Looked at
    where a trainer joins plain text, so not for runs of axolotl, LLaMA-Factory or Gradian.

Why it matters
    A trainer that masks as many tokens as the prompt alone has masks one too many or one too few, and at
    generation the prompt ends in a token that training never saw there. Medium from 1% of the rows, else low.

What to do
    End the prompt without white space and let the completion begin with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell, Need, check
from gradian.checks.row_findings import by_share, ids_at, row_figures, row_list
from gradian.data.masks import text_border
from gradian.types import Finding, Severity

ID = "data.prompt_not_token_prefix"
_WINDOW = 48  # Characters on either side of the border; what lies further off does not reach across it.
_BATCH = 10_000
_MEDIUM = 0.01
_RENDERING = ("axolotl", "llamafactory", "gradian")


@check(
    ID, "Prompt tokens are no prefix of the row's tokens", needs=(Need.DATASET, Need.TOKENIZER), addition=True
)
def prompt_not_token_prefix(audit: Audit) -> Iterator[Finding]:
    """Tokenise a window around each border, with and without the completion."""
    tokenizer: Any = audit.encoder.tokenizer if audit.encoder else None
    if audit.run is not None and audit.run.trainer in _RENDERING:
        return
    windows: dict[tuple[str, str], list[int]] = {}
    for example in audit.examples:
        if example.shape == "prompt_completion" and [turn.role for turn in example.messages] == [
            "user",
            "assistant",
        ]:
            window = example.prompt[-_WINDOW:], example.target[:_WINDOW]
            windows.setdefault(window, []).append(example.position)
    if not windows:
        return
    if not getattr(tokenizer, "is_fast", False):
        raise CannotTell("the tokenizer reports no offsets")
    found: list[int] = []
    pairs = list(windows)
    for start in range(0, len(pairs), _BATCH):
        part = pairs[start : start + _BATCH]
        heads = tokenizer([prompt for prompt, _ in part], add_special_tokens=False)["input_ids"]
        wholes = tokenizer([prompt + said for prompt, said in part], add_special_tokens=False)["input_ids"]
        for window, head, whole in zip(part, heads, wholes, strict=True):
            if whole[: len(head)] != head:
                found += windows[window]
    if not found:
        return
    found.sort()
    total, example = len(audit.examples), audit.examples[found[0]]
    token = text_border(tokenizer, example.prompt[-_WINDOW:], example.target[:_WINDOW]).straddling
    crossing = f" In row {found[0] + 1} the token {token!r} lies on both sides." if token else ""
    yield Finding(
        ID,
        by_share(len(found) / total, (_MEDIUM, Severity.MEDIUM), otherwise=Severity.LOW),
        f"In {len(found)} of {total} rows ({len(found) / total:.1%}) the prompt's tokens are not how the row's begin",
        f"{row_list(found).capitalize()}.{crossing} A mask of as many tokens as the prompt has is off there.",
        "End the prompt without white space and let the completion begin with it.",
        ids_at(audit.examples, found),
        row_figures(found, total, straddling=token),
    )
