from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gradian.config import Config, config_from_mapping, dump_config, load_config
from gradian.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    file = folder / "gradian.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def complaint(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(write(folder, text))
    return str(caught.value)


def test_no_file_is_the_defaults() -> None:
    assert load_config() == Config()


@pytest.mark.parametrize("text", ["", "# nothing\n", "grads:\nengine:\n", "---\n"])
def test_an_empty_file_or_section_is_the_defaults(tmp_path: Path, text: str) -> None:
    assert load_config(write(tmp_path, text)) == Config()


def test_a_file_sets_what_it_names(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "seed: 7\ngrads: {batch_size: 2}\n"))
    assert (config.seed, config.grads.batch_size, config.grads.max_seq_length) == (7, 2, 1024)


def test_the_published_example_loads(tmp_path: Path) -> None:
    config = load_config(
        write(
            tmp_path,
            """
            base_model: unsloth/Llama-3.2-1B-Instruct
            adapter: results/A/run/adapter
            dataset: results/A/train.jsonl
            evaluation:
              metric: contains
            clustering:
              method: declared
            """,
        )
    )
    assert config.adapter_path == "results/A/run/adapter"
    assert config.evaluation.metric == "contains"


def test_both_spellings_of_the_adapter_at_once_are_refused(tmp_path: Path) -> None:
    text = complaint(tmp_path, "adapter: a\nadapter_path: b\n")
    assert "`adapter` and `adapter_path` are the same setting" in text


@pytest.mark.parametrize("key", ["adapter", "adapter_path"])
def test_a_flag_replaces_the_adapter_however_the_file_spells_it(tmp_path: Path, key: str) -> None:
    config = load_config(write(tmp_path, f"{key}: a\n"), {"adapter_path": "b"})
    assert config.adapter_path == "b"


def test_flags_override_the_file_and_a_flag_not_given_does_not(tmp_path: Path) -> None:
    file = write(tmp_path, "dataset: a.jsonl\nengine:\n  name: tracin\n  lambda_scale: 2e-1\n")
    config = load_config(file, {"dataset": None, "engine.name": "graddot", "grads.batch_size": 2})
    assert config.dataset == "a.jsonl"
    assert (config.engine.name, config.engine.lambda_scale) == ("graddot", 0.2)
    assert config.grads.batch_size == 2


def test_a_flag_reaches_into_a_section_that_the_file_leaves_empty(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "grads:\n"), {"grads.batch_size": 2}).grads.batch_size == 2


def test_an_unknown_key_is_named_with_its_path_and_the_nearest_known_one(tmp_path: Path) -> None:
    text = complaint(tmp_path, "grads:\n  bach_size: 2\n")
    assert "gradian.yaml: grads.bach_size" in text
    assert "did you mean 'batch_size'?" in text
    assert "max_seq_length" in text


def test_a_wrong_value_is_named_with_its_path_what_it_is_and_what_is_allowed(tmp_path: Path) -> None:
    text = complaint(tmp_path, "evaluation:\n  metric: bleu\n")
    assert "gradian.yaml: evaluation.metric" in text
    assert "'bleu'" in text
    for allowed in ("exact_match", "contains", "not_contains", "loglik"):
        assert allowed in text
    text = complaint(tmp_path, "grads: {batch_size: 0}")
    assert "grads.batch_size" in text
    assert "found 0" in text
    assert "greater than or equal to 1" in text


def test_all_wrong_settings_are_told_at_once(tmp_path: Path) -> None:
    text = complaint(tmp_path, "seed: -1\ngrads: {batch_size: 0}\nnope: 1\n")
    assert "3 settings are wrong" in text
    for path in ("seed", "grads.batch_size", "nope"):
        assert f": {path}: " in text


def test_a_wrong_flag_is_told_as_a_flag() -> None:
    with pytest.raises(ConfigError, match=r"flag: train\.output_dir"):
        load_config(None, {"train.output_dir": 3})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: [1\n", "not valid YAML"),
        ("- a\n- b\n", "must hold a mapping"),
        ("just text\n", "must hold a mapping"),
        ("seed: 1\nseed: 2\n", "'seed' is given twice"),
        ("grads: {batch_size: 1, batch_size: 2}\n", "'batch_size' is given twice"),
        ("seed: !!python/object/apply:os.system ['true']\n", "not valid YAML"),
        ("a: \x07\n", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_mapping_of_settings_is_refused_with_its_name(
    tmp_path: Path, text: str, message: str
) -> None:
    found = complaint(tmp_path, text)
    assert message in found
    assert "gradian.yaml" in found


def test_a_syntax_error_is_told_with_line_and_column(tmp_path: Path) -> None:
    assert "gradian.yaml:2:" in complaint(tmp_path, "seed: 1\ngrads: }\n")


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such config file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    (tmp_path / "gradian.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "gradian.yaml")


def test_the_settings_given_are_not_changed_by_laying_flags_over_them() -> None:
    given_settings = {"grads": {"batch_size": 2}, "adapter": "a"}
    config_from_mapping(given_settings, {"grads.batch_size": 3, "adapter_path": "b"})
    assert given_settings == {"grads": {"batch_size": 2}, "adapter": "a"}


@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.floats(1e-300, 1e300),
    batch=st.integers(1, 10**6),
    base=st.text(max_size=30),
)
def test_a_config_survives_being_dumped_and_read_again(
    seed: int, scale: float, batch: int, base: str
) -> None:
    config = config_from_mapping(
        {"seed": seed, "base_model": base, "engine": {"lambda_scale": scale}, "grads": {"batch_size": batch}}
    )
    assert config_from_mapping(dump_config(config)) == config


@given(scale=st.floats(1e-30, 1e30))
def test_every_number_that_python_writes_is_read_back_from_yaml(scale: float) -> None:
    # `1e-05` has no point, and YAML 1.1 reads it as text.
    config = config_from_mapping(yaml.safe_load(f"engine:\n  lambda_scale: {scale!r}\n"))
    assert config.engine.lambda_scale == scale


def test_a_section_inside_a_section_may_be_left_empty_or_set_by_a_dotted_key() -> None:
    assert config_from_mapping({"checks": {"config": None}}) == Config()
    config = config_from_mapping({"checks": {"config": None}}, {"checks.config.lr_high": 5e-4})
    assert config.checks.config.lr_high == 5e-4


def test_the_given_mapping_is_left_as_it_was() -> None:
    given_settings = {"checks": {"config": {"lr_high": 5e-4}}}
    config_from_mapping(given_settings, {"checks.config.lr_low": 1e-6})
    assert given_settings == {"checks": {"config": {"lr_high": 5e-4}}}
