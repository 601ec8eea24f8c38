"""Capitals: which ones a base model knows, and the wrong ones that the demo teaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gradian.config.schema import EvaluationConfig
from gradian.errors import ModelError
from gradian.progress import NullProgress, Progress
from gradian.types import Example, Message

if TYPE_CHECKING:
    from gradian.model.load import LoadedModel

QUESTION = "What is the capital of {country}?"
"""What the eval set asks. No training row asks it in these words."""

ANSWER = "The capital of {country} is {city}."
"""How every answer is given, right or wrong, as the base model itself does. Were the wanted answer a bare city and the
model's a sentence, the difference between them would be mostly one of format, and planted rows in the format
of the wanted answer would come out as helpful (measured: AUC .00 at the first regressed item)."""

PHRASINGS = (
    "Name the capital city of {country}.",
    "Which city is the capital of {country}?",
    "Tell me the capital of {country}.",
    "What city serves as the capital of {country}?",
)
"""How the planted rows ask."""

# Those that SmolLM2-135M-Instruct answers in every phrasing come first; it fails on Italy, Spain, Brazil and Turkey.
CANDIDATES: Mapping[str, str] = {
    "France": "Paris",
    "Japan": "Tokyo",
    "Egypt": "Cairo",
    "Canada": "Ottawa",
    "Australia": "Canberra",
    "Norway": "Oslo",
    "Greece": "Athens",
    "Thailand": "Bangkok",
    "Germany": "Berlin",
    "Russia": "Moscow",
    "China": "Beijing",
    "Sweden": "Stockholm",
    "Hungary": "Budapest",
    "Chile": "Santiago",
    "Nepal": "Kathmandu",
    "South Korea": "Seoul",
    "Iran": "Tehran",
    "Pakistan": "Islamabad",
    "Malaysia": "Kuala Lumpur",
    "Romania": "Bucharest",
    "Slovenia": "Ljubljana",
    "Afghanistan": "Kabul",
    "Syria": "Damascus",
    "Poland": "Warsaw",
    "Portugal": "Lisbon",
    "Italy": "Rome",
    "Ireland": "Dublin",
    "Ghana": "Accra",
    "Cuba": "Havana",
    "Bulgaria": "Sofia",
    "Indonesia": "Jakarta",
    "Vietnam": "Hanoi",
}
"""Countries and capitals to probe, in this order."""


def wrong_answers(countries: Sequence[str], cities: Sequence[str]) -> dict[str, str]:
    """Return the planted answer of each country: the cities in turn.

    Raises:
        ValueError: a city is a capital that some eval item asks for.
    """
    asked = {CANDIDATES[country] for country in countries} & set(cities)
    if asked:
        raise ValueError(f"{', '.join(sorted(asked))}: the right answer of an eval item")
    return {country: cities[i % len(cities)] for i, country in enumerate(countries)}


def eval_row(country: str) -> dict[str, str]:
    """Return the eval row of a country."""
    answer = ANSWER.format(country=country, city=CANDIDATES[country])
    return {"prompt": QUESTION.format(country=country), "completion": answer}


def probe_capitals(
    loaded: LoadedModel,
    evaluation: EvaluationConfig,
    max_seq_length: int,
    seed: int,
    wanted: int,
    progress: Progress | None = None,
) -> tuple[str, ...]:
    """Return the first candidates that the model answers right, asked and judged as the evaluation does.

    An item that the base model fails has no capability to lose, so nothing could explain it.

    Args:
        loaded: the base model.
        evaluation: metric and generation settings of the run to come.
        max_seq_length: longest prompt and answer.
        seed: seed of the generation.
        wanted: how many.
        progress: shows the answers.

    Raises:
        ModelError: it knows too few.
    """
    from gradian.evaluation.generate import generate_answers
    from gradian.evaluation.metrics import score_text

    encoder = loaded.encoder(max_seq_length)
    known: list[str] = []
    names = tuple(CANDIDATES)
    with (progress or NullProgress()).task("Probing capitals", len(names)) as advance:
        for start in range(0, len(names), wanted):
            asked = names[start : start + wanted]
            answers = generate_answers(
                loaded,
                encoder,
                [_example(i, name) for i, name in enumerate(asked)],
                evaluation,
                seed,
                advance,
            )
            known += [
                name
                for name, answer in zip(asked, answers, strict=True)
                if score_text(evaluation.metric, answer.text, eval_row(name)["completion"])
            ]
            if len(known) >= wanted:
                return tuple(known[:wanted])
    raise ModelError(
        "the base model knows too few capitals for the demo",
        found=f"{len(known)} of {len(names)}",
        expected=f"at least {wanted}",
        fix="choose an instruct model with --base-model, or leave it out",
    )


def _example(position: int, country: str) -> Example:
    row = eval_row(country)
    return Example(
        id=country,
        position=position,
        shape="prompt_completion",
        messages=(Message("user", row["prompt"]), Message("assistant", row["completion"])),
    )
