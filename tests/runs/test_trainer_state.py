from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradian.runs.artifact import EvalRow, LogRow, Resume
from gradian.runs.trainer_state import TrainerState, parse_state

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ROWS = st.lists(
    st.dictionaries(
        st.sampled_from(
            ["step", "loss", "eval_loss", "eval_a_loss", "eval_a_runtime", "train_loss", "epoch", "x"]
        ),
        JSON,
    )
)


def state(*rows: dict[str, Any], **others: Any) -> TrainerState:
    return parse_state({"log_history": list(rows), **others})


def test_rows_are_split_into_training_evaluation_and_totals() -> None:
    found = state(
        {"step": 10, "loss": 2.0, "grad_norm": 1.0, "learning_rate": 1e-4, "epoch": 0.5},
        {"step": 10, "eval_loss": 1.5, "eval_runtime": 2.0, "epoch": 0.5},
        {"step": 20, "train_loss": 1.9, "train_runtime": 60.0, "epoch": 1.0},
        global_step=20,
        max_steps=40,
        num_train_epochs=2,
        train_batch_size=8,
    )

    assert found.train_log == (LogRow(10, 2.0, 1.0, 1e-4, 0.5),)
    assert found.eval_log == (EvalRow(10, 1.5, "", 0.5, {"runtime": 2.0}),)
    assert found.summary == {"train_loss": 1.9, "train_runtime": 60.0, "epoch": 1.0}
    assert (found.global_step, found.total_steps, found.epochs, found.batch) == (20, 40, 2, 8)


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ({"eval_loss": 1, "eval_policy_loss": 2}, [""]),
        ({"eval_math_loss": 1, "eval_math_runtime": 1, "eval_math_policy_loss": 3}, ["math"]),
        ({"eval_math_loss": 1, "eval_chat_loss": 2}, ["math", "chat"]),
        ({"eval_accuracy": 0.5}, [""]),
    ],
)
def test_eval_sets_are_told_apart_by_name(row: dict[str, Any], names: list[str]) -> None:
    assert [entry.name for entry in state({"step": 1, **row}).eval_log] == names


def test_a_log_that_goes_back_is_a_resume_and_the_later_row_counts() -> None:
    found = state(*({"step": step, "loss": float(index)} for index, step in enumerate([1, 2, 3, 2, 3, 4])))

    assert found.resumes == (Resume(2, (2, 3)),)
    assert [(row.step, row.loss) for row in found.train_log] == [(1, 0.0), (2, 3.0), (3, 4.0), (4, 5.0)]


def test_a_log_that_goes_back_twice_is_two_resumes() -> None:
    found = state(*({"step": step, "loss": 1.0} for step in [1, 2, 3, 2, 3, 1, 2]))
    assert found.resumes == (Resume(2, (2, 3)), Resume(1, (1, 2)))


def test_a_batch_size_that_changes_is_a_resume_without_overlap() -> None:
    found = parse_state({"log_history": [{"step": 1, "loss": 1.0}]}, [(10, 2), (20, 2), (30, 4)])
    assert found.resumes == (Resume(20, (), (2, 4)),)


def test_a_log_without_a_break_is_no_resume() -> None:
    found = parse_state(
        {"log_history": [{"step": 1, "loss": 1.0}, {"step": 1, "eval_loss": 1.0}]}, [(1, 2), (2, 2)]
    )
    assert found.resumes == ()


@settings(deadline=None, max_examples=50)
@given(ROWS | JSON, JSON, JSON)
def test_no_state_raises_and_the_logs_are_in_order(rows: Any, step: Any, batch: Any) -> None:
    found = parse_state({"log_history": rows, "global_step": step, "train_batch_size": batch})
    for log in (found.train_log, found.eval_log):
        steps = [row.step for row in log]  # type: ignore[attr-defined]
        assert steps == sorted(steps)


@pytest.mark.parametrize("steps", [range(60_000, 0, -1), [i if i % 2 else 1 for i in range(60_000)]])
def test_a_log_that_goes_back_all_the_time_is_read_to_its_end(steps: Sequence[int]) -> None:
    # Looking back from every row would take minutes.
    found = parse_state({"log_history": [{"step": step, "loss": 1.0} for step in steps]})
    assert len(found.resumes) >= 29_000


def test_a_row_of_countless_eval_sets_is_read_in_part() -> None:
    row = {f"eval_set{i}_loss": 1.0 for i in range(5000)}
    assert len(parse_state({"log_history": [{"step": 1, **row}]}).eval_log) == 100
