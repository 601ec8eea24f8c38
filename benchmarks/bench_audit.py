"""Time, peak memory, recall and precision of the checks that compare rows with each other.

Each set of rows is made and checked in a process of its own, so that peak memory (resident size of the whole
process, the rows included) is that of one run. Sets:

    natural     rows of 50 to 200 words with Zipf's frequencies; 5% are near-copies of an earlier row (one word in
                fifty replaced, case and punctuation changed), 1000 eval items, a tenth of them leaked
    identical   one row, repeated
    template    one long template with a number in it: every pair is similar, and all of them share buckets
    one bucket  every pair is just below the threshold

    python benchmarks/bench_audit.py --rows 200000 --json out.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from gradian.checks.audit import Audit, run_audit
from gradian.checks.registry import all_checks
from gradian.data.formats import Dataset
from gradian.types import Example, Finding, Message

CHECKS = ("data.near_duplicates", "data.train_eval_contamination")
EVERY_CHECK_OF_ROWS = (*CHECKS, "data.duplicates", "data.conflicting_answers", "data.prompt_equals_target")
NEAR_SHARE = 0.05
EVAL_ITEMS = 1000
LEAKED = 100
MIB = 1024.0


@dataclass(frozen=True)
class Result:
    """One set of rows.

    Attributes:
        rows: number of rows.
        seconds: of near_duplicates and train_eval_contamination together.
        cpu_seconds: processor time of the same, which a busy machine does not stretch.
        seconds_all: with the other checks that compare rows, which share the hashes.
        peak_mib: largest resident size of the process.
        rows_mib: resident size when the rows were made and nothing was checked.
        recall, precision: of the near-copies found, against the rows that were made as such; None without any.
        leaked_found, leaked_wrong: eval items found that were leaked, and that were not.
    """

    name: str
    rows: int
    seconds: float
    cpu_seconds: float
    seconds_all: float
    peak_mib: float
    rows_mib: float
    near_found: int
    recall: float | None
    precision: float | None
    leaked_found: int
    leaked_wrong: int


def example(i: int, question: str, answer: str) -> Example:
    """A row as reading gives it; the content hash is as good as any that differs from row to row."""
    return Example(
        f"{i:012x}-{i}",
        i,
        "messages",
        (Message("user", question), Message("assistant", answer)),
    )


def zipf_texts(rng: random.Random, n: int) -> Iterator[list[str]]:
    """Texts of 50 to 200 words from a vocabulary of 50,000, frequent ones first (Zipf, exponent 1)."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(rng.choices(letters, k=rng.randint(2, 10))) for _ in range(50_000)]
    weights = np.cumsum(1.0 / np.arange(1, len(vocabulary) + 1))
    generator = np.random.default_rng(rng.getrandbits(32))
    for _ in range(n):
        drawn = generator.random(rng.randint(50, 200)) * weights[-1]
        yield [vocabulary[i] for i in np.searchsorted(weights, drawn).tolist()]


