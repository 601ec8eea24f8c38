"""Hostile text in every slot of every report, through Markdown, HTML, JSON and the terminal.

`python -m tests.stress.hostile_text` fills each text field of the four kinds of report (attribution, audit,
verification, explanation) with each payload, all fields of a document at a time and each with another payload, and
looks at what comes out: the Markdown by two renderers (GitHub's own C library, and markdown-it with raw HTML let
through) whose HTML a browser's parsing algorithm reads; the bytes that a terminal gets, with and without colour; the
JSON as it loads back. `tests.stress.hostile_runs` does the same through the real command line.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import cmarkgfm
import html5lib
from cmarkgfm.cmark import Options
from markdown_it import MarkdownIt
from pydantic import BaseModel
from rich.cells import cell_len
from rich.console import Console, RenderableType

from gradian.report import jsonfile, markdown, terminal
from gradian.report.audit import markdown as audit_markdown
from gradian.report.audit import terminal as audit_terminal
from gradian.report.escape import encodable
from gradian.report.explanation import ExplainedExample, ExplainedSpan, ExplainedToken, render_explanation
from gradian.report.model import Data, Skipped
from gradian.report.verification import markdown as verification_markdown
from gradian.report.verification import terminal as verification_terminal
from tests.report import samples
from tests.report.audit import samples as audits
from tests.report.verification import samples as verifications
from tests.stress.payloads import payloads, wrapped

STEP = 7
"""Fields of a document get payloads this far apart."""
BLOCKS = frozenset(
    [
        "h1",
        "h2",
        "h3",
        "p",
        "ul",
        "ol",
        "li",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "pre",
        "hr",
        "blockquote",
        "section",
    ]
)
INLINE = frozenset(["code", "strong", "em"])
FRAME = frozenset(["html", "head", "body"])
ATTRIBUTES = frozenset({("code", "class", "language-json"), ("pre", "lang", "json")})
SGR = re.compile("\x1b\\[[0-9;]*m")
WIDTHS = (40, 100)
_EXTENSIONS = ["table", "strikethrough", "autolink", "tasklist"]
_GITHUB = partial(
    cmarkgfm.markdown_to_html_with_extensions,
    options=Options.CMARK_OPT_UNSAFE | Options.CMARK_OPT_FOOTNOTES,
    extensions=_EXTENSIONS,
)
_COMMON = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
# Never from outside; and ids of rows, which excerpts are looked up by, are made of hashes and numbers.
_OWN = {
    ("ScoredExample", "id"),
    ("Excerpt", "id"),
    *((name, "gradian_version") for name in ("Report", "AuditReport", "Verification")),
    ("RunRead", "trainer"),
    ("SkippedPart", "missing"),
}


def fill(value: Any, annotation: Any, text: Callable[[], str], owner: str = "", name: str = "") -> Any:
    """Return JSON data of a report with another text in each field that can hold any text."""
    if get_origin(annotation) is Annotated:
        if annotation == Data:
            return {text(): _fill_data(entry, text) for entry in value.values()}
        return fill(value, get_args(annotation)[0], text, owner, name)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        # As they were written: pydantic takes an annotation apart.
        written = _annotations(annotation)
        return {
            key: fill(entry, written[key], text, annotation.__name__, key) for key, entry in value.items()
        }
    if isinstance(value, list):
        return [fill(entry, get_args(annotation)[0], text, owner, name) for entry in value]
    if value is None or get_origin(annotation) is Literal:
        return value
    inner = [part for part in get_args(annotation) if part is not type(None)]
    if inner:
        return fill(value, inner[0], text, owner, name)
    if isinstance(value, str) and annotation is str and (owner, name) not in _OWN:
        return text()
    if annotation is Any and (owner, name) not in _OWN:
        return _fill_data(value, text)
    return value


@cache
def _annotations(model: type[BaseModel]) -> dict[str, Any]:
    return get_type_hints(model, include_extras=True)


def _fill_data(value: Any, text: Callable[[], str]) -> Any:
    if isinstance(value, dict):
        return {text(): _fill_data(entry, text) for entry in value.values()}
    if isinstance(value, list):
        return [_fill_data(entry, text) for entry in value]
    return text() if isinstance(value, str) else value


@dataclass(frozen=True)
class Kind:
    """One kind of report, and how it is shown."""

    sample: BaseModel
    on_terminal: Callable[[Any], RenderableType]
    in_markdown: Callable[[Any], str] | None

    def filled(self, text: Callable[[], str]) -> BaseModel:
        """The sample with `text()` in each text field."""
        model = type(self.sample)
        return model.model_validate(fill(self.sample.model_dump(mode="json"), model, text))

    @property
    def slots(self) -> int:
        """How many text fields the sample has."""
        counted = Counter[str]()

        def text() -> str:
            counted["n"] += 1
            return f"harmless {counted['n']}"

        self.filled(text)
        return counted["n"]


def explanation() -> ExplainedExample:
    """A row's explanation with a span and a token of each sign."""
    return ExplainedExample(
        id="3f2a9c1b7d04-17",
        row=17,
        prompt="Tell me.",
        item="eval-3",
        item_prompt="Capital?",
        expected="Paris",
        said="Berlin",
        regressed=True,
        engine="datainf",
        query_signal="contrastive",
        score=-5.0,
        spans=(
            ExplainedSpan(number=2, text="It is Berlin.", tokens=5, score=-6.0),
            ExplainedSpan(number=1, text="It is old.", tokens=5, score=1.0),
        ),
        tokens=(ExplainedToken(text="It", score=-5.0), ExplainedToken(text=" is", score=2.0)),
    )


