"""Scores the bank: how well each engine and each baseline foretells real retrainings. Retrains nothing.

    python -m experiments.fidelity.score                              # prints the tables, from the kept scores
    python -m experiments.fidelity.score --write docs/fidelity.md     # and writes them there
    python -m experiments.fidelity.score --rescore                    # builds the adapter's index and scores it anew

The kept scores are Gradian's, of the adapter that was trained on all rows; `--rescore` makes them again, which
needs the model and a minute or two.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from experiments.fidelity.bank import read_bank
from experiments.fidelity.dataset import DatasetSettings, bench_data
from experiments.fidelity.evaluation import Evidence
from experiments.fidelity.make_bank import ADAPTER, FOLDER, SECONDS, BankSettings, questions_hash, scores_of
from experiments.fidelity.page import figures, with_figures
from experiments.fidelity.scoring import read_scores
from gradian.demo.model import demo_model
from gradian.errors import GradianError


def settings_of(inputs: Mapping[str, Any]) -> BankSettings:
    """Return the settings that a bank was made with."""
    recorded = dict(inputs["settings"])
    data = DatasetSettings(**recorded.pop("data"))
    return BankSettings(**{**recorded, "data": data, "seeds": tuple(recorded["seeds"])})


def read_evidence(folder: Path) -> Evidence:
    """Return a bank with its scores and its data.

    Raises:
        GradianError: there is none, it is damaged, or its parts do not belong together.
    """
    bank, scores = read_bank(folder), read_scores(folder)
    settings = settings_of(bank.inputs)
    data = bench_data(settings.data)
    inputs = scores.made_from["inputs"]
    adapter = hashlib.sha256((folder / ADAPTER / "adapter_model.safetensors").read_bytes()).hexdigest()
    if (
        inputs["dataset"]["sha256"] != bank.inputs["dataset"]
        or inputs["checkpoint"]["adapter/adapter_model.safetensors"] != adapter
        or questions_hash(data) != bank.inputs["questions"]
    ):
        raise GradianError(
            "the scores or the questions are not those of the bank",
            where=str(folder),
            fix="run python -m experiments.fidelity.score --rescore",
        )
    return Evidence(bank, scores, data, settings.seeds, settings.plan_seed)


def half_seconds(folder: Path) -> list[float]:
    """Return the CPU seconds of each retraining on a random half."""
    rows = [json.loads(line) for line in (folder / SECONDS).read_text(encoding="ascii").splitlines()]
    return [row["cpu_seconds"] for row in rows if row["name"].startswith("subset/")]


def page_figures(folder: Path) -> str:
    """Return the generated part of the page, from a bank and the scores kept beside it."""
    return figures(read_evidence(folder), half_seconds(folder))


def main() -> None:
    """Score the bank."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bank", type=Path, default=FOLDER, help="folder of the bank")
    parser.add_argument("--work", type=Path, default=Path("runs/fidelity"), help="folder for the index")
    parser.add_argument("--rescore", action="store_true", help="score the adapter anew")
    parser.add_argument("--write", type=Path, help="page to write the tables into", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.rescore:
        torch.set_num_threads(1)
        settings = settings_of(read_bank(arguments.bank).inputs)
        data = bench_data(settings.data)
        scores_of(arguments.bank, arguments.work, demo_model(), settings, data, print, again=True)
    text = page_figures(arguments.bank)
    print(text)
    if arguments.write:
        page = arguments.write.read_text(encoding="utf-8")
        arguments.write.write_text(with_figures(page, text), encoding="utf-8")


if __name__ == "__main__":
    main()
