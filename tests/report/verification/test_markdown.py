from __future__ import annotations

import pytest
from hypothesis import given, settings

from gradian.report.verification import markdown
from tests.report.golden import assert_golden
from tests.report.hostile import TEXTS, parse
from tests.report.test_markdown import counted

from . import samples


@pytest.mark.parametrize("make", [samples.recovered, samples.not_recovered])
def test_the_verification_reads_as_it_was_approved(make: object) -> None:
    assert_golden(markdown.render(make()), f"tests/golden/verify_{make.__name__}.md")  # type: ignore[operator,attr-defined]


@settings(max_examples=25, deadline=None)
@given(TEXTS)
def test_no_text_from_outside_becomes_structure(text: str) -> None:
    tokens = parse(markdown.render(samples.broken(text)))
    assert not {token.type for token in tokens} & {
        "html_block",
        "html_inline",
        "link_open",
        "image",
        "code_block",
        "hr",
    }
    assert sum(token.type == "fence" for token in tokens) == 1
    assert counted(tokens) == counted(parse(markdown.render(samples.broken("harmless"))))
