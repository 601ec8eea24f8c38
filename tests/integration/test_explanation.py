"""`gradian explain` on a tiny model whose regression was really trained into it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradian.api import explain
from gradian.cli.main import app
from gradian.data.formats import load_dataset
from gradian.errors import ConfigError, DataError
from tests.integration.poisoned import PoisonedRun


def planted_id(run: PoisonedRun, number: int = 0) -> str:
    return load_dataset(run.train).examples[run.planted[number]].id


def test_a_planted_row_is_explained_by_the_item_it_broke(
    poisoned_run: PoisonedRun, poisoned_cache: Path
) -> None:
    config = poisoned_run.config(poisoned_cache)
    row = load_dataset(poisoned_run.train).examples[poisoned_run.planted[3]]
    own = next(item.id for item in load_dataset(poisoned_run.eval).examples if item.prompt == row.prompt)
    worst, asked = explain(config, example=row.id), explain(config, example=row.id, item=own)
    assert asked.item_prompt == row.prompt
    assert (worst.score or 0.0) <= (asked.score or 0.0) < 0
    for explained in (worst, asked):
        assert explained.id == row.id
        assert explained.regressed
        # The wrong letter, and not the end of the turn.
        assert explained.spans[0].text == "z"
        assert min(explained.tokens, key=lambda token: token.score or 0.0).text == "z"


def test_an_item_can_be_named_and_an_id_abbreviated(poisoned_run: PoisonedRun, poisoned_cache: Path) -> None:
    config = poisoned_run.config(poisoned_cache)
    item = load_dataset(poisoned_run.eval).examples[2]
    explained = explain(
        config, example=planted_id(poisoned_run)[:9], item=item.id, engine="graddot", tokens=False
    )
    assert explained.item == item.id
    assert explained.engine == "graddot"
    assert explained.tokens == ()


def test_an_unknown_or_ambiguous_id_is_refused_with_examples(
    poisoned_run: PoisonedRun, poisoned_cache: Path
) -> None:
    config = poisoned_run.config(poisoned_cache)
    with pytest.raises(DataError, match="no row has this id") as caught:
        explain(config, example="nothing-1")
    assert planted_id(poisoned_run)[:5] in str(caught.value) or "-0" in str(caught.value)
    with pytest.raises(DataError, match="no row has this id"):
        explain(config, example="")
    with pytest.raises(DataError, match="no row has this id"):
        explain(config, example=planted_id(poisoned_run), item="nothing")


def test_without_an_eval_set_there_is_nothing_to_explain(
    poisoned_run: PoisonedRun, poisoned_cache: Path
) -> None:
    config = poisoned_run.config(poisoned_cache).model_copy(update={"eval_dataset": None})
    with pytest.raises(ConfigError, match="eval_dataset"):
        explain(config, example=planted_id(poisoned_run))


def test_the_command_prints_the_culprit_first_and_writes_the_figures(
    poisoned_run: PoisonedRun, poisoned_cache: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "gradian.yaml"
    settings.write_text(json.dumps(poisoned_run.config(poisoned_cache).model_dump(exclude_unset=True)))
    out = tmp_path / "explained.json"
    result = CliRunner().invoke(
        app, ["explain", "--config", str(settings), "--example", planted_id(poisoned_run), "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    assert result.output.startswith("- Part 1 of 2 did it: `z` scores -")
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert figures["spans"][0]["text"] == "z"
    assert sum(span["score"] for span in figures["spans"]) == pytest.approx(figures["score"])
