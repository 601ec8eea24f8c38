from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradian.data.formats import load_dataset
from gradian.errors import DataError, NothingAccusedError
from gradian.removal import removal_lines, remove_accused
from gradian.report.model import Report
from tests.report import samples

CLUSTERS = ["100", "0", "100", "100", "0", "100", "100", "0", "100"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = [{"prompt": f"q{i}", "completion": "a", "cluster_id": name} for i, name in enumerate(CLUSTERS)]
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def report_on(source: Path) -> Report:
    examples = load_dataset(source).examples
    return samples.poisoned(examples=examples, assignment=CLUSTERS, findings=())


def test_the_accused_rows_are_left_out_and_named(source: Path, tmp_path: Path) -> None:
    removal = remove_accused(report_on(source), source, tmp_path / "clean.jsonl")
    lines = source.read_text().splitlines(keepends=True)
    assert (tmp_path / "clean.jsonl").read_text() == "".join(lines[row] for row in (0, 2, 3, 5, 6, 8))
    rows = load_dataset(source).examples
    assert removal.accused.ids == tuple(rows[row].id for row in (1, 4, 7))
    told = "\n".join(removal_lines(removal))
    assert all(name in told for name in removal.accused.ids)
    assert "3 of 9 rows" in told


def test_a_file_with_other_rows_than_the_report_is_refused(source: Path, tmp_path: Path) -> None:
    report = report_on(source)
    lines = source.read_text().splitlines(keepends=True)
    source.write_text("".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(DataError, match=r"other rows than the report(.|\n)*row 1 is"):
        remove_accused(report, source, tmp_path / "clean.jsonl")
    source.write_text("".join(lines[:-1]))
    with pytest.raises(DataError, match="8 rows, and 9 in the report"):
        remove_accused(report, source, tmp_path / "clean.jsonl")
    assert not (tmp_path / "clean.jsonl").exists()


def test_nothing_is_written_when_nothing_is_accused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(NothingAccusedError):
        remove_accused(samples.not_significant(), source, tmp_path / "clean.jsonl")
    assert not (tmp_path / "clean.jsonl").exists()
