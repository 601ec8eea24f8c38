"""docs/checks.md is what the checks say of themselves."""

from __future__ import annotations

import re

from gradian.checks.document import PAGE, page
from gradian.checks.registry import all_checks
from tests.report.hostile import kinds


def test_the_page_is_what_the_checks_generate() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(all_checks()), "run `make docs`"


def test_every_check_has_its_own_heading_in_order_and_the_additions_stand_apart() -> None:
    text = page(all_checks())
    assert re.findall(r"^### `(\S+)`$", text, flags=re.MULTILINE) == [entry.id for entry in all_checks()]
    assert [
        re.sub(r"\d+ checks", "n checks", line) for line in re.findall(r"^## (.*)$", text, re.MULTILINE)
    ] == [
        "Config: n checks",
        "Data: n checks",
        "Dynamics: n checks",
        "Beyond the 41: n checks",
    ]


def test_no_word_of_a_docstring_becomes_a_tag_a_rule_or_an_image() -> None:
    _, _, body = page(all_checks()).partition("-->")
    assert not kinds(body) & {"html_block", "html_inline", "image", "hr", "code_block"}
