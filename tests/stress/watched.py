"""Runs the real command line under an audit hook that denies and reports whatever an audit has no business with.

`python tests/stress/watched.py REPORT UNTRUSTED[:UNTRUSTED...] -- ARGUMENTS` runs `gradian ARGUMENTS`. With `--serve`
in the place of the arguments it imports everything first, then reads jobs from standard input, a JSON object a line
(see `serving.py`), and runs each in a fork of its own: seconds of imports are paid once.

What is refused is written to REPORT, a JSON object a line, at the moment it happens: code under test cannot take it
back, and an exception that something swallows is reported all the same.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from types import CodeType
from typing import Any

# Starting a program, reaching a network, or running what a file names: never, whatever the arguments.
DENIED = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "os.startfile",
    "pty.spawn",
    "subprocess.Popen",
    "socket.connect",
    "socket.bind",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "socket.gethostbyaddr",
    "socket.getnameinfo",
    "socket.sendto",
    "socket.sendmsg",
    "urllib.Request",
    "http.client.connect",
    "ftplib.connect",
    "smtplib.connect",
    "telnetlib.Telnet.open",
    "webbrowser.open",
    "pickle.find_class",
)
# The loader of modules may load compiled code; what comes out of it is judged as it is executed.
IMPORTER = ("<frozen importlib._bootstrap_external>", "<frozen zipimport>")
MEMORY = 8 << 30
"""Bytes of address space of a forked command; torch alone maps some."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Watch:
    """The hook, and where it writes.

    Args:
        report: file that each refusal is appended to.
        untrusted: folders from which nothing is imported, compiled, executed or loaded, and where nothing is written.
    """

    def __init__(self, report: str, untrusted: list[str]) -> None:
        self.report = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.untrusted = tuple(os.path.join(os.path.realpath(folder), "") for folder in untrusted)
        self.paused = False
        self.judging = threading.local()  # What judging itself does raises events too.

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.paused or getattr(self.judging, "now", False):
            return
        self.judging.now = True
        try:
            problem = self.judge(event, arguments)
            if problem is not None:
                self.tell(event, problem)
        finally:
            self.judging.now = False
        if problem is not None:
            raise PermissionError(f"denied by the watch: {event} {problem[:200]}")

    def judge(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        """Return what is wrong with an event, or None."""
        if event in DENIED:
            return repr(arguments)
        if event == "ctypes.dlopen":
            # A bare name is looked for in the system's folders, never in the current one.
            return self.inside(arguments[0]) if arguments[0] and os.sep in str(arguments[0]) else None
        if event == "exec":
            code = arguments[0]
            return self.inside(code.co_filename) if isinstance(code, CodeType) else None
        if event == "compile":
            return self.inside(arguments[1])
        if event == "import":
            return self.inside(arguments[1])
        if event == "marshal.loads":
            caller = sys._getframe(3).f_code.co_filename
            return None if caller in IMPORTER else f"by {caller}"
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            return self.inside(arguments[0])
        return None

    def inside(self, path: object) -> str | None:
        """Return the path where it lies in an untrusted folder, else None."""
        if isinstance(path, int) or path is None:
            return None
        text = os.fsdecode(path) if isinstance(path, bytes | os.PathLike) else str(path)
        if text.startswith("<"):  # Code without a file: what it comes from is the canaries' business.
            return None
        real = os.path.realpath(text)
        return text if real.startswith(self.untrusted) or f"{real}/" in self.untrusted else None

    def tell(self, event: str, problem: str) -> None:
        """Write what was refused, and from where it came."""
        frames = []
        frame = sys._getframe(2)
        while frame is not None and len(frames) < 60:
            frames.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
            frame = frame.f_back
        line = {"event": event, "what": problem[:600], "frames": frames}
        os.write(self.report, (json.dumps(line) + "\n").encode())


def _run(argv: list[str]) -> None:
    from gradian.cli.main import run

    sys.argv = ["gradian", *argv]
    run()


def _serve(watch: Watch) -> None:
    import peft  # noqa: F401
    import torch
    import transformers  # noqa: F401

    import gradian.attribution
    import gradian.diagnosis
    import gradian.explanation  # noqa: F401

    torch.set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        watch.paused = True  # This fork is ours; in the child another watch takes over.
        child = os.fork()
        if child == 0:
            _child(job)
        watch.paused = False
        _, status = os.waitpid(child, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)


def _child(job: dict[str, Any]) -> None:
    import resource
    import signal
    import traceback

    out = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(job["cwd"])
    os.environ.update(job["environment"])
    signal.alarm(int(job["seconds"]))
    # What asks for all the memory there is gets an error in Python, and the machine stays usable.
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    code = 1
    try:
        sys.addaudithook(Watch(job["report"], job["untrusted"]))
        _run(job["argv"])
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:  # noqa: BLE001 - reported as the exit code
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    # As under the installed script, whose folder holds no modules.
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != os.path.dirname(__file__)]
    report, untrusted, *rest = sys.argv[1:]
    watch = Watch(report, [folder for folder in untrusted.split(":") if folder])
    sys.addaudithook(watch)
    if rest == ["--serve"]:
        _serve(watch)
    else:
        _run(rest[1:])


if __name__ == "__main__":
    main()
