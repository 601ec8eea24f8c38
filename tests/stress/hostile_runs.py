"""Hostile rows, run folders, names and arguments through the real command line, on a terminal and through a pipe.

`python -m tests.stress.hostile_runs` writes datasets and run folders whose every text is a payload, runs `gradian
diagnose`, `attribute` and `explain` over them, and reads every byte that comes out: the terminal's, with and without
colours, the Markdown as its renderers' HTML, the JSON. And it runs each command with each payload as an argument, for
the messages of errors.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pickle
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.stress.canaries import source_run, zipped
from tests.stress.hostile_text import SGR, markdown_faults, unshown
from tests.stress.payloads import payloads
from tests.stress.serving import COLOURED, PLAIN, Answer, Server

BATCH = 50
"""Payloads in one run folder."""
HEADINGS = (
    "# Gradian",
    "## Findings",
    "## What was read",
    "## Skipped",
    "## Passed",
    "## The run folder",
    "## Capability",
    "## Clusters",
    "## Most harmful rows",
    "## Most negative rows",
    "## Eval items",
    "## Engines",
    "## Provenance",
    "### Critical",
    "### High",
    "### Medium",
    "### Low",
    "### Info",
)
# What rich's progress bars write; no payload is one of these.
BARS = re.compile("\x1b\\[\\?25[lh]|\r?\x1b\\[2K|\x1b\\[1A")
ERROR_STARTS = ("error: ", "  found: ", "  expected: ", "  fix: ", "  - ")


def written(path: Path, rows: Sequence[object]) -> Path:
    """Write rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def encodable_texts(texts: Sequence[str]) -> list[str]:
    """Those that a file in UTF-8 can hold; the reader of rows refuses the others."""
    return [text for text in texts if not any("\ud800" <= char <= "\udfff" for char in text)]


def rows_of(texts: Sequence[str]) -> Iterator[object]:
    """Rows of every shape with every text in every place, twice over, and contradicting each other."""
    for text in texts:
        yield from [{"prompt": text, "completion": text, "cluster_id": text}] * 2
        yield {"prompt": "What is it?", "completion": text, "cluster": text}
        yield {"instruction": text, "input": text, "output": f"not {text}", "system": text}
        yield {text: text, "text": text}
        yield {text: {text: text}}
        call = {"type": "function", "function": {"name": text, "arguments": json.dumps({text: text})}}
        yield {
            "messages": [
                {"role": "system", "content": text},
                {"role": "user", "content": text, "name": text, text: text},
                {"role": "assistant", "content": text, "tool_calls": [call]},
                {"role": "tool", "content": text, "name": text, "tool_call_id": text},
                {"role": "assistant", "content": text, "thinking": text},
            ],
            "tools": [
                {"type": "function", "function": {"name": text, "description": text, "parameters": {}}}
            ],
        }
        yield {"conversations": [{"from": text, "value": text}, {"from": "gpt", "value": text}]}
        yield {"messages": [{"role": text, "content": [{"type": text, "text": text}]}]}
        yield {"messages": text}
        yield text


def file_name(text: str) -> str:
    """The text as a file name: without what no name can hold, and not too long."""
    name = text.replace("/", "\u2215").replace("\0", "")
    data = os.fsencode(name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))[:120]
    return data.decode("utf-8", "ignore").strip(".") or "x"


class Settings:
    """Stands in for a trainer's arguments: only its name is read."""


def arguments_bin(texts: Sequence[str]) -> bytes:
    """A pickle of training arguments whose every text is a payload."""
    made = Settings()
    names = (
        *(
            "output_dir",
            "run_name",
            "optim",
            "lr_scheduler_type",
            "eval_strategy",
            "bf16",
            "packing_strategy",
        ),
        *("pad_token", "data_collator", "hub_token", "report_to", "logging_dir", "deepspeed", "fsdp"),
    )
    made.__dict__.update({name: texts[i % len(texts)] for i, name in enumerate(names)})
    made.__dict__.update({text: text for text in texts})
    data = pickle.dumps(made, protocol=2)
    return zipped(data.replace(b"tests.stress.hostile_runs\nSettings", b"trl.trainer.sft_config\nSFTConfig"))


