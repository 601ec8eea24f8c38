"""Tool calls and definitions padded with nulls.

What it detects
    Tool-call arguments that are null in every call of their function while calls of other functions give them
    a value, and null entries among the properties of a tool's parameters.

Why it matters
    Arrow stores a column of objects with the keys of all rows, so that a round trip through `datasets` or
    Parquet turns {"city": "Rome"} into {"city": "Rome", "query": null}. The template writes it out and the
    model learns to pass arguments that the function does not have. An optional argument that is null here and
    set there is healthy and not counted. High from 1% of the rows, else medium.

What to do
    Keep arguments and tool definitions as JSON text in the dataset, or take null keys out before rendering.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gradian.checks.audit import Audit
from gradian.checks.registry import Need, check
from gradian.checks.row_findings import by_share, ids_at, row_figures, row_list
from gradian.jsonvalue import parse_json
from gradian.types import Example, Finding, Severity

ID = "data.null_padded_tools"


@check(ID, "Tool arguments padded with nulls", needs=(Need.DATASET,), addition=True)
def null_padded_tools(audit: Audit) -> Iterator[Finding]:
    """Learn which arguments each function is ever given; look for nulls in the others."""
    given: set[tuple[str, str]] = set()
    null: dict[tuple[str, str], list[int]] = {}
    defined: list[int] = []
    for example in audit.examples:
        for name, arguments in _calls(example):
            for key, value in arguments.items():
                if value is None:
                    null.setdefault((name, str(key)), []).append(example.position)
                else:
                    given.add((name, str(key)))
        if any(None in _properties(tool).values() for tool in example.tools or ()):
            defined.append(example.position)
    keys_given = {key for _, key in given}
    padded = {call: rows for call, rows in null.items() if call not in given and call[1] in keys_given}
    found = sorted({row for rows in padded.values() for row in rows} | set(defined))
    if not found:
        return
    total = len(audit.examples)
    share = len(found) / total
    named = ", ".join(f"{key!r} of {name!r}" for name, key in list(padded)[:5]) or "none"
    yield Finding(
        ID,
        by_share(share, (audit.limits.data.bad_rows_share_high, Severity.HIGH), otherwise=Severity.MEDIUM),
        f"{len(found)} of {total} rows ({share:.1%}) hold tool arguments or definitions padded with nulls",
        f"Arguments that are always null there and set for other functions: {named}; rows with null"
        f" properties in a definition: {len(defined)}. {row_list(found).capitalize()}.",
        "Store arguments and tools as JSON text, or remove null keys before the template renders them.",
        ids_at(audit.examples, found),
        row_figures(found, total, arguments=len(padded), definitions=len(defined)),
    )


def _calls(example: Example) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for turn in example.messages:
        calls = (turn.extra or {}).get("tool_calls")
        for call in calls if isinstance(calls, list | tuple) else ():
            function = call.get("function", call) if isinstance(call, Mapping) else None
            if not isinstance(function, Mapping):
                continue
            arguments = function.get("arguments")
            if isinstance(arguments, str):
                try:
                    arguments = parse_json(arguments)
                except ValueError:
                    continue
            if isinstance(arguments, Mapping):
                yield str(function.get("name")), arguments


def _properties(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function", tool)
    parameters = function.get("parameters") if isinstance(function, Mapping) else None
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}
