"""Makes the bank: real retrainings of a small LoRA, with the loss of every question after each of them.

    OMP_NUM_THREADS=1 python -m experiments.fidelity.make_bank --subsets 50

Trains on all rows under two seeds, scores that adapter, then retrains without each topic, on random halves of the
rows, and without the rows that each ranking puts first. It can be stopped at any time: started again it goes on
with the retraining that it was stopped in and ends with the same bytes. Asked for more subsets later, it adds them.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.fidelity.bank import MOST_BYTES, Bank, Record, open_bank
from experiments.fidelity.dataset import BenchData, DatasetSettings, bench_data, question_example
from experiments.fidelity.plan import (
    RANDOM_TAILS,
    Retraining,
    random_tail,
    subsets,
    whole,
    without_rows,
    without_topics,
)
from experiments.fidelity.retraining import Retrainer, upper_targets
from experiments.fidelity.scoring import ScoreTables, read_scores, score_adapter, write_scores
from experiments.fidelity.tails import tails
from gradian.config import Config
from gradian.config.schema import TrainConfig
from gradian.data.formats import load_dataset
from gradian.data.ids import canonical_json, dataset_hash
from gradian.demo.model import MODEL_NAME, demo_model
from gradian.errors import GradianError
from gradian.model.checkpoint import checkpoint_fingerprint
from gradian.model.load import load_model
from gradian.progress import NullProgress
from gradian.session import Session
from gradian.store.durable import append_line, create_or_read, make_folder, replace_file
from gradian.store.lock import file_lock

FOLDER = Path(__file__).with_name("bank")
TRAIN, ADAPTER, SECONDS = "train.jsonl", "adapter", "seconds.jsonl"


@dataclass(frozen=True)
class BankSettings:
    """What decides a bank, beside the model.

    Attributes:
        data: of the rows and the questions.
        first_layer: the first decoder layer with LoRA.
        train: the recipe, as the config's `train` section has it.
        seeds: of the retrainings; the first one's adapter is scored, the second is the ceiling.
        plan_seed: of the subsets and of the random removals.
        max_seq_length: where rows are cut; none is that long.
    """

    data: DatasetSettings = field(default_factory=DatasetSettings)
    first_layer: int = 28
    train: dict[str, Any] = field(default_factory=lambda: dict(RECIPE))
    seeds: tuple[int, int] = (1, 2)
    plan_seed: int = 11
    max_seq_length: int = 256


RECIPE: dict[str, Any] = {
    "r": 8,
    "lora_alpha": 16,
    "learning_rate": 2e-3,
    "num_train_epochs": 1,
    "per_device_train_batch_size": 8,
}


# What of the config's `train` section decides a retraining here.
RECIPE_KEYS = (
    "r",
    "lora_alpha",
    "lora_dropout",
    "target_modules",
    "learning_rate",
    "num_train_epochs",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "warmup_ratio",
    "lr_scheduler_type",
    "max_grad_norm",
    "weight_decay",
)


class BankMaker:
    """Makes one bank, retraining by retraining.

    Args:
        folder: of the bank.
        work: folder for the index and what else can be made again.
        base_model: folder of the base model.
        settings: what decides the bank.
        say: told what is done.

    Raises:
        GradianError: the folder holds a bank of something else.
    """

    def __init__(
        self,
        folder: Path,
        work: Path,
        base_model: Path,
        settings: BankSettings,
        say: Callable[[str], None] = print,
    ) -> None:
        self.folder, self.work, self.settings = folder, work, settings
        self._base_model, self._say = base_model, say
        self.data = bench_data(settings.data)
        make_folder(folder)
        replace_file(folder / TRAIN, self.data.jsonl().encode("utf-8"))
        config = Config.model_validate({"base_model": str(base_model), "device": "cpu", "dtype": "float32"})
        loaded = load_model(config, adapter=False)
        train = TrainConfig.model_validate(
            {**settings.train, "target_modules": upper_targets(loaded.model, settings.first_layer)}
        )
        encoder = loaded.encoder(settings.max_seq_length)
        examples = load_dataset(folder / TRAIN).examples
        questions = measured_questions(self.data)
        measured = [
            encoder.encode_answer(question_example(self.data.questions[i], answer, i))
            for i, answer in questions
        ]
        inputs = {
            "dataset": dataset_hash(examples),
            "questions": questions_hash(self.data),
            "weights": weights_hashes(base_model),
            "encoding": encoder.fingerprint,
            "settings": asdict(settings),
            "recipe": train.model_dump(include=set(RECIPE_KEYS)),
        }
        self.bank = open_bank(
            folder,
            json.loads(canonical_json(inputs)),
            len(examples),
            tuple(row.id for row in measured),
            {name: importlib.metadata.version(name) for name in ("torch", "transformers", "peft")},
        )
        create_or_read(folder / SECONDS, MOST_BYTES)
        rows = [encoder.encode(example) for example in examples]
        self.retrainer = Retrainer(loaded, train, settings.first_layer, rows, measured)

    def make(self, n_subsets: int) -> Bank:
        """Make what the bank still lacks, with this many subsets of each seed."""
        first, second = self.settings.seeds
        if "base" not in self.bank.records:
            nothing = np.zeros(self.bank.n, dtype=np.bool_)
            self.bank.add(Record("base", 0, nothing, self.retrainer.base_losses().astype(np.float32)))
        self._retrain(whole(self.bank.n, first), self.folder / ADAPTER)
        self._retrain(whole(self.bank.n, second))
        scores = self._scores()
        for retraining in self._plan(scores, n_subsets):
            self._retrain(retraining)
        return self.bank

    def _plan(self, scores: ScoreTables, n_subsets: int) -> Iterator[Retraining]:
        first, second = self.settings.seeds
        n, plan_seed = self.bank.n, self.settings.plan_seed
        yield from without_topics(self.data.topics, first)
        # The odd halves are those that are reported, so they need their ceiling first.
        for k in range(n_subsets):
            yield from subsets(n, [k], first, plan_seed)
            if k % 2:
                yield from subsets(n, [k], second, plan_seed)
        yield from without_topics(self.data.topics, second)
        for i in range(RANDOM_TAILS):
            yield without_rows(n, random_tail(n, i, plan_seed), first)
        for tail in tails(scores, self.data):
            yield without_rows(n, tail.rows, first)
        yield from subsets(n, range(n_subsets), second, plan_seed)

    def _retrain(self, retraining: Retraining, adapter: Path | None = None) -> None:
        """Make one retraining unless it is there; its adapter is kept in `adapter`, before its line is written."""
        known = retraining.name in self.bank.records
        if known and (adapter is None or (adapter / "adapter_config.json").exists()):
            return
        start = time.process_time()
        fitted = self.retrainer.fit(retraining.kept, retraining.seed)
        losses = self.retrainer.losses().astype(np.float32)
        seconds = time.process_time() - start
        if not np.isfinite(losses).all():
            raise GradianError("a retraining diverged", where=retraining.name, fix="lower the learning rate")
        if adapter is not None:
            self._keep_adapter(adapter)
        if known:
            return
        self.bank.add(Record(retraining.name, retraining.seed, retraining.kept, losses))
        took = {"name": retraining.name, "steps": fitted.steps, "cpu_seconds": round(seconds, 2)}
        append_line(self.folder / SECONDS, (json.dumps(took) + "\n").encode("ascii"))
        self._say(
            f"{len(self.bank.records):4} {retraining.name}: {int(retraining.kept.sum())} rows, {fitted.steps} steps,"
            f" training loss {fitted.loss:.3f}, {seconds:.1f} s"
        )

    def _keep_adapter(self, adapter: Path) -> None:
        draft = self.work / "adapter"
        shutil.rmtree(draft, ignore_errors=True)
        self.retrainer.save(draft, MODEL_NAME)
        config = json.loads((draft / "adapter_config.json").read_text(encoding="utf-8"))
        make_folder(adapter)
        replace_file(
            adapter / "adapter_model.safetensors", (draft / "adapter_model.safetensors").read_bytes()
        )
        replace_file(
            adapter / "adapter_config.json",
            (json.dumps(config, indent=1, sort_keys=True) + "\n").encode("ascii"),
        )

    def _scores(self) -> ScoreTables:
        """Return the scores of the adapter, made unless they are there."""
        return scores_of(self.folder, self.work, self._base_model, self.settings, self.data, self._say)


def scores_of(
    folder: Path,
    work: Path,
    base_model: Path,
    settings: BankSettings,
    data: BenchData,
    say: Callable[[str], None],
    *,
    again: bool = False,
) -> ScoreTables:
    """Return the scores of a bank's adapter, making them unless they are there and of this adapter and data.

    Args:
        folder: of the bank.
        work: folder for the index.
        base_model: folder of the base model.
        settings: of the bank.
        data: the rows and the questions.
        say: told what is done.
        again: make them even if they are there.
    """
    session = Session(
        Config.model_validate(
            {
                "base_model": str(base_model),
                "adapter_path": str(folder / ADAPTER),
                "dataset": str(folder / TRAIN),
                "cache_dir": str(work / "cache"),
                "device": "cpu",
                "dtype": "float32",
                "seed": settings.seeds[0],
            }
        ),
        NullProgress(),
    )
    if not again:
        try:
            found = read_scores(folder)
        except GradianError:
            pass
        else:
            if all(
                found.made_from["inputs"][key] == session.inputs[key] for key in ("checkpoint", "dataset")
            ):
                return found
    start = time.monotonic()
    rate = TrainConfig.model_validate(settings.train).learning_rate
    scores = score_adapter(session, data, rate, work / "variants")
    write_scores(folder, scores)
    say(f"scored the adapter on all rows in {time.monotonic() - start:.0f} s")
    return scores


def measured_questions(data: BenchData) -> list[tuple[int, str]]:
    """Return what is measured: each question with its right answer, then those with a wrong one with that."""
    right = [(i, question.expected) for i, question in enumerate(data.questions)]
    return right + [
        (i, question.marker) for i, question in enumerate(data.questions) if question.marker is not None
    ]


def weights_hashes(base_model: Path) -> dict[str, str]:
    """Return the SHA-256 of the weights; each version of transformers writes the files beside them anew."""
    prints = checkpoint_fingerprint(str(base_model), None)
    return {name: digest for name, digest in prints.items() if name.endswith(".safetensors")}


def questions_hash(data: BenchData) -> str:
    """Return the SHA-256 of the questions."""
    return hashlib.sha256(
        canonical_json([asdict(question) for question in data.questions]).encode()
    ).hexdigest()


def main() -> None:
    """Make the bank."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bank", type=Path, default=FOLDER, help="folder of the bank")
    parser.add_argument("--work", type=Path, default=Path("runs/fidelity"), help="folder for the index")
    parser.add_argument(
        "--subsets", type=int, default=50, help="random halves to retrain on, under each seed"
    )
    arguments = parser.parse_args()
    # The order of a sum depends on the number of threads.
    torch.set_num_threads(1)
    make_folder(arguments.work)
    with file_lock(arguments.work / ".make_bank.lock", wait_seconds=0):
        say = partial(print, flush=True)
        maker = BankMaker(arguments.bank, arguments.work, demo_model(), BankSettings(), say)
        maker.make(arguments.subsets)


if __name__ == "__main__":
    main()