def make_run(run: Path, texts: Sequence[str], number: int) -> Path:
    """A run folder as one of four trainers leaves it, with a payload wherever it says something."""
    checkpoint = run / "checkpoint-10"
    checkpoint.mkdir(parents=True)
    everything = "".join(texts)[:15_000]

    def text(i: int) -> str:
        return texts[i % len(texts)]

    log: list[dict[str, Any]] = [
        {"step": i, "loss": entry, "grad_norm": entry} for i, entry in enumerate(texts)
    ]
    log += [{"step": i, f"eval_{entry}_loss": 2.0 + i, text(i): entry} for i, entry in enumerate(texts)]
    log += [
        {"step": i, "loss": 2.0, "grad_norm": 1e3 if i % 3 else float("nan"), "learning_rate": 1e-2}
        for i in range(30)
    ]
    state = {
        "global_step": 10,
        "max_steps": 20,
        "log_history": log,
        text(0): text(1),
        "best_model_checkpoint": text(2),
    }
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    adapter = {
        "peft_type": "LORA",
        "r": 8,
        "lora_alpha": 16,
        "base_model_name_or_path": text(number),
        "target_modules": list(texts),
        "modules_to_save": list(texts),
        "bias": text(number + 1),
        "peft_version": text(number + 2),
        "task_type": text(number + 3),
        "init_lora_weights": text(number + 4),
        **{entry: entry for entry in texts},
    }
    (run / "adapter_config.json").write_text(json.dumps(adapter))
    (run / "tokenizer_config.json").write_text(
        json.dumps({"pad_token": text(number + 5), "eos_token": text(number + 5)})
    )
    (run / "train_results.json").write_text(json.dumps({entry: entry for entry in texts}))
    card = "".join(
        f"- {name}: {text(i)}\n" for i, name in enumerate(("optimizer", "lr_scheduler_type", "seed"))
    )
    listed = (
        f"The following hyperparameters were used during training:\n\n{card}\n\n- Transformers {text(1)}\n"
    )
    front = json.dumps({"base_model": text(number), "tags": list(texts), "library_name": text(3)})
    (run / "README.md").write_text(f"---\n{front}\n---\n{everything}\n{listed}", encoding="utf-8")
    kind = number % 4
    if kind in (0, 1):
        (run / "training_args.bin").write_bytes(
            arguments_bin(texts) if kind else everything.encode("utf-8", "replace")
        )
    if kind == 2:
        config = {"base_model": text(0), "datasets": [{"path": text(1), "type": text(2)}], "adapter": "lora"}
        config |= {
            "chat_template": text(3),
            "lr_scheduler": text(4),
            "optimizer": text(5),
            "special_tokens": {"pad_token": text(6)},
        }
        (run / "axolotl.yaml").write_text(json.dumps(config))
    if kind == 3:
        config = {
            "stage": "sft",
            "template": text(0),
            "dataset": text(1),
            "model_name_or_path": text(2),
            "finetuning_type": "lora",
        }
        config |= {"lr_scheduler_type": text(3), "optim": text(4), "output_dir": text(5)}
        (run / "training_args.yaml").write_text(json.dumps(config))
    for i, entry in enumerate(texts):
        name = file_name(entry)
        # Names of files that are read and refused: each with the payload in its reason too.
        (run / f"{name}.yaml").write_text(
            f"a: !{json.dumps(entry)} [\n{entry}", encoding="utf-8"
        ) if i % 2 else None
        (run / f"{name}-{i}").mkdir(exist_ok=True)
    return run