def kinds() -> dict[str, Kind]:
    """Every kind of report, with every part of it that can be there."""
    report = samples.poisoned(skipped=(Skipped(id="a", reason="needs a"), Skipped(id="b", reason="needs b")))
    verified = verifications.verification(control=0, notes=("One seed.", "Another machine."))
    return {
        "report": Kind(report, terminal.render, markdown.render),
        "audit": Kind(audits.faulty(), audit_terminal.render, audit_markdown.render),
        "verification": Kind(
            # Items are shown alike, and these are sixteen: a lost one and one that was held will do.
            verified.model_copy(update={"items": verified.items[7:9]}),
            verification_terminal.render,
            verification_markdown.render,
        ),
        "explanation": Kind(explanation(), render_explanation, None),
    }


def html_faults(html: str) -> tuple[list[str], list[str]]:
    """Return what is active in a page, and its blocks in order, as a browser reads it."""
    tree = html5lib.parse(html, namespaceHTMLElements=False)
    faults, outline = [], []
    for element in tree.iter():
        if not isinstance(element.tag, str):
            faults.append("a comment")
            continue
        tag = element.tag.rpartition("}")[2]  # SVG and MathML have a namespace in front.
        if tag in BLOCKS:
            outline.append(tag)
        elif tag not in INLINE | FRAME:
            faults.append(f"<{tag}>")
        faults += [
            f"<{tag} {name}={value[:40]!r}>"
            for name, value in element.attrib.items()
            if (tag, name, value) not in ATTRIBUTES
        ]
    return faults, outline


def unshown(text: str) -> list[str]:
    """The characters that a terminal must not get."""
    return sorted({char for char in text if not (char.isprintable() or char == "\n")})


def markdown_faults(document: str, harmless: str | None) -> Iterator[str]:
    """Yield what a Markdown document lets through, and where its structure is not that of the harmless one."""
    if hidden := unshown(document):
        yield f"hidden characters {hidden!r}"
    for name, render in (("cmark-gfm", _GITHUB), ("markdown-it", _COMMON.render)):
        active, outline = html_faults(render(document))
        yield from (f"{name}: {fault}" for fault in active)
        if harmless is None:
            continue
        _, expected = _outline(name, harmless)
        if outline != expected:
            at = next(
                (i for i, pair in enumerate(zip(outline, expected, strict=False)) if pair[0] != pair[1]),
                min(len(outline), len(expected)),
            )
            yield f"{name}: structure differs at block {at}: {outline[at : at + 4]} for {expected[at : at + 4]}"


_OUTLINES: dict[tuple[str, str], tuple[list[str], list[str]]] = {}


def _outline(name: str, document: str) -> tuple[list[str], list[str]]:
    key = (name, document)
    if key not in _OUTLINES:
        _OUTLINES[key] = html_faults((_GITHUB if name == "cmark-gfm" else _COMMON.render)(document))
    return _OUTLINES[key]


def on_terminal(renderable: RenderableType, width: int, *, colour: bool) -> str:
    """What a terminal of that width gets."""
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
        _environ={},
    )
    console.print(renderable)
    return stream.getvalue()


