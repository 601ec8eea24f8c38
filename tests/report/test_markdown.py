from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from markdown_it.token import Token

from gradian.report import markdown
from gradian.report.model import Report, Skipped
from gradian.types import Example, Finding, Message, Severity

from . import samples
from .golden import assert_golden
from .hostile import EVERYTHING, TEXTS, parse


@pytest.mark.parametrize("make", [samples.poisoned, samples.not_significant, samples.without_eval_set])
def test_the_report_reads_as_it_was_approved(make: object) -> None:
    assert_golden(markdown.render(make()), f"tests/golden/report_{make.__name__}.md")  # type: ignore[operator,attr-defined]


def attacked(text: str) -> Report:
    """A report in which everything that can come from outside is `text`."""
    example = Example(
        "a-0", 0, "prompt_completion", (Message("user", text), Message("assistant", text)), cluster=text
    )
    cluster = SimpleNamespace(
        id=text,
        label=text,
        n=1,
        sum=-1.0,
        mean=-1.0,
        share_of_negative=1.0,
        relative_mean=-1.0,
        top_examples=(0,),
    )
    item = samples.item(0, prompt=text, expected=text, base_text=text, tuned_text=text)
    return samples.poisoned(
        examples=[example],
        assignment=[text],
        clusters=(cluster,),
        scores=np.array([-1.0]),
        relative=np.array([-1.0]),
        item_scores=None,
        capability=samples.capability([item], name=text),
        findings=(
            Finding("data.x", Severity.CRITICAL, text, text, text, (text,) if text.isprintable() else ()),
        ),
        provenance={text: text},
        skipped=(Skipped(id="check", reason=text),),
    )


def outline(document: str) -> list[str]:
    """Block structure: everything but what is inline."""
    return [token.type for token in parse(document) if token.block and token.type != "inline"]


@settings(max_examples=40, deadline=None)
@given(TEXTS)
def test_no_text_from_outside_becomes_structure(text: str) -> None:
    document = markdown.render(attacked(text))
    tokens = parse(document)
    assert not {token.type for token in tokens} & {
        "html_block",
        "html_inline",
        "link_open",
        "image",
        "code_block",
        "hr",
    }
    assert sum(token.type == "fence" for token in tokens) == 1
    assert document.endswith("```\n")
    assert counted(tokens) == counted(parse(markdown.render(attacked("harmless"))))


def counted(tokens: list[Token]) -> tuple[int, int]:
    types = [token.type for token in tokens]
    return types.count("heading_open"), types.count("td_open")


def test_the_worst_text_leaves_the_outline_of_a_harmless_one() -> None:
    assert outline(markdown.render(attacked(EVERYTHING))) == outline(markdown.render(attacked("harmless\n")))


def test_no_control_or_bidi_character_reaches_the_file() -> None:
    document = markdown.render(attacked(EVERYTHING))
    assert all(char.isprintable() or char == "\n" for char in document)
    document.encode("utf-8")


def test_all_of_the_manifest_is_printed() -> None:
    document = markdown.render(samples.poisoned(provenance={"manifest": {"deep": {"key": ["```", 1]}}}))
    block = next(token.content for token in parse(document) if token.type == "fence")
    assert '"deep"' in block
    assert '"```"' in block


def test_a_report_without_a_diagnosis_never_calls_its_rows_harmful() -> None:
    for report in (samples.not_significant(), samples.without_eval_set()):
        document = markdown.render(report)
        assert document.splitlines()[2].startswith("- **Not diagnosed: ")
        assert "Most harmful rows" not in document
        assert "Drop the" not in document
        assert "not a diagnosis" in document


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_a_blank_sentence_is_no_rule_across_the_page(text: str) -> None:
    report = samples.poisoned().model_copy(update={"summary": (text, "Next.")})
    assert "hr" not in outline(markdown.render(report))
