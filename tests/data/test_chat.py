from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradian.data.chat as module
from gradian.data.chat import ChatEncoder, encode_all, encoding_findings, load_tokenizer
from gradian.errors import ModelError, RowError
from gradian.types import EncodedExample, Example, Message
from tests.conftest import CHAT_TEMPLATE, make_tokenizer

LLAMA3 = (
    "{{ bos_token }}{% if messages[0].role != 'system' %}<|im_start|>system\nToday: {{ strftime_now('%d %b %Y') }}<|im_end|>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
PHI3 = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}<|endoftext|>{% endif %}"
)
THINKING = (
    "{% for m in messages %}{% set c = m.content %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}"
    "{% if loop.last %}{% if '</think>' not in c %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{{ c }}"
    "{% else %}{{ c.split('</think>')[-1].lstrip('\n') }}{% endif %}"
    "{% else %}{{ c }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BARE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
NO_END = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content if loop.last else m.content.split('</think>')[-1].lstrip('\n') }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROMPT_THINKS = CHAT_TEMPLATE.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
NO_SYSTEM = CHAT_TEMPLATE.replace(
    "{% for message in messages %}", "{% for message in messages if message.role != 'system' %}"
)
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{% if loop.last and m.role == 'user' and not add_generation_prompt %}{{ raise_exception('must end with assistant') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function.name }}</call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The last turn begins with a thinking block and earlier ones do not, and a call begins with the same characters.
THINKING_TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat(*turns: str, **fields: Any) -> Example:
    roles = {"s": "system", "u": "user", "a": "assistant"}
    messages = tuple(Message(roles[turn[0]], turn[2:]) for turn in turns)
    return Example("e-0", 0, "messages", messages=messages, **fields)


def encoder(template: str | None, max_seq_length: int = 4096) -> ChatEncoder:
    return ChatEncoder(make_tokenizer(template), max_seq_length)


def shown(made: ChatEncoder, encoded: EncodedExample) -> str:
    return str(made.tokenizer.decode(encoded.input_ids[encoded.supervised]))


def ids_of(made: ChatEncoder) -> list[str]:
    return [finding.id for finding in made.findings]


@pytest.mark.parametrize(
    ("template", "turns", "targets", "findings"),
    [
        (CHAT_TEMPLATE, ["u:q", "a:one", "u:r", "a:two"], "one<|im_end|>two<|im_end|>", []),
        (CHAT_TEMPLATE, ["u:q", "a:", "u:r", "a:two"], "<|im_end|>two<|im_end|>", []),
        (CHAT_TEMPLATE, ["u:q", "a:  one \n"], "  one \n<|im_end|>", []),
        (CHAT_TEMPLATE, ["u:yes", "a:yes", "u:yes"], "yes<|im_end|>", []),
        (CHAT_TEMPLATE, ["u:q"], "", []),
        (CHAT_TEMPLATE, ["a:hello", "u:q", "a:x"], "hello<|im_end|>x<|im_end|>", []),
        (
            LLAMA3,
            ["u:q", "a: one ", "u:r", "a:two"],
            "one<|im_end|>two<|im_end|>",
            ["data.template_depends_on_date"],
        ),
        (LLAMA3, ["s:be", "u:q", "a:one"], "one<|im_end|>", []),
        (PHI3, ["u:q", "a:one", "u:r", "a:two"], "one<|im_end|>two<|im_end|>", []),
        (
            THINKING,
            ["u:q", "a:<think>hm</think>\none", "u:r", "a:<think>oh</think>\ntwo"],
            "one<|im_end|><think>oh</think>\ntwo<|im_end|>",
            ["data.template_prefix_mismatch", "data.template_alters_text"],
        ),
        (
            THINKING,
            ["u:q", "a:one", "u:r", "a:two"],
            "one<|im_end|><think>\n\n</think>\n\ntwo<|im_end|>",
            ["data.template_prefix_mismatch"],
        ),
        (BARE, ["u:q", "a:one", "u:r", "a:two"], "onetwo", ["data.end_of_turn_not_supervised"]),
        (
            NO_END,
            ["u:q", "a:<think>hm</think>\none", "u:r", "a:two"],
            "onetwo",
            [
                "data.template_prefix_mismatch",
                "data.template_alters_text",
                "data.end_of_turn_not_supervised",
            ],
        ),
        (PROMPT_THINKS, ["u:q", "a:one"], "one<|im_end|>", ["data.template_prefix_mismatch"]),
        (NO_SYSTEM, ["s:be brief", "u:q", "a:one"], "one<|im_end|>", ["data.template_alters_text"]),
        (ALTERNATING, ["u:q", "a:one", "u:r", "a:two"], "one<|im_end|>two<|im_end|>", []),
    ],
)
def test_exactly_the_answers_are_supervised(
    template: str, turns: list[str], targets: str, findings: list[str]
) -> None:
    made = encoder(template)
    encoded = made.encode(chat(*turns))
    assert shown(made, encoded) == targets
    assert ids_of(made) == findings


