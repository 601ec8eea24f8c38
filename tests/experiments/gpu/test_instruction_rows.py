from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from instruction_rows import generated_rows, instruction_rows, local_rows, origin

from gradian.demo.dataset import clean_rows, jsonl
from gradian.demo.facts import CANDIDATES
from gradian.errors import DataError


def test_rows_are_the_same_every_time_and_others_under_another_seed() -> None:
    assert instruction_rows(400, 7, None) == instruction_rows(400, 7, None)
    assert generated_rows(40, 1) != generated_rows(40, 2)


def test_no_two_rows_ask_the_same_and_every_row_has_an_answer() -> None:
    rows = instruction_rows(2000, 1234, None)
    assert len(rows) == 2000
    assert len({row["prompt"] for row in rows}) == 2000
    assert all(row["completion"].strip() for row in rows)


def test_what_ships_comes_first_and_the_rest_is_of_many_kinds() -> None:
    rows = instruction_rows(800, 1234, None)
    assert rows[: len(clean_rows())] == list(clean_rows())
    kinds = Counter(row["cluster_id"] for row in rows)
    assert max(kinds.values()) < 0.15 * len(rows)
    assert "260 that ship with Gradian, 540 generated" in origin(800, None)


def test_no_row_is_about_a_capital() -> None:
    text = jsonl(instruction_rows(2000, 1234, None))
    assert not [phrase for phrase in ("capital of", "capital city") if phrase in text.lower()]
    assert not [city for city in CANDIDATES.values() if city in text]


def test_generated_answers_are_right() -> None:
    for row in generated_rows(200, 5):
        words = row["prompt"].replace("?", "").replace(",", "").split()
        if row["cluster_id"] == "sums":
            assert row["completion"].endswith(f" {int(words[2]) + int(words[4])}.")
        if row["cluster_id"] == "larger":
            assert row["completion"].startswith(f"{max(int(words[3]), int(words[5]))} ")
        if row["cluster_id"] == "json":
            assert set(json.loads(row["completion"])) == {"name", "age", "item"}


def test_a_local_file_gives_its_own_rows_but_none_about_capitals(tmp_path: Path) -> None:
    rows = [{"instruction": f"Say {i}", "input": "now" if i % 2 else "", "output": f"{i}"} for i in range(30)]
    rows[3]["output"] = "The capital of France is Paris."
    rows[4]["output"] = ""
    file = tmp_path / "alpaca.json"
    file.write_text(json.dumps(rows))
    chosen = local_rows(file, 20, seed=1)
    assert chosen == local_rows(file, 20, seed=1)
    assert {row["cluster_id"] for row in chosen} == {"alpaca"}
    assert not {row["prompt"] for row in local_rows(file, 28, 1)} & {"Say 3\n\nnow", "Say 4"}
    with pytest.raises(DataError, match="28 usable rows"):
        local_rows(file, 29, seed=1)
    assert instruction_rows(5, 1, file)[0]["cluster_id"] == "alpaca"
    assert str(file) in origin(5, file)
