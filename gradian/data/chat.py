"""Rows become tokens: the chat template renders a conversation, `masks` says which tokens are answers."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from gradian.data.masks import (
    Span,
    TurnText,
    common_prefix,
    has_generation_block,
    marked_template,
    marker_pair,
    prefix_extents,
    span_mask,
    split_markers,
    token_extents,
    turn_end,
)
from gradian.data.render import PINNED_DATE, TemplateRenderer
from gradian.errors import ModelError, RowError, is_panic
from gradian.types import BoolArray, EncodedExample, Example, Finding, IntArray, Message, Severity

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gradian.data.turnwise import TurnTexts

BATCH_ROWS = 256
"""Rows rendered and tokenised together: enough for the tokenizer to keep every core busy."""

BATCH_CHARACTERS = 1_000_000
"""Most characters tokenised together, a longer text apart; a tokenizer holds some 30 bytes for each."""

_OTHER_DATE = datetime.datetime(1999, 11, 3)

ENCODING_VERSION = 2
"""Raised whenever the same row would give other tokens or another mask; part of the fingerprint."""


def load_tokenizer(name_or_path: str, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Loads a tokenizer from a folder, the local hub cache, or else the Hub.

    Raises:
        ModelError: there is none, or it cannot be loaded.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    # The cache first: without a network the Hub is asked several times before it gives up.
    attempts = [
        (AutoTokenizer, only) for only in ((True,) if os.path.exists(name_or_path) else (True, False))
    ]
    problem = ""
    for loader, local_only in attempts:
        try:
            return loader.from_pretrained(
                name_or_path, trust_remote_code=trust_remote_code, local_files_only=local_only
            )
        except BaseException as error:  # a faulty file raises many kinds, all meaning this
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            problem = " ".join(str(error).split())[:200] or type(error).__name__
            if loader is AutoTokenizer and "TokenizersBackend" in problem:
                # What transformers 5 calls the class of a folder that it saved; 4 has it under another name.
                attempts.append((PreTrainedTokenizerFast, local_only))
    raise ModelError(
        "the tokenizer cannot be loaded",
        where=name_or_path,
        found=problem,
        fix="give a folder whose tokenizer.json and config.json are whole, or a model that is in the local hub cache",
    )


@dataclass(frozen=True)
class _Rendered:
    text: str
    turns: tuple[TurnText, ...]
    missing: tuple[int, ...]  # Turns of other roles whose text the template left out, 0-based.


@dataclass(frozen=True)
class _Draft:
    # A row as text, before it is tokenised.
    example: Example
    text: str
    rendered: _Rendered | None  # None: the whole text is the target.
    special: bool = False  # The tokenizer adds its own special tokens.
    closed: bool = False  # One end-of-sequence token closes the text.


_Tokens = tuple[list[int], IntArray | None]
# A text's tokens and, where the mask needs them, the characters that each covers, [t, 2].


@dataclass
class _Notes:
    # What encoding met, by example id: encoding a row twice counts once.
    no_template: dict[str, int]
    unstable: dict[str, str]
    altered: dict[str, str]
    straddling: dict[str, int]
    ends: dict[str, tuple[int, int]]
    refused: dict[str, tuple[int, str]]


class ChatEncoder:
    """Encodes examples for one tokenizer and length.

    The template is rendered as trainers do it, except that the clock stands still (`PINNED_DATE`).

    Args:
        tokenizer: a transformers tokenizer; a slow one (no offset mapping) works too, by tokenising the text
            up to each border.
        max_seq_length: rows are cut to this many tokens, from the end.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> None:
        if max_seq_length < 2:
            raise ValueError(f"max_seq_length must be at least 2, not {max_seq_length}")
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self._renderer = TemplateRenderer(tokenizer)
        self._dated = False
        self._notes = _Notes({}, {}, {}, {}, {}, {})

    def encode(self, example: Example) -> EncodedExample:
        """A training row: every assistant turn supervised with its end-of-turn token, or the whole of a raw text.

        Raises:
            RowError: the row cannot be used, or the template refuses it.
        """
        (encoded,) = self.encode_rows((example,))
        if isinstance(encoded, RowError):
            raise encoded
        return encoded

    def encode_rows(self, examples: Sequence[Example]) -> tuple[EncodedExample | RowError, ...]:
        """Training rows as `encode` gives them one at a time, faster; an error stands in the place of its row.

        Raises:
            ModelError: the template is not valid Jinja.
        """
        drafts = [self._draft(example) for example in examples]
        tokens = iter(self._tokenised([draft for draft in drafts if isinstance(draft, _Draft)]))
        return tuple(
            draft if isinstance(draft, RowError) else self._finish(draft, next(tokens)) for draft in drafts
        )

    def encode_answer(self, example: Example) -> EncodedExample:
        """An eval row: the prompt as `encode_prompt` gives it, then the wanted answer, which alone is supervised.

        Ends with the end-of-turn token.

        Raises:
            RowError: the row cannot be used, or does not end with an assistant turn that says something.
        """
        prompt, answer = self._split(example)
        head = self._prompt_ids(example, prompt)
        whole = self._prompt_ids(example, prompt + answer)
        tail = whole[len(head) :] if whole[: len(head)] == head else self._continuation_ids(answer)
        return self._cut(example, head + tail, [False] * len(head) + [True] * len(tail))

    def encode_prompt(self, example: Example) -> IntArray:
        """Tokens of everything before the final assistant turn, its header included, int64 [t]; never cut.

        Raises:
            RowError: as `encode_answer`.
        """
        prompt, _ = self._split(example)
        return np.asarray(self._prompt_ids(example, prompt), dtype=np.int64)

    def encode_continuation(self, example: Example, token_ids: Sequence[int]) -> EncodedExample:
        """The prompt followed by exactly these tokens, which are supervised: what the model itself said."""
        head = self.encode_prompt(example).tolist()
        tail = [int(token) for token in token_ids]
        return self._cut(example, head + tail, [False] * len(head) + [True] * len(tail))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over all that decides tokens and masks: vocabulary, merges, template, pinned date."""
        tokenizer = self.tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            state = json.loads(backend.to_str())
            # Left behind by whoever last padded a batch; changes no token here.
            state.pop("truncation", None)
            state.pop("padding", None)
        else:
            state = sorted(tokenizer.get_vocab().items())
        parts = {
            "class": type(tokenizer).__name__,
            "state": state,
            "special": {key: str(value) for key, value in tokenizer.special_tokens_map.items()},
            "template": getattr(tokenizer, "chat_template", None),
            "date": PINNED_DATE.isoformat(),
            "version": ENCODING_VERSION,
        }
        text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What encoding has met so far, over all rows given to `encode`."""
        return tuple(_note_findings(self._notes, self._dated))

    def refuse(self, example: Example, error: RowError) -> EncodedExample:
        """A stand-in for a row that `encode` refused: one token, no target, so an exact zero gradient.

        The row keeps its place in the index; the refusal becomes a finding.
        """
        if example.problem is None:
            self._notes.refused[example.id] = (example.position + 1, error.problem)
        return self._cut(example, [], [])

    def _draft(self, example: Example) -> _Draft | RowError:
        try:
            self._refuse_problem(example)
            if not example.messages:
                return _Draft(example, example.text or "", None, special=True)
            if self._renderer.template(example) is None:
                return _Draft(example, "".join(self._joined(example.messages)), None, True, closed=True)
            rendered = self._rendered(example)
        except RowError as error:
            return error
        return _Draft(example, rendered.text, rendered)

    def _finish(self, draft: _Draft, tokens: _Tokens) -> EncodedExample:
        rendered = draft.rendered
        ids, extents = tokens
        if rendered is None or extents is None:
            if draft.closed:
                self._notes.no_template[draft.example.id] = draft.example.position
                ids = self._closed(ids)
            return self._cut(draft.example, ids, np.ones(len(ids), dtype=np.bool_))
        mask, straddling = span_mask(extents, [turn.span for turn in rendered.turns])
        self._note(draft.example, rendered, straddling)
        return self._cut(draft.example, ids, mask)

    def _refuse_problem(self, example: Example) -> None:
        if example.problem is not None:
            raise RowError(example.problem, where=f"row {example.position + 1}")

    def _render(self, example: Example, messages: Sequence[Message], prompt: bool) -> str:
        return self._renderer.render(example, messages, prompt, self._renderer.template(example) or "")

    def _rendered(self, example: Example) -> _Rendered:
        messages = example.messages
        template = self._renderer.template(example) or ""
        for i, turn in enumerate(messages):
            if turn.extra and "tool_calls" in turn.extra and "tool_calls" not in template:
                content = "null" if not turn.content else "text"
                raise RowError(
                    f"template cannot render turn {i + 1} (content {content}, tool_calls set)",
                    where=f"row {example.position + 1}",
                )
        speakers = [i for i, turn in enumerate(messages) if turn.role == "assistant"]
        if has_generation_block(template):
            extras = [json.dumps(t.extra, ensure_ascii=False, default=str) for t in messages if t.extra]
            opening, closing = marker_pair([*(turn.content for turn in messages), *extras])
            marked = marked_template(template, opening, closing)
            marks = opening + closing
            grown = self._renderer.turns(example, marked, marks, template)
            shown = grown.text if grown else self._renderer.render(example, messages, False, marked)
            text, spans = split_markers(shown, opening, closing)
            if len(spans) == len(speakers):
                grown = grown.without(marks) if grown else None
                turns = [
                    self._marked_turn(example, text, i, span, grown)
                    for i, span in zip(speakers, spans, strict=True)
                ]
            else:
                # Blocks and turns that do not pair off: the mask is the template's, the turn is unknown.
                turns = [TurnText(len(messages) - 1, span, stable=False) for span in spans]
        else:
            grown = self._renderer.turns(example, template)
            text = grown.text if grown else self._render(example, messages, False)
            turns = [self._prefix_turn(example, text, i, grown) for i in speakers]
        missing = tuple(
            i
            for i, turn in enumerate(messages)
            if turn.role in ("system", "user") and turn.content.strip() not in text
        )
        if not self._dated and "strftime_now" in template:
            other_day = self._renderer.render(example, messages, False, template, _OTHER_DATE)
            self._dated = other_day != self._render(example, messages, False)
        return _Rendered(text, tuple(turns), missing)

    def _borders(
        self, example: Example, text: str, i: int, grown: TurnTexts | None
    ) -> tuple[int | None, int]:
        # Where turn i starts by the prompt rendered before it (None: not a prefix), and how much of `text`
        # the conversation up to and including the turn shares.
        messages = example.messages
        if grown is not None:
            return grown.start(i) if i else None, grown.shared(i)
        try:
            head = self._render(example, messages[:i], True) if i else None
            upto = text if i + 1 == len(messages) else self._render(example, messages[: i + 1], False)
        except RowError:
            # The template accepts the conversation but not its beginning.
            return None, 0
        start = len(head) if head is not None and text.startswith(head) else None
        return start, common_prefix(upto, text)

    def _marked_turn(
        self, example: Example, text: str, i: int, span: Span, grown: TurnTexts | None
    ) -> TurnText:
        start, shared = self._borders(example, text, i, grown)
        return TurnText(
            i,
            span,
            stable=(start is not None or i == 0) and shared >= span[1],
            altered=_is_altered(example.messages[i], text[slice(*span)]),
            ends=_ends_with(text[slice(*span)], self._end_tokens),
        )

    def _prefix_turn(self, example: Example, text: str, i: int, grown: TurnTexts | None) -> TurnText:
        turn = example.messages[i]
        start, shared = self._borders(example, text, i, grown)
        calls = bool(turn.extra and "tool_calls" in turn.extra)
        stable = start is not None and shared > start
        if start is not None and stable:
            content_end, end = turn_end(text, start, shared, turn.content, calls, self._end_tokens)
            # Tool calls have no text of their own to be looked for: their end-of-turn token must be there.
            stable = not _is_altered(turn, text[start:end]) and (end > content_end or not calls)
        if start is None or not stable:
            locate = self._bracketed_turn if turn.content.strip() else self._wordless_turn
            start, content_end, end = locate(example, text, i)
        return TurnText(
            i,
            (start, end),
            stable=stable or (i == 0 and shared >= end),
            altered=_is_altered(turn, text[start:end]),
            ends=end > content_end,
        )

    def _bracketed_turn(self, example: Example, text: str, i: int) -> tuple[int, int, int]:
        # Renders the row with the turn's content between two markers, so that the answer is found in the full
        # render itself. A template may drop the opening marker with a thinking block; then the answer begins
        # after the assistant header.
        turn, unknown = example.messages[i], _unlocated(example, i)
        bare = turn.content.strip()
        opening, closing = marker_pair([text, bare])
        lead, trail = turn.content.split(bare, 1)
        bracketed = Message(turn.role, f"{lead}{opening}{bare}{closing}{trail}", turn.extra)
        messages = [*example.messages[:i], bracketed, *example.messages[i + 1 :]]
        marked = self._render(example, messages, False)
        if marked.replace(opening, "").replace(closing, "") != text or marked.count(closing) != 1:
            raise unknown
        content_end = marked.replace(opening, "").index(closing)
        inner = marked.index(opening) if marked.count(opening) == 1 else None
        after_header = self._after_header(example, text, i, content_end)
        if inner is not None and inner > content_end:
            raise unknown
        if after_header is not None and (inner is None or after_header <= inner):
            # A thinking block that the template itself writes lies between the header and the content.
            start = after_header
        elif inner is not None:
            start = inner
        else:
            raise unknown
        # What follows in the conversation that ends here: the end-of-turn token, not the next turn's first.
        upto = self._render(example, [*example.messages[:i], bracketed], False)
        tail = upto[upto.rindex(closing) + 1 :] if closing in upto else ""
        stop = content_end + common_prefix(tail, text[content_end:])
        if turn.extra and "tool_calls" in turn.extra:
            content_end, end = turn_end(text, content_end, stop, "", True, self._end_tokens)
            return start, content_end, end
        token = self._end_tokens.search(text, content_end, stop)
        end = token.end() if token and not text[content_end : token.start()].strip() else content_end
        return start, content_end, end

    def _wordless_turn(self, example: Example, text: str, i: int) -> tuple[int, int, int]:
        # A turn of tool calls alone: what follows it is found by a render in which it says one character.
        unknown = _unlocated(example, i)
        mark, _ = marker_pair([text])
        before, after = example.messages[:i], example.messages[i + 1 :]
        head = self._render(example, before, True) if before else ""
        spoken = self._render(example, [*before, Message("assistant", mark), *after], False)
        tail = spoken.rpartition(mark)[2]
        start, content_end = len(head), len(text) - len(tail)
        if (
            spoken.count(mark) != 1
            or not text.startswith(head)
            or not text.endswith(tail)
            or content_end <= start
        ):
            raise unknown
        token = self._end_tokens.search(text, content_end)
        end = token.end() if token and not text[content_end : token.start()].strip() else content_end
        return start, content_end, end

    def _after_header(self, example: Example, text: str, i: int, content_end: int) -> int | None:
        # Where the header that opens assistant turn i ends; None when it is not found after the turns before.
        before = example.messages[:i]
        try:
            closed = self._render(example, before or (Message("user", "x"),), False)
            opened = self._render(example, before or (Message("user", "x"),), True)
        except RowError:
            return None
        header = opened[len(closed) :] if opened.startswith(closed) else ""
        found = text.rfind(header, common_prefix(closed, text) if before else 0, content_end)
        return found + len(header) if header and found >= 0 else None

    @cached_property
    def _end_tokens(self) -> re.Pattern[str]:
        names = {str(token) for token in self.tokenizer.all_special_tokens}
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        # Some vocabularies add runs of spaces or newlines as tokens; those end nothing.
        names |= {str(token) for token in added.values()}
        listed = sorted((name for name in names if name.strip()), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, listed)) or "(?!)")

    def _tokenised(self, drafts: Sequence[_Draft]) -> list[_Tokens]:
        if not getattr(self.tokenizer, "is_fast", False):
            return [self._slowly_tokenised(draft) for draft in drafts]
        tokens: dict[int, _Tokens] = {}
        for part in _parts(drafts):
            output = self.tokenizer(
                [drafts[i].text for i in part],
                add_special_tokens=drafts[part[0]].special,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )
            for i, ids, encoding in zip(part, output["input_ids"], output.encodings or (), strict=True):
                doubled = self._doubled_bos(ids)
                extents = None
                if drafts[i].rendered is not None:
                    extents = token_extents(encoding.offsets, partial(getattr, encoding, "tokens"))[doubled:]
                tokens[i] = (ids[doubled:] if doubled else ids, extents)
        return [tokens[i] for i in range(len(drafts))]

    def _slowly_tokenised(self, draft: _Draft) -> _Tokens:
        ids = self._ids(draft.text, draft.special)
        doubled = self._doubled_bos(ids)
        if draft.rendered is None:
            return ids[doubled:], None
        borders = [border for turn in draft.rendered.turns for border in turn.span]
        extents = prefix_extents(draft.text, ids, borders, lambda part: self._ids(part, draft.special))
        return ids[doubled:], extents[doubled:]

    def _ids(self, text: str, special: bool) -> list[int]:
        output = self.tokenizer(text, add_special_tokens=special, return_attention_mask=False, verbose=False)
        return list(output["input_ids"])

    def _doubled_bos(self, ids: Sequence[int]) -> int:
        # One BOS, never two: the text may bring one along, and the tokenizer add its own.
        bos = self.tokenizer.bos_token_id
        doubled = 0
        while bos is not None and doubled + 1 < len(ids) and ids[doubled] == ids[doubled + 1] == bos:
            doubled += 1
        return doubled

    def _closed(self, ids: list[int]) -> list[int]:
        # With one end-of-sequence token, where the tokenizer has any.
        eos = self.tokenizer.eos_token_id
        if eos is None:
            return ids
        n = len(ids)
        while n and ids[n - 1] == eos:
            n -= 1
        return [*ids[:n], eos]

    def _prompt_ids(self, example: Example, text: str) -> list[int]:
        plain = self._renderer.template(example) is None
        ids = self._ids(text, plain)
        ids = ids[self._doubled_bos(ids) :]
        if plain:
            eos, spelled = self.tokenizer.eos_token_id, str(self.tokenizer.eos_token)
            if len(ids) > 1 and ids[-1] == eos and not text.endswith(spelled):
                ids.pop()  # A tokenizer that closes every text would end the prompt before its answer.
        return ids or [self._filler]

    def _continuation_ids(self, text: str) -> list[int]:
        # Behind a newline, so that SentencePiece puts no space of its own in front.
        newline, behind = self._ids("\n", False), self._ids("\n" + text, False)
        if behind[: len(newline)] == newline:
            return behind[len(newline) :]
        return self._ids(text, False)

    def _joined(self, messages: Sequence[Message]) -> list[str]:
        # Without a template: the turns' texts, a prompt and its completion directly, others a line apart.
        pieces: list[str] = []
        for turn in messages:
            if pieces and pieces[-1] and not pieces[-1][-1].isspace() and not turn.content[:1].isspace():
                pieces.append("\n")
            pieces.append(turn.content)
        return pieces

    def _split(self, example: Example) -> tuple[str, str]:
        # The text of the prompt and of the answer.
        self._refuse_problem(example)
        last = example.messages[-1] if example.messages else None
        calls = bool(last and last.extra and "tool_calls" in last.extra)
        if last is None or last.role != "assistant" or not (last.content or calls):
            raise RowError(
                "the row does not end with an answer",
                where=f"row {example.position + 1}",
                expected="a final assistant turn with text",
            )
        if self._renderer.template(example) is None:
            pieces = self._joined(example.messages)
            eos = str(self.tokenizer.eos_token or "")
            answer = pieces[-1] if not eos or pieces[-1].endswith(eos) else pieces[-1] + eos
            return "".join(pieces[:-1]), answer
        rendered = self._rendered(example)
        if not rendered.turns:
            raise RowError("the template marks no answer in the row", where=f"row {example.position + 1}")
        start, end = rendered.turns[-1].span
        if len(example.messages) == 1:
            return rendered.text[:start], rendered.text[start:end]
        prompt = self._render(example, example.messages[:-1], True)
        if rendered.text.startswith(prompt) and len(prompt) < end:
            return prompt, rendered.text[len(prompt) : end]
        # The prompt that generation uses is not how the template renders a finished answer: keep the former.
        return prompt, rendered.text[start:end]

    @property
    def _filler(self) -> int:
        for token in (
            self.tokenizer.bos_token_id,
            self.tokenizer.eos_token_id,
            self.tokenizer.pad_token_id,
        ):
            if token is not None:
                return int(token)
        return 0

    def _cut(self, example: Example, ids: Sequence[int], mask: Sequence[bool] | BoolArray) -> EncodedExample:
        supervised = np.asarray(mask if len(ids) else [False], dtype=np.bool_)
        input_ids = np.asarray(ids if len(ids) else [self._filler], dtype=np.int64)
        # Nothing predicts the first token.
        supervised[0] = False
        limit, length = self.max_seq_length, len(input_ids)
        lost = 0
        if length > limit:
            lost = int(supervised[limit:].sum())
            input_ids, supervised = input_ids[:limit].copy(), supervised[:limit].copy()
        return EncodedExample(
            example.id, example.position, input_ids, supervised, max(0, length - limit), lost
        )

    def _note(self, example: Example, rendered: _Rendered, straddling: int) -> None:
        notes, row = self._notes, f"row {example.position + 1}"
        unstable = [turn.turn + 1 for turn in rendered.turns if not turn.stable]
        if unstable:
            notes.unstable[example.id] = f"{row}, turn {', '.join(map(str, unstable))}"
        altered = [turn.turn + 1 for turn in rendered.turns if turn.altered]
        altered += [turn + 1 for turn in rendered.missing]
        if altered:
            notes.altered[example.id] = f"{row}, turn {', '.join(map(str, sorted(altered)))}"
        if straddling:
            notes.straddling[example.id] = straddling
        if rendered.turns:
            notes.ends[example.id] = (sum(turn.ends for turn in rendered.turns), len(rendered.turns))