def output_faults(
    answer: Answer, folder: Path | None, what: str, codes: tuple[int, ...] = (0,)
) -> Iterator[str]:
    """Yield what is wrong with a command's output, and with the files that it wrote."""
    if answer.code not in codes:
        yield f"{what}: exit code {answer.code}: {answer.output[-600:]}"
    if answer.reported:
        yield f"{what}: reported {answer.reported[0][:600]}"
    if hidden := unshown(BARS.sub("", SGR.sub("", answer.output))):
        yield f"{what}: {hidden!r} in the output"
    for path in sorted(folder.glob("*")) if folder is not None and folder.is_dir() else ():
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            yield from (f"{what}: {path.name}: {fault}" for fault in markdown_faults(text, None))
            fenced = False
            for line in text.splitlines():
                fenced ^= line.startswith("```")
                if line.startswith("#") and not fenced and not line.startswith(HEADINGS):
                    yield f"{what}: {path.name}: heading {line[:80]!r}"
        elif path.suffix == ".json":
            json.loads(text, parse_constant=_refuse)
            if hidden := unshown(text):
                yield f"{what}: {path.name}: {hidden!r}"


def _refuse(name: str) -> None:
    raise ValueError(name)


def diagnoses(server: Server, folder: Path, source: Path, texts: Sequence[str], number: int) -> Iterator[str]:
    """Diagnose one run folder of payloads in four ways, and yield what is wrong."""
    named = folder / file_name(texts[number % len(texts)])
    data = written(named / f"{file_name(texts[1])}.jsonl", list(rows_of(texts)))
    evals = written(named / f"{file_name(texts[2])}-eval.jsonl", list(rows_of(texts[:10])))
    run = make_run(named / f"{file_name(texts[3])}-run", texts, number)
    base = named / f"{file_name(texts[4])}-base"
    shutil.copytree(source / "base", base)
    given = ["diagnose", "--dataset", str(data), "--eval-dataset", str(evals), "--run", str(run)]
    tokenized = [*given, "--base-model", str(base), "--max-seq-length", "48"]
    out = named / "out"
    untrusted = [run, base]
    for what, argv, terminal, colours in (
        ("pipe", [*tokenized, "--out", str(out)], False, PLAIN),
        ("terminal", [*given, "--out", str(out)], True, PLAIN),
        ("terminal with colours", tokenized, True, COLOURED),
        ("json", [*given, "--format", "json"], True, PLAIN),
    ):
        answer = server.run(argv, cwd=folder, untrusted=untrusted, terminal=terminal, environment=colours)
        yield from output_faults(answer, out, f"diagnose, {what}")


def attributions(
    server: Server, folder: Path, source: Path, texts: Sequence[str], number: int
) -> Iterator[str]:
    """Attribute and explain a tiny run whose rows, items, clusters and names are payloads."""
    rows = [json.loads(line) for line in (source / "train.jsonl").read_text().splitlines()]
    for row, text in zip(rows, texts, strict=False):
        row["cluster_id"] = text
    rows += [
        # Few characters, of up to four tokens each: the model has room for 128.
        {"prompt": text[:12], "completion": text[:12], "cluster_id": text}
        for text in texts
        if text[:12].strip()
    ]
    items = [json.loads(line) for line in (source / "eval.jsonl").read_text().splitlines()]
    # A letter in front: a metric cannot look for an answer that is white space.
    items += [{"prompt": text[:12], "completion": f"a{text[:12]}"} for text in texts]
    named = folder / file_name(texts[number % len(texts)])
    data, evals = written(named / "train.jsonl", rows), written(named / "eval.jsonl", items)
    adapter = named / f"{file_name(texts[1])}-adapter"
    shutil.copytree(source / "adapter", adapter)
    run = make_run(named / "run", texts, number)
    config = named / "gradian.yaml"
    config.write_text("evaluation: {metric: contains, max_new_tokens: 2, n_bootstrap: 200}\n")
    out = named / f"{file_name(texts[2])}-out"
    argument = texts[number % len(texts)].replace("\0", "") or "x"
    common = ["--config", str(config), "--dataset", str(data), "--eval-dataset", str(evals)]
    common += ["--base-model", str(source / "base"), "--adapter", str(adapter)]
    argv = ["attribute", *common, "--run", str(run), f"--capability={argument}", "--out", str(out)]
    clean = named / f"{file_name(texts[3])}-clean.jsonl"
    for what, more, terminal, colours in (
        ("terminal with colours", ["--write-clean", str(clean)], True, COLOURED),
        ("pipe", [], False, PLAIN),
    ):
        answer = server.run(
            [*argv, *more], cwd=folder, untrusted=[run], terminal=terminal, environment=colours
        )
        yield from output_faults(answer, out, f"attribute, {what}", (0, 2) if more else (0,))
    if (out / "report.json").exists():
        report = json.loads((out / "report.json").read_text())
        example = report["top_examples"][0]["id"]
        figures = named / "figures"
        figures.mkdir()
        argv = ["explain", *common, "--example", example, "--out", str(figures / "explained.json")]
        answer = server.run(argv, cwd=folder, terminal=True, environment=COLOURED)
        yield from output_faults(answer, figures, "explain")


