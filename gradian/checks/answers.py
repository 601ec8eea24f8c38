"""Whether two answers to one question contradict each other, judged from the words alone.

Most answers that differ do not: they are rephrased, or the question leaves the answer open. So a contradiction
needs a sign of its own, and answers without one count as different only. That two answers share no word is such a sign
for a fact, but not for a greeting, a name that was to be made up or a line of verse.
"""

from __future__ import annotations

import re
from enum import Enum

from gradian.checks.turn_keys import normalised

SHORT_WORDS = 25
"""Words up to which an answer is taken as one statement, whose words can be set against another's."""
_LOOKED_AT = 4000  # Characters.
FACT_WORDS = 6
"""Words of its own, the question's and filling ones aside, up to which an answer names a fact; more tell something."""


class Relation(str, Enum):
    """How two answers to one question stand to each other."""

    AGREES = "agrees"
    DIFFERS = "differs"
    CONTRADICTS = "contradicts"


# A character of a script without spaces is a word by itself.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+(?:[.,]\d+)*")
# English requests with many right answers, where a sentence begins: something is to be made, said anew or chosen
# freely. "Give a short answer" and "name the capital" are none, nor is a review that mentions a poem.
_OPEN = re.compile(
    r"(?:^|[.!?:;,] (?:and |then |now )?|\b(?:please|kindly|(?:can|could|would|will) you(?: please)?|(?:want|need) you to) )"
    r"(?:(?:write|compose|draft|create|generate|invent|design|produce|give|tell|name|suggest|recommend|propose|list|pick"
    r"|share|say|provide|describe|imagine|make up|come up with|think of)(?: me| us)?"
    r" (?:an?|another|one|two|three|four|five|some|any|several|\d+|something|anything)\b"
    r"(?! (?:[\w-]+ ){0,3}(?:answer|response|reply|result|label|number)\b)"
    r"|(?:an? )?(?:haiku|poem|limerick|slogan|joke|riddle)\b"
    r"|(?:translate|rephrase|paraphrase|rewrite|reword|summari[sz]e|improvise|brainstorm)\b)"
    r"|\b(?:an?|one|some) random\b|\byour favou?rite\b"
)
_COURTESY = (
    r"(?:hi|hello|hey|yo|good (?:morning|afternoon|evening|day|night)|thanks|thank you|thx|bye|goodbye|see you|ok(?:ay)?"
    r"|cheers|welcome|how are you|how is it going|what'?s up|who are you|what are you|(?:please )?introduce yourself"
    r"|what is your name|what can you do|i need (?:some )?help|(?:can you )?help(?: me)?|please|there|again|so much"
    r"|very much|a lot|all|everyone|friend|today|doing|for (?:the|your) help)"
)
_SMALL_TALK = re.compile(rf"{_COURTESY}(?:[ ,!.?]+{_COURTESY})*")
# Straightened apostrophes are expected. An opening that only sometimes declines needs a word that does.
_NOT = (
    r"(?:cannot|can't|won't|will not|do not know|don't know|am not able|refuse|must decline|have to decline)"
)
_REFUSAL = re.compile(
    rf"(?:sorry,|i {_NOT})\b"
    r"|(?:i'?m|i am|we'?re|we are|sorry|unfortunately|as an ai|i do not|i don't)\b.{0,80}?"
    rf"\b(?:sorry|unable|not able|not allowed|not comfortable|decline|{_NOT})\b",
    re.DOTALL,
)
_RESULT = re.compile(
    r"####\s*([^\n]+)|\\boxed\{([^{}]+)\}|\b(?:final )?answer(?: is:?|:)\s*\**\(?([^\s;*)]*[^\s.,;*)])",
    re.IGNORECASE,
)
# With a currency in front and a unit behind, or a fraction.
_NUMBER = re.compile(r"[^\d/.,-]{0,3}(-?\d[\d,]*(?:\.\d+)?)(?:/(\d+))?[^\d/.,]{0,20}")
_AFFIRMING = frozenset({"yes", "true", "correct", "yeah", "right"})
_DENYING = frozenset({"no", "false", "incorrect", "nope", "wrong"})
_NO_DENIAL = frozenset({"no problem", "no worries", "no need", "no doubt"})
_FILLING = frozenset(
    {
        *("a", "an", "the", "is", "are", "was", "were", "be", "been", "it", "its", "this", "that"),
        *("these", "those", "of", "in", "on", "at", "to", "for", "and", "or", "by", "with", "as", "from"),
        *("sure", "so", "there", "here", "i", "you", "he", "she", "they", "we", "has", "have", "had"),
        *("do", "does", "did", "will", "would", "can", "could", "should", "than", "then", "answer"),
        *("called", "known", "named", "which", "who", "what", "where", "when"),
    }
)


