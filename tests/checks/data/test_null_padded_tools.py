from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradian.checks.audit import Audit
from tests.checks.data.rows import Row, audit_rows, healthy
from tests.checks.fixtures import only, verdict

ID = "data.null_padded_tools"


def calling(name: str, arguments: Mapping[str, Any] | str, tools: list[dict[str, Any]] | None = None) -> Row:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    turns = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    return {"messages": turns, "tools": tools or []}


def fires() -> Audit:
    padded = [
        calling("weather", {"city": "Rome", "query": None}),
        calling("search", {"city": None, "query": "x"}),
    ]
    return audit_rows([*padded, *healthy(5)])


def silent() -> Audit:
    # An optional argument that is left out here and given there, and one that no function is ever given.
    optional = [calling("weather", {"city": "Rome", "unit": unit, "day": None}) for unit in (None, "C")]
    return audit_rows([*optional, calling("search", {"query": "x"}), calling("broken", "{"), *healthy(5)])


def test_arguments_that_only_other_functions_have_are_padding() -> None:
    finding = only(ID, fires())
    assert finding.severity.value == "high"
    assert (finding.figures["rows"], finding.figures["arguments"]) == ([1, 2], 2)


def test_arguments_as_json_text_and_tool_definitions_are_looked_at_too() -> None:
    text = [calling("a", '{"x": 1, "y": null}'), calling("b", '{"y": 2}')]
    assert only(ID, audit_rows(text)).figures["rows"] == [1]
    tool = {"function": {"name": "a", "parameters": {"properties": {"x": {"type": "string"}, "y": None}}}}
    assert only(ID, audit_rows([*healthy(2), calling("a", {"x": 1}, [tool])])).figures["definitions"] == 1
    assert verdict(ID, audit_rows(healthy(2))) == "passed"
