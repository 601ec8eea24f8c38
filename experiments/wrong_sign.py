"""Does the query turn the verdict round? `target` against `contrastive` at the end of each epoch of the demo.

    python experiments/wrong_sign.py --demo runs/demo --out runs/wrong-sign

Retrains the demo's adapter with the demo's own settings, keeping every epoch's adapter, and scores each of
them under both query signals: averaged over the items that regressed and item by item, raw and relative.
An AUC of 1 says that every planted row is more harmful than every clean one, .5 that they cannot be told
apart, and below .5 that the planted rows come out as helpful: the wrong sign. For an item's own query only
the planted rows of its own country count as planted.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from gradian.api import train, with_settings
from gradian.attribution import items_to_explain
from gradian.config import Config, load_config
from gradian.data.formats import load_dataset
from gradian.demo.dataset import PLANTED_CLUSTER
from gradian.demo.files import STAMP, DemoFiles
from gradian.demo.run import auc_of_lowest
from gradian.engines import EngineSettings
from gradian.evaluation.capability import measure_capability
from gradian.progress import NullProgress
from gradian.query.contrastive import Signal, item_queries, resolve_signal, with_average
from gradian.query.scorer import gradient_norms, relative_influence, score_index
from gradian.runs.gradian_run import read_run
from gradian.session import Session
from gradian.types import BoolArray, FloatArray

ENGINES = ["datainf", "graddot"]
SIGNALS: tuple[Signal, ...] = ("target", "contrastive")


def own_country(planted: BoolArray, prompts: list[str], country: str) -> BoolArray:
    """Return which rows are planted rows about `country`."""
    return planted & np.array([country in prompt for prompt in prompts])


def mean_own_auc(scores: FloatArray, owns: list[BoolArray], clean: BoolArray) -> float:
    """Return the mean over items of the AUC of the item's own planted rows against the clean rows."""
    values = [
        auc_of_lowest(row[own | clean], own[own | clean]) for row, own in zip(scores, owns, strict=True)
    ]
    return float(np.mean(values))


def measure_checkpoint(config: Config, countries: list[str]) -> list[dict[str, Any]]:
    """Return one row a signal and engine for one adapter."""
    session = Session(config, NullProgress())
    evals = load_dataset(config.eval_dataset or "").examples
    measured = measure_capability(session.loaded, evals, config, "capitals")
    country_of = {example.id: country for example, country in zip(evals, countries, strict=True)}
    examples = session.dataset.examples
    planted = np.array([example.cluster == PLANTED_CLUSTER for example in examples])
    reader = session.index()
    norms = gradient_norms(reader)
    losses = {"planted": float(reader.loss[planted].mean()), "clean": float(reader.loss[~planted].mean())}
    sizes = {"planted": float(norms[planted].mean()), "clean": float(norms[~planted].mean())}
    items = items_to_explain(measured, evals, examples)
    prompts = [example.prompt for example in examples]
    owns = [own_country(planted, prompts, country_of[item.example.id]) for item in items]
    rows = []
    for requested in SIGNALS:
        signal = resolve_signal(requested, items)
        queries = item_queries(session.collector, session.encoder, items, signal)
        mean = [block.double().mean(dim=0) for block in queries.blocks]
        scores = score_index(
            reader,
            with_average(queries, mean, "average"),
            ENGINES,
            EngineSettings(config.engine.lambda_scale),
        )
        for engine in ENGINES:
            raw, each = scores[engine].values[0], scores[engine].values[1:]
            relative, each_relative = relative_influence(raw, norms), relative_influence(each, norms)
            rows.append(
                {
                    "signal": signal,
                    "engine": engine,
                    "tuned": measured.tuned,
                    "regressed": sum(item.regressed for item in measured.items),
                    "loss": losses,
                    "gradient_norm": sizes,
                    "averaged_raw": auc_of_lowest(raw, planted),
                    "averaged_relative": auc_of_lowest(relative, planted),
                    "own_raw": mean_own_auc(each, owns, ~planted),
                    "own_relative": mean_own_auc(each_relative, owns, ~planted),
                }
            )
    return rows


def main() -> None:
    """Run the experiment and print and write its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--demo", type=Path, default=Path("runs/demo"), help="folder that `gradian demo` made"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/wrong-sign"))
    parser.add_argument("--epochs", type=float, help="train longer than the demo does")
    arguments = parser.parse_args()
    files = DemoFiles(arguments.demo)
    countries = json.loads((files.folder / STAMP).read_text())["countries"]
    changes: dict[str, Any] = {"output_dir": str(arguments.out / "run"), "save_checkpoints": True}
    if arguments.epochs is not None:
        changes["num_train_epochs"] = arguments.epochs
    config = with_settings(
        load_config(files.config), {"train": changes, "cache_dir": str(arguments.out / "cache")}
    )
    train(config)
    run = read_run(arguments.out / "run")
    assert run is not None
    table = []
    print(
        "| epoch | signal | engine | tuned | averaged raw | averaged relative | own item raw | own item relative |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for checkpoint in run.checkpoints:
        adapter = arguments.out / "run" / checkpoint.path
        for row in measure_checkpoint(with_settings(config, {"adapter_path": str(adapter)}), countries):
            table.append({"epoch": checkpoint.epoch, **row})
            aucs = [row[key] for key in ("averaged_raw", "averaged_relative", "own_raw", "own_relative")]
            cells = " | ".join(f"{value:.3f}" for value in aucs)
            print(
                f"| {checkpoint.epoch:g} | {row['signal']} | {row['engine']} | {row['tuned']:.3f} | {cells} |",
                flush=True,
            )
    (arguments.out / "wrong_sign.json").write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
