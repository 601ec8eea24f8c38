"""A tokenizer's chat template, rendered as trainers do it while the clock stands still."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradian.data.masks import dated_template, without_generation_tags
from gradian.data.timelimit import OutOfTime, TimeLimit
from gradian.errors import ModelError, RowError
from gradian.types import Example, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gradian.data.turnwise import TurnTexts, TurnwiseTemplate

PINNED_DATE = datetime.datetime(2024, 7, 26)
"""What `strftime_now` of a chat template sees: the date that Llama 3 templates use without a clock."""


RENDER_S = 20.0
"""How long a template may take for one conversation; real ones take milliseconds, for the longest rows too."""

_CHECKED_ROWS = 4
_HOPELESS_ROWS = 8
_LARGEST_POWER = 100
# Of the text of a row: most characters, and for each character of the row so many more.
_LONGEST_TEXT = 1 << 20
_LONGEST_SHARE = 100
_REFUSALS = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


@dataclass
class _Trial:
    # How a template has done turn by turn so far.
    template: TurnwiseTemplate | None
    hits: int = 0
    misses: int = 0


class TemplateRenderer:
    """Renders conversations with the chat template of a tokenizer.

    The result is that of `apply_chat_template`. What this does around the template itself (it checks and copies
    the turns, drops null fields, fills in names for a field) leaves a turn that is a role and a text as it is, so
    such conversations go straight to the template that transformers has compiled in its sandbox. The first text
    of each template is rendered both ways, and whatever differs takes the long way for good.

    Args:
        tokenizer: a transformers tokenizer, with or without a chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        # By template and whether the prompt is asked for; None where the long way has to be taken.
        self._compiled: dict[tuple[str, bool], Any] = {}
        self._trials: dict[str, _Trial] = {}
        self._limit = TimeLimit(RENDER_S)
        self._checked: set[str] = set()
        self._ended: ModelError | None = None

    def template(self, example: Example) -> str | None:
        """The template that transformers picks for the row (one for tools may differ), None where there is none.

        Raises:
            ModelError: there are several, and none is meant for the row; or it computes powers.
        """
        if self._ended is not None:
            # Whoever goes on after the first row would wait as long for each of the others.
            raise self._ended
        if getattr(self._tokenizer, "chat_template", None) is None:
            return None
        try:
            template = str(self._tokenizer.get_chat_template(tools=_tools(example)))
        except ValueError as error:
            raise ModelError("the tokenizer has no usable chat template", found=str(error)[:200]) from None
        if template not in self._checked:
            if _computes_powers(template):
                raise ModelError(
                    "the chat template computes or rounds to a power of a number, which may take for ever and is not run",
                    fix="use the template of the model's publisher",
                )
            self._checked.add(template)
        return template

    def render(
        self,
        example: Example,
        messages: Sequence[Message],
        prompt: bool,
        template: str,
        date: datetime.datetime = PINNED_DATE,
    ) -> str:
        """The text of a conversation.

        Args:
            example: the row, for its tools and its number.
            messages: the turns to render, which need not be the row's.
            prompt: whether the header of an assistant turn to come follows.
            template: the template's source.
            date: what the template takes for now.

        Raises:
            ModelError: the template is not valid Jinja, does not end within `RENDER_S` and the memory there is, or writes
                a hundred times as much as the row has and more.
            RowError: the template refuses the turns, or fails on them.
        """
        from jinja2.exceptions import TemplateError, TemplateSyntaxError

        try:
            with self._limit:
                text = self._text(messages, _tools(example), prompt, dated_template(template, date))
            return _bounded(text, messages, _tools(example))
        except (OutOfTime, MemoryError, _TooLong) as error:
            raise self._endless(example, error) from None
        except TemplateSyntaxError as error:
            raise ModelError(f"the chat template is not valid Jinja ({error})") from None
        except TemplateError as error:
            said = type(error) is TemplateError
            problem = f"template refuses: {error}" if said else f"template cannot render the row ({error})"
            raise RowError(problem[:300], where=f"row {example.position + 1}") from None
        except _REFUSALS as error:
            raise RowError(
                f"template cannot render the row ({type(error).__name__}: {str(error)[:200]})",
                where=f"row {example.position + 1}",
            ) from None

    def turns(self, example: Example, template: str, marks: str = "", source: str = "") -> TurnTexts | None:
        """The row's conversation with all its beginnings from one rendering; None where they need one each.

        What it says is proven by the template's own structure (see `turnwise`), and the first rows of each
        template are compared with renderings of every beginning all the same.

        Args:
            template: the template's source.
            marks: characters that this template writes and the beginnings are to be without.
            source: the template that does not write them, if there are any.
        """
        from jinja2.exceptions import TemplateError

        from gradian.data.turnwise import LooksFurtherError

        if not _is_plain(example.messages, _tools(example)):
            return None
        trial = self._trials.get(template)
        try:
            with self._limit:
                if trial is None:
                    trial = self._trials[template] = _Trial(self._turnwise(template))
                if trial.template is None:
                    return None
                found = trial.template.render(_conversation(example.messages), **self._names())
            _bounded(found.text, example.messages, None)
        except (OutOfTime, MemoryError, _TooLong) as error:
            raise self._endless(example, error) from None
        except (TemplateError, LooksFurtherError, *_REFUSALS):
            # What the template has against the row, the long way says better.
            trial = trial or self._trials.setdefault(template, _Trial(None))
            trial.misses += 1
            if not trial.hits and trial.misses == _HOPELESS_ROWS:
                trial.template = None
            return None
        trial.hits += 1
        if trial.hits <= _CHECKED_ROWS and not self._holds(
            example, found, template, marks, source or template
        ):
            trial.template = None
            return None
        return found

    def _endless(self, example: Example, error: BaseException) -> ModelError:
        problem, found = "does not come to an end", f"still rendering after {self._limit.seconds:.0f} s"
        if isinstance(error, MemoryError):
            found = "it takes all the memory there is"
        elif isinstance(error, _TooLong):
            problem, found = "writes far more than the row", str(error)
        self._ended = ModelError(
            f"the chat template {problem}",
            where=f"row {example.position + 1}",
            found=found,
            fix="use the template of the model's publisher",
        )
        return self._ended

    def _turnwise(self, template: str) -> TurnwiseTemplate | None:
        from jinja2.exceptions import TemplateError

        from gradian.data.turnwise import LooksFurtherError, TurnwiseTemplate

        try:
            compiled = _compile(self._tokenizer, template)
            return TurnwiseTemplate(compiled, template) if compiled is not None else None
        except (TemplateError, LooksFurtherError):
            return None

    def _holds(self, example: Example, found: TurnTexts, template: str, marks: str, source: str) -> bool:
        bare, messages = found.without(marks), example.messages
        try:
            return found.text == self.render(example, messages, False, template) and all(
                bare.upto(n, prompt) == self.render(example, messages[:n], prompt, source)
                for n in range(1, len(messages) + 1)
                for prompt in (False, True)
            )
        except RowError:
            return False

    def _text(
        self, messages: Sequence[Message], tools: list[dict[str, Any]] | None, prompt: bool, template: str
    ) -> str:
        plain = _is_plain(messages, tools)
        key = (template, prompt)
        compiled = self._compiled.get(key) if plain else None
        if compiled is not None:
            return self._direct(compiled, messages, prompt)
        text = str(
            self._tokenizer.apply_chat_template(
                _conversation(messages),
                tools=tools,
                chat_template=template,
                add_generation_prompt=prompt,
                tokenize=False,
            )
        )
        if plain and key not in self._compiled:
            compiled = _compile(self._tokenizer, template)
            same = compiled is not None and self._direct(compiled, messages, prompt) == text
            self._compiled[key] = compiled if same else None
        return text

    def _direct(self, compiled: Any, messages: Sequence[Message], prompt: bool) -> str:
        return str(
            compiled.render(self._names(), messages=_conversation(messages), add_generation_prompt=prompt)
        )

    def _names(self) -> dict[str, Any]:
        # What a template sees beside the turns of a row without tools.
        return {**self._tokenizer.special_tokens_map, "tools": None, "documents": None}


