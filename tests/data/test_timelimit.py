from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from gradian.data import render
from gradian.data.chat import ChatEncoder
from gradian.data.timelimit import OutOfTime, TimeLimit
from gradian.errors import ModelError
from gradian.types import Example, Message
from tests.conftest import make_tokenizer

ROW = Example("a-0", 0, "prompt_completion", (Message("user", "a"), Message("assistant", "b")))


def spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_a_loop_without_end_is_ended_even_where_it_swallows_every_exception() -> None:
    def stubborn() -> None:
        with TimeLimit(0.2):
            for _ in itertools.repeat(None):
                with contextlib.suppress(Exception):
                    spin(0.01)

    with pytest.raises(OutOfTime):
        stubborn()


def test_what_ends_in_time_is_left_alone_and_so_is_what_follows() -> None:
    limit = TimeLimit(0.4)
    for _ in range(3):
        with limit:
            spin(0.2)
    spin(0.6)


def test_each_thread_has_its_own_time() -> None:
    limit, ended = TimeLimit(0.3), threading.Event()

    def endless() -> None:
        try:
            with limit:
                spin(30)
        except OutOfTime:
            ended.set()

    other = threading.Thread(target=endless)
    other.start()
    for _ in range(8):
        with limit:
            spin(0.1)
    other.join(10)
    assert ended.is_set()


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for m in messages %}{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
        "{{ m.content }}{% endfor %}",
    ],
)
def test_a_chat_template_without_end_is_an_error_and_no_other_row_waits_for_it(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "RENDER_S", 0.3)
    encoder = ChatEncoder(make_tokenizer(template), 64)
    with pytest.raises(ModelError, match="row 1: the chat template does not come to an end"):
        encoder.encode(ROW)
    started = time.monotonic()
    with pytest.raises(ModelError, match="does not come to an end"):
        encoder.encode(ROW)
    assert time.monotonic() - started < 0.2


STUCK = """
import sys, time
from gradian.data import timelimit
limit = timelimit.TimeLimit(1)
timelimit.end_process_when_stuck("error: stuck\\n")
{before}
print("begun", flush=True)
with limit:
    {body}
{after}
print("ended", flush=True)
"""
# One call that holds the interpreter's lock for a minute or more.
LONG = "10 ** 400_000_000"


@pytest.mark.parametrize(
    "before", ["", "for _ in range(3):\n    with limit: pass", "with limit: pass\ntime.sleep(7)"]
)
def test_a_call_that_lets_no_other_thread_run_ends_the_process_with_a_message(before: str) -> None:
    code = STUCK.format(before=before, body=LONG, after="")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stdout == "begun\n"
    assert done.stderr == "error: stuck\n"


@pytest.mark.parametrize(
    ("body", "after"),
    [
        # Ended by itself, with time to spare for whoever holds the lock next.
        ("pass", "sorted(range(30_000_000), key=lambda n: 0)"),
        # Ended as anything else that takes too long.
        ("try: time.sleep(1.5)\n    except timelimit.OutOfTime: pass", "time.sleep(1.5)"),
        # Stopped for longer than anything may take, as by Ctrl-Z.
        ("import os; os.kill(os.getpid(), 19)", ""),
    ],
    ids=["afterwards", "late", "stopped"],
)
def test_a_process_that_is_not_stuck_goes_on(body: str, after: str) -> None:
    code = STUCK.format(before="", body=body, after=after)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        if "kill" in body:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            time.sleep(3)
            process.send_signal(signal.SIGCONT)
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize(
    "template", ["{{ 'a' * 3000000 }}", "{% for m in messages %}{{ '%3000000d' % loop.index }}{% endfor %}"]
)
def test_a_chat_template_that_writes_more_than_any_row_needs_is_an_error(template: str) -> None:
    with pytest.raises(ModelError, match="writes far more than the row") as caught:
        ChatEncoder(make_tokenizer(template), 64).encode(ROW)
    assert caught.value.where == "row 1"


def test_a_long_row_has_a_long_text() -> None:
    row = replace(ROW, messages=(Message("user", "a " * 1_000_000), Message("assistant", "b")))
    template = "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}"
    ChatEncoder(make_tokenizer(template), 64).encode(row)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 9 ** 9 ** 9 }}",
        "{% set n = 9 %}{{ n ** n ** n }}",
        "{{ 5|round(-999999999) }}",
        "{% set n = messages|length %}{{ n|round(method='ceil', precision=10 ** n) }}",
    ],
)
def test_a_chat_template_that_computes_a_power_is_refused_before_it_is_compiled(template: str) -> None:
    with pytest.raises(ModelError, match="a power of a number"):
        ChatEncoder(make_tokenizer(template), 64).encode(ROW)


def test_two_asterisks_that_are_no_power_are_text_and_small_powers_are_numbers() -> None:
    template = "{% set n = 2**10 %}{% set k = 2.5|round + 2.55|round(1) %}{% for m in messages %}**{{ m.content }}**{{ dict(**{'a': '**'})['a'] }}{% endfor %}"
    encoded = ChatEncoder(make_tokenizer(template), 64).encode(ROW)
    assert encoded.n_supervised > 0


def test_a_chat_template_that_asks_for_all_the_memory_is_an_error_and_not_one_of_each_row() -> None:
    # More than any machine can address: nothing is really taken.
    encoder = ChatEncoder(make_tokenizer("{% set n = 4611686018427387904 %}{{ 'a' * n }}"), 64)
    with pytest.raises(ModelError, match="all the memory there is"):
        encoder.encode(ROW)
    with pytest.raises(ModelError, match="row 1: the chat template does not come to an end"):
        encoder.encode(ROW)