def encode_all(
    encoder: ChatEncoder, examples: Iterable[Example], progress: Callable[[int], None] | None = None
) -> tuple[EncodedExample, ...]:
    """Encodes a dataset for training; a refused row gets a stand-in without targets and a finding.

    Args:
        progress: called with the number of rows after each batch of them (`BATCH_ROWS`).

    Returns:
        One encoded example a row, in order: what `encode` gives for it.
    """
    encoded: list[EncodedExample] = []
    rest = iter(examples)
    while batch := list(islice(rest, BATCH_ROWS)):
        for example, row in zip(batch, encoder.encode_rows(batch), strict=True):
            encoded.append(encoder.refuse(example, row) if isinstance(row, RowError) else row)
        if progress is not None:
            progress(len(batch))
    return tuple(encoded)


def encoding_findings(encoder: ChatEncoder, encoded: Sequence[EncodedExample]) -> tuple[Finding, ...]:
    """The encoder's findings, and what the encoded rows show: rows without targets, targets cut off."""
    return (*encoder.findings, *no_supervised_findings(encoded), *cut_target_findings(encoded))


def no_supervised_findings(encoded: Sequence[EncodedExample]) -> tuple[Finding, ...]:
    """`data.no_supervised_tokens`: rows that train on nothing."""
    empty = [row for row in encoded if row.n_supervised == 0]
    if not empty:
        return ()
    cut = sum(row.truncated_supervised > 0 for row in empty)
    return (
        Finding(
            "data.no_supervised_tokens",
            Severity.CRITICAL,
            f"{len(empty)} of {len(encoded)} examples have zero supervised tokens",
            f"Their gradient is exactly zero. In {cut} of them the cut at max_seq_length took the whole target; "
            f"rows: {_rows([row.position + 1 for row in empty])}.",
            "Raise max_seq_length, or remove the rows."
            if cut
            else "Give these rows an answer, or remove them.",
            tuple(row.id for row in empty),
            {"count": len(empty), "rows": [row.position + 1 for row in empty], "cut": cut},
        ),
    )