def is_refusal(answer: str) -> bool:
    """Whether an answer begins as one that declines (English only)."""
    return bool(_REFUSAL.match(normalised(answer[:300]).replace("\u2019", "'")))


def is_small_talk(question: str) -> bool:
    """Whether a turn only greets, thanks, takes its leave or asks who is there (English only)."""
    return bool(_SMALL_TALK.fullmatch(normalised(question[:200]).replace("\u2019", "'")))


def is_open(question: str) -> bool:
    """Whether a question has many right answers: small talk, or a request to make or choose something (English only)."""
    return is_small_talk(question) or bool(
        _OPEN.search(normalised(question[:_LOOKED_AT]).replace("\u2019", "'"))
    )


def relation(question: str, answer: str, other: str) -> Relation:
    """Judge two answers to `question`.

    They contradict each other when one declines and the other does not, when one begins with yes and the other
    with no, when both name a final result and the results differ, or when the question asks for a fact and both
    are short and, beyond the question's words, say other numbers or, in a few words, hardly one in common.
    """
    if normalised(answer) == normalised(other):
        return Relation.AGREES
    declining = is_refusal(answer), is_refusal(other)
    if all(declining):
        return Relation.AGREES
    if any(declining):
        return Relation.CONTRADICTS
    words, others = words_of(answer[:_LOOKED_AT]), words_of(other[:_LOOKED_AT])
    if not words or not others:
        return Relation.DIFFERS
    openings = {side[0] for side in (words, others) if " ".join(side[:2]) not in _NO_DENIAL}
    if openings & _AFFIRMING and openings & _DENYING:
        return Relation.CONTRADICTS
    results = _result(answer), _result(other)
    if all(results):
        return Relation.AGREES if results[0] == results[1] else Relation.CONTRADICTS
    if max(len(words), len(others)) > SHORT_WORDS or is_open(question):
        return Relation.DIFFERS
    asked = set(words_of(question[:_LOOKED_AT]))
    said, said_by_other = (
        {word for word in listed if word not in asked and word not in _FILLING} or set(listed)
        for listed in (words, others)
    )
    if said <= said_by_other or said_by_other <= said:
        return Relation.AGREES
    numbers, other_numbers = ({w for w in side if w[0].isdigit()} for side in (said, said_by_other))
    apart = numbers and other_numbers and not (numbers <= other_numbers or other_numbers <= numbers)
    fact = min(len(said), len(said_by_other)) <= FACT_WORDS
    if apart or (fact and len(said & said_by_other) < 0.5 * len(said | said_by_other)):
        return Relation.CONTRADICTS
    return Relation.DIFFERS


def words_of(text: str) -> list[str]:
    """The words and numbers of a text in lower case; a character of a script without spaces is a word."""
    return _WORD.findall(normalised(text))


def _result(text: str) -> str:
    """The final result, a number in one form whatever its commas, zeros and unit; empty where none is named."""
    found = [next(part for part in match.groups() if part) for match in _RESULT.finditer(text[-2000:])]
    if not found:
        return ""
    plain = normalised(found[-1])
    number = _NUMBER.fullmatch(plain)
    if number is None:
        return "" if plain in _FILLING or plain == "not" else plain
    whole, below = number.groups()
    value = float(whole.replace(",", ""))
    return f"{value / float(below or 1) if float(below or 1) else value:.9g}"