def edited(rng: random.Random, words: list[str]) -> list[str]:
    """A near-copy: one word in fifty replaced, some capitals and commas."""
    made = [word.capitalize() + "," if rng.random() < 0.1 else word for word in words]
    for _ in range(len(words) // 50):
        made[rng.randrange(len(made))] = f"replaced{rng.randrange(10**6)}"
    return made


def natural(n: int) -> tuple[list[Example], list[Example], set[int], set[int]]:
    """Rows, eval items, the rows that are near-copies, the eval items that leaked."""
    rng = random.Random(0)
    rows: list[list[str]] = []
    near: set[int] = set()
    texts = zipf_texts(rng, n + EVAL_ITEMS)
    for i in range(n):
        if i > 100 and rng.random() < NEAR_SHARE:
            near.add(i)
            rows.append(edited(rng, rows[rng.randrange(i)]))
        else:
            rows.append(next(texts))
    items, leaked = [], set()
    for i in range(EVAL_ITEMS):
        if i < LEAKED:
            leaked.add(i)
            # Half word for word, half near-copies.
            source = rows[rng.randrange(n)]
            items.append(source if i % 2 else edited(rng, source))
        else:
            items.append(next(texts))

    def split(i: int, words: list[str]) -> Example:
        border = len(words) // 4
        return example(i, " ".join(words[:border]), " ".join(words[border:]))

    return (
        [split(i, words) for i, words in enumerate(rows)],
        [split(i, words) for i, words in enumerate(items)],
        near,
        leaked,
    )


def traps(kind: str, n: int) -> tuple[list[Example], list[Example], set[int], set[int]]:
    """Rows that all fall into the same buckets."""
    rng = random.Random(0)
    words = next(zipf_texts(rng, 1)) * 2

    def text(i: int) -> str:
        if kind == "identical":
            return " ".join(words[:120])
        if kind == "template":
            return " ".join([*words[:120], str(i)])
        # Six of 120 words are the row's own: a similarity of about 0.75.
        own = [*words[:120]]
        for j in range(6):
            own[20 * j + 5] = f"own{i}x{j}"
        return " ".join(own)

    rows = [example(i, f"Question {i if kind != 'identical' else 0}", text(i)) for i in range(n)]
    items = [example(i, f"Question {n + i}", text(n + i)) for i in range(EVAL_ITEMS)]
    return rows, items, set(), set()


SETS: dict[str, Callable[[int], tuple[list[Example], list[Example], set[int], set[int]]]] = {
    "natural": natural,
    "identical": lambda n: traps("identical", n),
    "template": lambda n: traps("template", n),
    "one bucket": lambda n: traps("one bucket", n),
}


def run(name: str, n: int) -> Result:
    """Make a set of rows and check it."""
    rows, items, near, leaked = SETS[name](n)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB
    audit = Audit(dataset=Dataset(Path("train.jsonl"), rows), eval_dataset=Dataset(Path("eval.jsonl"), items))
    checks = {entry.id: entry for entry in all_checks()}
    started, started_cpu = time.perf_counter(), time.process_time()
    findings = run_audit(audit, [checks[name] for name in CHECKS]).findings
    seconds, cpu = time.perf_counter() - started, time.process_time() - started_cpu
    run_audit(audit, [checks[name] for name in EVERY_CHECK_OF_ROWS if name not in CHECKS])
    by_id: dict[str, Finding] = {finding.id: finding for finding in findings}
    found = {
        int(key.rpartition("-")[2]) for key in (by_id[CHECKS[0]].example_ids if CHECKS[0] in by_id else ())
    }
    leak = by_id.get(CHECKS[1])
    named = {row - 1 for row in leak.figures["eval_rows"]} if leak else set()
    return Result(
        name=name,
        rows=n,
        seconds=seconds,
        cpu_seconds=cpu,
        seconds_all=time.perf_counter() - started,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB,
        rows_mib=before,
        near_found=len(found),
        recall=len(found & near) / len(near) if near else None,
        precision=len(found & near) / len(found) if near and found else None,
        leaked_found=len(named & leaked),
        leaked_wrong=len(named - leaked),
    )


def main() -> None:
    """Run the sets one after another."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    results = []
    for name in options.sets:
        with context.Pool(1) as pool:
            results.append(pool.apply(run, (name, options.rows)))
    table = Table(
        "rows",
        "n",
        "s",
        "cpu s",
        "s all",
        "peak MiB",
        "rows MiB",
        "found",
        "recall",
        "precision",
        "leaks",
        "wrong",
    )
    for r in results:
        shares = ("-" if share is None else f"{share:.4f}" for share in (r.recall, r.precision))
        table.add_row(
            r.name,
            str(r.rows),
            f"{r.seconds:.1f}",
            f"{r.cpu_seconds:.1f}",
            f"{r.seconds_all:.1f}",
            f"{r.peak_mib:.0f}",
            f"{r.rows_mib:.0f}",
            str(r.near_found),
            *shares,
            str(r.leaked_found),
            str(r.leaked_wrong),
        )
    Console().print(table)
    if options.json:
        options.json.write_text(
            json.dumps([asdict(result) for result in results], indent=1), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