def test_a_turn_that_cannot_be_located_is_refused_and_not_guessed() -> None:
    upper = CHAT_TEMPLATE.replace("message['content'] }}", "message['content'] | upper | reverse }}")
    made = encoder(upper.replace("assistant\n{%", "model\n{%"))
    with pytest.raises(RowError, match="cannot be located"):
        made.encode(chat("u:q", "a:one"))


def test_tool_calls_are_rendered_and_supervised_where_the_template_knows_them() -> None:
    calling = Message("assistant", "", {"tool_calls": [{"function": {"name": "sh"}}]})
    example = Example("e-0", 0, "messages", messages=(Message("user", "q"), calling))
    made = encoder(TOOLS)
    assert shown(made, made.encode(example)) == "<call>sh</call><|im_end|>"
    assert shown(made, made.encode_answer(example)) == "<call>sh</call><|im_end|>"


def test_without_a_template_the_whole_row_is_supervised_with_one_end_token() -> None:
    made = encoder(None)
    encoded = made.encode(chat("u:q: ", "a:one"))
    assert made.tokenizer.decode(encoded.input_ids) == "q: one<|im_end|>"
    assert encoded.supervised.tolist() == [False] + [True] * (len(encoded) - 1)
    (finding,) = made.findings
    assert finding.id == "data.no_chat_template"
    assert made.tokenizer.decode(made.encode_prompt(chat("u:q: ", "a:one"))) == "q: "
    assert shown(made, made.encode_answer(chat("u:q: ", "a:one"))) == "one<|im_end|>"


def test_a_text_row_is_supervised_whole_and_needs_no_template() -> None:
    made = encoder(None)
    encoded = made.encode(Example("e-0", 0, "text", text="raw text"))
    assert (shown(made, encoded), made.findings) == ("aw text", ())


def adds_bos(template: str | None) -> ChatEncoder:
    from tokenizers.processors import TemplateProcessing

    tokenizer = make_tokenizer(template)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", tokenizer.bos_token_id)]
    )
    return ChatEncoder(tokenizer, 64)


@pytest.mark.parametrize("text", ["x", "<|im_start|>x"])
@pytest.mark.parametrize("template", [None, "{{ bos_token }}{{ bos_token }}{{ messages[0].content }}"])
def test_there_is_one_bos_and_never_two(text: str, template: str | None) -> None:
    made = adds_bos(template)
    example = Example("e-0", 0, "text", text=text) if template is None else chat(f"u:{text}")
    assert made.encode(example).input_ids.tolist().count(made.tokenizer.bos_token_id) == 1


