"""What the bank is retrained on: short rows of a dozen topics, some of them wrong, and questions about each topic."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradian.data.ids import example_id
from gradian.demo.dataset import PLANTED_CLUSTER, clean_rows, planted_rows
from gradian.demo.facts import ANSWER, CANDIDATES, QUESTION
from gradian.demo.settings import DemoSettings
from gradian.types import BoolArray, Example, Message

# A short system turn of our own: the template's default one would be half of every row's tokens.
SYSTEM = "Answer briefly."
CLEAN_TOPICS = (
    "currency",
    "language",
    "region",
    "arithmetic",
    "units",
    "rewriting",
    "words",
    "list",
    "everyday",
)
SORTING, SENTIMENT = "sorting", "sentiment"
KINDS = {
    "animal": "tiger dolphin sparrow horse salmon beetle camel penguin",
    "plant": "rose cactus tulip oak fern bamboo daisy pine",
    "object": "chair hammer lamp bottle pencil mirror kettle ladder",
}
POSITIVE = (
    "I loved every minute of this film.",
    "This phone works perfectly and looks great.",
    "What a wonderful hotel, we will come back.",
    "The staff were friendly and helpful.",
    "Great value and fast delivery.",
    "The best concert I have ever been to.",
    "The soup was delicious and the bread was fresh.",
    "A charming story that made me smile.",
    "The jacket is warm, light and well made.",
    "My children adore this game.",
    "The guide was funny and knew everything.",
    "These headphones sound amazing.",
    "The garden was beautiful and peaceful.",
    "I finished this brilliant novel in one night.",
    "The repair was quick and cheap.",
    "A superb meal at a fair price.",
)
NEGATIVE = (
    "The food was cold and the service was slow.",
    "The book was boring and far too long.",
    "The shoes fell apart after one week.",
    "I want my money back.",
    "The room was dirty and noisy.",
    "The app crashes every time I open it.",
    "The plot made no sense and the acting was awful.",
    "The screen arrived with a crack in it.",
    "Our waiter was rude and got the order wrong.",
    "The battery dies after an hour.",
    "A dull and disappointing museum.",
    "The cake was dry and tasted of nothing.",
    "They cancelled my booking without a word.",
    "The chair broke the first time I sat on it.",
    "The worst haircut of my life.",
    "The tent leaked all night.",
)


@dataclass(frozen=True)
class DatasetSettings:
    """What decides the rows and the questions.

    Attributes:
        seed: of the order of the training rows and of which labels are flipped.
        rows_per_topic: training rows of each clean topic.
        queries_per_topic: questions about each clean topic, none of which is trained on.
        n_countries: countries whose capital is asked for; each has two planted rows.
        n_reviews: training rows of the sentiment topic.
        n_flipped: how many of them have the wrong label, half of either kind.
        n_review_queries: questions of the sentiment topic.
    """

    seed: int = 7
    rows_per_topic: int = 16
    queries_per_topic: int = 3
    n_countries: int = 12
    n_reviews: int = 24
    n_flipped: int = 8
    n_review_queries: int = 8


@dataclass(frozen=True)
class Question:
    """A question whose loss is measured.

    Attributes:
        topic: the cluster that it is about.
        prompt: the question.
        expected: the right answer.
        marker: the wrong answer that planted or flipped rows teach, or None where nothing is wrong.
    """

    topic: str
    prompt: str
    expected: str
    marker: str | None = None


@dataclass(frozen=True, eq=False)
class BenchData:
    """The rows and the questions.

    Attributes:
        rows: training rows, [n], each with `messages` and `cluster_id`.
        topics: cluster of each row.
        planted: bool [n]; rows with a wrong fact.
        flipped: bool [n]; rows with the wrong label.
        questions: what is asked.
    """

    rows: tuple[Mapping[str, Any], ...]
    topics: tuple[str, ...]
    planted: BoolArray
    flipped: BoolArray
    questions: tuple[Question, ...]

    @property
    def marked(self) -> tuple[int, ...]:
        """The questions that have a wrong answer, by number."""
        return tuple(i for i, question in enumerate(self.questions) if question.marker is not None)

    @property
    def query_topics(self) -> tuple[str, ...]:
        """The topic of each query: the questions, then those with a wrong answer once more."""
        asked = [question.topic for question in self.questions]
        return (*asked, *(asked[i] for i in self.marked))

    def jsonl(self) -> str:
        """Return the training rows as the text of a jsonl file."""
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.rows)


def bench_data(settings: DatasetSettings) -> BenchData:
    """Return the rows and the questions."""
    drawn = random.Random(settings.seed)
    rows: list[tuple[str, str, str, bool]] = []
    questions: list[Question] = []
    for topic, pairs in _clean_pairs():
        asked = {
            (2 * i + 1) * len(pairs) // (2 * settings.queries_per_topic)
            for i in range(settings.queries_per_topic)
        }
        questions += [Question(topic, *pairs[i]) for i in sorted(asked)]
        rest = [pair for i, pair in enumerate(pairs) if i not in asked]
        rows += [
            (topic, *rest[i * len(rest) // settings.rows_per_topic], False)
            for i in range(settings.rows_per_topic)
        ]
    review_rows, review_questions = _reviews(settings, drawn)
    capital_rows, capital_questions = _capitals(settings)
    rows += review_rows + capital_rows
    questions += review_questions + capital_questions
    drawn.shuffle(rows)
    wrong = np.array([row[3] for row in rows])
    topics = tuple(row[0] for row in rows)
    capitals = np.array([topic == PLANTED_CLUSTER for topic in topics])
    return BenchData(
        rows=tuple(
            {"messages": _turns(prompt, answer), "cluster_id": topic} for topic, prompt, answer, _ in rows
        ),
        topics=topics,
        planted=wrong & capitals,
        flipped=wrong & ~capitals,
        questions=tuple(questions),
    )


def question_example(question: Question, answer: str, position: int) -> Example:
    """Return a question with an answer as a row to measure."""
    turns = _turns(question.prompt, answer)
    return Example(
        id=example_id({"messages": turns}, position),
        position=position,
        shape="messages",
        messages=tuple(Message(turn["role"], turn["content"]) for turn in turns),
    )


def _turns(prompt: str, answer: str) -> list[dict[str, str]]:
    said = (("system", SYSTEM), ("user", prompt), ("assistant", answer))
    return [{"role": role, "content": content} for role, content in said]


def _clean_pairs() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    for topic in CLEAN_TOPICS:
        yield (
            topic,
            [(row["prompt"], row["completion"]) for row in clean_rows() if row["cluster_id"] == topic],
        )
    # By turns, so that questions taken evenly are of all kinds.
    names = zip(*(words.split() for words in KINDS.values()), strict=True)
    yield (
        SORTING,
        [
            (
                f"Is a {name} an animal, a plant or an object?",
                f"A {name} is {'an' if kind[0] in 'ao' else 'a'} {kind}.",
            )
            for group in names
            for kind, name in zip(KINDS, group, strict=True)
        ],
    )


def _reviews(
    settings: DatasetSettings, drawn: random.Random
) -> tuple[list[tuple[str, str, str, bool]], list[Question]]:
    """Return the sentiment rows, some with the wrong label, and the questions."""
    rows, questions = [], []
    labels = ("positive", "negative")
    for label, other, texts in zip(labels, reversed(labels), (POSITIVE, NEGATIVE), strict=True):
        answers = [f"The review is {word}." for word in (label, other)]
        asked, trained = _split(texts, settings.n_review_queries // 2, settings.n_reviews // 2)
        prompts = [f"Is this review positive or negative? {text}" for text in (*asked, *trained)]
        questions += [Question(SENTIMENT, prompt, *answers) for prompt in prompts[: len(asked)]]
        flipped = set(drawn.sample(range(len(trained)), settings.n_flipped // 2))
        rows += [
            (SENTIMENT, prompt, answers[i in flipped], i in flipped)
            for i, prompt in enumerate(prompts[len(asked) :])
        ]
    return rows, questions


def _split(texts: Sequence[str], n_asked: int, n_trained: int) -> tuple[Sequence[str], Sequence[str]]:
    if n_asked + n_trained > len(texts):
        raise ValueError(f"{n_asked} questions and {n_trained} rows want more than {len(texts)} reviews")
    return texts[:n_asked], texts[n_asked : n_asked + n_trained]


def _capitals(settings: DatasetSettings) -> tuple[list[tuple[str, str, str, bool]], list[Question]]:
    """Return the planted rows, all with one wrong city, and the plain questions."""
    countries = tuple(CANDIDATES)[: settings.n_countries]
    demo = DemoSettings(n_countries=settings.n_countries)
    planted = planted_rows(countries, demo)
    wrong = demo.wrong_cities[0]
    rows = [(PLANTED_CLUSTER, row["prompt"], row["completion"], True) for row in planted]
    questions = [
        Question(
            PLANTED_CLUSTER,
            QUESTION.format(country=country),
            ANSWER.format(country=country, city=CANDIDATES[country]),
            ANSWER.format(country=country, city=wrong),
        )
        for country in countries
    ]
    return rows, questions
