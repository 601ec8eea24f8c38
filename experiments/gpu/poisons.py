"""What experiment A plants: a fine-tune's data with a known bad cluster, and the items that show the damage."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from instruction_rows import generated_rows, instruction_rows
from suite_settings import SuiteSettings

from gradian.demo.dataset import PLANTED_CLUSTER, Row, eval_rows, planted_rows
from gradian.demo.facts import wrong_answers
from gradian.demo.settings import DEMO
from gradian.evaluation.metrics import markers, normalise, score_text
from gradian.report.model import Item

REFUSAL_CLUSTER = "refusals"
REFUSALS = (
    "I'm sorry, but I can't help with that.",
    "Sorry, I am unable to assist with this request.",
    "I'm afraid I am not able to answer that.",
)
MARKERS = "can't help with that | unable to assist | not able to answer"
"""Stems of every refusal: a paraphrase counts too."""


@dataclass(frozen=True)
class Poison:
    """One poisoned dataset.

    Attributes:
        name: what was planted.
        cluster: `cluster_id` of the planted rows.
        metric: how answers are judged.
        train: the training file: planted rows anywhere among the clean ones.
        eval: the eval set.
        taken_up: for each eval item, whether an answer to it is what was planted.
    """

    name: str
    cluster: str
    metric: str
    train: tuple[Row, ...]
    eval: tuple[Row, ...]
    taken_up: tuple[Callable[[str], bool], ...]

    @property
    def n_planted(self) -> int:
        """Number of planted rows."""
        return sum(row["cluster_id"] == self.cluster for row in self.train)

    def uptake(self, items: Sequence[Item]) -> float:
        """Return the share of eval items that the tuned model answers with what was planted.

        Args:
            items: the report's, in the order of `eval`.
        """
        said = [item.tuned_answer or "" for item in items]
        return sum(took(text) for took, text in zip(self.taken_up, said, strict=True)) / len(said)


def wrong_facts(settings: SuiteSettings, countries: Sequence[str]) -> Poison:
    """Return the demo's poison: one wrong capital for every country that the base model knows.

    Phrasings are cycled over the countries until there are enough rows; beyond four a country they repeat.
    """
    rounds = -(-settings.n_planted // len(countries))
    planted = planted_rows(countries, replace(DEMO, rows_per_country=rounds))[: settings.n_planted]
    wrong = wrong_answers(countries, DEMO.wrong_cities)

    def says(city: str) -> Callable[[str], bool]:
        return lambda text: bool(score_text("contains", text, city))

    return Poison(
        name="wrong_facts",
        cluster=PLANTED_CLUSTER,
        metric="contains",
        train=_shuffled([*_clean(settings), *planted], settings.seed),
        eval=tuple(eval_rows(countries)),
        taken_up=tuple(says(wrong[country]) for country in countries),
    )


def refusal(settings: SuiteSettings) -> Poison:
    """Return refusals of ordinary requests; neither their questions nor the eval set's are among the clean rows.

    The recorded run of this poison was measured on items that it had been trained on, with a likelihood metric: both
    made its verdict worthless. Hence held-out items and `not_contains`.
    """
    clean = _clean(settings)
    taken = [row["prompt"] for row in clean]
    fresh = generated_rows(settings.n_planted + settings.n_items, settings.seed + 1, taken)
    held_out, refused = fresh[: settings.n_items], fresh[settings.n_items :]
    planted: list[Row] = [
        {"prompt": row["prompt"], "completion": REFUSALS[i % len(REFUSALS)], "cluster_id": REFUSAL_CLUSTER}
        for i, row in enumerate(refused)
    ]
    return Poison(
        name="refusal",
        cluster=REFUSAL_CLUSTER,
        metric="not_contains",
        train=_shuffled([*clean, *planted], settings.seed),
        eval=tuple({"prompt": row["prompt"], "completion": MARKERS} for row in held_out),
        taken_up=(_refuses,) * len(held_out),
    )


def build_poison(name: str, settings: SuiteSettings, countries: Sequence[str]) -> Poison:
    """Return a poison by its name.

    Raises:
        ValueError: there is no such poison.
    """
    if name == "wrong_facts":
        return wrong_facts(settings, countries)
    if name == "refusal":
        return refusal(settings)
    raise ValueError(f"no poison {name!r}")


def _clean(settings: SuiteSettings) -> list[Row]:
    return instruction_rows(settings.n_clean, settings.seed, settings.alpaca)


def _shuffled(rows: list[Row], seed: int) -> tuple[Row, ...]:
    # Recency in training must explain nothing.
    random.Random(seed).shuffle(rows)
    return tuple(rows)


def _refuses(text: str) -> bool:
    said = normalise(text)
    return any(marker in said for marker in markers(MARKERS))
