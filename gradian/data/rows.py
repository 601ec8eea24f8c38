"""Row shapes: one dataset row in, one `Example` in turns out.

Nothing here raises for what a row holds. A row that cannot be used becomes an example with a `problem`;
anything else worth telling becomes a `Remark`, so that one bad row never hides the state of the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gradian.jsonvalue import parse_json
from gradian.types import Example, Message

MESSAGE_KEYS = ("messages", "conversations", "conversation")
PAIR_SHAPES = (
    ("prompt_completion", ("prompt", "completion")),
    ("question_answer", ("question", "answer")),
    ("instruction", ("instruction", "output")),
    ("input_output", ("input", "output")),
)
ROLE_ALIASES = {
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "function": "tool",
}
KNOWN_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "ipython"})
_NULL_WORDS = frozenset({"none", "nan", "null", "undefined", "<na>"})
_TURN_KEYS = frozenset({"role", "from", "content", "value"})


class RemarkKind(str, Enum):
    """What a row can be remarked on for."""

    UNKNOWN_SHAPE = "unknown_shape"
    NO_TARGET = "no_target"
    UNREADABLE = "unreadable"
    CONVERTED = "converted"
    NULL_WORD = "null_word"
    UNKNOWN_ROLE = "unknown_role"


@dataclass(frozen=True)
class Remark:
    """Something to tell about one row."""

    kind: RemarkKind
    detail: str


@dataclass(frozen=True)
class ParsedRow:
    """An example and what there is to say about the row it came from."""

    example: Example
    remarks: tuple[Remark, ...] = ()


class _Unusable(Exception):
    """The row cannot be used; the message becomes `Example.problem`."""


def read_row(row: Any, position: int, row_id: str) -> ParsedRow:
    """Reads one row of any known shape.

    Args:
        row: what the file holds: usually a mapping; anything else is taken as raw text and remarked.
        position: 0-based place of the row in the dataset.
        row_id: the example's id (`gradian.data.ids.example_id`).
    """
    remarks: list[Remark] = []
    shape = row_shape(row)
    try:
        if shape == "unknown":
            remarks.append(Remark(RemarkKind.UNKNOWN_SHAPE, _unknown_reason(row)))
            text = row if isinstance(row, str) else json.dumps(row, ensure_ascii=False, default=str)
            return ParsedRow(Example(row_id, position, shape, text=text), tuple(remarks))
        cluster = _cluster(row)
        if shape == "text":
            text = _text(row["text"], "text", remarks)
            if not text.strip():
                remarks.append(Remark(RemarkKind.NO_TARGET, "text is empty"))
            return ParsedRow(Example(row_id, position, shape, text=text, cluster=cluster), tuple(remarks))
        messages = _turns(row, remarks) if shape == "messages" else _pair(row, shape, remarks)
        example = Example(
            row_id,
            position,
            shape,
            messages=_with_system(row, messages, remarks),
            cluster=cluster,
            tools=_tools(row.get("tools")),
        )
    except _Unusable as error:
        problem = str(error)
        remarks.append(Remark(RemarkKind.UNREADABLE, problem))
        return ParsedRow(Example(row_id, position, shape, problem=problem), tuple(remarks))
    if not any(turn.role == "assistant" for turn in example.messages):
        remarks.append(Remark(RemarkKind.NO_TARGET, "no assistant turn"))
    strangers = sorted({turn.role for turn in example.messages} - KNOWN_ROLES)
    if strangers:
        remarks.append(Remark(RemarkKind.UNKNOWN_ROLE, "role " + ", ".join(map(repr, strangers))))
    return ParsedRow(example, tuple(remarks))


def row_shape(row: Any) -> str:
    """The name of the row's shape; `unknown` when it has no known keys.

    Keys whose value is null do not decide while another shape has values: an Arrow file of mixed rows
    gives every row every column.
    """
    if not isinstance(row, Mapping):
        return "unknown"
    candidates: list[tuple[str, tuple[str, ...]]] = [("messages", (key,)) for key in MESSAGE_KEYS]
    candidates += [*PAIR_SHAPES, ("text", ("text",))]
    present = [(shape, keys) for shape, keys in candidates if all(key in row for key in keys)]
    for shape, keys in present:
        if any(not _is_null(row[key]) for key in keys):
            return shape
    return present[0][0] if present else "unknown"


def canonical_role(role: str) -> str:
    """`human` -> `user`, `gpt` -> `assistant` and the like; unknown roles stay as they are."""
    lowered = role.strip().lower()
    if lowered in KNOWN_ROLES:
        return lowered
    return ROLE_ALIASES.get(lowered, role.strip())


def alternation_problem(messages: Sequence[Message]) -> str | None:
    """Why a trainer that wants user/assistant pairs would drop the conversation; None when it would not.

    The rule of LLaMA-Factory's ShareGPT converter: after an optional system turn, odd turns are the user's
    (or a tool's), even ones the assistant's, and the count is even. It skips other rows with a log line only.
    """
    roles = [turn.role for turn in messages]
    if roles and roles[0] in ("system", "developer"):
        roles = roles[1:]
    if not roles:
        return "has no turns"
    for number, role in enumerate(roles, start=1):
        wanted = ("user", "tool", "ipython") if number % 2 else ("assistant",)
        if role not in wanted:
            if role not in KNOWN_ROLES:
                return f"turn {number} has the unknown role {role!r}"
            return f"turn {number} is {role}, where {wanted[0]} should speak"
    if len(roles) % 2:
        return "ends without an assistant turn"
    return None


def _turns(row: Mapping[str, Any], remarks: list[Remark]) -> tuple[Message, ...]:
    key = next(
        (key for key in MESSAGE_KEYS if not _is_null(row.get(key))),
        next(key for key in MESSAGE_KEYS if key in row),
    )
    value = row[key]
    if isinstance(value, Mapping):
        # `datasets` before 4 stores a list of structs as a struct of lists.
        value = _transposed(value, key)
    if _is_null(value) or value == []:
        raise _Unusable(f"{key} has no turns")
    if not isinstance(value, list | tuple):
        raise _Unusable(f"{key} is {_type_name(value)}, not a list of turns")
    return _messages(value, remarks)


def _messages(turns: Iterable[Any], remarks: list[Remark], first: int = 1) -> tuple[Message, ...]:
    messages = []
    for number, turn in enumerate(turns, start=first):
        if not isinstance(turn, Mapping):
            raise _Unusable(f"turn {number} is {_type_name(turn)}, not an object with role and content")
        role = turn["role"] if not _is_null(turn.get("role")) else turn.get("from")
        if not isinstance(role, str) or not role.strip():
            raise _Unusable(f"turn {number} has no role")
        content = turn["content"] if not _is_null(turn.get("content")) else turn.get("value")
        extra = {
            key: item
            for key, item in turn.items()
            if key not in _TURN_KEYS and not _is_null(item) and item != []
        }
        messages.append(
            Message(canonical_role(role), _text(content, f"turn {number}", remarks), extra or None)
        )
    return tuple(messages)


def _pair(row: Mapping[str, Any], shape: str, remarks: list[Remark]) -> tuple[Message, ...]:
    prompt_key, target_key = next(keys for name, keys in PAIR_SHAPES if name == shape)
    prompt, target = row[prompt_key], row[target_key]
    if _is_turns(prompt) or _is_turns(target):
        # TRL's conversational form: both sides are lists of turns.
        head = _side(prompt, "user", prompt_key, remarks, 1)
        return head + _side(target, "assistant", target_key, remarks, 1 + len(head))
    asked = _text(prompt, prompt_key, remarks)
    if shape == "instruction":
        context = _text(row.get("input"), "input", remarks)
        asked = "\n\n".join(part for part in (asked, context) if part)
    answer = _text(target, target_key, remarks)
    user = Message("user", asked)
    # An empty completion is no turn at all: an end token alone teaches the model to say nothing.
    return (user, Message("assistant", answer)) if answer else (user,)


def _side(value: Any, role: str, where: str, remarks: list[Remark], first: int) -> tuple[Message, ...]:
    if _is_turns(value):
        return _messages(value, remarks, first)
    text = _text(value, where, remarks)
    return (Message(role, text),) if text else ()


def _is_turns(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(turn, Mapping) and ("role" in turn or "from" in turn) for turn in value)
    )


def _with_system(
    row: Mapping[str, Any], messages: tuple[Message, ...], remarks: list[Remark]
) -> tuple[Message, ...]:
    if messages and messages[0].role == "system":
        return messages
    system = _text(row.get("system"), "system", remarks)
    return (Message("system", system), *messages) if system else messages


def _text(value: Any, where: str, remarks: list[Remark]) -> str:
    if _is_null(value):
        return ""
    if isinstance(value, str):
        if value.strip().lower() in _NULL_WORDS:
            remarks.append(Remark(RemarkKind.NULL_WORD, f"{where} is the word {value.strip()!r}"))
        return value
    if isinstance(value, list | tuple):
        if all(isinstance(part, str) or (isinstance(part, Mapping) and "type" in part) for part in value):
            return "".join(_part(part, where) for part in value)
    elif isinstance(value, Mapping) and "type" in value and "text" in value:
        return _part(value, where)
    remarks.append(Remark(RemarkKind.CONVERTED, f"{where} is {_type_name(value)}, taken as text"))
    return json.dumps(value, ensure_ascii=False, default=str)


def _part(part: str | Mapping[str, Any], where: str) -> str:
    if isinstance(part, str):
        return part
    kind = str(part["type"])
    if kind in ("text", "input_text", "output_text"):
        text = part.get("text")
        return "" if _is_null(text) else str(text)
    for medium in ("image", "audio", "video"):
        if medium in kind:
            raise _Unusable(f"{medium} content not supported ({where})")
    raise _Unusable(f"content part of type {kind[:40]!r} not supported ({where})")


def _tools(value: Any) -> tuple[Mapping[str, Any], ...] | None:
    if isinstance(value, str):
        # Some datasets keep the definitions as JSON text, since they differ from row to row.
        try:
            value = parse_json(value)
        except ValueError:
            return None
    if not isinstance(value, list | tuple):
        return None
    return tuple(tool for tool in value if isinstance(tool, Mapping)) or None


def _cluster(row: Mapping[str, Any]) -> str | None:
    for key in ("cluster_id", "cluster"):
        value = row.get(key)
        if not _is_null(value):
            # pandas turns a column of integers with gaps into floats.
            return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return None


def _transposed(columns: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    lists = {name: items for name, items in columns.items() if isinstance(items, list | tuple)}
    if not lists or len({len(items) for items in lists.values()}) != 1:
        raise _Unusable(f"{key} is an object, not a list of turns")
    count = len(next(iter(lists.values())))
    return [{name: items[i] for name, items in lists.items()} for i in range(count)]


def _unknown_reason(row: Any) -> str:
    if not isinstance(row, Mapping):
        return f"is {_type_name(row)}"
    keys = ", ".join(repr(str(key)[:30]) for key in list(row)[:6])
    return f"has the keys {keys}" + (" ..." if len(row) > 6 else "") if row else "has no keys"


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def _type_name(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, Mapping):
        return "an object"
    return "null" if value is None else f"a {type(value).__name__}"
