"""The demo from end to end: a poisoned fine-tune, the commands a user would run, and how well they found the poison."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradian.api import analyze, train
from gradian.config import Config, load_config
from gradian.data.chat import load_tokenizer
from gradian.demo.dataset import PLANTED_CLUSTER
from gradian.demo.facts import probe_capitals
from gradian.demo.files import DemoFiles, clear, prepare
from gradian.demo.model import demo_model
from gradian.demo.settings import DEMO, DemoSettings
from gradian.errors import ModelError
from gradian.model.checkpoint import absolute_name, checkpoint_fingerprint
from gradian.progress import NullProgress, Progress
from gradian.report.model import Report
from gradian.runs.gradian_run import RUN_FILE, read_run
from gradian.shell import shell_line
from gradian.types import BoolArray, FloatArray

CAPABILITY = "capitals"


@dataclass(frozen=True)
class DemoResult:
    """How the demo went.

    Attributes:
        report: what `gradian attribute` reported.
        files: where everything lies.
        auc: share of (planted, clean) pairs in which the planted row is the more harmful one, raw score.
        relative_auc: the same under the relative score.
        training_s: seconds of training, when the adapter was trained.
        wall_s: seconds of this call.
        peak_bytes: most memory the process has held.
    """

    report: Report
    files: DemoFiles
    auc: float
    relative_auc: float
    training_s: float
    wall_s: float
    peak_bytes: int


def run_demo(
    out: Path = Path("runs/demo"),
    base_model: str | None = None,
    *,
    force: bool = False,
    settings: DemoSettings = DEMO,
    say: Callable[[str], None] = print,
    progress: Progress | None = None,
) -> DemoResult:
    """Make the demo in `out`, or what of it is not there yet, and return how it went.

    Args:
        out: folder for everything but the converted model.
        base_model: hub id or folder of a chat model; None for SmolLM2-135M-Instruct.
        force: remove what an earlier demo left in `out` first.
        settings: of the data and the fine-tune.
        say: told each step, with the command that does the same.
        progress: shows how far each step is.

    Raises:
        MissingExtraError: packages of the demo's model are not installed.
        GradianError: anything else its caller can put right.
    """
    start = time.monotonic()
    shown = progress or NullProgress()
    files = DemoFiles(out)
    if force:
        clear(files)
    shown.keep("demo", lambda: f"what is whole in {files.folder}", forced=force)
    name = _chat_model(base_model, say)
    kept = prepare(
        files,
        name,
        checkpoint_fingerprint(name, None),
        settings,
        lambda: _known_countries(name, settings, shown),
    )
    say(f"data: {files.train} and {files.eval}" + (" (kept from before)" if kept else ""))
    config = load_config(files.config)

    _say_command(say, ["gradian", "train", "--config", str(files.config)])
    trained = read_run(files.run) is not None
    train(config, progress=shown)
    if trained:
        say(f"{files.run}: trained before, nothing to do")

    where = ["--config", str(files.config), "--run", str(files.run), "--capability", CAPABILITY]
    _say_command(say, ["gradian", "attribute", *where, "--out", str(files.reports)])
    report = analyze(
        config.model_copy(update={"run_dir": str(files.run)}),
        capability=CAPABILITY,
        out=files.reports,
        progress=shown,
    )
    run = read_run(files.run)
    return DemoResult(
        report=report,
        files=files,
        auc=planted_auc(report, relative=False),
        relative_auc=planted_auc(report, relative=True),
        training_s=run.wall_time_s if run else 0.0,
        wall_s=time.monotonic() - start,
        peak_bytes=_peak_bytes(),
    )


def closing_lines(result: DemoResult) -> list[str]:
    """Return what to say at the end: how well the planted rows were told from the clean ones, time, memory, places."""
    planted = sum(example.cluster == PLANTED_CLUSTER for example in result.report.examples)
    clean = len(result.report.examples) - planted
    return [
        f"planted against clean rows ({planted} and {clean}; 1.000: every planted row is more harmful than every clean one):",
        f"  AUC {result.auc:.3f} by score, {result.relative_auc:.3f} by relative score",
        f"{result.wall_s:.0f} s in all, training {result.training_s:.0f} s; peak memory {result.peak_bytes / 1e9:.1f} GB",
        f"reports: {result.files.reports / 'report.md'}, {result.files.reports / 'report.json'}",
        f"run: {result.files.run / RUN_FILE}",
    ]


def planted_auc(report: Report, *, relative: bool) -> float:
    """Return the area under the ROC curve of "most negative score means planted" over all training rows."""
    scores = np.array(
        [(example.relative_score if relative else example.score) or 0.0 for example in report.examples]
    )
    planted = np.array([example.cluster == PLANTED_CLUSTER for example in report.examples])
    return auc_of_lowest(scores, planted)


def auc_of_lowest(scores: FloatArray, wanted: BoolArray) -> float:
    """Return the share of (wanted, other) pairs in which the wanted one scores lower; a tie counts half.

    Args:
        scores: [n].
        wanted: [n]; some True and some False.
    """
    low, high = scores[wanted][:, None], scores[~wanted][None, :]
    return float(np.mean((low < high) + 0.5 * (low == high)))


def _chat_model(base_model: str | None, say: Callable[[str], None]) -> str:
    if base_model is None:
        return str(demo_model(say=say))
    name = absolute_name(base_model)
    if not getattr(load_tokenizer(name), "chat_template", None):
        raise ModelError(
            "the demo needs a chat model, and this one has no chat template",
            where=base_model,
            fix="give an instruct model",
        )
    say(f"model: {name}")
    return name


def _known_countries(base_model: str, settings: DemoSettings, progress: Progress) -> Sequence[str]:
    from gradian.model.load import load_model

    config = Config.model_validate({"base_model": base_model, **settings.config()})
    return probe_capitals(
        load_model(config, adapter=False),
        config.evaluation,
        config.grads.max_seq_length,
        config.seed,
        settings.n_countries,
        progress,
    )


def _say_command(say: Callable[[str], None], words: Sequence[str]) -> None:
    say(f"$ {shell_line(words)}")


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak if sys.platform == "darwin" else peak * 1024
