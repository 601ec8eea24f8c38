from __future__ import annotations

import pytest
from hypothesis import given, settings

from gradian.report.audit import markdown
from tests.report.golden import assert_golden
from tests.report.hostile import EVERYTHING, TEXTS, parse
from tests.report.test_markdown import counted, outline

from . import samples


@pytest.mark.parametrize("name", ["faulty", "clean"])
def test_the_audit_reads_as_it_was_approved(name: str) -> None:
    assert_golden(markdown.render(getattr(samples, name)()), f"tests/golden/audit_{name}.md")


@settings(max_examples=40, deadline=None)
@given(TEXTS)
def test_no_text_from_outside_becomes_structure(text: str) -> None:
    document = markdown.render(samples.attacked(text or "x"))
    tokens = parse(document)
    active = {"html_block", "html_inline", "link_open", "image", "code_block", "hr", "fence"}
    assert not {token.type for token in tokens} & active
    assert counted(tokens) == counted(parse(markdown.render(samples.attacked("harmless"))))


def test_the_worst_text_leaves_the_outline_of_a_harmless_one_and_no_hidden_character() -> None:
    document = markdown.render(samples.attacked(EVERYTHING))
    assert outline(document) == outline(markdown.render(samples.attacked("harmless")))
    assert all(char.isprintable() or char == "\n" for char in document)
    document.encode("utf-8")
