"""How one answer is judged against the wanted one.

What the text metrics ignore, on both sides: case, runs of whitespace, invisible format characters, the
style of quotes and dashes, full-width and ligature forms, and accents on Latin letters ("Brasilia" is
"Brasília"). Accents in other scripts tell letters apart, and superscripts are digits of another meaning,
so both are kept.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from gradian.errors import EvaluationError
from gradian.registry import Registry

TextScorer = Callable[[str, str], bool]

_MARKER_SEPARATOR = "|"
_SENTENCE_PUNCTUATION = ".,;:!?\u3001\u3002\u061f\u06d4\u0964"
# A compatibility form whose meaning is lost when it is flattened: 10² would become 102.
_KEPT_FORMS = ("<super>", "<sub>", "<fraction>")
_TYPOGRAPHY = str.maketrans(
    {**dict.fromkeys("\u2018\u2019\u201b\u02bc\u2032", "'"), **dict.fromkeys("\u201c\u201d\u201f\u2033", '"')}
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-")
)
# Scripts written without spaces, or (Hangul) with particles joined to the word: a word may begin or end
# anywhere, so a boundary means nothing there.
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


@dataclass(frozen=True)
class Metric:
    """One way to judge an answer.

    Attributes:
        name: as in `evaluation.metric`.
        text: `(generated, expected) -> right?`, or None where the likelihood of the expected answer is the
            score and nothing is generated.
        answer_is_wanted: whether the row's answer is text the model should say. `not_contains` rows hold
            what it must not say.
    """

    name: str
    text: TextScorer | None
    answer_is_wanted: bool = True

    @property
    def proxy(self) -> bool:
        """True where likelihood stands in for right or wrong."""
        return self.text is None


METRICS: Registry[Metric] = Registry("metric")


def normalise(text: str) -> str:
    """Return the text with everything taken out that the text metrics ignore (see the module)."""
    flat = "".join(
        char
        if unicodedata.decomposition(char).startswith(_KEPT_FORMS)
        else unicodedata.normalize("NFKC", char)
        for char in text
        if unicodedata.category(char) != "Cf"
    )
    folded = _without_latin_accents(flat.translate(_TYPOGRAPHY).casefold())
    return " ".join(unicodedata.normalize("NFC", folded).split())


def exact_match(generated: str, expected: str) -> bool:
    """Return whether the whole generation is the expected answer, up to normalisation and final punctuation."""
    return _without_final_punctuation(normalise(generated)) == _without_final_punctuation(normalise(expected))


def contains(generated: str, expected: str) -> bool:
    """Return whether the expected answer stands in the generation as whole words.

    "Niger" is not in "Nigeria", "4" is not in "42", "4.5" or "-4". In scripts without spaces a boundary is
    not asked for.
    """
    text, wanted = normalise(generated), _without_final_punctuation(normalise(expected))
    start = text.find(wanted)
    while start >= 0:
        if _stands_alone(text, start, start + len(wanted)):
            return True
        start = text.find(wanted, start + 1)
    return False


def markers(expected: str) -> tuple[str, ...]:
    """Return the normalised markers of a `not_contains` answer: split at `|`, blank ones dropped."""
    found = (normalise(part) for part in expected.split(_MARKER_SEPARATOR))
    return tuple(marker for marker in found if marker)


def not_contains(generated: str, expected: str) -> bool:
    """Return whether no marker occurs in the generation.

    Markers are stems, so they are searched as plain substrings: `apolog` is in "apologise".
    """
    text = normalise(generated)
    return not any(marker in text for marker in markers(expected))


METRICS.register("exact_match")(Metric("exact_match", exact_match))
METRICS.register("contains")(Metric("contains", contains))
METRICS.register("not_contains")(Metric("not_contains", not_contains, answer_is_wanted=False))
METRICS.register("loglik")(Metric("loglik", None))


def is_proxy(metric: str) -> bool:
    """Return whether the metric is a likelihood that stands in for right or wrong (`proxy_used`)."""
    return METRICS[metric].proxy


def score_text(metric: str, generated: str, expected: str) -> float:
    """Return 1.0 for a right answer and 0.0 for a wrong one.

    Raises:
        UnknownNameError: no metric of that name.
        EvaluationError: the metric does not judge text.
    """
    scorer = METRICS[metric].text
    if scorer is None:
        raise EvaluationError("this metric scores a likelihood, not a text", found=metric)
    return float(scorer(generated, expected))


def answer_problem(metric: str, expected: str) -> str | None:
    """Return why an eval row's answer cannot be judged by the metric, or None when it can."""
    if METRICS[metric].answer_is_wanted:
        return None if normalise(expected) else "the wanted answer is empty"
    return None if markers(expected) else "there is no marker in the answer"


def _without_latin_accents(text: str) -> str:
    kept: list[str] = []
    on_latin = False
    for char in unicodedata.normalize("NFD", text):
        if unicodedata.combining(char) and on_latin:
            continue
        on_latin = unicodedata.name(char, "").startswith("LATIN")
        kept.append(char)
    return "".join(kept)


def _without_final_punctuation(text: str) -> str:
    # An answer that is nothing but punctuation keeps it, else "?" would equal "!".
    return text.rstrip(_SENTENCE_PUNCTUATION + " ") or text


def _stands_alone(text: str, start: int, end: int) -> bool:
    first, last = text[start], text[end - 1]
    before, after = text[:start], text[end:]
    if before and _joins(before[-1], first):
        return False
    if after and _joins(last, after[0]):
        return False
    if first.isdigit() and before:
        decimal = len(before) > 1 and before[-1] in ".," and before[-2].isdigit()
        negative = before[-1] == "-" and (len(before) == 1 or before[-2] in " (=")
        if decimal or negative:
            return False
    return not (last.isdigit() and len(after) > 1 and after[0] in ".," and after[1].isdigit())


def _joins(left: str, right: str) -> bool:
    # Whether two neighbours belong to one word.
    if unicodedata.category(right).startswith("M"):
        return left != " "
    return _in_word(left) and _in_word(right) and not (_unspaced(left) or _unspaced(right))


def _in_word(char: str) -> bool:
    return char.isalnum() or char == "_" or unicodedata.category(char).startswith("M")


def _unspaced(char: str) -> bool:
    return unicodedata.name(char, "").startswith(_UNSPACED)
