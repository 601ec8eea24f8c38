"""Templates that write one turn after another: one rendering then shows every beginning of the conversation.

Whether a template is prefix-stable is found by rendering the conversation up to each turn, which takes time that
grows with the square of the turns. Most templates are a loop over the turns whose body looks at its own turn, at
the first one and at nothing else, with a prologue and an epilogue that know as little. What such a template writes
for the first k turns is then the prologue, the first k bodies and the epilogue, whatever follows. So the body is
compiled once more with a mark in front, and everything that would look further (`loop.last`, `messages[-1]`, an
inner loop, a call) is replaced by a stop: a row whose rendering meets none of these is proven to be turnwise, any
other is rendered the long way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from jinja2 import Environment, Template, nodes

from gradian.data.masks import common_prefix

_MARK = "\ufdef"
_STOP = "gradian_stop"
_ALL, _ASKED = "messages", "add_generation_prompt"
_TEXT_FILTERS = {
    "capitalize",
    "e",
    "escape",
    "lower",
    "replace",
    "safe",
    "string",
    "title",
    "tojson",
    "trim",
    "upper",
}
_VALUE_FILTERS = {"d", "default", "first", "float", "int", "join", "last", "length", "list"}
_PURE = (
    nodes.Const,
    nodes.TemplateData,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Slice,
    nodes.Compare,
    nodes.Operand,
    nodes.BinExpr,
    nodes.UnaryExpr,
    nodes.Concat,
    nodes.CondExpr,
    nodes.Test,
    nodes.List,
    nodes.Tuple,
    nodes.Dict,
    nodes.Pair,
    nodes.Keyword,
)


class LooksFurtherError(Exception):
    """A rendering has come to something that may depend on later turns, or on how many there are."""


@dataclass(frozen=True)
class TurnTexts:
    """A conversation's text and how it grew.

    Attributes:
        text: the whole.
        ends: characters before turn 0, and up to the end of each turn, [turns + 1].
        tail: what follows the last turn.
        header: what follows in its place when an assistant turn is asked for.
    """

    text: str
    ends: tuple[int, ...]
    tail: str
    header: str

    def start(self, turn: int) -> int | None:
        """Length of the prompt in front of a turn; None when it is not the beginning of the text."""
        place = self.ends[turn]
        return place + len(self.header) if self.text.startswith(self.header, place) else None

    def shared(self, turn: int) -> int:
        """Characters that the conversation up to and including a turn shares with the text."""
        place = self.ends[turn + 1]
        return place + common_prefix(self.tail, self.text[place : place + len(self.tail)])

    def upto(self, turns: int, prompt: bool) -> str:
        """The text of the first turns, at least one of them."""
        return self.text[: self.ends[turns]] + (self.header if prompt else self.tail)

    def without(self, marks: Iterable[str]) -> TurnTexts:
        """The same texts without some characters."""
        table = str.maketrans("", "", "".join(marks))
        pieces = [self.text[a:b] for a, b in zip((0, *self.ends[:-1]), self.ends, strict=True)]
        ends = accumulate(len(piece.translate(table)) for piece in pieces)
        return TurnTexts(
            self.text.translate(table),
            tuple(ends),
            self.tail.translate(table),
            self.header.translate(table),
        )


class TurnwiseTemplate:
    """A template compiled to show the text of each turn.

    Args:
        template: as transformers compiled it; its sandbox stays in force.
        source: its source.

    Raises:
        LooksFurtherError: no rendering of the template can be proven to be turnwise.
    """

    def __init__(self, template: Template, source: str) -> None:
        environment = template.environment
        tree = environment.parse(source)
        _Rewriter(environment).rewrite(tree)
        self._template = environment.template_class.from_code(
            environment, environment.compile(tree), environment.make_globals(None)
        )
        self._header: str | None = None

    def render(self, messages: list[dict[str, str]], **names: Any) -> TurnTexts:
        """The texts of a conversation.

        Raises:
            LooksFurtherError: this conversation's rendering is not proven to be turnwise.
            jinja2.TemplateError, or what the template runs into: as in any rendering.
        """
        *pieces, tail = self._pieces(messages, names, False)
        if self._header is None:
            # The same for every row: the epilogue sees nothing of the turns.
            self._header = self._pieces(messages, names, True)[-1]
        return TurnTexts("".join((*pieces, tail)), tuple(accumulate(map(len, pieces))), tail, self._header)

    def _pieces(self, messages: list[dict[str, str]], names: dict[str, Any], asked: bool) -> list[str]:
        context = {**names, _ALL: messages, _ASKED: asked, _STOP: _stop}
        pieces = self._template.render(context).split(_MARK)
        if len(pieces) != len(messages) + 2:
            raise LooksFurtherError("a turn holds the mark itself")
        return pieces


def _stop() -> None:
    raise LooksFurtherError


class _Rewriter:
    # Puts the marks in, and a stop in the place of all that is not known to keep to its own turn.

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._conversation = {_ALL}  # Names for the list of turns.
        self._varying: set[str] = set()  # Names that the prologue may have taken from the first turn.
        self._part = "prologue"
        self._branches = 0

    def rewrite(self, tree: nodes.Template) -> None:
        loops = [(i, node) for i, node in enumerate(tree.body) if self._is_the_loop(node)]
        if len(loops) != 1:
            raise LooksFurtherError("not one loop over the turns")
        ((at, loop),) = loops
        assert isinstance(loop, nodes.For)
        before = self._statements(tree.body[:at])
        self._part = "body"
        loop.body = [self._output(nodes.TemplateData(_MARK)), *self._statements(loop.body)]
        self._part = "epilogue"
        after = self._statements(tree.body[at + 1 :])
        tree.body = [*before, loop, self._output(nodes.TemplateData(_MARK)), *after]
        for node in tree.find_all(nodes.Node):
            node.lineno = node.lineno or 1
        tree.set_environment(self._environment)

    def _is_the_loop(self, node: nodes.Node) -> bool:
        if isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name):
            value = node.node
            if isinstance(value, nodes.Name) and value.name in self._conversation:
                self._conversation.add(node.target.name)
        return (
            isinstance(node, nodes.For)
            and isinstance(node.iter, nodes.Name)
            and node.iter.name in self._conversation
            and isinstance(node.target, nodes.Name)
            and node.target.name not in {*self._conversation, _ASKED, "loop"}
            and not (node.else_ or node.test or node.recursive)
        )

    def _output(self, node: nodes.Expr) -> nodes.Output:
        return nodes.Output([node])

    def _statements(self, body: Sequence[nodes.Node]) -> list[nodes.Node]:
        return [self._statement(node) for node in body]

    def _statement(self, node: nodes.Node) -> nodes.Node:
        if isinstance(node, nodes.Output):
            node.nodes = [self._expression(part) for part in node.nodes]
        elif isinstance(node, nodes.If):
            node.test = self._expression(node.test)
            self._branches += 1
            node.body = self._statements(node.body)
            for branch in node.elif_:
                self._statement(branch)
            node.else_ = self._statements(node.else_)
            self._branches -= 1
        elif isinstance(node, nodes.Assign):
            self._assign(node)
        elif isinstance(node, nodes.CallBlock) and isinstance(node.call.node, nodes.ExtensionAttribute):
            # A generation block: transformers' own, the only one of its kind here.
            node.body = self._statements(node.body)
        elif isinstance(node, nodes.For | nodes.Break):
            return self._output(_stop_call())
        elif not isinstance(node, nodes.Continue):
            raise LooksFurtherError(f"a statement of another kind: {type(node).__name__}")
        return node

    def _assign(self, node: nodes.Assign) -> None:
        name = node.target.name if isinstance(node.target, nodes.Name) else None
        if name is None or name in {_ALL, _ASKED, "loop"}:
            raise LooksFurtherError("an assignment to more than a name of its own")
        if name in self._conversation:
            if self._part == "prologue" and not self._branches and self._is_conversation(node.node):
                return
            raise LooksFurtherError("a name for all turns that changes its meaning")
        told = {used.name for used in node.node.find_all(nodes.Name)}
        told |= {node.node.name} if isinstance(node.node, nodes.Name) else set()
        if self._part == "prologue" and (self._branches or told & (self._conversation | self._varying)):
            self._varying.add(name)
        node.node = self._expression(node.node)

    def _is_conversation(self, node: nodes.Node) -> bool:
        return isinstance(node, nodes.Name) and node.name in self._conversation

    def _expression(self, node: nodes.Node) -> Any:
        if self._is_own(node):
            return node
        known = (
            isinstance(node, _PURE)
            or (isinstance(node, nodes.Filter) and node.name in _TEXT_FILTERS | _VALUE_FILTERS)
            or (isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr))
            or (isinstance(node, nodes.Call) and _is_name(node.node, "raise_exception"))
        )
        if not known:
            return _stop_call()
        for field, value in node.iter_fields():
            if isinstance(value, list):
                setattr(node, field, [self._expression(v) if isinstance(v, nodes.Node) else v for v in value])
            elif isinstance(value, nodes.Node):
                setattr(node, field, self._expression(value))
        return node

    def _is_own(self, node: nodes.Node) -> bool:
        # A name, an item or an attribute that is the same whatever turns follow.
        if isinstance(node, nodes.Name):
            hidden = {*self._conversation, "loop"}
            hidden |= self._varying if self._part == "epilogue" else {_ASKED}
            return node.name not in hidden
        if isinstance(node, nodes.Getitem) and self._is_conversation(node.node):
            first = isinstance(node.arg, nodes.Const) and type(node.arg.value) is int and node.arg.value == 0
            return first and self._part != "epilogue"
        if isinstance(node, nodes.Getattr) and _is_name(node.node, "loop"):
            return self._part == "body" and node.attr in {"first", "index", "index0"}
        return False


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


def _stop_call() -> nodes.Call:
    return nodes.Call(nodes.Name(_STOP, "load"), [], [], None, None)
