"""Rows, settings, names and templates made to do something: the audit shows them and obeys none."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

import gradian
from gradian.report import jsonfile
from gradian.report.audit import markdown, terminal
from gradian.report.audit.model import AuditReport
from gradian.types import Severity
from tests.report.hostile import ATTACKS, EVERYTHING, parse

CASES = Path(__file__).parents[1] / "fixtures" / "cases"
ACTIVE = {"html_block", "html_inline", "link_open", "image", "code_block", "hr", "fence"}
# The loader refuses lone surrogates, which UTF-8 cannot hold.
TEXTS = tuple(text for text in (*ATTACKS, EVERYTHING.replace("\ud800", "")) if "\ud800" not in text)
# What a file name can hold, but for a NUL, a slash and lone surrogates.
NAME = "![x](e)<script>\x1b[31m\u202e`|*[bold red]"


def written(path: Path, rows: list[object]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    """An audit of hostile rows (duplicates, contradictions, prompts as answers) and of a hostile run folder."""
    folder = tmp_path_factory.mktemp("hostile") / NAME
    rows: list[object] = []
    for text in TEXTS:
        rows += [{"prompt": text, "completion": text}, {"prompt": text, "completion": text}]
        rows += [{"prompt": f"What is {text}?", "completion": answer} for answer in (text, f"not {text}")]
        rows += [
            {text: text},
            {"messages": [{"role": text, "content": text}, {"role": "assistant", "content": text}]},
        ]
    run = folder / "run"
    checkpoint = run / "checkpoint-10"
    checkpoint.mkdir(parents=True)
    state = {
        "global_step": 10,
        "max_steps": 20,
        "log_history": [
            {"step": 5, "loss": EVERYTHING, "grad_norm": "nan"},
            {"step": 10, f"eval_{EVERYTHING}_loss": 1.0},
        ],
    }
    (checkpoint / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
    adapter = {
        "peft_type": "LORA",
        "r": 8,
        "lora_alpha": 16,
        "base_model_name_or_path": EVERYTHING,
        "target_modules": [EVERYTHING, "q_proj"],
        "bias": EVERYTHING,
        EVERYTHING: EVERYTHING,
    }
    (run / "adapter_config.json").write_text(json.dumps(adapter), encoding="utf-8")
    (run / "training_args.bin").write_bytes(EVERYTHING.encode("utf-8", "surrogatepass"))
    card = f"---\nbase_model: !!python/object/apply:os.mkdir ['{folder / 'made'}']\n---\n"
    (run / "README.md").write_text(card, encoding="utf-8")
    tokenizer = folder / "tokenizer"
    shutil.copytree(CASES / "_tok", tokenizer)
    made = gradian.diagnose(
        dataset=written(folder / "train.jsonl", rows),
        eval_dataset=written(folder / "eval.jsonl", rows[:20]),
        run=str(run),
        tokenizer=str(tokenizer),
        base_model=EVERYTHING.replace("\x00", ""),
        max_seq_length=48,
        out=folder / "out",
    )
    assert not (folder / "made").exists()
    return made


def test_the_checks_quote_hostile_text_and_none_of_them_fails(report: AuditReport) -> None:
    found = {finding.id for finding in report.findings}
    assert "audit.check_failed" not in found
    assert {"data.duplicates", "data.conflicting_answers", "audit.unread_files"} <= found
    assert any(finding.severity is Severity.CRITICAL for finding in report.findings)


def test_nothing_of_it_is_active_in_markdown(report: AuditReport) -> None:
    document = markdown.render(report)
    assert not {token.type for token in parse(document)} & ACTIVE
    assert all(char.isprintable() or char == "\n" for char in document)


def test_nothing_of_it_reaches_the_terminal_as_a_control_character(report: AuditReport) -> None:
    stream = io.StringIO()
    Console(file=stream, width=100, _environ={}).print(terminal.render(report))
    assert all(char.isprintable() or char == "\n" for char in stream.getvalue())


def test_the_json_is_strict_and_holds_nothing_hidden(report: AuditReport) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = jsonfile.render(report)
    json.loads(text, parse_constant=refuse)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "<" not in text


def test_a_template_that_reaches_for_attributes_gets_none(tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(CASES / "_tok", tokenizer)
    reach = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    (tokenizer / "chat_template.jinja").write_text(reach, encoding="utf-8")
    dataset = written(tmp_path / "train.jsonl", [{"prompt": "a", "completion": "b"}])
    made = gradian.diagnose(dataset=dataset, tokenizer=str(tokenizer))
    (refused,) = [finding for finding in made.findings if finding.id == "data.unrenderable_rows"]
    assert "unsafe" in refused.evidence
