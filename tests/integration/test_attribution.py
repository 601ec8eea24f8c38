"""The whole path on a tiny model whose regression was really trained into it."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gradian
from gradian import attribution
from gradian.api import build_index_for
from gradian.cli.main import app
from gradian.errors import (
    ConfigError,
    DataError,
    EvaluationError,
    ModelError,
    NoLoraBlocksError,
    RunError,
    UnknownNameError,
)
from gradian.report.model import Report
from tests.integration.poisoned import LETTERS, PoisonedRun


@pytest.fixture(scope="module")
def report(poisoned_run: PoisonedRun, poisoned_cache: Path) -> Report:
    return gradian.analyze(poisoned_run.config(poisoned_cache), capability="letters")


def ids(report: Report) -> set[str]:
    return {finding.id for finding in report.findings}


def test_the_planted_cluster_is_accused(report: Report, poisoned_run: PoisonedRun) -> None:
    assert report.diagnosed
    assert report.capability is not None
    assert report.capability.verdict == "regressed"
    assert report.capability.ci_high < 0
    first, second = report.clusters
    assert (first.id, second.id) == ("planted", "clean")
    assert first.share_of_negative > 0.8
    assert first.mean < 0 < second.mean
    assert [e.row for e in report.examples if e.cluster == "planted"] == list(poisoned_run.planted)
    assert any("planted" in line for line in report.summary)


def test_every_lost_item_names_a_planted_row_first(report: Report, poisoned_run: PoisonedRun) -> None:
    rows = {example.id: example.row for example in report.examples}
    lost = [item for item in report.items if item.regressed]
    assert len(lost) == len(LETTERS)
    assert all(rows[item.most_harmful[0].id] in poisoned_run.planted for item in lost)


def test_items_in_groups_and_scores_that_are_never_whole_make_the_same_report(
    report: Report, poisoned_run: PoisonedRun, poisoned_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution, "SCORE_BYTES", 0)
    monkeypatch.setattr(attribution, "QUERY_BYTES", 1)
    parted = gradian.analyze(poisoned_run.config(poisoned_cache), capability="letters")
    for item, other in zip(parted.items, report.items, strict=True):
        assert [row.id for row in item.most_harmful] == [row.id for row in other.most_harmful]
        assert [row.score for row in item.most_harmful] == pytest.approx(
            [row.score for row in other.most_harmful], rel=1e-4
        )
    assert [e.score for e in parted.examples] == pytest.approx([e.score for e in report.examples], rel=1e-4)
    assert parted.engines.spearman == pytest.approx(report.engines.spearman)


def test_scores_predictions_and_clusters_add_up(report: Report) -> None:
    n = len(report.examples)
    assert [example.row for example in report.examples] == list(range(n))
    for example in report.examples:
        assert example.predicted_loss_delta_if_removed == pytest.approx(example.score / n)
    for cluster in report.clusters:
        scores = [example.score for example in report.examples if example.cluster == cluster.id]
        assert cluster.sum == pytest.approx(sum(scores))
        assert cluster.mean == pytest.approx(sum(scores) / len(scores))


def test_the_same_question_twice_gives_the_same_bytes_and_no_row_through_the_model(
    report: Report,
    poisoned_run: PoisonedRun,
    poisoned_cache: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = poisoned_run.config(poisoned_cache)
    with caplog.at_level(logging.INFO, "gradian"):
        again = gradian.analyze(config, capability="letters", out=tmp_path)
    assert "found whole with 20 rows; no training row goes through the model" in caplog.text
    assert again == report
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["examples"][3]["score"] == report.examples[3].score
    assert (tmp_path / "report.md").read_text().startswith("# ")


@pytest.mark.parametrize(
    "name", ["chunks/000001.safetensors", "examples.safetensors", "journal.jsonl", "manifest.json"]
)
def test_a_byte_that_changed_in_the_index_is_an_error_with_its_file_and_no_score(
    report: Report, poisoned_run: PoisonedRun, poisoned_cache: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(poisoned_cache, tmp_path / "cache")
    config = poisoned_run.config(tmp_path / "cache")
    path = tmp_path / "cache" / "index" / report.provenance["index"]["id"] / name
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    settings = tmp_path / "gradian.json"  # JSON is YAML
    settings.write_text(config.model_dump_json())
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["attribute", "--config", str(settings), "--out", str(out)])
    assert done.exit_code == 2, done.output
    assert path.name in done.stderr
    assert done.stdout == ""
    assert not any(out.glob("report.*"))


def test_what_changes_a_number_changes_the_index_id(
    report: Report, poisoned_run: PoisonedRun, poisoned_cache: Path
) -> None:
    ids = {report.provenance["index"]["id"]}
    for section in (
        {"seed": 7},
        {"grads": {"chunk_size": 8, "storage_dtype": "float16"}},
        {"engine": {"lambda_scale": 0.2}},
    ):
        reader = build_index_for(poisoned_run.config(poisoned_cache, **section))
        ids.add(reader.id)
    ids.add(build_index_for(poisoned_run.config(poisoned_cache), skip_nonfinite=True).id)
    assert len(ids) == 5


def test_a_relative_ranking_is_the_raw_one_over_the_gradient_norm(
    report: Report, poisoned_run: PoisonedRun, poisoned_cache: Path
) -> None:
    config = poisoned_run.config(poisoned_cache, engine={"relative": True})
    relative = gradian.analyze(config, capability="letters")
    assert relative.engines.ranked_by == "relative"
    assert [e.score for e in relative.examples] == [e.score for e in report.examples]
    assert [e.relative_score for e in relative.examples] == [e.relative_score for e in report.examples]
    reader = build_index_for(config)
    norms = reader.sq_norms.sum(axis=1) ** 0.5
    for example in report.examples:
        assert example.relative_score == pytest.approx(example.score / norms[example.row])


@pytest.mark.parametrize("engine", ["graddot", "tracin"])
def test_other_engines_accuse_the_planted_cluster_too(
    engine: str, poisoned_run: PoisonedRun, poisoned_cache: Path
) -> None:
    config = poisoned_run.config(poisoned_cache)
    report = gradian.analyze(config, engine=engine, cross_check=None)
    assert report.engines.primary == engine
    assert report.engines.spearman is None
    assert report.clusters[0].id == "planted"


def test_without_an_eval_set_it_is_a_smoke_test_and_says_so(
    poisoned_run: PoisonedRun, poisoned_cache: Path
) -> None:
    config = poisoned_run.config(poisoned_cache, eval_dataset=None)
    report = gradian.analyze(config)
    assert not report.diagnosed
    assert report.capability is None
    assert "attribution.no_capability_target" in ids(report)
    assert not any("planted" in line for line in report.summary)
    assert len(report.examples) == 20


def test_nothing_is_accused_when_nothing_regressed(
    poisoned_run: PoisonedRun, poisoned_cache: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text(
        "".join(
            json.dumps({"prompt": f"{k}{d}", "completion": f"{d}{k}"}) + "\n"
            for k, d in zip("abcdef", "123456", strict=True)
        )
    )
    report = gradian.analyze(poisoned_run.config(poisoned_cache, eval_dataset=str(kept)))
    assert report.capability is not None
    assert report.capability.verdict == "not_significant"
    assert not report.diagnosed
    assert {"attribution.gate_failed", "attribution.no_item_regressed"} <= ids(report)
    assert "attribution.target_query" not in ids(report)
    # What the model says is the wanted answer: their difference would be a query of zeros.
    assert report.capability.query_signal == "target"
    assert all(example.score != 0 for example in report.examples)
    assert not any("planted" in line for line in report.summary)


def test_under_not_contains_the_lost_answer_is_what_the_base_model_said(
    poisoned_run: PoisonedRun, poisoned_cache: Path, tmp_path: Path
) -> None:
    markers = tmp_path / "markers.jsonl"
    markers.write_text("".join(json.dumps({"prompt": f"{k}?", "completion": "z"}) + "\n" for k in LETTERS))
    refusals = gradian.analyze(
        poisoned_run.config(
            poisoned_cache,
            eval_dataset=str(markers),
            evaluation={"metric": "not_contains", "max_new_tokens": 4},
        )
    )
    answers = gradian.analyze(poisoned_run.config(poisoned_cache))
    # The base model's answers are the expected ones, so both metrics ask the same question.
    assert refusals.capability is not None
    assert refusals.capability.delta == -1.0
    for one, other in zip(refusals.examples, answers.examples, strict=True):
        assert one.score == pytest.approx(other.score, rel=1e-3, abs=1e-3)


def test_a_likelihood_metric_is_called_a_proxy_and_its_query_a_target(
    poisoned_run: PoisonedRun, poisoned_cache: Path
) -> None:
    config = poisoned_run.config(poisoned_cache, evaluation={"metric": "loglik"})
    report = gradian.analyze(config)
    assert report.capability is not None
    assert report.capability.proxy_used
    assert report.capability.query_signal == "target"
    assert {"attribution.proxy_metric", "attribution.target_query"} <= ids(report)


def test_attribution_without_an_adapter_is_refused(poisoned_run: PoisonedRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--adapter"):
        gradian.analyze(poisoned_run.config(tmp_path, adapter_path=None))


def test_a_run_folder_that_is_not_there_is_refused(poisoned_run: PoisonedRun, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such run folder"):
        gradian.analyze(poisoned_run.config(tmp_path, run_dir=str(tmp_path / "missing")))


def run_folder(folder: Path, run: PoisonedRun, steps: int) -> Path:
    """A folder as a trainer leaves it beside the adapter: settings and log, 12 epochs of a high rate."""
    shutil.copytree(run.adapter, folder)
    log = [
        {
            "step": step,
            "epoch": 12 * step / steps,
            "loss": 3.0 / (step + 1),
            "grad_norm": 0.5,
            "learning_rate": 5e-3 * (1 - step / (steps + 1)),
        }
        for step in range(1, steps + 1)
    ]
    state = {
        "global_step": steps,
        "max_steps": steps,
        "num_train_epochs": 12,
        "train_batch_size": 4,
        "log_history": log,
    }
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder


def test_a_run_folder_brings_the_audit_into_the_report(
    poisoned_run: PoisonedRun, poisoned_cache: Path, tmp_path: Path
) -> None:
    folder = run_folder(tmp_path / "run", poisoned_run, steps=60)
    alone = gradian.analyze(poisoned_run.config(poisoned_cache))
    report = gradian.analyze(poisoned_run.config(poisoned_cache, run_dir=str(folder)))
    assert {"config.overtraining", "config.lr_too_high", "data.eval_answer_contradicted"} <= ids(report)
    assert not {"config.overtraining", "data.eval_answer_contradicted"} & ids(alone)
    assert report.summary[0].startswith("1 critical issue invalidates or dominates this run")
    assert report.examples == alone.examples
    # The folder does not say where training cut the rows.
    skipped = {skipped.id: skipped.reason for skipped in report.skipped}
    assert "--max-seq-length" in skipped["config.max_seq_length_vs_data"]
    assert [entry.id for entry in alone.skipped] == ["audit"]


def test_a_folder_that_no_trainer_wrote_is_refused_before_anything_is_loaded(
    poisoned_run: PoisonedRun, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="nothing that a trainer writes"):
        gradian.analyze(poisoned_run.config(tmp_path, run_dir=str(tmp_path / "empty"), base_model="nowhere"))


def test_a_report_without_a_place_is_refused_before_anything_is_loaded(
    poisoned_run: PoisonedRun, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        gradian.analyze(poisoned_run.config(tmp_path, base_model="nowhere"), out=tmp_path / "file" / "out")


def test_an_impossible_module_filter_is_refused_before_the_capability_is_measured(
    poisoned_run: PoisonedRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = poisoned_run.config(tmp_path, grads={"module_filter": "nothing_like_this"})
    with caplog.at_level(logging.INFO, "gradian"), pytest.raises(NoLoraBlocksError):
        gradian.analyze(config, capability="letters")
    assert "letters" not in caplog.text


def test_an_engine_is_not_its_own_cross_check(poisoned_run: PoisonedRun, poisoned_cache: Path) -> None:
    report = gradian.analyze(poisoned_run.config(poisoned_cache), engine="graddot", cross_check="graddot")
    assert (report.engines.cross_check, report.engines.spearman) == (None, None)
    assert [skipped.id for skipped in report.skipped] == ["cross_check", "audit"]


def test_a_training_row_beyond_the_models_context_is_named(poisoned_run: PoisonedRun, tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text(
        poisoned_run.train.read_text() + json.dumps({"prompt": "a" * 200, "completion": "b"}) + "\n"
    )
    with pytest.raises(DataError, match=r"rows 21(.|\n)*grads.max_seq_length to 128"):
        gradian.analyze(poisoned_run.config(tmp_path, dataset=str(data)))


def test_a_faulty_eval_row_is_named_with_its_file(poisoned_run: PoisonedRun, tmp_path: Path) -> None:
    empty = tmp_path / "eval.jsonl"
    empty.write_text('{"messages": [{"role": "user", "content": "a?"}]}\n')
    with pytest.raises(EvaluationError, match=r"eval.jsonl(.|\n)*eval row 1: no assistant answer"):
        gradian.analyze(poisoned_run.config(tmp_path, eval_dataset=str(empty)))


def test_a_truncated_base_model_is_an_error_with_its_folder(
    poisoned_run: PoisonedRun, poisoned_cache: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(poisoned_run.base, base)
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(ModelError, match="cannot load the base model"):
        gradian.analyze(poisoned_run.config(poisoned_cache, base_model=str(base)))


def test_an_adapter_given_as_the_base_is_called_an_adapter(poisoned_run: PoisonedRun, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="this folder is an adapter"):
        build_index_for(poisoned_run.config(tmp_path, base_model=str(poisoned_run.adapter)))


def test_an_unknown_engine_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="datainf"):
        gradian.analyze(base_model="nowhere", adapter="nowhere", dataset="nowhere", engine="data-inf")