def refusals(text: str, folder: Path) -> dict[str, list[str]]:
    """Command lines that each fail on the payload, by what it is."""
    good = str(folder / "train.jsonl")
    config = folder / "bad.yaml"
    config.write_text(
        json.dumps({text: text, "seed": text, "engine": {"name": text, text: 1}}), encoding="utf-8"
    )
    scalar = folder / "scalar.yaml"
    scalar.write_text(json.dumps(text), encoding="utf-8")
    broken = folder / "broken.jsonl"
    broken.write_text(f'{{"prompt": "a", "completion": "b"}}\n{{{text}\n', encoding="utf-8")
    wrapped = folder / "wrapped.json"
    wrapped.write_text(
        json.dumps({text: [{"prompt": "a", "completion": "b"}], text + "x": [{"prompt": "a"}]})
    )
    (folder / "adapter").mkdir(exist_ok=True)
    (folder / "adapter" / "adapter_config.json").write_text(
        json.dumps({"peft_type": text, "task_type": text})
    )
    return {
        "dataset": ["diagnose", "--dataset", text],
        "part of a dataset": ["diagnose", "--dataset", f"{good}::{text}"],
        "eval dataset": ["diagnose", "--dataset", good, "--eval-dataset", text],
        "run folder": ["diagnose", "--run", text],
        "config": ["diagnose", "--config", text],
        "settings": ["diagnose", "--config", str(config)],
        "a config that is none": ["diagnose", "--config", str(scalar)],
        "broken rows": ["diagnose", "--dataset", str(broken)],
        "wrapped rows": ["diagnose", "--dataset", str(wrapped)],
        "tokenizer": ["diagnose", "--dataset", good, "--base-model", f"./{text}"],
        "length": ["diagnose", "--dataset", good, "--max-seq-length", text],
        "format": ["diagnose", "--dataset", good, "--format", text],
        "option": ["diagnose", f"--x{text}"],
        "argument": ["diagnose", text],
        "command": [text],
        "own option": [f"--x{text}"],
        "check": ["checks", text],
        "engine": ["attribute", "--dataset", good, "--engine", text],
        "cross-check": ["attribute", "--dataset", good, "--cross-check", text],
        "base model": ["attribute", "--dataset", good, "--base-model", f"./{text}", "--adapter", text],
        "adapter": [
            "attribute",
            "--dataset",
            good,
            "--base-model",
            str(folder),
            "--adapter",
            str(folder / "adapter"),
        ],
        "index": ["show-index", text],
        "config to write": ["init-config", "--out", f"{folder}/missing/{text}"],
        "report": ["verify", "--run", text, "--report", text, "--out", str(folder / "v")],
        "backend": ["train", "--config", text, "--backend", text],
        "example": ["explain", "--example", text, "--dataset", good],
    }


def message_faults(answer: Answer, what: str) -> Iterator[str]:
    """Yield what is wrong with the message of a command that was refused."""
    yield from output_faults(answer, None, what, (0, 2))
    lines = SGR.sub("", answer.output).split("\n")
    if "Traceback" in answer.output:
        yield f"{what}: a traceback"
    if any(line.startswith(("  fix: curl", "fix: curl")) for line in lines):
        yield f"{what}: a forged fix"
    if lines[0].startswith("error: "):
        if any(line.startswith("error: ") for line in lines[1:]):
            yield f"{what}: a forged error"
        parts = Counter(line.split(":")[0] for line in lines if line.startswith(ERROR_STARTS[:4]))
        yield from (f"{what}: {count} times {part!r}" for part, count in parts.items() if count > 1)
    if longest := [line for line in lines if len(line) > 4200]:
        yield f"{what}: a line of {len(longest[0])} characters"


