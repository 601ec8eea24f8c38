"""Answers in two formats.

What it detects
    Targets are told apart as JSON, as one fenced code block, as XML or HTML, and as prose. The check fires
    when most rows (60%) are in one of the machine formats and some are not, or when a tenth or more are in
    one while the prompt does not name it.

Why it matters
    Whoever parses the model's output needs one format, and a fine-tune that saw two gives two. Prose beside
    JSON that the prompt asks for is healthy, so only unasked mixtures count. Medium from 1% of strays, else
    low.

What to do
    Bring the named rows into the format of the others, or say in the prompt which format is wanted.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import by_share, excerpt, ids_at, row_figures, row_list
from gradian.jsonvalue import parse_json
from gradian.types import Example, Finding, Severity

ID = "data.format_inconsistency"
_NAMES = {"json": "JSON", "fenced": "a fenced code block", "markup": "XML or HTML", "prose": "prose"}
_ASKED = {
    "json": re.compile(r"json", re.IGNORECASE),
    "fenced": re.compile(r"code|script|program|function|json|sql|query|python", re.IGNORECASE),
    "markup": re.compile(r"xml|html|svg|tag", re.IGNORECASE),
}
_TAG_NAME = re.compile(r"[A-Za-z][\w.-]*")
_WORD_BORDER = re.compile(r"\b")
_LONGEST_JSON = 100_000
_STRAY_MEDIUM = 0.01


@check(ID, "Mixed target formats", needs=(Need.DATASET,))
def format_inconsistency(audit: Audit) -> Iterator[Finding]:
    """Sort the targets by format and look for a minority."""
    limits = audit.limits.data
    rows: dict[str, list[int]] = defaultdict(list)
    for position, example in enumerate(audit.examples):
        if example.problem is None and example.text is None and example.target.strip():
            rows[target_format(example.target)].append(position)
    total = sum(map(len, rows.values()))
    for name in ("json", "fenced", "markup"):
        share = len(rows[name]) / total if total else 0.0
        if share >= limits.format_majority_share:
            strays = sorted(row for other, listed in rows.items() if other != name for row in listed)
            usual = name
        elif share >= limits.format_minority_share:
            strays = [row for row in rows[name] if not _asked(audit.examples[row], name)]
            usual = "prose"
            if len(strays) < limits.format_minority_share * total:
                continue
        else:
            continue
        if strays:
            yield _finding(audit, strays, usual, {key: len(listed) for key, listed in rows.items() if listed})
            return


def target_format(target: str) -> str:
    """`json`, `fenced`, `markup` or `prose`."""
    text = target.strip()
    if text[0] in "{[" and text[-1] in "}]" and len(text) <= _LONGEST_JSON:
        try:
            parse_json(text)
        except ValueError:
            return "prose"
        return "json"
    if text.startswith("```") and text.endswith("```") and len(text) > 6 and text.count("```") == 2:
        return "fenced"
    if text[0] == "<" and text[-1] == ">" and _is_element(text):
        return "markup"
    return "prose"


def _is_element(text: str) -> bool:
    # The closing tag says the name: to look for one that both have takes time that grows with its square.
    closing = text.rfind("</")
    name = text[closing + 2 : -1]
    opened = text.find(">")
    return (
        opened < closing
        and _TAG_NAME.fullmatch(name) is not None
        and text.startswith(name, 1)
        and _WORD_BORDER.match(text, 1 + len(name)) is not None
        and "<" not in text[1:opened]
    )


def _asked(example: Example, name: str) -> bool:
    return any(_ASKED[name].search(turn.content) for turn in example.messages[:-1])


def _finding(audit: Audit, strays: list[int], usual: str, formats: dict[str, int]) -> Finding:
    total = len(audit.examples)
    share = len(strays) / total
    listed = ", ".join(f"{_NAMES[name]} {count}" for name, count in formats.items())
    kind = "are not in" if usual != "prose" else "break with"
    return Finding(
        ID,
        by_share(share, (_STRAY_MEDIUM, Severity.MEDIUM), otherwise=Severity.LOW),
        f"{len(strays)} of {total} targets ({share:.1%}) {kind} the format of the others ({_NAMES[usual]})",
        f"Formats: {listed}. {row_list(strays).capitalize()}; for example"
        f" {excerpt(audit.examples[strays[0]].target)}.",
        "Bring these rows into the format of the others, or name the wanted format in the prompt.",
        ids_at(audit.examples, strays),
        row_figures(strays, total, formats=formats),
    )
