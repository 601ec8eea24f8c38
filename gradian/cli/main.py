"""The `gradian` command: its sub-commands, and how an error becomes a message and an exit code.

Exit codes: 0 done, 2 something the user can put right, 1 a fault of Gradian's own (with its traceback) or a finding
that `gradian diagnose --fail-on` fails on, 130 interrupted, 141 the reader of the output went away.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

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
from gradian.errors import GradianError
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
        try:
            with _printable_usage():
                result = super().invoke(ctx)
            # Here and not at interpreter exit, where a closed pipe can only print "Exception ignored".
            sys.stdout.flush()
            return result
        except GradianError as error:
            _print_error(error)
            raise typer.Exit(USER_ERROR) from None
        except KeyboardInterrupt:
            _say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # `gradian show-index ... | head`: what is still buffered has nowhere to go.
            _drop_output()
            raise typer.Exit(BROKEN_PIPE) from None
        except OSError as error:
            if error.errno not in _FAILING_DISK:
                raise
            _drop_output()
            _say(f"the output cannot be written: {error.strerror}")
            raise typer.Exit(USER_ERROR) from None

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Take the group's own options apart."""
        with _printable_usage():
            return super().parse_args(ctx, args)


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


def _say(text: str) -> None:
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
        _say(record.getMessage())


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


def run() -> None:
    """Run the command line and exit with its code: the entry point of the `gradian` script."""
    logging.setLogRecordFactory(_PrintableRecord)
    warnings.showwarning = _show_warning
    log = logging.getLogger("gradian")
    log.addHandler(_StderrLog())
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        app()
    except KeyboardInterrupt:
        # Between two steps of start-up, where no command was running yet.
        _say("interrupted")
        sys.exit(INTERRUPTED)
    except Exception:  # noqa: BLE001 - the last resort, printed whole
        sys.stderr.write(_printable(traceback.format_exc()))
        sys.exit(1)
