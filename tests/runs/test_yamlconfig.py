from __future__ import annotations

import time
from pathlib import Path

import pytest

from gradian.runs.files import RunFiles
from gradian.runs.read import read_run_folder
from gradian.runs.yamlconfig import LIMIT, log_config, own_configs

RAN = Path("/tmp/GRADIAN_YAML_WAS_EXECUTED")
HOSTILE = f"base_model: a\nmicro_batch_size: !!python/object/apply:os.mkdir ['{RAN}']\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HOSTILE, "python/object/apply:os.mkdir"),
        ("micro_batch_size: 1\nmicro_batch_size: 2\n", "given twice"),
        ("a: &a [1]\n" + "".join(f"k{n}: *a\n" for n in range(30)), "aliases"),
        ("[" * 5_000, "nested too deeply"),
        ("".join(" " * n + "a:\n" for n in range(60)), "nested too deeply"),
        ("[" * 50_000, "too many values"),
        ("a: [" + "1, " * 10_000 + "1]", "too many values"),
        ("a: 2024-13-45\n", "month must be in"),
        ("a: [1", "cannot be read"),
        ("a: " + "x" * LIMIT, "MiB are read"),
    ],
)
def test_a_config_that_is_no_plain_yaml_is_listed_and_nothing_runs(
    tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "config.yaml").write_text(text)
    run = read_run_folder(tmp_path)

    assert [entry.file for entry in run.unread] == ["config.yaml"]
    assert says in run.unread[0].reason
    assert not RAN.exists()


def test_a_tag_in_a_model_card_is_listed_and_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"# axolotl\n\n```yaml\n{HOSTILE}```\n")
    run = read_run_folder(tmp_path)

    assert [entry.file for entry in run.unread] == ["README.md"]
    assert not RAN.exists()


def test_only_mappings_with_text_keys_are_configs(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("1: x\nb: y\n")
    (tmp_path / "b.yml").write_text("- 1\n")
    (tmp_path / "c.txt").write_text("a: b\n")

    assert [tuple(entry) for entry in own_configs(RunFiles(tmp_path))] == [
        ("a.yaml", {"b": "y"}),
        ("b.yml", {}),
    ]


@pytest.mark.parametrize("text", ["", "config:", "config: {", "config:\n[1]", "config: {" * 10_000])
def test_a_log_without_a_config_has_none(text: str) -> None:
    assert log_config(text) == {}


def test_a_log_that_announces_a_config_again_and_again_costs_no_time() -> None:
    start = time.process_time()
    assert log_config("config:" * 500_000 + "{}") == {}
    assert log_config("config: " * 200_000 + '{"a": 1}') == {"a": 1}
    assert time.process_time() - start < 2
