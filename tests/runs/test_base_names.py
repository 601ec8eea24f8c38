from __future__ import annotations

import time

import pytest

from gradian.runs.base_names import full_precision, is_quantised, repository


@pytest.mark.parametrize(
    "name", ["a/b-bnb-4bit", "a/b-unsloth-bnb-4bit", "a/b-AWQ", "a/b-int8", "a/b-8bit", "TheBloke/b-GPTQ"]
)
def test_a_name_says_that_its_weights_are_quantised(name: str) -> None:
    assert is_quantised(name)


@pytest.mark.parametrize("name", ["a/b", "a/bnbx", "a/4bits", ""])
def test_another_name_says_nothing_of_the_kind(name: str) -> None:
    assert not is_quantised(name)


def test_a_bitsandbytes_repository_has_a_16_bit_one_behind_it() -> None:
    assert full_precision("unsloth/tinyllama-bnb-4bit") == "unsloth/tinyllama"
    assert full_precision("unsloth/tinyllama-unsloth-bnb-4bit") == "unsloth/tinyllama"
    assert full_precision("TheBloke/Llama-2-7B-GPTQ") == "TheBloke/Llama-2-7B-GPTQ"


def test_a_folder_of_the_hub_cache_is_its_repository_and_costs_no_time() -> None:
    assert repository("/c/hub/models--Owner--name/snapshots/0123/") == "owner/name"
    assert repository("/c/models--a/snapshots/0123/sub") == "/c/models--a/snapshots/0123/sub"
    start = time.process_time()
    repository("models--" * 100_000)
    assert time.process_time() - start < 1
