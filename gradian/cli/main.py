"""The `gradian` command as a process: its signals, its log, its exit code.

Exit codes: 0 done, 2 something the user can put right, 1 a fault of Gradian's own (with its traceback) or a finding
that `gradian diagnose --fail-on` fails on, 129, 130 or 143 ended by SIGHUP, SIGINT or SIGTERM, 141 the reader of the
output went away.

The commands are in `app.py`, which takes a moment to import: a signal in that moment is one like any other.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from gradian.cli import interrupts

if TYPE_CHECKING:
    from gradian.cli.app import app

# Of the code of others that runs in this process, this is all.
_STUCK = """error: the chat template does not come to an end, and nothing but the end of this process ends it
  fix: use the template of the model's publisher
"""

__all__ = ["app", "run"]


def __getattr__(name: str) -> Any:
    if name == "app":
        from gradian.cli import app

        return app.app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def run() -> None:
    """Run the command line and exit with its code: the entry point of the `gradian` script."""
    _open_standard_streams()
    signals = interrupts.install()
    try:
        _run(signals)
    except (interrupts.Interrupted, KeyboardInterrupt):
        signals.leave()


def _run(signals: interrupts.Interrupts) -> None:
    try:
        from gradian.cli.app import app, log_to_stderr, print_fault
        from gradian.data.timelimit import end_process_when_stuck

        log_to_stderr()
        end_process_when_stuck(_STUCK)
        try:
            app()
        except Exception:  # noqa: BLE001
            if not signals.arrived:
                print_fault()
            sys.exit(1)
    except BaseException as ended:
        if signals.arrived:
            raise interrupts.Interrupted from None
        code = ended.code if isinstance(ended, SystemExit) else 1
        signals.finished(code if isinstance(code, int) else int(code is not None))
        raise


def _open_standard_streams() -> None:
    """Let the null device stand for a stream that was closed by whoever started this: a file would take its number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
