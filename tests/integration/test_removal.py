"""`gradian attribute --write-clean` on a tiny model whose regression was really trained into it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import gradian
from gradian.cli.main import app
from gradian.data.formats import load_dataset
from gradian.errors import DataError, NothingAccusedError
from tests.integration.poisoned import PoisonedRun

runner = CliRunner()


def config_file(run: PoisonedRun, cache: Path, folder: Path) -> str:
    file = folder / "gradian.yaml"
    file.write_text(yaml.safe_dump(run.config(cache).model_dump(exclude_unset=True)))
    return str(file)


@pytest.fixture
def unharmed(tmp_path: Path) -> Path:
    """An eval set of which nothing was lost."""
    file = tmp_path / "kept.jsonl"
    rows = [{"prompt": f"{k}{d}", "completion": f"{d}{k}"} for k, d in zip("abcdef", "123456", strict=True)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_the_clean_file_holds_the_other_lines_and_the_dropped_ids_are_printed(
    poisoned_run: PoisonedRun, poisoned_cache: Path, tmp_path: Path
) -> None:
    clean = tmp_path / "clean.jsonl"
    result = runner.invoke(
        app,
        [
            "attribute",
            "--config",
            config_file(poisoned_run, poisoned_cache, tmp_path),
            "--write-clean",
            str(clean),
        ],
    )
    assert result.exit_code == 0, result.stderr
    lines = poisoned_run.train.read_text().splitlines(keepends=True)
    kept = [line for row, line in enumerate(lines) if row not in poisoned_run.planted]
    assert clean.read_text() == "".join(kept)
    rows = load_dataset(poisoned_run.train).examples
    assert all(rows[row].id in result.stdout for row in poisoned_run.planted)
    assert "without the 8 of 20 rows of cluster planted" in result.stdout


def test_where_nothing_is_accused_the_report_is_shown_and_no_file_is_written(
    poisoned_run: PoisonedRun, poisoned_cache: Path, tmp_path: Path, unharmed: Path
) -> None:
    clean = tmp_path / "clean.jsonl"
    command = ["attribute", "--config", config_file(poisoned_run, poisoned_cache, tmp_path)]
    result = runner.invoke(app, [*command, "-e", str(unharmed), "--write-clean", str(clean)])
    assert result.exit_code == 2
    assert "Not diagnosed" in result.stdout
    assert "accuses no rows" in result.stderr
    assert not clean.exists()
    with pytest.raises(NothingAccusedError):
        gradian.analyze(
            poisoned_run.config(poisoned_cache, eval_dataset=str(unharmed)),
            write_clean=clean,
            out=tmp_path / "reports",
        )
    assert (tmp_path / "reports" / "report.json").is_file()
    assert not clean.exists()


@pytest.mark.parametrize("which", ["train", "eval"])
def test_an_input_as_the_clean_file_is_refused_before_anything_is_loaded(
    which: str, poisoned_run: PoisonedRun, tmp_path: Path
) -> None:
    target: Path = getattr(poisoned_run, which)
    raw = target.read_bytes()
    with pytest.raises(DataError, match="overwrite"):
        gradian.analyze(poisoned_run.config(tmp_path, base_model="nowhere"), write_clean=target)
    assert target.read_bytes() == raw
