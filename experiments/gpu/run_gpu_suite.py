"""The validation experiments: is the right thing blamed, and does dropping it help?

    python experiments/gpu/run_gpu_suite.py --all --quick
    python experiments/gpu/run_gpu_suite.py --all --model unsloth/Llama-3.2-1B-Instruct

A  plants a known bad cluster in clean instruction data, fine-tunes, attributes: is the cluster on top?
B  good data under broken settings: do the checks name the setting, and are the rows spared?
C  drops the accused rows of A and retrains: does the capability come back, and were they the planted rows?
D  the same rows through the hf and the unsloth backend: the same conclusion? Needs CUDA and unsloth.

Each prints a verdict: PASS, FAIL, INCONCLUSIVE where the experiment did not create what it meant to test, SKIPPED
where it cannot run. Under --out: verdict.json, and a report in Markdown and JSON for every run. A run that is there
already, of the same settings, is not trained again. `--quick` is sized for two CPU cores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from instruction_rows import origin
from poisons import Poison, build_poison
from scenarios import SCENARIOS, Scenario, scenario_rows, train_settings
from suite_settings import DEFAULT_MODEL, QUICK, SuiteSettings
from verdicts import (
    Status,
    Verdict,
    judge_parity,
    judge_poison,
    judge_recovery,
    judge_scenario,
    judge_scenarios,
    skipped,
)

import gradian
from gradian.api import train, verify
from gradian.cli.progress import terminal_progress
from gradian.config import Config
from gradian.demo.dataset import Row, jsonl
from gradian.demo.facts import probe_capitals
from gradian.demo.model import demo_model
from gradian.errors import GradianError, NothingAccusedError
from gradian.model.backends.obstacles import unavailable
from gradian.model.load import load_model
from gradian.progress import Progress
from gradian.report.model import Report
from gradian.store.durable import replace_file

RESULTS = Path(__file__).resolve().parent / "results"
VERDICT = "verdict.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Attributed:
    """One run of the suite: trained, attributed.

    Attributes:
        folder: what it left, the run itself in `run/`.
        config: its settings.
        report: what was found.
        seconds: of training and attribution together.
    """

    folder: Path
    config: Config
    report: Report
    seconds: float


@dataclass(frozen=True)
class Poisoned:
    """A run of experiment A with what was planted in it."""

    poison: Poison
    run: Attributed


class Suite:
    """What the experiments share; nothing is trained until an experiment asks for it.

    Args:
        settings: sizes and rates.
        out: folder of the results.
        keep_index: keep the gradient indexes, which are by far the largest files.
        progress: shows how far long work is.
        say: told each step.
    """

    def __init__(
        self,
        settings: SuiteSettings,
        out: Path,
        *,
        keep_index: bool,
        progress: Progress,
        say: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.out = out
        self.say = say
        self._keep_index = keep_index
        self._progress = progress
        self._poisoned: dict[str, Poisoned] = {}

    @cached_property
    def countries(self) -> tuple[str, ...]:
        """Countries whose capitals the base model knows: an item that it fails has nothing to lose."""
        config = self._config({"metric": "contains"}, {})
        return probe_capitals(
            load_model(config, adapter=False),
            config.evaluation,
            config.grads.max_seq_length,
            config.seed,
            self.settings.n_items,
            self._progress,
        )

    def poisoned(self, name: str) -> Poisoned:
        """Train and attribute on one poison, once."""
        if name not in self._poisoned:
            poison = build_poison(name, self.settings, self.countries)
            self.say(f"A-{name}: {poison.n_planted} of {len(poison.train)} rows planted")
            run = self.attribute(
                f"A-{name}", f"poison_{name}", poison.metric, poison.train, poison.eval, self.settings.train()
            )
            self._poisoned[name] = Poisoned(poison, run)
        return self._poisoned[name]

    def attribute(
        self,
        name: str,
        capability: str,
        metric: str,
        train_rows: Sequence[Row],
        eval_rows: Sequence[Row],
        settings: Mapping[str, Any],
        backend: str = "hf",
    ) -> Attributed:
        """Train on rows, attribute the run, and leave its report in a folder of its name."""
        start = time.monotonic()
        folder = self.out / name
        folder.mkdir(parents=True, exist_ok=True)
        files = {"train": folder / "train.jsonl", "eval": folder / "eval.jsonl"}
        replace_file(files["train"], jsonl(train_rows).encode())
        replace_file(files["eval"], jsonl(eval_rows).encode())
        run, cache = folder / "run", folder / "cache"
        config = self._config(
            {"metric": metric},
            {
                "dataset": str(files["train"]),
                "eval_dataset": str(files["eval"]),
                "adapter_path": str(run / "adapter"),
                "run_dir": str(run),
                "cache_dir": str(cache),
                "train": {**settings, "output_dir": str(run)},
            },
        )
        train(config, backend=backend, progress=self._progress)
        report = gradian.analyze(config, capability=capability, out=folder, progress=self._progress)
        if not self._keep_index:
            shutil.rmtree(cache, ignore_errors=True)
        return Attributed(folder, config, report, time.monotonic() - start)

    def _config(self, evaluation: Mapping[str, Any], paths: Mapping[str, Any]) -> Config:
        return Config.model_validate(
            {
                **self.settings.shared(),
                "evaluation": {"max_new_tokens": self.settings.max_new_tokens, **evaluation},
                **paths,
            }
        )

    def experiment_a(self) -> Verdict:
        """Plant a bad cluster and see whether it is found."""
        verdicts = {}
        for name in self.settings.poisons:
            made = self.poisoned(name)
            uptake = made.poison.uptake(made.run.report.items)
            verdicts[name] = judge_poison(made.run.report, made.poison.cluster, uptake)
            self._told(f"A-{name}", verdicts[name], made.run.seconds)
        return worst(verdicts)

    def experiment_b(self) -> Verdict:
        """Break a setting at a time and see whether it is named and the rows are spared."""
        verdicts = {}
        for scenario in SCENARIOS:
            verdicts[scenario.name], seconds = self._broken(scenario)
            self._told(f"B-{scenario.name}", verdicts[scenario.name], seconds)
        return judge_scenarios(verdicts)

    def _broken(self, scenario: Scenario) -> tuple[Verdict, float]:
        rows = scenario_rows(scenario, self.settings, self.countries)
        settings = train_settings(scenario, self.settings)
        run = self.attribute(
            f"B-{scenario.name}", f"badconfig_{scenario.name}", "contains", rows.train, rows.eval, settings
        )
        return judge_scenario(run.report, scenario.must_fire, rows.kinds), run.seconds

    def experiment_c(self) -> Verdict:
        """Drop what A's report accuses, retrain, measure again."""
        made = self.poisoned(self.settings.poisons[0])
        start = time.monotonic()
        try:
            verification = verify(
                run=made.run.folder / "run",
                report=made.run.report,
                out=self.out / f"C-{made.poison.name}",
                control=self.settings.control,
                progress=self._progress,
            )
        except NothingAccusedError as error:
            return Verdict(Status.INCONCLUSIVE, (f"Round 1 accuses nothing: {error.found}.",))
        planted = [
            example.id for example in made.run.report.examples if example.cluster == made.poison.cluster
        ]
        verdict = judge_recovery(verification, planted)
        self._told(f"C-{made.poison.name}", verdict, time.monotonic() - start)
        return verdict

    def experiment_d(self) -> Verdict:
        """Train A's rows with unsloth and see whether the report concludes the same."""
        obstacle = unavailable("unsloth")
        if obstacle is not None:
            return skipped(f"The unsloth backend cannot run here: {obstacle}.")
        made = self.poisoned(self.settings.poisons[0])
        poison = made.poison
        other = self.attribute(
            f"D-unsloth-{poison.name}",
            f"poison_{poison.name}",
            poison.metric,
            poison.train,
            poison.eval,
            self.settings.train(),
            backend="unsloth",
        )
        return judge_parity(made.run.report, other.report)

    def _told(self, name: str, verdict: Verdict, seconds: float) -> None:
        self.say(f"{name}: {verdict.status.value} ({seconds:.0f} s). {' '.join(verdict.reasons)}")