class _Captured(io.StringIO):
    # Standard output or error in memory, which says of itself what it is asked to say.

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def refused(argv: Sequence[str], folder: Path, *, terminal: bool) -> Answer:
    """Run a command line in this process, which is all that an error needs."""
    from gradian.cli import main

    output = _Captured(terminal=terminal)
    kept = {name: os.environ.get(name) for name in ("NO_COLOR", "TERM")}
    os.environ.pop("NO_COLOR", None)
    os.environ["TERM"] = "xterm-256color"
    started, here, code = time.monotonic(), Path.cwd(), 1
    try:
        os.chdir(folder)
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            main.app(list(argv), prog_name="gradian")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except Exception:  # noqa: BLE001 - a fault, whatever it is
        output.write(traceback.format_exc())
    finally:
        os.chdir(here)
        for name, value in kept.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
    return Answer(code, time.monotonic() - started, (), output.getvalue())


def argument_of(text: str) -> str | None:
    """The payload as the system hands it to a program; None where it cannot."""
    if "\0" in text:
        return None
    try:
        return os.fsdecode(os.fsencode(text))
    except UnicodeEncodeError:
        return None


def main() -> None:
    """Go through all of it and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.hostile_runs", description=__doc__)
    parser.add_argument(
        "--source", type=Path, help="folder of a run that was made before (default: train one)"
    )
    parser.add_argument("--only", choices=["diagnose", "attribute", "errors"], help="one of the three parts")
    parser.add_argument("--every", type=int, default=1, help="only every Nth batch or payload")
    parser.add_argument("--first", type=int, default=0, help="begin with this one")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no other after this time")
    chosen = parser.parse_args()
    texts = encodable_texts(payloads())
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    figures = Counter[str]()
    faults = Counter[str]()

    def note(found: Iterator[str], label: str) -> None:
        for fault in found:
            faults[fault] += 1
            print(f"FAULT {label}: {fault[:1200]}", file=sys.stderr, flush=True)

    units: list[tuple[str, int]] = []
    for part, count in (("diagnose", len(batches)), ("attribute", len(batches)), ("errors", len(payloads()))):
        units += [(part, number) for number in range(count) if chosen.only in (None, part)]
    units = units[:: chosen.every]
    started, done = time.monotonic(), chosen.first
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        place = folder / "errors"
        place.mkdir()
        needed = any(part != "errors" for part, _ in units[done:])
        source = (chosen.source or source_run(folder / "source")) if needed else place
        server = Server(folder) if needed else None
        written(place / "train.jsonl", [{"prompt": "a", "completion": "b"}])
        while done < len(units) and time.monotonic() - started < chosen.seconds:
            part, number = units[done]
            done += 1
            if server is not None and part != "errors":
                run = diagnoses if part == "diagnose" else attributions
                named = folder / f"{part}{number}"
                figures["run folders diagnosed, four ways each"] += part == "diagnose"
                figures["runs attributed twice and explained"] += part == "attribute"
                note(run(server, named, source, batches[number], number), f"batch {number}")
                shutil.rmtree(named, ignore_errors=True)
            elif (argument := argument_of(payloads()[number])) is not None:
                for what, argv in refusals_or_none(argument, place):
                    figures["refused command lines"] += 1
                    answer = refused(argv, place, terminal=number % 2 == 0)
                    note(message_faults(answer, what), repr(argument)[:60])
        figures["reports of the watch at import"] = len(server.close()) if server else 0
    figures["next"] = done
    print(
        json.dumps(
            {"payloads": len(payloads()), "of": len(units), **figures, "faults": sum(faults.values())},
            indent=2,
        )
    )
    sys.exit(bool(faults))


def refusals_or_none(text: str, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The refused command lines; where the payload is a byte that is no text, those without a file of it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        for what in ("dataset", "run folder", "config"):
            yield what, ["diagnose", f"--{what.split()[0]}", text]
        return
    yield from refusals(text, folder).items()


if __name__ == "__main__":
    main()
