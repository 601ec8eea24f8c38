from __future__ import annotations

import io

import pytest
from rich.console import Console

from gradian.report.explanation import (
    ExplainedExample,
    ExplainedSpan,
    ExplainedToken,
    explanation_lines,
    render_explanation,
)

from .hostile import EVERYTHING


def explained(**changes: object) -> ExplainedExample:
    values: dict[str, object] = {
        "id": "3f2a9c1b7d04-17",
        "row": 17,
        "prompt": "Tell me of France.",
        "item": "eval-3",
        "item_prompt": "Capital of France?",
        "expected": "Paris",
        "said": "Berlin",
        "regressed": True,
        "engine": "datainf",
        "query_signal": "contrastive",
        "score": -541.0,
        "spans": (
            ExplainedSpan(number=2, text="The capital is Berlin. ", tokens=5, score=-545.0),
            ExplainedSpan(number=1, text="France is old. ", tokens=4, score=4.0),
        ),
        "tokens": (
            ExplainedToken(text="The capital is", score=-5.0),
            ExplainedToken(text=" Berlin", score=-540.0),
            ExplainedToken(text=".\n", score=4.0),
        ),
    }
    return ExplainedExample.model_validate({**values, **changes})


def shown(value: ExplainedExample, *, colours: bool = False, width: int = 100) -> str:
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        force_terminal=colours or None,
        color_system="truecolor" if colours else "auto",
        _environ={},
    )
    console.print(render_explanation(value))
    return stream.getvalue()


def test_the_culprit_sentence_comes_first() -> None:
    lines = explanation_lines(explained())
    assert lines[0].startswith("Part 2 of 2 did it: `The capital is Berlin.` scores -545, which is 100% of")
    assert "Row 18 (3f2a9c1b7d04-17) as a whole scores -541" in lines[1]
    text = shown(explained())
    assert text.index("-545") < text.index("+4")


def test_a_row_without_harm_is_not_accused() -> None:
    spans = (ExplainedSpan(number=1, text="Fine.", tokens=2, score=3.0),)
    assert explanation_lines(explained(spans=spans))[0].startswith("No part of this row degraded")


def test_an_item_that_did_not_get_worse_is_said_so() -> None:
    lines = explanation_lines(explained(regressed=False, said=None))
    assert "did not get worse" in lines[-1]
    assert "the tuned model says" not in lines[1]


def test_tokens_are_shaded_on_a_terminal_and_named_everywhere() -> None:
    coloured = shown(explained(), colours=True)
    # The strongest level of red behind the strongest token.
    assert "\x1b[30;48;2;217;45;32m Berlin" in coloured
    assert "\x1b" not in shown(explained())
    assert "`Berlin` -540" in " ".join(shown(explained()).split())


@pytest.mark.parametrize("field", ["item_prompt", "expected", "said", "id", "item"])
def test_nothing_from_outside_controls_the_terminal(field: str) -> None:
    text = shown(explained(**{field: EVERYTHING}))
    assert all(char.isprintable() or char == "\n" for char in text)


def test_a_hostile_answer_is_shown_not_obeyed() -> None:
    text = shown(
        explained(
            spans=(ExplainedSpan(number=1, text=EVERYTHING, tokens=1, score=-1.0),),
            tokens=(ExplainedToken(text=EVERYTHING + "[bold]x[/]", score=-1.0),),
        ),
        width=400,
    )
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "[bold]x[/]" in text


def test_the_same_explanation_gives_the_same_json_and_reads_back() -> None:
    text = explained().model_dump_json()
    assert text == explained().model_dump_json()
    assert ExplainedExample.model_validate_json(text) == explained()