class _TooLong(Exception):
    """A text that no row needs."""


def _bounded(text: str, messages: Sequence[Message], tools: list[dict[str, Any]] | None) -> str:
    # A tokenizer holds many bytes for each character: a text of gigabytes would take all the memory there is.
    if len(text) > _LONGEST_TEXT:
        row = len(str(_conversation(messages))) + len(str(tools))
        if len(text) > _LONGEST_TEXT + _LONGEST_SHARE * row:
            raise _TooLong(f"{len(text)} characters for a row of {row}")
    return text


def _is_plain(messages: Sequence[Message], tools: list[dict[str, Any]] | None) -> bool:
    return tools is None and bool(messages) and not any(turn.extra for turn in messages)


def _conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [{"role": turn.role, "content": turn.content, **(turn.extra or {})} for turn in messages]


def _computes_powers(template: str) -> bool:
    # A power of large numbers is one step, which only ends with the process: the compiler would take it, for constants.
    # A template has other ways to such a step. This is the short one, and the one that makes for a clear message.
    from jinja2 import Environment, nodes
    from jinja2.exceptions import TemplateError

    if "**" not in template and "round" not in template:
        return False
    try:
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(without_generation_tags(template))
    except TemplateError:
        return False  # The compiler refuses it with its own words.
    numbers = [part for power in tree.find_all(nodes.Pow) for part in (power.left, power.right)]
    for call in tree.find_all(nodes.Filter):
        if call.name == "round":  # Computes 10 to the number of digits.
            numbers += [*call.args[:1], *(word.value for word in call.kwargs if word.key == "precision")]
    return any(
        not (
            isinstance(part, nodes.Const) and isinstance(part.value, int) and 0 <= part.value < _LARGEST_POWER
        )
        for part in numbers
    )


def _compile(tokenizer: PreTrainedTokenizerBase, template: str) -> Any:
    # The sandboxed template that `apply_chat_template` itself renders; None where a tokenizer brings a method
    # of its own, or a version of transformers keeps the template elsewhere.
    from transformers import PreTrainedTokenizerBase as Base
    from transformers.utils import chat_template_utils

    compiler = getattr(chat_template_utils, "_compile_jinja_template", None)
    own = type(tokenizer).apply_chat_template is not Base.apply_chat_template
    return None if compiler is None or own else compiler(template)


def _tools(example: Example) -> list[dict[str, Any]] | None:
    return [dict(tool) for tool in example.tools] if example.tools else None
