from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
import typer
from typer.testing import CliRunner

from gradian.cli import main
from gradian.cli.app import LONGEST_LINE
from gradian.errors import DataError

runner = CliRunner()


def failing_app(error: BaseException) -> typer.Typer:
    """The real group, around one command that raises `error`."""
    app = typer.Typer(cls=main.app.info.cls, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.command()
    def fail() -> None:
        raise error

    @app.command()
    def other() -> None: ...

    return app


def test_a_users_error_is_a_message_on_standard_error_with_code_2_and_no_traceback() -> None:
    error = DataError("is not JSON", where="train.jsonl:2", found="{", fix="mend it")
    result = runner.invoke(failing_app(error), ["fail"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == "error: train.jsonl:2: is not JSON\n  found: {\n  fix: mend it\n"


def test_markup_and_control_sequences_in_a_message_are_shown_and_not_obeyed() -> None:
    error = DataError("bad row", found="[red]x[/red] \x1b[2J \x07 \u202e \ud800", where="[link=file:///x]y")
    result = runner.invoke(failing_app(error), ["fail"])
    assert "[red]x[/red] \\x1b[2J \\x07 \\u202e \\ud800" in result.stderr
    assert "[link=file:///x]y" in result.stderr
    assert "\x1b" not in result.stderr


def test_a_long_message_is_not_broken_into_lines() -> None:
    path = "/".join(["folder"] * 60)
    result = runner.invoke(failing_app(DataError("x", where=path)), ["fail"])
    assert f"error: {path}: x\n" == result.stderr


def test_a_fault_of_our_own_keeps_its_traceback_and_exits_with_1() -> None:
    result = runner.invoke(failing_app(RuntimeError("a bug")), ["fail"])
    assert result.exit_code == 1
    assert isinstance(result.exception, RuntimeError)


@pytest.mark.parametrize(
    "error",
    [MemoryError("std::bad_alloc"), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")],
)
def test_memory_that_is_not_there_is_a_message_and_no_fault_of_our_own(error: Exception) -> None:
    result = runner.invoke(failing_app(error), ["fail"])
    assert result.exit_code == 2
    assert result.stderr.startswith("gradian: there is no memory left")


def test_an_interrupt_is_one_clean_line_and_code_130() -> None:
    result = runner.invoke(failing_app(KeyboardInterrupt()), ["fail"])
    assert result.exit_code == 130
    assert result.stderr == "gradian: interrupted\n"


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["attribute", "--nonsense"], ["show-index"], ["train"], ["attribute", "--config"]],
    ids=["unknown command", "unknown option", "no argument", "no required option", "option without value"],
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    result = runner.invoke(main.app, arguments)
    assert result.exit_code == 2
    assert "Error:" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["diagnose", "--run", ""],
        ["diagnose", "--run="],
        ["show-index", ""],
        ["index", "--base-model", ""],
        [""],
    ],
)
def test_an_empty_argument_is_not_taken_for_this_folder(arguments: list[str]) -> None:
    result = runner.invoke(main.app, arguments)
    assert result.exit_code == 2
    assert "an argument is empty" in result.stderr
    assert (arguments[-2] if len(arguments) > 2 else arguments[-1]) in result.stderr


def test_an_argument_that_ends_in_an_equals_sign_is_not_empty() -> None:
    result = runner.invoke(main.app, ["diagnose", "--dataset=no such file="])
    assert "an argument is empty" not in result.stderr


def test_a_library_that_gives_up_is_a_message_and_no_fault_of_our_own() -> None:
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    result = runner.invoke(failing_app(panic("no thread\x1b[2J")), ["fail"])
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "error: a compiled library of the model's gave up\n  found: no thread\\x1b[2J\n"
    )


def test_help_lists_the_commands() -> None:
    result = runner.invoke(main.app, ["--help"])
    assert result.exit_code == 0
    for name in ("doctor", "init-config", "train", "index", "attribute", "show-index", "version"):
        assert f"\n  {name} " in result.stdout