def terminal_faults(render: Callable[[Any], RenderableType], report: BaseModel) -> Iterator[str]:
    """Yield what a terminal gets of a report that it should not."""
    for width in WIDTHS:
        plain = on_terminal(render(report), width, colour=False)
        coloured = on_terminal(render(report), width, colour=True)
        if hidden := unshown(plain):
            yield f"on {width} columns: {hidden!r}"
        if hidden := unshown(SGR.sub("", coloured)):
            yield f"on {width} columns with colours: {hidden!r}"
        if [line.rstrip() for line in SGR.sub("", coloured).splitlines()] != [
            line.rstrip() for line in plain.splitlines()
        ]:
            yield f"on {width} columns: colours change the text"
        wide = [line for line in plain.split("\n") if cell_len(line) > width]
        if wide:
            yield f"a line of {cell_len(wide[0])} cells on {width} columns: {wide[0]!r}"


def json_faults(report: BaseModel, texts: Sequence[str]) -> Iterator[str]:
    """Yield where a report's JSON does not load back, or holds what it must not."""
    text = jsonfile.render(report)
    if hidden := unshown(text):
        yield f"JSON: {hidden!r}"
    if "<" in text:
        yield "JSON: a <"
    loaded = json.loads(text, parse_constant=_no_constant)
    if loaded != report.model_dump(mode="json"):
        yield "JSON: loads back otherwise"
    # Exactly the payloads: what UTF-8 cannot hold is written out, everything else is as it was.
    held = set(_strings(loaded))
    missing = [payload for payload in texts if encodable(payload) not in held]
    if missing:
        yield f"JSON: {missing[0]!r} is lost"


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield key
            yield from _strings(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _strings(entry)
    elif isinstance(value, str):
        yield value


@dataclass
class Fillings:
    """Gives each slot of a document its payload, and remembers which."""

    texts: Sequence[str]
    start: int
    given: list[str] = field(default_factory=list)

    def hostile(self) -> str:
        """The next slot's payload."""
        text = self.texts[(self.start + STEP * len(self.given)) % len(self.texts)]
        self.given.append(text)
        return text


def harmless_for(given: Sequence[str]) -> Callable[[], str]:
    """Return what stands in for these payloads: as empty as they are, and otherwise all different."""
    numbers = iter(range(len(given)))

    def text() -> str:
        number = next(numbers)
        return f"harmless {number}" if given[number] else ""

    return text


def document_faults(kind: Kind, texts: Sequence[str], start: int) -> Iterator[str]:
    """Yield the faults of one document, each of whose slots holds another payload."""
    fillings = Fillings(texts, start)
    report = kind.filled(fillings.hostile)
    if kind.in_markdown is not None:
        harmless = kind.filled(harmless_for(fillings.given))
        yield from markdown_faults(kind.in_markdown(report), kind.in_markdown(harmless))
    yield from terminal_faults(kind.on_terminal, report)
    yield from json_faults(report, fillings.given)


def main() -> None:
    """Go through all of it and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.hostile_text", description=__doc__)
    parser.add_argument(
        "--wrapped", action="store_true", help="each payload also inside other text: 12 times as many"
    )
    parser.add_argument("--every", type=int, default=1, help="only every Nth document")
    parser.add_argument("--first", type=int, default=0, help="begin with this one")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no other after this time")
    chosen = parser.parse_args()
    texts = wrapped() if chosen.wrapped else payloads()
    faults: Counter[str] = Counter()
    figures: dict[str, Any] = {"payloads": len(texts), "documents": 0}
    started, start, all_kinds = time.monotonic(), chosen.first, kinds()
    figures["slots"] = {name: kind.slots for name, kind in all_kinds.items()}
    while start < len(texts) and time.monotonic() - started < chosen.seconds:
        for name, kind in all_kinds.items():
            figures["documents"] += 1
            for fault in document_faults(kind, texts, start):
                faults[f"{name}: {fault}"] += 1
                if faults[f"{name}: {fault}"] == 1:
                    print(f"FAULT {name}, document {start}: {fault[:400]}", file=sys.stderr, flush=True)
        start += chosen.every
    figures["next"] = start
    figures["payloads in slots"] = sum(figures["slots"].values()) * figures["documents"] // len(all_kinds)
    figures["faults"] = sum(faults.values())
    print(json.dumps(figures, indent=2))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
