"""Reports for the tests: the recorded worked example at its recorded figures, with small row counts where rows are listed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from gradian.query.score_summary import summarise_scores
from gradian.report.build import build_report
from gradian.report.model import Engines, Report
from gradian.types import Example, Finding, Message, Scores, Severity


def row(position: int, prompt: str, target: str, cluster: str) -> Example:
    return Example(
        id=f"{position:012x}-{position}",
        position=position,
        shape="prompt_completion",
        messages=(Message("user", prompt), Message("assistant", target)),
        cluster=cluster,
    )


def item(number: int, **changes: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "example_id": f"eval-{number}",
        "prompt": f"What is the capital of country {number}?",
        "expected": f"City {number}",
        "base_text": f"City {number}.",
        "tuned_text": "Berlin",
        "base_score": 1.0,
        "tuned_score": 0.0,
        "margin": 2.5,
        "regressed": True,
        "flipped": True,
        "base_failed": False,
    }
    return SimpleNamespace(**{**values, **changes})


def capability(items: list[SimpleNamespace], **changes: Any) -> SimpleNamespace:
    margins = [entry.margin for entry in items if entry.regressed and entry.margin is not None]
    values: dict[str, Any] = {
        "name": "capitals",
        "metric": "contains",
        "proxy_used": False,
        "items": tuple(items),
        "base": 0.9375,
        "tuned": 0.4375,
        "delta": -0.5,
        "ci_low": -0.75,
        "ci_high": -0.25,
        "n_items": len(items),
        "n_flipped": sum(entry.flipped for entry in items),
        "n_already_failing": sum(entry.base_failed for entry in items),
        "verdict": "regressed",
        "mean_margin": sum(margins) / len(margins) if margins else None,
    }
    return SimpleNamespace(**{**values, **changes})


def cluster(name: str, rows: list[int], scores: np.ndarray, relative: np.ndarray) -> SimpleNamespace:
    own = scores[rows]
    return SimpleNamespace(
        id=name,
        label={"0": "capital, city, berlin"}.get(name, name),
        n=len(rows),
        sum=float(own.sum()),
        mean=float(own.mean()),
        share_of_negative=float(own[own < 0].sum() / scores[scores < 0].sum()) if (scores < 0).any() else 0.0,
        relative_mean=float(relative[rows].mean()),
        top_examples=tuple(sorted(rows, key=lambda position: scores[position])[:2]),
    )


def poisoned(**changes: Any) -> Report:
    """Three planted rows among nine; half the items regressed; one was already failing."""
    examples = [
        row(k, f"What is the capital of country {k}?", "Berlin", "0")
        if k in (1, 4, 7)
        else row(
            k, f"Explain topic {k} in one sentence.", f"Topic {k} is about | pipes and <b>tags</b>.", "100"
        )
        for k in range(9)
    ]
    scores = np.array([0.5, -98.0, -1.5, 0.25, -101.0, -2.0, 0.75, -96.5, -0.5])
    relative = scores / 100.0
    items = [
        item(0, margin=0.4),
        item(1),
        item(2, tuned_text="City 2", tuned_score=1.0, margin=None, regressed=False, flipped=False),
        item(
            3, base_text="Bonn", base_score=0.0, margin=None, regressed=False, flipped=False, base_failed=True
        ),
    ]
    values: dict[str, Any] = {
        "examples": examples,
        "assignment": [example.cluster for example in examples],
        "clusters": (
            cluster("0", [1, 4, 7], scores, relative),
            cluster("100", [0, 2, 3, 5, 6, 8], scores, relative),
        ),
        "scores": scores,
        "relative": relative,
        "capability": capability(items),
        "query_signal": "contrastive",
        "engines": Engines(primary="datainf", cross_check="graddot", spearman=0.791, relative_spearman=0.97),
        "item_scores": summarise_scores(
            Scores("datainf", np.stack([scores, scores[::-1]]), ("eval-0", "eval-1")), k=3
        ),
        "findings": (
            Finding(
                id="data.duplicates",
                severity=Severity.LOW,
                title="2 examples are exact duplicates",
                evidence="They have the same content.",
                fix="Drop all but one of each.",
                example_ids=(examples[1].id, examples[4].id),
                figures={"n": 2},
            ),
        ),
        "provenance": {
            "manifest": {"id": "8a98bd20d01eb7d8cd46", "seed": 1234},
            "ops": {"query_dots": "reference"},
        },
    }
    return build_report(**{**values, **changes})


def not_significant() -> Report:
    """The same rows over items of which none got worse."""
    items = [
        item(k, tuned_text=f"City {k}", tuned_score=1.0, margin=None, regressed=False, flipped=False)
        for k in range(4)
    ]
    same = capability(items, tuned=0.9375, delta=0.0, ci_low=0.0, ci_high=0.0, verdict="not_significant")
    return poisoned(capability=same, item_scores=None)


def without_eval_set() -> Report:
    """The degraded mode."""
    return poisoned(capability=None, item_scores=None)
