from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from gradian.checks.audit import Audit
from tests.checks.building import audit_run
from tests.checks.fixtures import only, verdict

ID = "config.base_model_mismatch"


def models(trained: str | None, given: str | None) -> Audit:
    return dataclasses.replace(audit_run(base_model=trained), base_model=given)


def fires() -> Audit:
    return models("meta-llama/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.2-1B")


def silent() -> Audit:
    return models("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B/")


@pytest.mark.parametrize(
    ("trained", "given", "expected"),
    [
        ("meta-llama/Llama-3.2-1B", "META-LLAMA/llama-3.2-1b", "passed"),
        ("Qwen/Qwen3-4B", "/data/models/Qwen3-4B", "passed"),
        ("/root/models/Qwen3-4B/", "Qwen/Qwen3-4B", "passed"),
        ("C:\\models\\Qwen3-4B", "Qwen/Qwen3-4B", "passed"),
        ("openai-community/gpt2", "gpt2", "passed"),
        (
            "meta-llama/Llama-3.2-1B",
            "/root/.cache/huggingface/hub/models--meta-llama--Llama-3.2-1B/snapshots/4e20de362430cd3b72f300e6b0f18e50e7166e08",
            "passed",
        ),
        ("unsloth/Qwen3-4B-unsloth-bnb-4bit", "unsloth/Qwen3-4B", "passed"),
        ("unsloth/Qwen3-4B-bnb-4bit", "Qwen/Qwen3-4B", "low"),
        ("unsloth/Qwen3-4B", "Qwen/Qwen3-8B", "high"),
        ("meta-llama/Meta-Llama-3.1-8B", "meta-llama/Llama-3.1-8B", "passed"),
        ("unsloth/llama-3-8b-Instruct-bnb-4bit", "meta-llama/Meta-Llama-3-8B-Instruct", "low"),
        ("meta-llama/Meta-Llama-3-8B", "meta-llama/Llama-3.1-8B", "high"),
        ("Qwen/Qwen3-4B", "/data/models/base", "skipped"),
        ("/root/a/base-7b", "/data/models/other-7b", "skipped"),
        (None, "Qwen/Qwen3-4B", "skipped"),
        ("Qwen/Qwen3-4B", None, "skipped"),
    ],
)
def test_names_are_compared_by_what_they_name(trained: str | None, given: str | None, expected: str) -> None:
    assert verdict(ID, models(trained, given)) == expected


@pytest.mark.parametrize(("size", "expected"), [(2048, "passed"), (4096, "high")])
def test_two_local_folders_are_compared_by_their_shape(tmp_path: Path, size: int, expected: str) -> None:
    for name, hidden in (("one", 2048), ("two", size)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(
            json.dumps({"model_type": "llama", "hidden_size": hidden})
        )
    assert verdict(ID, models(str(tmp_path / "one"), str(tmp_path / "two"))) == expected


@pytest.mark.parametrize(
    "name", ["x" * 5000, "a/" * 4000, "a\0b", "models--" * 2000, "~nobody/x", "/dev/zero"]
)
def test_no_name_makes_it_fail(name: str) -> None:
    assert verdict(ID, models(name, "Qwen/Qwen3-4B")) in ("high", "skipped")


def test_a_pipe_in_the_place_of_a_config_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        os.mkfifo(tmp_path / name / "config.json")
    assert verdict(ID, models(str(tmp_path / "one"), str(tmp_path / "two"))) == "skipped"


def test_the_fix_names_the_adapters_own_base() -> None:
    assert "--base-model meta-llama/Llama-3.2-1B-Instruct" in only(ID, fires()).fix
