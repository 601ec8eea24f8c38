"""The sub-commands of `gradian`, and how an error becomes a message and an exit code; the codes are in `main.py`."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from gradian.address_space import is_out_of_memory
from gradian.cli import interrupts
from gradian.cli.attribute import attribute
from gradian.cli.checks import checks
from gradian.cli.demo import demo
from gradian.cli.diagnose import diagnose
from gradian.cli.doctor import doctor
from gradian.cli.explain import explain
from gradian.cli.index import index
from gradian.cli.init_config import init_config
from gradian.cli.show_index import show_index
from gradian.cli.train import train
from gradian.cli.verify import verify
from gradian.cli.version import version
from gradian.errors import ConfigError, GradianError, is_panic
from gradian.report.escape import is_visible

USER_ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
LONGEST_LINE = 2000
"""Characters of a message's line that are printed; a setting may be as long as its file."""
_FAILING_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class _Group(TyperGroup):
    """Turns what a command raises into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command; see the module's docstring for the exit codes."""
        with _answered():
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Take the group's own options apart, of which --help prints."""
        with _answered():
            _check_values(args)
            return super().parse_args(ctx, args)


def _check_values(arguments: list[str]) -> None:
    """Refuse an empty argument, which would be taken for the folder that the command runs in.

    Raises:
        ConfigError: there is one.
    """
    for before, argument in pairwise(["gradian", *arguments]):
        _, equals, value = argument.partition("=")
        if not argument or (argument.startswith("--") and equals and not value):
            raise ConfigError(
                "an argument is empty",
                where=argument or f"after {before}",
                fix="give a value, or leave the option out; a shell variable that is not set leaves nothing",
            )


@contextmanager
def _answered() -> Iterator[None]:
    """Give what a command raises a message and an exit code."""
    try:
        try:
            with _printable_usage():
                yield
        except typer.Exit:
            sys.stdout.flush()
            raise
        # Here and not at interpreter exit, where a closed pipe can only print "Exception ignored".
        sys.stdout.flush()
    except KeyboardInterrupt:
        say("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        signals = interrupts.current()
        if signals is not None and signals.arrived:
            # Whatever a signal tore apart, it is no error of the user's.
            raise interrupts.Interrupted from None
        code = _explained(error)
        if code is None:
            raise
        raise typer.Exit(code) from None
    except BaseException as error:
        if not is_panic(error):
            raise
        _print_error(
            GradianError(
                "a compiled library of the model's gave up",
                found=str(error)[:300],
                fix="check tokenizer.json; where memory or threads are limited (ulimit), raise the limit",
            )
        )
        raise typer.Exit(USER_ERROR) from None


app = typer.Typer(
    name="gradian",
    cls=_Group,
    help="Find which training example, or which setting, broke a LoRA fine-tune.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: the same text in a terminal, a pipe and a log.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)
for _command, _name in (
    (doctor, "doctor"),
    (init_config, "init-config"),
    (diagnose, "diagnose"),
    (checks, "checks"),
    (train, "train"),
    (index, "index"),
    (attribute, "attribute"),
    (explain, "explain"),
    (verify, "verify"),
    (show_index, "show-index"),
    (demo, "demo"),
    (version, "version"),
):
    app.command(_name)(_command)


def _explained(error: Exception) -> int | None:
    """Say what went wrong, and return the exit code; None where it is a fault of Gradian's own."""
    if isinstance(error, GradianError):
        _print_error(error)
        return USER_ERROR
    if is_out_of_memory(error):
        say("there is no memory left; close other programs, or raise the limit on address space (ulimit -v)")
        return USER_ERROR
    if isinstance(error, BrokenPipeError):
        # `gradian show-index ... | head`: what is still buffered has nowhere to go.
        _drop_output()
        return BROKEN_PIPE
    if isinstance(error, OSError) and error.errno in _FAILING_DISK:
        _drop_output()
        say(f"the output cannot be written: {error.strerror}")
        return USER_ERROR
    return None


def _drop_output() -> None:
    # What is still buffered would fail again when the interpreter exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _printable(text: str) -> str:
    # Messages quote rows and file names, which may hold terminal control sequences.
    return "".join(c if c == "\n" or is_visible(c) else ascii(c)[1:-1] for c in text)


def _printable_line(text: str) -> str:
    line = _printable(text).replace("\n", "\\n")
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"


@contextmanager
def _printable_usage() -> Iterator[None]:
    # What is wrong with the arguments is printed by typer, which quotes them: a shell may have put file names there.
    try:
        yield
    except Exception as error:
        # Which click the class is from depends on typer's version.
        message = getattr(error, "message", None)
        if hasattr(error, "format_message") and isinstance(message, str):
            vars(error)["message"] = _printable_line(message)
        raise


def say(text: str) -> None:
    """Write a line of our own to standard error."""
    sys.stderr.write(f"gradian: {_printable_line(text)}\n")


def _print_error(error: GradianError) -> None:
    from rich.console import Console
    from rich.text import Text

    head, *rest = [_printable_line(line) for line in str(error).split("\n")]
    message = Text.assemble(("error: ", "bold red"), (head, "bold"))
    for line in rest:
        message.append(f"\n{line}")
    # soft_wrap leaves line breaks to the terminal, so that a path in a message can be copied whole.
    Console(stderr=True, highlight=False).print(message, soft_wrap=True)


class _StderrLog(logging.Handler):
    """Writes to whatever standard error is now: a progress bar puts itself in between while it shows."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        say(record.getMessage())


class _PrintableRecord(logging.LogRecord):
    """A record of any library's log: what it quotes of a model's files may hold terminal control sequences."""

    def getMessage(self) -> str:
        """Return the message with such characters written out."""
        return _printable(super().getMessage())


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    text = warnings.formatwarning(message, category, filename, lineno, line)
    (file or sys.stderr).write(_printable(text))


def log_to_stderr() -> None:
    """Send what Gradian logs to standard error, and let nobody's messages be obeyed by a terminal."""
    logging.setLogRecordFactory(_PrintableRecord)
    warnings.showwarning = _show_warning
    log = logging.getLogger("gradian")
    log.addHandler(_StderrLog())
    log.setLevel(logging.INFO)
    log.propagate = False


def print_fault() -> None:
    """Write the traceback of the exception that is being handled: the last resort, printed whole."""
    sys.stderr.write(_printable(traceback.format_exc()))