def test_the_script_prints_a_traceback_for_a_fault_of_our_own() -> None:
    code = (
        "import sys; from gradian.cli import main\n"
        "@main.app.command('fail')\n"
        "def fail(): raise RuntimeError('a bug')\n"
        "sys.argv = ['gradian', 'fail']; main.run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "RuntimeError: a bug" in done.stderr


def default_signals() -> None:
    """In a child before it begins: whoever runs the tests may ignore them (`nohup`, a script's job in background)."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def command_that(body: str, *arguments: str, before: Callable[[], None] = default_signals) -> Popen[str]:
    """Start `gradian wait`, which runs `body`, and read its first line."""
    code = (
        "import os, signal, sys, threading, time; from gradian.cli import main\n"
        "@main.app.command('wait', context_settings={'ignore_unknown_options': True, 'allow_extra_args': True})\n"
        f"def wait():\n    {body}\n"
        "sys.argv = ['gradian', 'wait', *sys.argv[1:]]; main.run()"
    )
    child = Popen(
        [sys.executable, "-c", code, *arguments], stdout=PIPE, stderr=PIPE, text=True, preexec_fn=before
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_a_command_with_a_sentence_the_command_and_the_shells_exit_code(name: str) -> None:
    number = signal.Signals[name]
    with command_that("print('ready', flush=True); time.sleep(60)", "--out", "a b") as child:
        child.send_signal(number)
        _, errors = child.communicate(timeout=30)
    assert child.returncode == 128 + number
    assert errors == (
        f"gradian: interrupted by {name}\ngradian: this starts it again:\ngradian wait --out 'a b'\n"
    )


@pytest.mark.parametrize(
    "body",
    [
        "print('ready', flush=True); threading.Event().wait(); print('never')",
        # Whatever is raised is swallowed.
        "\n    print('ready', flush=True)\n    while True:\n        try: time.sleep(60)\n        except BaseException: pass",
        # Raised where nothing can be raised.
        "\n    class Slow:\n        def __del__(self): print('ready', flush=True); time.sleep(60)\n"
        "    slow = Slow(); del slow; time.sleep(60)",
        # The interpreter clears up, and no other thread runs any more.
        "\n    class Slow:\n        def __del__(self, sleep=time.sleep): sleep(60)\n"
        "    sys.slow = Slow(); print('ready', flush=True); time.sleep(60)",
        # No Python code runs: signals are blocked on the main thread, which waits in C.
        "\n    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "    print('ready', flush=True)\n    import ctypes; ctypes.CDLL(None).sleep(60)",
    ],
    ids=["waiting", "swallowing", "in a destructor", "at the end", "in compiled code"],
)
def test_what_does_not_let_go_is_ended_within_two_seconds(body: str) -> None:
    with command_that(body) as child:
        sent = time.monotonic()
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
        taken = time.monotonic() - sent
    assert child.returncode == 130
    assert errors == "gradian: interrupted by SIGINT\ngradian: this starts it again:\ngradian wait\n"
    assert taken < 2


def test_a_second_signal_ends_the_command_at_once() -> None:
    body = "\n    try: print('ready', flush=True); time.sleep(60)\n    finally: print('late', flush=True); time.sleep(60)"
    with command_that(body) as child:
        child.send_signal(signal.SIGTERM)
        assert child.stdout is not None
        assert child.stdout.readline() == "late\n"
        sent = time.monotonic()
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
        taken = time.monotonic() - sent
    # The code and the sentence are the first one's.
    assert child.returncode == 143
    assert errors.startswith("gradian: interrupted by SIGTERM\n")
    assert taken < 1


def test_a_signal_that_is_ignored_from_the_beginning_stays_ignored() -> None:
    def ignoring() -> None:
        default_signals()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with command_that("print('ready', flush=True); time.sleep(60)", before=ignoring) as child:
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=30)
    assert child.returncode == 143


def test_a_failure_that_a_signal_brought_about_is_not_reported_as_one() -> None:
    body = (
        "\n    try: print('ready', flush=True); time.sleep(60)\n"
        "    except BaseException as error: raise RuntimeError('torn apart') from error"
    )
    with command_that(body) as child:
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "torn apart" not in errors
    assert "Traceback" not in errors


def test_a_forked_child_does_not_speak_for_the_command() -> None:
    body = (
        "\n    pid = os.fork()\n"
        "    if pid == 0: print('ready', flush=True); time.sleep(60); os._exit(0)\n"
        "    print(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)"
    )
    with command_that(body) as child:
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        os.kill(int(children.read_text().split()[0]), signal.SIGTERM)
        output, errors = child.communicate(timeout=30)
    assert output.split()[1] == str(-signal.SIGTERM)
    assert errors == ""
    assert child.returncode == 0


def test_what_is_kept_is_named_and_a_forced_rebuild_is_not_forced_again() -> None:
    body = (
        "\n    from gradian.cli.progress import terminal_progress\n"
        "    terminal_progress().keep('index', lambda: 'index \\x1b[2J 3 of 9 chunks', forced=True)\n"
        "    print('ready', flush=True); time.sleep(60)"
    )
    with command_that(body, "--force", "--dataset", "a\x1b[2J'b") as child:
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
    assert errors.splitlines() == [
        "gradian: interrupted by SIGINT",
        r"gradian: kept: index \x1b[2J 3 of 9 chunks",
        "gradian: this goes on from there:",
        r"gradian wait --dataset $'a\033[2J\'b'",
    ]


def test_a_signal_while_the_command_is_still_being_imported_is_one_like_any_other() -> None:
    code = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder()); sys.argv = ['gradian', 'version']\n"
        "from gradian.cli.main import run; run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=default_signals, check=False
    )
    assert done.returncode == 130
    assert done.stdout == ""
    assert done.stderr == "gradian: interrupted by SIGINT\ngradian: this starts it again:\ngradian version\n"


def test_a_reader_that_goes_away_ends_the_command_without_a_word() -> None:
    # Far more than a pipe holds, so that the write meets the closed end.
    code = (
        "import sys; from gradian.cli import main; import typer\n"
        "@main.app.command('talk')\n"
        "def talk():\n"
        "    for _ in range(100000): typer.echo('a line of output')\n"
        "sys.argv = ['gradian', 'talk']; main.run()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr is not None
        errors = child.stderr.read()
        child.wait(timeout=30)
    assert child.returncode == 141
    assert errors == ""


def test_log_messages_reach_standard_error_with_control_characters_shown() -> None:
    code = (
        "import logging, sys; from gradian.cli import main\n"
        "@main.app.command('log')\n"
        "def log(): logging.getLogger('gradian.session').info('reused %s', 'x\\x1b[2J')\n"
        "sys.argv = ['gradian', 'log']; main.run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "gradian: reused x\\x1b[2J\n"
    assert done.stdout == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_output_onto_a_full_disk_is_a_message_and_no_traceback() -> None:
    code = "from gradian.cli.main import run; run()"
    with open("/dev/full", "w") as full:
        child = subprocess.run(
            [sys.executable, "-c", code, "version"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert child.returncode == 2
    assert child.stderr.startswith("gradian: the output cannot be written: No space left")
    assert "Traceback" not in child.stderr
    assert "Exception ignored" not in child.stderr


def redirected(words: str, redirection: str) -> subprocess.CompletedProcess[str]:
    """What a shell runs with one of the streams elsewhere; the exit code is the command's own."""
    code = "from gradian.cli.main import run; run()"
    line = f'set -o pipefail; "$0" -c "$1" {words} {redirection}'
    return subprocess.run(
        ["bash", "-c", line, sys.executable, code], capture_output=True, text=True, check=False
    )


FULL = "gradian: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("words", "redirection", "code", "said"),
    [
        ("--help", "| true", 141, ""),
        ("index --help", "| true", 141, ""),
        ("--help", ">/dev/full", 2, FULL),
        ("index --help", ">/dev/full", 2, FULL),
        ("version", ">&-", 0, ""),
        ("--help", ">&-", 0, ""),
        ("version", "<&-", 0, ""),
        ("show-index nowhere", "2>&-", 2, ""),
        ("version", "<&- >&- 2>&-", 0, ""),
    ],
)
def test_a_stream_that_is_closed_or_full_is_no_fault_of_our_own(
    words: str, redirection: str, code: int, said: str
) -> None:
    done = redirected(words, redirection)
    assert done.stderr == said
    assert done.returncode == code