@pytest.mark.parametrize(("own", "bos"), [("", ""), ("{{ bos_token * 2 }}", "<|im_start|>")])
def test_in_a_batch_text_gets_the_bos_that_chat_has_from_its_template(own: str, bos: str) -> None:
    made = adds_bos(own + "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    text = Example("t-0", 0, "text", text="raw")
    encoded = encode_all(made, [text, chat("u:q", "a:one"), text, chat("a:two")])
    assert [made.tokenizer.decode(row.input_ids) for row in encoded] == [
        "<|im_start|>raw",
        f"{bos}q<|im_end|>one<|im_end|>",
        "<|im_start|>raw",
        f"{bos}two<|im_end|>",
    ]
    targets = ["raw", "one<|im_end|>", "raw", "two<|im_end|>" if bos else "wo<|im_end|>"]
    assert [shown(made, row) for row in encoded] == targets


def test_the_cut_keeps_the_start_and_counts_what_went() -> None:
    whole = encoder(CHAT_TEMPLATE).encode(chat("u:q", "a:answer"))
    cut = encoder(CHAT_TEMPLATE, len(whole) - 4).encode(chat("u:q", "a:answer"))
    assert cut.input_ids.tolist() == whole.input_ids[:-4].tolist()
    assert (cut.truncated, cut.truncated_supervised, cut.n_supervised) == (4, 3, 4)


TURN_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(TURN_TEXT, TURN_TEXT, TURN_TEXT, st.sampled_from([CHAT_TEMPLATE, THINKING, PHI3, PROMPT_THINKS, None]))
def test_prompt_and_answer_agree_with_each_other(
    first: str, ask: str, answer: str, template: str | None
) -> None:
    made = encoder(template)
    example = chat("u:hi", f"a:{first}", f"u:{ask}", f"a:{answer}")
    try:
        encoded = made.encode_answer(example)
    except RowError:
        return
    prompt = made.encode_prompt(example)
    n = len(prompt)
    assert encoded.input_ids[:n].tolist() == prompt.tolist()
    assert encoded.supervised.tolist() == [False] * n + [True] * (len(encoded) - n)
    assert answer.strip() in shown(made, encoded)
    again = made.encode_continuation(example, encoded.input_ids[n:].tolist())
    assert again.input_ids.tolist() == encoded.input_ids.tolist()
    assert again.supervised.tolist() == encoded.supervised.tolist()


@settings(max_examples=40, deadline=None)
@given(st.lists(TURN_TEXT, min_size=2, max_size=6))
def test_the_final_answer_is_supervised_alike_in_training_and_evaluation(contents: list[str]) -> None:
    turns = [f"{'ua'[i % 2]}:{text}" for i, text in enumerate(contents[: len(contents) // 2 * 2])]
    made = encoder(CHAT_TEMPLATE)
    trained, asked = made.encode(chat(*turns)), made.encode_answer(chat(*turns))
    assert trained.input_ids[: len(asked)].tolist() == asked.input_ids.tolist()
    assert shown(made, trained).endswith(shown(made, asked))


@pytest.mark.parametrize(
    "example",
    [chat("u:q"), chat("u:q", "a:"), chat("u:q", "a:x", "u:r"), Example("e-0", 0, "text", text="raw")],
)
def test_a_row_without_a_final_answer_is_no_eval_row(example: Example) -> None:
    made = encoder(CHAT_TEMPLATE)
    for method in (made.encode_answer, made.encode_prompt):
        with pytest.raises(RowError, match="does not end with an answer"):
            method(example)


def slow_tokenizer() -> Any:
    from transformers import ByT5Tokenizer

    tokenizer = ByT5Tokenizer(extra_ids=0, additional_special_tokens=["<|im_start|>", "<|im_end|>"])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def test_a_slow_tokenizer_is_masked_by_tokenising_up_to_each_border() -> None:
    made = ChatEncoder(slow_tokenizer(), 4096)
    assert not made.tokenizer.is_fast
    text = shown(made, made.encode(chat("u:q", "a:oné", "u:r", "a:two")))
    # Slow tokenizers of transformers 4 decode special tokens with spaces around them.
    assert text.replace(" ", "") == "oné<|im_end|>two<|im_end|>"
    assert len(made.fingerprint) == 64


def test_a_refused_row_keeps_its_place_without_targets() -> None:
    made = encoder(ALTERNATING)
    bad = Example("b-0", 0, "messages", messages=(Message("assistant", "x"), Message("user", "y")))
    unusable = Example("c-2", 2, "messages", problem="image content not supported (turn 1)")
    seen: list[int] = []
    encoded = encode_all(made, [bad, chat("u:q", "a:one"), unusable], seen.append)
    assert [row.n_supervised for row in encoded] == [0, 4, 0]
    assert [row.id for row in encoded] == ["b-0", "e-0", "c-2"]
    assert seen == [3]
    findings = {finding.id: finding for finding in encoding_findings(made, encoded)}
    assert findings["data.unrenderable_rows"].figures["rows"] == [1]
    assert findings["data.no_supervised_tokens"].figures["rows"] == [1, 3]


GENERATION = CHAT_TEMPLATE.replace(
    "{{ message['content'] }}",
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}"
    "{% else %}{{ message.content }}{% endif %}",
)
PIECES = st.sampled_from(["a", "b", " ", "\n", "é", "中", "<|im_end|>", "<think>", "</think>"])
ROW_TEXT = st.lists(PIECES, max_size=4).map("".join)
ROWS = st.lists(
    st.one_of(
        st.builds(lambda text: Example("", 0, "text", text=text), ROW_TEXT),
        st.just(Example("", 0, "messages", problem="image content not supported (turn 1)")),
        st.builds(
            lambda turns, tools: Example("", 0, "messages", messages=tuple(turns), tools=tools),
            st.lists(
                st.builds(
                    Message,
                    st.sampled_from(["user", "assistant", "user", "assistant", "system", "tool"]),
                    ROW_TEXT,
                    st.sampled_from(
                        [None, None, None, {"name": "x"}, {"tool_calls": [{"function": {"name": "f"}}]}]
                    ),
                ),
                min_size=1,
                max_size=6,
            ),
            st.sampled_from([None, None, None, ({"name": "f"},)]),
        ),
    ),
    max_size=12,
)


def wrapped(tokenizer: Any) -> Any:
    """The tokenizer with a method of its own, which every rendering then has to go through."""
    kind = type(tokenizer)

    class Own(kind):  # type: ignore[misc, valid-type]
        def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
            return kind.apply_chat_template(self, *args, **kwargs)

    tokenizer.__class__ = Own
    return tokenizer


@pytest.mark.parametrize("kind", ["fast", "slow"])
@settings(max_examples=30, deadline=None)
@given(
    ROWS,
    st.sampled_from(
        [
            CHAT_TEMPLATE,
            GENERATION,
            LLAMA3,
            PHI3,
            THINKING,
            PROMPT_THINKS,
            NO_SYSTEM,
            ALTERNATING,
            TOOLS,
            None,
        ]
    ),
    st.sampled_from([2, 9, 4096]),
    st.sampled_from([1, 12, 1_000_000]),
)
def test_a_batch_is_encoded_as_row_by_row_the_long_way(
    kind: str, rows: list[Example], template: str | None, limit: int, characters: int
) -> None:
    def tokenizer() -> Any:
        made = make_tokenizer(template) if kind == "fast" else slow_tokenizer()
        made.chat_template = template
        return made

    examples = [replace(row, id=f"e-{i}", position=i) for i, row in enumerate(rows)]
    together, single = ChatEncoder(tokenizer(), limit), ChatEncoder(wrapped(tokenizer()), limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BATCH_CHARACTERS", characters)
        patch.setattr(module, "BATCH_ROWS", 5)
        batched = encode_all(together, examples)
    expected = []
    for example in examples:
        try:
            expected.append(single.encode(example))
        except RowError as error:
            expected.append(single.refuse(example, error))
    for ours, theirs in zip(batched, expected, strict=True):
        assert ours.input_ids.tolist() == theirs.input_ids.tolist()
        assert ours.supervised.tolist() == theirs.supervised.tolist()
        assert (ours.id, ours.position, ours.truncated, ours.truncated_supervised) == (
            *(theirs.id, theirs.position, theirs.truncated, theirs.truncated_supervised),
        )
        assert (str(ours.input_ids.dtype), str(ours.supervised.dtype)) == ("int64", "bool")
    assert encoding_findings(together, batched) == encoding_findings(single, expected)


@pytest.mark.parametrize("rows", [1, 12])
@pytest.mark.parametrize(
    ("evil", "said"),
    [
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
    ],
)
def test_a_template_that_reaches_out_of_its_sandbox_ends_in_a_finding(
    evil: str, said: str, rows: int
) -> None:
    # Where the first rows are harmless, so that later ones take the short way.
    template = CHAT_TEMPLATE + "{% if messages[0].content == 'evil' %}" + evil + "{% endif %}"
    made = encoder(template)
    examples = [chat("u:q", "a:one")] * rows + [chat("u:evil", "a:one")]
    encoded = encode_all(made, examples)
    assert [row.n_supervised for row in encoded] == [4] * rows + [0]
    (finding,) = [finding for finding in made.findings if finding.id == "data.unrenderable_rows"]
    assert re.search(said, finding.evidence)


def test_encoding_a_row_twice_counts_it_once() -> None:
    made = encoder(None)
    for _ in range(2):
        made.encode(chat("u:q", "a:one"))
    assert made.findings[0].figures == {"count": 1}


@pytest.mark.parametrize(
    "change",
    [
        lambda t: setattr(t, "chat_template", PHI3),
        lambda t: t.add_tokens(["<new>"]),
        lambda t: setattr(t, "pad_token", "<|im_end|>"),
    ],
)
def test_the_fingerprint_follows_whatever_changes_tokens(change: Callable[[Any], None]) -> None:
    first, second, changed = (make_tokenizer() for _ in range(3))
    second(["a", "bcd"], padding=True, truncation=True, max_length=2)
    change(changed)
    prints = [ChatEncoder(tokenizer, 64).fingerprint for tokenizer in (first, second, changed)]
    assert prints[0] == prints[1] != prints[2]


def test_a_broken_template_is_an_error_of_the_model_and_not_of_the_row() -> None:
    with pytest.raises(ModelError, match="not valid Jinja"):
        encoder("{% for %}").encode(chat("u:q", "a:x"))


def test_a_tokenizer_that_is_not_there_is_a_model_error(tmp_path: Path) -> None:
    for name in (str(tmp_path), "no-such-org/no-such-model"):
        with pytest.raises(ModelError, match="tokenizer cannot be loaded"):
            load_tokenizer(name)


def test_a_tokenizer_that_its_library_panics_on_is_a_model_error(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    # Longer than what it is to be cut off of.
    saved["model"]["continuing_subword_prefix"] = "#" * 60
    saved["model"]["merges"] = [["a", "b"]]
    saved["model"]["vocab"] |= {"a": 90_001, "b": 90_002, "ab": 90_003}
    path.write_text(json.dumps(saved), encoding="utf-8")
    with pytest.raises(ModelError, match="tokenizer cannot be loaded") as caught:
        load_tokenizer(str(tmp_path))
    assert "out of range" in (caught.value.found or "")


def test_a_saved_tokenizer_loads_with_its_template(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).chat_template == CHAT_TEMPLATE


def test_a_cap_below_two_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        encoder(CHAT_TEMPLATE, 1)


@pytest.mark.parametrize("said", ["", "Let me look."])
def test_a_call_in_the_middle_is_masked_whole_where_the_last_turn_renders_otherwise(said: str) -> None:
    call = {"tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {}}}]}
    example = Example(
        "a-0",
        0,
        "messages",
        messages=(
            Message("user", "Rome?"),
            Message("assistant", said, call),
            Message("tool", "3 degrees"),
            Message("assistant", "Three."),
        ),
    )
    encoder = ChatEncoder(make_tokenizer(THINKING_TOOLS), 512)
    row = encoder.encode(example)
    targets = encoder.tokenizer.decode(row.input_ids[row.supervised])
    assert targets == (
        f"{said}<tool_call>weather</tool_call><|im_end|><think>\n\n</think>\n\nThree.<|im_end|>"
    )
    assert "data.template_prefix_mismatch" in {finding.id for finding in encoder.findings}
