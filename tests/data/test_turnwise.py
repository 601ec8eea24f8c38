from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import SecurityError, TemplateError

from gradian.data.turnwise import LooksFurtherError, TurnwiseTemplate

ASK = "{% if add_generation_prompt %}<a>{% endif %}"
LLAMA = (
    "{% set turns = messages %}{% for m in turns %}{% set c = '<' + m['role'] + '>' + m['content'] | trim %}"
    "{% if loop.index0 == 0 %}{% set c = bos_token + c %}{% endif %}{{ c }}{% endfor %}"
    "{{ '<a>' if add_generation_prompt else eos_token }}"
)
FIRST = (
    "{% if messages[0].role == 's' %}{% set head = messages[0].content %}{% else %}{% set head = '-' %}{% endif %}"
    "{% for m in messages %}{% if m.role == 's' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
    "{% if m.role == 's' %}{% continue %}{% endif %}[{{ head }}]{{ m.content.strip() }}\n{% endfor %}" + ASK
)
BLOCKS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'a' %}{% generation %}{{ m.content }}</a>"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}" + ASK
)
SELDOM = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{% if m.role == 's' and not loop.last %}"
    "{% for call in m.calls %}{{ call }}{% endfor %}{{ messages[-1].content }}{% endif %};{% endfor %}" + ASK
)
SHOWN = "{% for m in messages %}{{ m.content }}{% endfor %}"

ROLES = st.lists(st.sampled_from(["u", "a", "s"]), min_size=1, max_size=6)


def render(source: str, turns: list[dict[str, str]], asked: bool) -> str:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    text: str = _compile_jinja_template(source).render(
        messages=turns, add_generation_prompt=asked, bos_token="<s>", eos_token="</s>"
    )
    return text


def turnwise(source: str) -> TurnwiseTemplate:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    return TurnwiseTemplate(_compile_jinja_template(source), source)


@pytest.mark.parametrize("source", [LLAMA, FIRST, BLOCKS, SELDOM, "\n{{ bos_token }}\n" + SHOWN])
@settings(max_examples=40, deadline=None)
@given(ROLES, st.data())
def test_every_beginning_is_what_rendering_it_gives(
    source: str, roles: list[str], data: st.DataObject
) -> None:
    texts = st.sampled_from(["", " x ", "one", "<a>", "\ufdd0", "\n", "\ufdef"])
    turns = [{"role": role, "content": data.draw(texts)} for role in roles]
    made = turnwise(source)
    try:
        whole = render(source, turns, False)
    except TemplateError:
        with pytest.raises(TemplateError):
            made.render(turns, bos_token="<s>", eos_token="</s>")
        return
    further = source == SELDOM and "s" in roles
    if further or any("\ufdef" in turn["content"] for turn in turns):
        # A stop, or a turn with the mark in it, may be met or not; only a wrong text would be wrong.
        try:
            found = made.render(turns, bos_token="<s>", eos_token="</s>")
        except LooksFurtherError:
            return
    else:
        found = made.render(turns, bos_token="<s>", eos_token="</s>")
    assert found.text == whole
    for n in range(1, len(turns) + 1):
        for asked in (False, True):
            beginning = render(source, turns[:n], asked)
            assert found.upto(n, asked) == beginning
            if asked and n < len(turns):
                assert found.start(n) == (len(beginning) if whole.startswith(beginning) else None)
    bare = found.without("\ufdd0")
    assert bare.upto(1, False) == found.upto(1, False).replace("\ufdd0", "")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages | length }}" + SHOWN,
        "{% for m in messages %}{{ m.content }}{% if loop.last %}!{% endif %}{% endfor %}",
        "{% for m in messages %}{{ loop.length }}{% endfor %}",
        "{% for m in messages %}{{ loop.cycle(1, 2) }}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ messages[loop.index0 - 1].content }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ add_generation_prompt }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}",
        "{% for m in messages if m.role == 'u' %}{{ m.content }}{% endfor %}",
        "{% for m in messages[1:] %}{{ m.content }}{% endfor %}",
        SHOWN + SHOWN,
        SHOWN + "{{ messages[0].content }}",
        "{% set first = messages[0].content %}" + SHOWN + "{{ first }}",
        "{% if messages[0].role == 'u' %}{% set x = 1 %}{% endif %}" + SHOWN + "{{ x }}",
        "{% set a = messages[0] %}{% set b = a.content %}" + SHOWN + "{{ b }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endfor %}",
        "{% set c = cycler('a', 'b') %}{% for m in messages %}{{ c.next() }}{% endfor %}",
        "{% macro show(m) %}{{ m.content }}{% endmacro %}{% for m in messages %}{{ show(m) }}{% endfor %}",
        "{% set messages = messages[1:] %}" + SHOWN,
        "{% set turns = messages %}{% if true %}{% set turns = messages[1:] %}{% endif %}"
        "{% for m in turns %}{{ m.content }}{% endfor %}",
        "{% set kept %}" + SHOWN + "{% endset %}{{ kept | trim }}",
        "{{ strftime_now('%d') }}" + SHOWN,
        "no loop",
    ],
)
def test_a_template_that_looks_further_is_never_taken_for_turnwise(source: str) -> None:
    turns = [{"role": role, "content": role} for role in "uau"]
    with pytest.raises(LooksFurtherError):
        turnwise(source).render(turns)


def test_the_sandbox_stays_in_force() -> None:
    with pytest.raises(SecurityError):
        turnwise("{% for m in messages %}{{ m.__class__.__mro__ }}{% endfor %}").render([{"role": "u"}])