EXPERIMENTS: Mapping[str, Callable[[Suite], Verdict]] = {
    "A": Suite.experiment_a,
    "B": Suite.experiment_b,
    "C": Suite.experiment_c,
    "D": Suite.experiment_d,
}


def worst(verdicts: Mapping[str, Verdict]) -> Verdict:
    """Return the verdict over several poisons: the worst of them, with all of them in its figures."""
    order = (Status.FAIL, Status.INCONCLUSIVE, Status.PASS)
    status = min((verdict.status for verdict in verdicts.values()), key=order.index)
    reasons = tuple(f"{name}: {reason}" for name, each in verdicts.items() for reason in each.reasons)
    return Verdict(status, reasons, {"poisons": {name: each.to_json() for name, each in verdicts.items()}})


def run_suite(suite: Suite, names: Sequence[str]) -> dict[str, Verdict]:
    """Run experiments, writing verdict.json after each, and return their verdicts.

    Verdicts of earlier calls with the same settings stay in the file.
    """
    settings = recorded(suite.settings)
    head = {
        "schema_version": SCHEMA_VERSION,
        "gradian_version": gradian.__version__,
        "settings": settings,
        "data": origin(suite.settings.n_clean, suite.settings.alpaca),
    }
    file = suite.out / VERDICT
    kept = earlier(file, settings)
    made = {}
    for name in names:
        start = time.monotonic()
        verdict = made[name] = EXPERIMENTS[name](suite)
        kept[name] = {**verdict.to_json(), "seconds": round(time.monotonic() - start, 1)}
        text = json.dumps({**head, "experiments": dict(sorted(kept.items()))}, indent=2, ensure_ascii=False)
        suite.out.mkdir(parents=True, exist_ok=True)
        replace_file(file, f"{text}\n".encode())
        suite.say(f"{name}: {verdict.status.value}. {' '.join(verdict.reasons)}")
    return made