def test_a_thread_that_does_not_end_keeps_nobody_after_the_command_has_done_its_work() -> None:
    body = "\n    threading.Thread(target=time.sleep, args=(60,)).start()\n    print('ready', flush=True)"
    with command_that(body) as child:
        time.sleep(0.5)
        sent = time.monotonic()
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=30)
        taken = time.monotonic() - sent
    # Its work was done and its result printed.
    assert child.returncode == 0
    assert errors == ""
    assert taken < 2


def test_a_signal_while_the_interpreter_clears_up_after_the_work_changes_nothing() -> None:
    body = (
        "\n    class Last:\n        def __del__(self, kill=os.kill, me=os.getpid()): kill(me, 15)\n"
        "    sys.last = Last(); print('ready', flush=True)"
    )
    with command_that(body) as child:
        _, errors = child.communicate(timeout=30)
    assert child.returncode == 0
    assert errors == ""


def printed_by(body: str) -> str:
    """What the real command line writes to standard error around a command with this body."""
    code = (
        "import logging, sys, warnings; from gradian.cli import main\n"
        "@main.app.command('other')\n"
        f"def other(): {body}\n"
        "sys.argv = ['gradian', 'other']; main.run()"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize(
    "body",
    [
        "logging.getLogger('transformers').warning('type %s', 'x\\x1b]0;y\\x07\\u202e')",
        "warnings.warn('x\\x1b]0;y\\x07\\u202e', stacklevel=1)",
        "raise RuntimeError('x\\x1b]0;y\\x07\\u202e')",
    ],
    ids=["another library's log", "a warning", "a traceback"],
)
def test_what_others_print_of_a_models_files_is_shown_and_not_obeyed(body: str) -> None:
    printed = printed_by(body)
    assert "x\\x1b]0;y\\x07\\u202e" in printed
    assert all(char.isprintable() or char == "\n" for char in printed)


def test_a_log_message_is_one_line_whatever_it_quotes() -> None:
    body = "logging.getLogger('gradian.session').info('reused %s', 'x\\ngradian: all is well')"
    assert printed_by(body) == "gradian: reused x\\ngradian: all is well\n"


@pytest.mark.parametrize("arguments", [["diagnose", "{}"], ["diagnose", "--x{}"], ["{}"], ["--x{}"]])
def test_arguments_that_are_quoted_back_are_shown_and_not_obeyed(arguments: list[str]) -> None:
    hostile = "\x1b]0;y\x07\u202e\nError: x"
    result = runner.invoke(main.app, [argument.format(hostile) for argument in arguments])
    assert result.exit_code == 2
    assert all(char.isprintable() or char == "\n" for char in result.stderr)
    assert sum(line.startswith("Error:") for line in result.stderr.splitlines()) == 1


def test_an_endless_message_is_cut() -> None:
    result = runner.invoke(failing_app(DataError("x", found="y" * 10**6)), ["fail"])
    assert len(result.stderr) < 3 * LONGEST_LINE
    assert result.stderr.endswith("y…\n")
