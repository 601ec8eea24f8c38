"""`docs/checks.md`, made from the checks themselves: `python -m gradian.checks.document`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from gradian.checks.registry import CATEGORIES, Check, all_checks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checks.md"

# A code span, or what would open a tag outside one.
_CODE_OR_TAG = re.compile(r"(`[^`]*`)|<")

_INTRODUCTION = """\
# Checks

<!-- Made from the docstrings in gradian/checks: edit those, then run `make docs`. -->

What [`gradian diagnose`](cli.md#gradian-diagnose) looks for. `gradian checks` lists them, `gradian checks ID` explains
one. Nothing here trains, loads weights or needs a GPU.

| You pass | What it enables |
|---|---|
| `--dataset` | `data.*`, but for those that count tokens |
| `--base-model` | checks of tokens: its tokenizer is loaded, and nothing else of it |
| `--run` | `config.*` and `dynamics.*` |
| `--eval-dataset` | contamination of the eval set |
| `--max-seq-length` | truncation, where no run folder says where rows were cut |

A finding has a severity. **critical**: the result cannot be interpreted before this is put right. **high**: likely to
have done visible damage. **medium**: a known risk, worth a look. **low** and **info**: good to know. A check whose input is
missing, or whose input does not say, is listed as skipped and never as passed. A check that fails becomes the finding
`audit.check_failed`. Thresholds can be set in the config's [`checks`](configuration.md#checks) sections.
"""

_CATEGORY = {
    "config": "Settings, as the run folder records them.",
    "data": "The rows, some of them as tokens with the loss mask that training and attribution see.",
    "dynamics": "The trainer's log.",
}


def page(checks: Sequence[Check]) -> str:
    """Return the whole page: the published checks by category, then those beyond them."""
    published = [entry for entry in checks if not entry.addition]
    additions = [entry for entry in checks if entry.addition]
    parts = [_INTRODUCTION]
    for category in CATEGORIES:
        chosen = [entry for entry in published if entry.category == category]
        parts.append(f"## {category.capitalize()}: {len(chosen)} checks\n\n{_CATEGORY[category]}\n")
        parts += _entries(chosen)
    if additions:
        parts.append(f"## Beyond the {len(published)}: {len(additions)} checks\n\nUnder the same rules.\n")
        parts += _entries(additions)
    return "\n".join(parts)


def _entries(checks: Iterable[Check]) -> list[str]:
    return [_entry(entry) for entry in checks]


def _entry(entry: Check) -> str:
    needs = ", ".join(f"`{need.value}`" for need in entry.needs) or "nothing"
    sections = [f"**{heading}.** {_prose(text)}" for heading, text in entry.documentation.items()]
    return "\n\n".join([f"### `{entry.id}`", f"{entry.summary}. Needs {needs}.", *sections]) + "\n"


def _prose(text: str) -> str:
    return _CODE_OR_TAG.sub(lambda match: match.group(1) or r"\<", text)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(all_checks()), encoding="utf-8")


if __name__ == "__main__":
    main()
