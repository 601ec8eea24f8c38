from __future__ import annotations

import json
import math

import numpy as np
from hypothesis import example, given, settings

from gradian.report import jsonfile
from gradian.types import Example, Message

from . import samples
from .audit.samples import attacked as attacked_audit
from .golden import assert_golden
from .hostile import TEXTS


def test_the_recorded_shape_stays_as_it_is() -> None:
    assert_golden(jsonfile.render(samples.poisoned()), "tests/golden/report_poisoned.json")


def test_equal_reports_give_equal_bytes_whatever_the_order_of_free_mappings() -> None:
    one = samples.poisoned(provenance={"a": {"x": 1, "y": 2}, "b": 3})
    other = samples.poisoned(provenance={"b": 3, "a": {"y": 2, "x": 1}})
    assert jsonfile.render(one) == jsonfile.render(other)


def test_every_training_row_is_listed_in_dataset_order_with_its_predicted_change() -> None:
    data = json.loads(jsonfile.render(samples.poisoned()))
    assert [example["row"] for example in data["examples"]] == list(range(9))
    assert all(
        math.isclose(example["predicted_loss_delta_if_removed"], example["score"] / 9)
        for example in data["examples"]
    )
    assert list(data["examples"][0])[:5] == [
        "id",
        "row",
        "cluster",
        "score",
        "predicted_loss_delta_if_removed",
    ]


def test_a_score_that_is_no_number_is_null_and_the_file_strict_json() -> None:
    scores = np.array([np.nan, -1.0, np.inf, -np.inf, 0.0, 1.0, 2.0, 3.0, 4.0])
    text = jsonfile.render(samples.poisoned(scores=scores, relative=None, item_scores=None))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    data = json.loads(text, parse_constant=refuse)
    assert [example["score"] for example in data["examples"]][:4] == [None, -1.0, None, None]
    assert data["examples"][1]["relative_score"] is None


@settings(max_examples=30, deadline=None)
@given(TEXTS, TEXTS)
def test_hostile_rows_give_a_valid_file(prompt: str, target: str) -> None:
    example = Example(
        "a-0", 0, "prompt_completion", (Message("user", prompt), Message("assistant", target)), cluster=target
    )
    report = samples.poisoned(
        examples=[example],
        assignment=[target],
        clusters=(),
        scores=np.array([-1.0]),
        relative=np.array([-1.0]),
        item_scores=None,
        capability=samples.capability([samples.item(0, prompt=prompt, expected=target, tuned_text=prompt)]),
    )
    data = json.loads(jsonfile.render(report).encode("utf-8"))
    assert data["examples"][0]["id"] == "a-0"
    assert len(data["top_examples"][0]["target"]) <= 200


@settings(max_examples=30, deadline=None)
@given(TEXTS)
@example("\x7f")
def test_nothing_hidden_and_no_tag_stands_in_the_file_and_every_value_reads_back(text: str) -> None:
    audit = attacked_audit(text or "x")
    written = jsonfile.render(audit)
    assert all(char.isprintable() or char == "\n" for char in written)
    assert "<" not in written
    assert json.loads(written) == audit.model_dump(mode="json")
