from __future__ import annotations

import pytest

from gradian.checks.audit import Audit
from gradian.checks.data.response_marker_absent import _holds, _pattern
from tests.checks.building import healthy_run
from tests.checks.data.rows import audit_rows, case_audit, chat, healthy
from tests.checks.fixtures import only, verdict

ID = "data.response_marker_absent"
LLAMA = "<|start_header_id|>assistant<|end_header_id|>\n\n"
CHATML = "<|im_start|>assistant\n"


def fires() -> Audit:
    return case_audit("45-text-rows-wrong-marker", run=healthy_run(response_marker=LLAMA))


def silent() -> Audit:
    rows = [{"text": f"<|im_start|>user\n{i}<|im_end|>\n{CHATML}yes<|im_end|>\n"} for i in range(3)]
    return audit_rows(rows, tokens=True, run=healthy_run(response_marker=CHATML))


def test_the_marker_that_occurs_is_suggested() -> None:
    finding = only(ID, fires())
    assert finding.severity.value == "critical"
    assert finding.title.startswith("The response marker is found in 0 of 2 rows")
    assert f"{CHATML!r} is in 1 of 2" in finding.evidence
    assert repr(CHATML) in finding.fix
    assert finding.figures["rows"] == [1, 2]


def test_a_marker_whose_ids_do_not_occur_is_as_good_as_absent() -> None:
    finding = only(ID, case_audit("24-boundary-merge", run=healthy_run(response_marker="Answer:")))
    assert (finding.severity.value, finding.figures["split"]) == ("critical", 2)


@pytest.mark.parametrize(("marker", "expected"), [(CHATML, "passed"), (LLAMA, "critical"), (None, "skipped")])
def test_rows_with_turns_are_looked_at_as_rendered(marker: str | None, expected: str) -> None:
    rows = [chat("Hi", "Hello.")]
    assert verdict(ID, audit_rows(rows, tokens=True, run=healthy_run(response_marker=marker))) == expected


def test_without_a_tokenizer_text_alone_decides_and_turns_cannot_be_judged() -> None:
    run = healthy_run(response_marker="### Response:")
    rows = [*({"text": f"### Response: {i}"} for i in range(9)), {"text": "no"}]
    assert verdict(ID, audit_rows(rows, run=run)) == "high"
    assert verdict(ID, audit_rows([chat("Hi", "Hello.")], run=run)) == "skipped"
    assert verdict(ID, audit_rows(healthy(2), run=run)) == "critical"


def test_ids_are_found_whole_and_not_across_their_bytes() -> None:
    assert _holds([7, 1, 2], _pattern([1, 2]))
    assert not _holds([1, 3, 2], _pattern([1, 2]))
    assert not _holds([256, 0], _pattern([1]))
