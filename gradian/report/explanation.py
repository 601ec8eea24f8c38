"""What one training example's sentences and tokens did to one eval item, and how a terminal shows it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradian.report.escape import quoted, shown_in_place, visible
from gradian.report.model import Number, Part
from gradian.report.model import Text as SafeText
from gradian.report.terminal import bullet

_LISTED_TOKENS = 5
# Backgrounds by strength, weakest first: what degraded the item, and what reinforced it.
_HARMFUL = ("on #ffe3e0", "on #ffb8b0", "on #ff7a6b", "on #d92d20")
_HELPFUL = ("on #e3f5e1", "on #b7e4b0", "on #74c476", "on #238b45")
_FAINTEST = 0.05


class ExplainedSpan(Part):
    """One sentence of the answer. Positive score: it reinforced the item; negative: it degraded it."""

    number: int
    """Its place in the answer, from 1."""
    text: SafeText
    tokens: int
    score: Number


class ExplainedToken(Part):
    """One supervised token."""

    text: SafeText
    score: Number


class ExplainedExample(Part):
    """What each part of one training row did to one eval item."""

    id: SafeText
    row: int
    """0-based row of the data set."""
    prompt: SafeText
    item: SafeText
    item_prompt: SafeText
    expected: SafeText
    said: SafeText | None
    """What the tuned model answers; null under a metric that generates nothing."""
    regressed: bool
    """Whether the item got worse. If it did not, the query is the expected answer alone."""
    engine: SafeText
    query_signal: SafeText
    score: Number
    """The row's score on the item: the sum of its sentences'."""
    spans: tuple[ExplainedSpan, ...]
    """Most harmful first."""
    tokens: tuple[ExplainedToken, ...] = ()
    """In the order of the text; empty when they were not scored."""


def explanation_lines(explained: ExplainedExample) -> list[str]:
    """Return what the explanation has to say, the finding first, in sentences with `code` between backticks."""
    worst, total = explained.spans[0], len(explained.spans)
    harm = sum(min(0.0, span.score or 0.0) for span in explained.spans)
    item = f"{quoted(explained.item_prompt)} (item {explained.item})"
    if (worst.score or 0.0) < 0:
        lines = [
            f"Part {worst.number} of {total} did it: {quoted(worst.text, 200)} scores {worst.score:+.4g}, which is"
            f" {(worst.score or 0.0) / harm:.0%} of what this row did against {item}."
        ]
    else:
        lines = [f"No part of this row degraded {item}: the lowest score is {worst.score:+.4g}."]
    answer = "" if explained.said is None else f", and the tuned model says {quoted(explained.said)}"
    lines.append(
        f"Row {explained.row + 1} ({explained.id}) as a whole scores {explained.score or 0.0:+.4g}"
        f" ({explained.engine}, {explained.query_signal} query). Wanted is {quoted(explained.expected)}{answer}."
    )
    if not explained.regressed:
        lines.append("The item did not get worse, so there is no wrong answer to set against the wanted one.")
    return lines


def render_explanation(explained: ExplainedExample) -> RenderableType:
    """Return the explanation as a rich renderable; no row can make the terminal do anything."""
    parts: list[RenderableType] = [
        bullet(line, "bold" if number == 0 else "")
        for number, line in enumerate(explanation_lines(explained))
    ]
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("part", justify="right", no_wrap=True)
    table.add_column("text, most harmful first", overflow="fold")
    for span in explained.spans:
        table.add_row(_figure(span.score), str(span.number), Text(visible(span.text, None)))
    parts += [Text(), table]
    if explained.tokens:
        parts += [Text(), _shaded(explained.tokens), Text(), _strongest(explained.tokens)]
    return Group(*parts)


def _figure(score: float | None) -> str:
    return "" if score is None else format(score, "+.4g")


def _shaded(tokens: tuple[ExplainedToken, ...]) -> Text:
    largest = max((abs(token.score or 0.0) for token in tokens), default=0.0)
    text = Text()
    for token in tokens:
        share = abs(token.score or 0.0) / largest if largest else 0.0
        palette = _HARMFUL if (token.score or 0.0) < 0 else _HELPFUL
        level = min(len(palette) - 1, int(share * len(palette)))
        style = f"black {palette[level]}" if share >= _FAINTEST else ""
        lines = token.text.split("\n")
        for number, line in enumerate(lines):
            text.append(shown_in_place(line), style)
            if number + 1 < len(lines):
                text.append("\n")
    return text


def _strongest(tokens: tuple[ExplainedToken, ...]) -> Text:
    # Said in words too: not every terminal has colours.
    ranked = sorted(tokens, key=lambda token: -abs(token.score or 0.0))[:_LISTED_TOKENS]
    told = ", ".join(f"{quoted(token.text, 40)} {_figure(token.score)}" for token in ranked)
    return Text(f"Strongest tokens (red degraded the item, green reinforced it): {told}")
