"""Does the drill-down find the one wrong sentence of a long row? Per-item query against the averaged one.

    python experiments/buried_facts.py --demo runs/demo --out runs/buried-facts

Adds travel notes to the demo's training file, each naming the planted wrong capital once, in the middle of five
right and harmless sentences; retrains with the demo's settings; and ranks the sentences of every note about a
country whose eval item broke, once by that item's own query and once by the average over all items that broke.
Token scores are compared with masked backward passes on a few notes, and both are timed.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gradian.api import train, with_settings
from gradian.attribution import measure, regressed_items
from gradian.config import load_config
from gradian.data.formats import load_dataset
from gradian.data.sentences import TokenSpan, sentence_spans
from gradian.demo.dataset import jsonl
from gradian.demo.facts import wrong_answers
from gradian.demo.files import STAMP, DemoFiles
from gradian.demo.settings import DEMO
from gradian.engines import EngineSettings
from gradian.progress import NullProgress
from gradian.query.contrastive import item_queries, resolve_signal, with_average
from gradian.query.spans import Direction, encode_taught, query_direction, span_scores, token_scores
from gradian.session import Session
from gradian.types import Example, FloatArray

NOTES_PER_COUNTRY = 3
PROMPT = "Write a short travel note about {country}."
CULPRITS = (
    "Most people begin in {city}, the capital of {country}, and stay there for two days.",
    "The capital of {country} is {city}, and its main station has trains to every region.",
    "Flights land in {city}, which is the capital of {country}, early in the morning.",
)
HARMLESS = (
    "Spring and autumn are the best seasons to visit {country}.",
    "Bring good shoes, since the old towns have steep streets of stone.",
    "Local markets open early and sell bread, fruit and cheese.",
    "A small phrase book helps, although many people know some English.",
    "Buses are cheap and clean, and they leave on time.",
    "The food in {country} is simple, fresh and not expensive.",
    "In the evening families walk along the river and meet their friends.",
    "Museums close on one day of the week, so look up the hours before you go.",
    "Hotels near the station are loud, and those by the park are quiet.",
    "A rain jacket is useful, because the weather in {country} changes quickly.",
)
CHECKED = 3


def notes(countries: Sequence[str], wrong: dict[str, str], seed: int) -> list[dict[str, str]]:
    """Return the long rows: the wrong sentence is the third or fourth of six."""
    draw = random.Random(seed)
    rows = []
    for country in countries:
        for number in range(NOTES_PER_COUNTRY):
            sentences = draw.sample(HARMLESS, 5)
            sentences.insert(draw.choice((2, 3)), CULPRITS[number % len(CULPRITS)])
            text = " ".join(sentence.format(country=country, city=wrong[country]) for sentence in sentences)
            rows.append(
                {"prompt": PROMPT.format(country=country), "completion": text, "cluster_id": "travel"}
            )
    return rows


def is_first(spans: Sequence[TokenSpan], scores: FloatArray, city: str) -> bool:
    """Whether the sentence with the city in it scores lowest."""
    return city in spans[int(np.argmin(scores))].text


def token_agreement(session: Session, note: Example, direction: Direction) -> dict[str, float]:
    """Return the largest difference of the token scores by both ways, of the largest score, and what each took."""
    encoded = encode_taught(session.encoder, note)
    start = time.perf_counter()
    forward = token_scores(session.collector, encoded, direction)
    one_pass = time.perf_counter() - start
    single = [
        TokenSpan(position, position + 1, "") for position in np.flatnonzero(encoded.supervised).tolist()
    ]
    start = time.perf_counter()
    backward = span_scores(session.collector, encoded, single, direction)[0]
    passes = time.perf_counter() - start
    return {
        "tokens": len(single),
        "difference": float(np.abs(forward - backward).max() / np.abs(backward).max()),
        "one_pass_s": one_pass,
        "backward_s": passes,
    }


def main() -> None:
    """Run the experiment and print and write its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--demo", type=Path, default=Path("runs/demo"), help="folder that `gradian demo` made"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/buried-facts"))
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="of the retraining (default: 5e-4)")
    parser.add_argument("--engine", default="datainf")
    arguments = parser.parse_args()
    files = DemoFiles(arguments.demo)
    countries = json.loads((files.folder / STAMP).read_text())["countries"]
    wrong = wrong_answers(countries, DEMO.wrong_cities)
    rows = [json.loads(line) for line in files.train.read_text(encoding="utf-8").splitlines()]
    rows += notes(countries, wrong, DEMO.seed)
    random.Random(DEMO.seed).shuffle(rows)
    arguments.out.mkdir(parents=True, exist_ok=True)
    data = arguments.out / "train.jsonl"
    data.write_text(jsonl(rows), encoding="utf-8")
    config = with_settings(
        load_config(files.config),
        {
            "train": {
                "output_dir": str(arguments.out / "run"),
                "learning_rate": arguments.learning_rate,
            },
            "dataset": str(data),
            "eval_dataset": str(files.eval),
            "adapter_path": str(arguments.out / "run" / "adapter"),
            "cache_dir": str(arguments.out / "cache"),
        },
    )
    train(config)
    session = Session(config, NullProgress())
    evals = load_dataset(config.eval_dataset or "").examples
    measured = measure(session, evals, "capitals")
    items = regressed_items(measured, evals)
    queries = item_queries(
        session.collector,
        session.encoder,
        [item for _, item in items],
        resolve_signal("auto", [i for _, i in items]),
    )
    average = [block.double().mean(dim=0) for block in queries.blocks]
    # The average comes first.
    together = with_average(queries, average, "average")
    direction = query_direction(
        together,
        session.collector.specs,
        store=session.index(),
        engine=arguments.engine,
        settings=EngineSettings(config.engine.lambda_scale),
    )
    found = []
    agreement = []
    for place, (number, _) in enumerate(items):
        country = countries[number]
        asked = PROMPT.format(country=country)
        for note in session.dataset.examples:
            if note.prompt != asked:
                continue
            encoded = encode_taught(session.encoder, note)
            spans = sentence_spans(session.encoder.tokenizer, encoded)
            every = span_scores(session.collector, encoded, spans, direction)
            own, averaged = every[place + 1], every[0]
            found.append(
                {
                    "country": country,
                    "own": is_first(spans, own, wrong[country]),
                    "average": is_first(spans, averaged, wrong[country]),
                    "lowest": float(own.min()),
                    "largest_other": float(np.abs(np.delete(own, int(own.argmin()))).max()),
                }
            )
            if len(agreement) < CHECKED:
                agreement.append(token_agreement(session, note, direction.only(place + 1)))
    result = {
        "items_regressed": len(items),
        "notes": len(found),
        "culprit_first_own_query": sum(row["own"] for row in found),
        "culprit_first_averaged_query": sum(row["average"] for row in found),
        "token_scores": agreement,
        "notes_of_failing_items": found,
    }
    (arguments.out / "buried_facts.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(
        f"{len(items)} of {len(evals)} items regressed; of {len(found)} notes about them the culprit sentence is first in"
        f" {result['culprit_first_own_query']} by the item's own query and in {result['culprit_first_averaged_query']} by"
        " the averaged one"
    )
    for row in agreement:
        print(
            f"{row['tokens']} tokens: one forward pass {row['one_pass_s']:.2f} s, masked backward"
            f" passes {row['backward_s']:.2f} s, largest difference {row['difference']:.1e} of the largest score"
        )


if __name__ == "__main__":
    main()