def cut_target_findings(encoded: Sequence[EncodedExample]) -> tuple[Finding, ...]:
    """`data.completion_truncated`: targets cut off by max_seq_length."""
    cut = [row for row in encoded if row.truncated_supervised]
    if not cut:
        return ()
    longest = max(len(row) + row.truncated for row in cut)
    share = len(cut) / len(encoded)
    return (
        Finding(
            "data.completion_truncated",
            Severity.CRITICAL if share > 0.05 else Severity.HIGH,
            f"{len(cut)} of {len(encoded)} examples ({share:.1%}) have their target truncated",
            f"The longest has {longest} tokens. Rows: {_rows([row.position + 1 for row in cut])}.",
            f"Raise max_seq_length to {longest}.",
            tuple(row.id for row in cut),
            {"count": len(cut), "rows": [row.position + 1 for row in cut], "longest": longest},
        ),
    )


def _note_findings(notes: _Notes, dated: bool) -> Iterable[Finding]:
    if notes.refused:
        reasons: dict[str, list[int]] = {}
        for row, reason in notes.refused.values():
            reasons.setdefault(reason, []).append(row)
        yield Finding(
            "data.unrenderable_rows",
            Severity.HIGH,
            f"Rows that the chat template refuses: {len(notes.refused)}",
            "; ".join(f"{reason}: rows {_rows(rows)}" for reason, rows in reasons.items()) + ".",
            "Change these rows to what the template accepts; they take no part in attribution.",
            tuple(notes.refused),
            {"count": len(notes.refused), "rows": [row for row, _ in notes.refused.values()]},
        )
    if notes.no_template:
        yield Finding(
            "data.no_chat_template",
            Severity.HIGH,
            f"No chat template: chat rows supervised whole, prompt included: {len(notes.no_template)}",
            "The tokenizer has no chat template, so prompt and completion are joined as text.",
            "Use the tokenizer that the model was fine-tuned with, or give it a chat template.",
            tuple(notes.no_template),
            {"count": len(notes.no_template)},
        )
    if notes.unstable:
        yield Finding(
            "data.template_prefix_mismatch",
            Severity.MEDIUM,
            f"Rows in which the chat template is not prefix-stable: {len(notes.unstable)}",
            "The conversation up to a turn does not render to the beginning of the whole: "
            f"{_few(notes.unstable.values())}. Masks were taken from the full render.",
            "A trainer that masks by rendering turn by turn gets other labels: use a template with generation "
            "blocks, or one that keeps earlier turns as they are.",
            tuple(notes.unstable),
            {"count": len(notes.unstable)},
        )
    if notes.altered:
        yield Finding(
            "data.template_alters_text",
            Severity.MEDIUM,
            f"Rows whose text the chat template leaves out or changes: {len(notes.altered)}",
            f"What is trained on differs from the dataset: {_few(notes.altered.values())}.",
            "Check whether the template strips thinking blocks or a system turn that the data relies on.",
            tuple(notes.altered),
            {"count": len(notes.altered)},
        )
    if dated:
        yield Finding(
            "data.template_depends_on_date",
            Severity.LOW,
            "The chat template writes the date",
            f"It reads the clock; Gradian renders it with {PINNED_DATE:%d %b %Y}. In training each day had its "
            "own, in a system turn that the data may not have.",
            "Pin the date in the template, or pass date_string.",
            (),
            {"date": PINNED_DATE.date().isoformat()},
        )
    open_ended = [key for key, (ended, total) in notes.ends.items() if ended < total]
    if open_ended:
        ended = sum(pair[0] for pair in notes.ends.values())
        total = sum(pair[1] for pair in notes.ends.values())
        yield Finding(
            "data.end_of_turn_not_supervised",
            Severity.HIGH,
            f"The end-of-turn token is supervised in {ended} of {total} assistant turns",
            "Where it is not, the model does not learn to stop.",
            "Move `{% endgeneration %}` behind the end-of-turn token, or use a template that writes one.",
            tuple(open_ended),
            {"supervised": ended, "turns": total},
        )
    if notes.straddling:
        yield Finding(
            "data.token_straddles_border",
            Severity.LOW,
            f"Tokens across the border of an answer: {sum(notes.straddling.values())}",
            "Such a token holds characters of both sides. It counts as supervised.",
            "",
            tuple(notes.straddling),
            {"tokens": sum(notes.straddling.values())},
        )


def _parts(drafts: Sequence[_Draft]) -> Iterator[list[int]]:
    # Numbers of the drafts that one call can tokenise: alike in special tokens, not too much text together.
    for special in (False, True):
        part: list[int] = []
        length = 0
        for i, draft in enumerate(drafts):
            if draft.special is not special:
                continue
            if part and length + len(draft.text) > BATCH_CHARACTERS:
                yield part
                part, length = [], 0
            part.append(i)
            length += len(draft.text)
        if part:
            yield part


def _unlocated(example: Example, i: int) -> RowError:
    return RowError(
        f"the answer of turn {i + 1} cannot be located in the template's output",
        where=f"row {example.position + 1}",
    )


def _is_altered(turn: Message, shown: str) -> bool:
    return bool(turn.content.strip()) and turn.content.strip() not in shown


def _ends_with(text: str, ends: re.Pattern[str]) -> bool:
    return any(not text[match.end() :].strip() for match in ends.finditer(text))


def _rows(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows[:20])) + (f" and {len(rows) - 20} more" if len(rows) > 20 else "")


def _few(items: Iterable[str]) -> str:
    listed = list(items)
    return "; ".join(listed[:10]) + (f"; and {len(listed) - 10} more" if len(listed) > 10 else "")
