from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.fidelity.bank import HEADER, RUNS, Bank, Record, open_bank, read_bank
from gradian.errors import GradianError

INPUTS = {"dataset": "a", "settings": {"seeds": [1, 2]}}
MEASURED = ("x-0", "y-1", "z-2")


def fresh(folder: Path, **changes: object) -> Bank:
    return open_bank(folder, {**INPUTS, **changes}, 11, MEASURED, {"torch": "2"})


def record(name: str, first: float) -> Record:
    kept = np.random.default_rng(len(name)).random(11) < 0.5
    return Record(name, 1, kept, np.array([first, np.pi, 1e-9], dtype=np.float32))


def test_records_come_back_bit_for_bit(tmp_path: Path) -> None:
    bank = fresh(tmp_path / "bank")
    written = [record("whole/1", 0.1), record("subset/000/1", 2.5)]
    for each in written:
        bank.add(each)
    read = read_bank(tmp_path / "bank")
    assert [each.name for each in read] == ["whole/1", "subset/000/1"]
    for each, expected in zip(read, written, strict=True):
        assert (each.kept == expected.kept).all()
        assert each.losses.tobytes() == expected.losses.tobytes()


@pytest.mark.parametrize("left", [1, 20, -1])
def test_a_line_that_was_cut_off_is_removed_and_written_again(tmp_path: Path, left: int) -> None:
    bank = fresh(tmp_path)
    bank.add(record("whole/1", 0.1))
    before = (tmp_path / RUNS).read_bytes()
    bank.add(record("whole/2", 0.2))
    after = (tmp_path / RUNS).read_bytes()
    (tmp_path / RUNS).write_bytes(before + after[len(before) :][:left])
    resumed = fresh(tmp_path)
    assert list(resumed.records) == ["whole/1"]
    resumed.add(record("whole/2", 0.2))
    assert (tmp_path / RUNS).read_bytes() == after


def test_a_bank_of_other_inputs_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    fresh(tmp_path)
    header = (tmp_path / HEADER).read_bytes()
    with pytest.raises(GradianError, match="something else") as caught:
        fresh(tmp_path, dataset="b")
    assert "other dataset" in str(caught.value)
    assert (tmp_path / HEADER).read_bytes() == header


def test_other_library_versions_go_on_with_a_bank(tmp_path: Path) -> None:
    fresh(tmp_path).add(record("whole/1", 0.1))
    assert list(open_bank(tmp_path, INPUTS, 11, MEASURED, {"torch": "3"}).records) == ["whole/1"]


@pytest.mark.parametrize(
    "damage", [b"{}\n", b"not json\n", b'{"name":"a","seed":1,"kept":"AA==","losses":""}\n']
)
def test_a_damaged_line_is_named(tmp_path: Path, damage: bytes) -> None:
    fresh(tmp_path).add(record("whole/1", 0.1))
    with (tmp_path / RUNS).open("ab") as file:
        file.write(damage)
    with pytest.raises(GradianError, match="damaged") as caught:
        read_bank(tmp_path)
    assert f"{RUNS}:2" in str(caught.value)


def test_a_folder_without_a_bank_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GradianError, match="cannot be read"):
        read_bank(tmp_path)