def recorded(settings: SuiteSettings) -> dict[str, Any]:
    """Return the settings as JSON values, the model by its folder's name where it is a folder."""
    model = settings.model
    values = asdict(settings) | {"model": Path(model).name if Path(model).is_dir() else model}
    return {key: str(value) if isinstance(value, Path) else value for key, value in values.items()} | {
        "poisons": list(settings.poisons)
    }


def earlier(file: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdicts in a file that were made with the same settings."""
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
        return dict(there["experiments"]) if there["settings"] == settings else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's values; a flag that was not given is None."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--all", action="store_true", help="all four experiments")
    which.add_argument(
        "--experiment", action="append", choices=sorted(EXPERIMENTS), help="one of them; may be repeated"
    )
    parser.add_argument(
        "--quick", action="store_true", help="sized for a CPU: SmolLM2-135M-Instruct, few rows"
    )
    parser.add_argument("--model", help=f"chat model, id or folder (default: {DEFAULT_MODEL})")
    parser.add_argument("--n-clean", type=int, help="clean rows of A, C and D (default: 800)")
    parser.add_argument("--n-broken", type=int, help="clean rows of B (default: 800)")
    parser.add_argument("--poison-fraction", type=float, help="share of planted rows (default: 0.06)")
    parser.add_argument("--epochs", type=float, help="passes over the poisoned file (default: 3)")
    parser.add_argument("--learning-rate", type=float, help="peak rate there (default: 2e-4)")
    parser.add_argument("--max-seq-length", type=int, help="where rows are cut, in tokens (default: 512)")
    parser.add_argument("--module-filter", help="regular expression of the modules to index (default: all)")
    parser.add_argument("--projection-dim", type=int, help="width of each block's projection (default: none)")
    parser.add_argument("--fp16-store", action="store_true", default=None, help="halve the index")
    parser.add_argument("--grad-batch-size", type=int, help="rows in one pass that captures gradients")
    parser.add_argument("--seed", type=int, help="of everything (default: 1234)")
    parser.add_argument(
        "--control", action="store_true", default=None, help="C also drops as many random rows"
    )
    parser.add_argument("--alpaca", type=Path, help="a local copy of Alpaca to take the clean rows from")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help=f"folder of the results (default: {RESULTS})"
    )
    parser.add_argument("--keep-index", action="store_true", help="keep the gradient indexes")
    return parser.parse_args(arguments)


def settings_of(arguments: argparse.Namespace) -> SuiteSettings:
    """Return the settings that a command line asks for."""
    names = SuiteSettings.__dataclass_fields__
    given = {key: value for key, value in vars(arguments).items() if key in names and value is not None}
    if arguments.quick and "model" not in given:
        given["model"] = str(demo_model(say=print))
    return replace(SuiteSettings(), **{**(QUICK if arguments.quick else {}), **given})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite and return the exit code: 1 when an experiment failed, 2 for what its caller can put right."""
    given = parse(arguments)
    try:
        settings = settings_of(given)
        suite = Suite(
            settings, given.out, keep_index=given.keep_index, progress=terminal_progress(), say=print
        )
        print(f"model: {settings.model}")
        print(f"data: {origin(settings.n_clean, settings.alpaca)}")
        made = run_suite(suite, sorted(EXPERIMENTS) if given.all else sorted(set(given.experiment)))
    except GradianError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"verdicts: {given.out / VERDICT}")
    return 1 if Status.FAIL in {verdict.status for verdict in made.values()} else 0


if __name__ == "__main__":
    sys.exit(main())
