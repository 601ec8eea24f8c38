from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gradian.config import config_from_mapping
from gradian.config.document import PAGE, tables, with_tables


def test_the_page_is_what_the_schema_generates() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page, tables()) == page, "run `make docs`"


def test_every_section_has_a_table_with_a_row_a_setting() -> None:
    made = tables()
    sections = ["grads", "engine", "evaluation", "clustering", "train"]
    assert list(made) == ["top level", *sections, "checks config", "checks data", "checks dynamics"]
    assert "| `lambda_override` | number or null | `null` |" in made["engine"]
    assert "| `module_filter` | text or null | `null` |" in made["grads"]
    assert (
        "| `metric` | `exact_match`, `contains`, `not_contains`, `loglik` | `exact_match` |"
        in (made["evaluation"])
    )
    assert "| `target_modules` | list of text or null | `null` |" in made["train"]
    assert "| `seed` | integer | `1234` |" in made["top level"]


def test_a_page_that_lacks_a_section_or_has_one_too_many_is_refused() -> None:
    page = "<!-- begin table: engine -->\n<!-- end table -->\n"
    assert with_tables(page, {"engine": "x\n"}) == ("<!-- begin table: engine -->\nx\n<!-- end table -->\n")
    with pytest.raises(ValueError, match="the page has the tables"):
        with_tables(page, {"engine": "x\n", "grads": "y\n"})
    with pytest.raises(ValueError, match="the page has the tables"):
        with_tables(page, {})


def test_a_stale_table_is_replaced_whole() -> None:
    page = "a\n<!-- begin table: engine -->\nold\n\nold\n<!-- end table -->\nb\n"
    assert with_tables(page, {"engine": "new\n"}) == (
        "a\n<!-- begin table: engine -->\nnew\n<!-- end table -->\nb\n"
    )


@pytest.mark.parametrize("page", sorted(PAGE.parent.glob("*.md")), ids=lambda page: page.name)
def test_every_config_shown_in_the_documentation_loads(page: Path) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        config_from_mapping(yaml.safe_load(block))
