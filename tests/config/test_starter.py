from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gradian.config import Config, config_from_mapping, dump_config
from gradian.config.starter import starter_yaml


def uncommented(text: str) -> str:
    """The file with every setting switched on: explanations are `# words`, settings `#name:`."""
    return re.sub(r"^( *)#(?=\w)", r"\1", text, flags=re.MULTILINE)


def test_it_loads_as_the_defaults() -> None:
    assert config_from_mapping(yaml.safe_load(starter_yaml())) == Config()


def test_with_every_setting_switched_on_it_still_is_the_defaults_and_lacks_none() -> None:
    settings = yaml.safe_load(uncommented(starter_yaml()))
    assert settings == dump_config(Config())
    assert config_from_mapping(settings) == Config()


def test_the_paths_to_fill_in_come_first_and_are_switched_on() -> None:
    active = [line.split(":")[0] for line in starter_yaml().splitlines() if re.match(r"\w+: ", line)]
    assert active == ["base_model", "adapter_path", "dataset", "eval_dataset", "run_dir"]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_model_name_is_quoted_so_that_it_reads_back(name: str) -> None:
    assert yaml.safe_load(starter_yaml(name))["base_model"] == name


@pytest.mark.parametrize("line", starter_yaml().splitlines())
def test_lines_are_short_enough_to_read(line: str) -> None:
    assert len(line) <= 100
