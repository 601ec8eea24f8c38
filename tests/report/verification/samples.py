"""Verifications for the tests: the worked example's report, and what a retraining could have shown."""

from __future__ import annotations

from types import SimpleNamespace

from gradian.config.schema import EvaluationConfig
from gradian.report.accused import accused_rows
from gradian.report.model import Report
from gradian.report.verification.build import Retraining, build_verification
from gradian.report.verification.model import Verification
from tests.report import samples

N = 16


def round_1(name: str = "capitals", text: str = "Berlin") -> Report:
    """Sixteen items of which the last eight were lost."""
    held = [
        samples.item(k, tuned_text="City", tuned_score=1.0, margin=None, regressed=False, flipped=False)
        for k in range(8)
    ]
    lost = [samples.item(k, tuned_text=text, expected=text, prompt=text) for k in range(8, N)]
    measured = samples.capability(
        [*held, *lost], name=name, base=1.0, tuned=0.5, delta=-0.5, ci_low=-0.75, ci_high=-0.25
    )
    return samples.poisoned(capability=measured, item_scores=None)


def retraining(right: int, run: str = "verified/retrained", text: str = "City") -> Retraining:
    """A run that answers the first `right` items."""
    items = [
        samples.item(
            k,
            tuned_text=text if k < right else "Berlin",
            tuned_score=1.0 if k < right else 0.0,
            regressed=k >= right,
        )
        for k in range(N)
    ]
    tuned = right / N
    wide = 0.2 if 0 < tuned < 1 else 0.0
    high = min(0.0, tuned - 1 + wide)
    measured = samples.capability(
        items,
        base=1.0,
        tuned=tuned,
        delta=tuned - 1,
        ci_low=tuned - 1 - wide,
        ci_high=high,
        verdict="regressed" if high < 0 else "not_significant",
    )
    return Retraining(run, 6, measured, ("000000000001-1", "000000000004-4", "000000000007-7"))  # type: ignore[arg-type]


def verification(
    right: int = N,
    control: int | None = None,
    *,
    report: Report | None = None,
    after: Retraining | None = None,
    notes: tuple[str, ...] = (),
) -> Verification:
    """The verification whose second round answers `right` items, and whose control `control` of them."""
    before = report or round_1()
    return build_verification(
        report=before,
        accused=accused_rows(before),
        run="runs/my-finetune",
        after=after or retraining(right),
        control=None if control is None else retraining(control, "verified/control"),
        evaluation=EvaluationConfig(n_bootstrap=500),
        seed=1234,
        notes=notes,
        provenance={"index": "8a98bd20d01eb7d8cd46"},
    )


def recovered() -> Verification:
    """Everything came back, and the control did not."""
    return verification(
        N, 8, notes=("The rounds were trained by other versions: torch 2.4 before, 2.13 now.",)
    )


def not_recovered() -> Verification:
    """Nothing came back."""
    return verification(8)


def broken(text: str) -> Verification:
    """A verification in which everything that can come from outside is `text`."""
    report = round_1(name=text, text=text)
    accused = accused_rows(report)
    named = SimpleNamespace(**{**vars(accused), "cluster": text, "label": text})
    return build_verification(
        report=report,
        accused=named,  # type: ignore[arg-type]
        run=text,
        after=retraining(N, run=text, text=text),
        control=retraining(8, run=text, text=text),
        evaluation=EvaluationConfig(n_bootstrap=100),
        seed=1,
        notes=(text or "note",),
        provenance={text: text},
    )
