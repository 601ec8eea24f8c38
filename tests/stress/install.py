"""install.sh, whole: `python -m tests.stress.install` prints JSON.

Five kinds of run:

- `real`: in a root with nothing but busybox, Python and a compiler, entered by chroot. torch and all else come from the
  package index that pip knows. Needs root rights, and ten minutes.
- `local`: a checkout, editable, with its extension. As below, the large packages are stand-ins that lead to this environment's.
- `steps`: every external command that the script calls fails once, or is where the script is killed. venv and pip, the two
  slow steps, are replaced.
- `kills`: a signal at random moments, with real environments and pip.
- `full-disk`: on disks that are too small. Needs root rights.

The suite runs the same at a smaller size: tests/stress/test_install.py.
"""

from __future__ import annotations

import argparse
import base64
import collections
import contextlib
import functools
import hashlib
import http.server
import importlib.metadata
import itertools
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

TOOLS = (
    *("cat", "chmod", "cksum", "cp", "date", "dirname", "env", "find", "grep", "ln", "mkdir", "mv"),
    *("readlink", "rm", "rmdir", "sed", "sleep", "sort", "tail", "tr", "uname"),
)
"""Every external command that the script needs; all are POSIX utilities."""

SHELLS = {
    name: (path, *options)
    for name, command, *options in (
        ("dash", "dash"),
        ("busybox", "busybox", "sh"),
        ("bash", "bash", "--posix"),
    )
    if (path := shutil.which(command))
}
"""The POSIX shells of this machine."""

CONFIGURATION = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT", "PIP_DEFAULT_TIMEOUT")
NETWORK = (
    *CONFIGURATION,
    "http_proxy",
    "https_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "SSL_CERT_FILE",
    "TORCH_INDEX_URL",
)


def listing(folder: Path) -> dict[str, tuple[str, int, str]]:
    """What lies in a folder: path, kind, mode, and what it holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        if path.is_symlink():
            kind, held = "link", os.readlink(path)
        elif path.is_dir():
            kind, held = "folder", ""
        else:
            small = state.st_size < 1 << 16
            kind, held = (
                "file",
                hashlib.sha256(path.read_bytes()).hexdigest() if small else str(state.st_size),
            )
        found[str(path.relative_to(folder))] = (kind, state.st_mode, held)
    return found


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What came, went or changed."""
    return [
        f"{'new' if name not in before else 'gone' if name not in after else 'changed'}: {name}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def tools_folder(folder: Path, tools: Sequence[str] = TOOLS, shim: str | None = None) -> Path:
    """Make a folder for PATH that holds these commands alone: links, or with `shim` a script that calls them."""
    folder.mkdir(parents=True)
    for name in tools:
        real = shutil.which(name)
        assert real is not None, name
        if shim is None:
            (folder / name).symlink_to(real)
        else:
            (folder / name).write_text(f'#!/bin/sh\n{shim}\nexec {real} "$@"\n')
            (folder / name).chmod(0o755)
    return folder


@dataclass
class Machine:
    """A home folder and a PATH, and nothing else in the environment."""

    home: Path
    path: Sequence[Path]
    shell: Sequence[str]
    script: Path = ROOT / "install.sh"
    settings: dict[str, str] = field(default_factory=dict)

    def environment(self, **settings: str) -> dict[str, str]:
        path = os.pathsep.join(map(str, self.path))
        return {"HOME": str(self.home), "PATH": path, "SHELL": "/bin/bash", **self.settings, **settings}

    def run(self, *arguments: str, seconds: float = 280, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run the script."""
        return subprocess.run(
            [*self.shell, str(self.script), *arguments],
            env=self.environment(**settings),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


# ---- stand-ins -------------------------------------------------------------------------------------------------------


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str]) -> None:
    """Write a wheel of a pure package."""
    info = f"{name}-{version}.dist-info"
    contents = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in contents.items():
            archive.writestr(path, text)


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def stand_ins(folder: Path) -> dict[str, str]:
    """Make an index of wheels that lead to this environment's packages; what tells pip to use it alone.

    Each holds one `.pth` file, so that what is installed works, and pip finds the rest in place.
    """
    folder.mkdir(parents=True)
    here = {"this_environment.pth": sysconfig.get_path("purelib") + "\n"}
    torch = next(
        line
        for line in (ROOT / "constraints" / "cpu.txt").read_text().splitlines()
        if line.startswith("torch==")
    )
    wheel(folder, "torch", torch.removeprefix("torch==") + "+cpu", here)
    for name in ("setuptools", "pybind11"):
        # Setuptools finds its own commands by its entry points.
        real = importlib.metadata.distribution(name)
        points = real.read_text("entry_points.txt") or ""
        wheel(
            folder, name, real.version, {**here, f"{name}-{real.version}.dist-info/entry_points.txt": points}
        )
    return {
        "PIP_NO_COMPILE": "1",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": folder.as_uri(),
        "PIP_CONFIG_FILE": os.devnull,
    }


# Python whose new environments find pip where this one has it: writing and compiling pip is most of what venv does.
LENT_PIP_PYTHON = """#!/bin/sh
case "$1 $2" in
"-m venv")
    {python} -m venv --without-pip "$3" && printf '%s\\n' {packages} >"$3"/lib/{version}/site-packages/lent_pip.pth ;;
*)
    exec {python} "$@" ;;
esac
"""


def lent_pip_python(folder: Path) -> Path:
    """Write a Python that makes environments with this environment's pip."""
    path = folder / "lent-pip-python"
    packages = shlex.quote(sysconfig.get_path("purelib"))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    path.write_text(
        LENT_PIP_PYTHON.format(python=shlex.quote(sys.executable), packages=packages, version=version)
    )
    path.chmod(0o755)
    return path


# Python, but venv and pip, which take nine tenths of the time, only make what the script goes on with.
QUICK_PYTHON = """#!/bin/sh
case "$1 $2" in
"-m venv")
    mkdir -p "$3/bin" && ln -s {itself} "$3/bin/python" ;;
"-m pip")
    target=${{0%/bin/python}}
    [ -d "$target/bin" ] || exit 1
    {pip}
    printf '%s\\n' 'import sys' 'print("compiled extension: runs on this", sys.argv[1:])' >"$target/bin/gradian" ;;
"-c import pip"*)
    exit 1 ;;
*)
    exec {python} -S "$@" ;;
esac
"""


def quick_python(folder: Path, pip: str = "") -> Path:
    """Write a Python that makes empty environments at once; everything but `-m venv` and `-m pip` is real.

    Args:
        folder: where to write it.
        pip: a shell command that pip runs before it goes on.
    """
    path = folder / "quick-python"
    values = {"itself": shlex.quote(str(path)), "python": shlex.quote(sys.executable), "pip": pip}
    path.write_text(QUICK_PYTHON.format(**values))
    path.chmod(0o755)
    return path


# ---- every step fails, and is the last -------------------------------------------------------------------------------

SHIM = """echo x >>"$STEPS"
if [ "$({wc} -l <"$STEPS")" -eq "$STEP" ]; then
    [ "$ACT" != kill ] || kill -9 "$({cat} "$STEPS.pid")"
    # What each tool says when it fails itself: grep's 1 is an answer.
    case ${{0##*/}} in grep) exit 2 ;; esac
    exit 1
fi""".format(wc=shutil.which("wc"), cat=shutil.which("cat"))


def furnish(home: Path) -> None:
    """Put into a home what an installer must leave alone."""
    (home / ".local" / "bin").mkdir(parents=True)
    (home / ".local" / "bin" / "other").write_text("#!/bin/sh\n")
    (home / ".bashrc").write_text("alias ll='ls -l'\nexport EDITOR=vi")
    # An index: the default cache folder is `.gradian` in the folder where gradian is run.
    (home / ".gradian" / "index" / "0123").mkdir(parents=True)
    (home / ".gradian" / "index" / "0123" / "manifest.json").write_text("{}\n")


def tagged_repository(folder: Path) -> Path:
    """Make a git repository of what an installation needs, with the tag v0.1.0."""
    folder.mkdir(parents=True)
    unwanted = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("gradian", "kernels", "csrc", "constraints"):
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "install.sh"):
        shutil.copy(ROOT / name, folder / name)
    identity = ["-c", "user.name=Test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
    for command in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["commit", "--quiet", "--message=All"],
        ["tag", "v0.1.0"],
    ):
        subprocess.run(["git", *identity, *command], cwd=folder, check=True)
    return folder


@dataclass
class Rehearsal:
    """The installer on a home of its own, with quick stand-ins for venv and pip."""

    folder: Path
    shell: Sequence[str]

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        python = quick_python(self.folder)
        self.plain = tools_folder(self.folder / "tools")
        self.shimmed = tools_folder(self.folder / "shimmed", shim=SHIM)
        self.home = self.folder / "home it's"
        self.checkout = self.folder / "checkout"
        for name in ("pyproject.toml", "install.sh"):
            self.checkout.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, self.checkout / name)
        shutil.copytree(ROOT / "constraints", self.checkout / "constraints", dirs_exist_ok=True)
        (self.checkout / "csrc").mkdir(exist_ok=True)
        self.settings = {"GRADIAN_PYTHON": str(python)}

    def reset(self, installed: bool) -> dict[str, Any]:
        """Make the home anew, with an installation in it or without; what it held without."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        furnish(self.home)
        pristine = listing(self.home)
        if installed:
            self.must(self.run())
        return pristine

    def run(self, **settings: str) -> subprocess.CompletedProcess[str]:
        machine = Machine(self.home, [self.plain], self.shell, self.checkout / "install.sh", self.settings)
        return machine.run("--local", **settings)

    def disturbed(
        self, act: str, step: int, **settings: str
    ) -> tuple[subprocess.CompletedProcess[str], bool]:
        """Run with a step that fails or kills; whether there was such a step."""
        counter = self.folder / "steps"
        counter.unlink(missing_ok=True)
        tracked = ["/bin/sh", "-c", 'echo $$ >"$STEPS.pid"; exec "$@"', "sh", *self.shell]
        machine = Machine(self.home, [self.shimmed], tracked, self.checkout / "install.sh", self.settings)
        ended = machine.run("--local", STEPS=str(counter), STEP=str(step), ACT=act, **settings)
        return ended, len(counter.read_text().splitlines()) >= step

    def must(self, ended: subprocess.CompletedProcess[str]) -> None:
        if ended.returncode != 0:
            raise AssertionError(f"exit code {ended.returncode}:\n{ended.stdout}\n{ended.stderr}")

    @property
    def installed(self) -> list[Path]:
        """The installations there."""
        return sorted((self.home / ".gradian" / "install" / "envs").iterdir())

    def works(self) -> bool:
        """Whether the command is there and runs."""
        command = self.home / ".local" / "bin" / "gradian"
        if not os.path.lexists(command):
            return False
        environment = {"PATH": str(self.plain), "HOME": str(self.home)}
        ended = subprocess.run(
            [command, "doctor"], env=environment, capture_output=True, text=True, check=False
        )
        if ended.returncode != 0 or "compiled extension" not in ended.stdout:
            raise AssertionError(f"the command is there and does not run: {ended.stderr}")
        return True

    def check(self, act: str, step: int, *, installed: bool, uninstalling: bool = False) -> str | None:
        """Disturb one step of a run, look at what is left, and let the next runs put it right.

        Args:
            act: "fail" or "kill".
            step: which external command, from 1 on.
            installed: whether there is an installation before.
            uninstalling: disturb the removal rather than the installation.

        Returns:
            What the run came to, or None if it has fewer steps.
        """
        pristine = self.reset(installed)
        before = listing(self.home)
        ended, there_was = self.disturbed(act, step, **({"GRADIAN_UNINSTALL": "1"} if uninstalling else {}))
        if not there_was:
            return None
        told = f"{act} at step {step}:\n{ended.stdout}\n{ended.stderr}"
        if uninstalling:
            self.must(self.run(GRADIAN_UNINSTALL="1"))
            assert differences(pristine, listing(self.home)) == [], told
            return "removed"
        works = self.works()
        assert works or not installed, f"the installation before is gone; {told}"
        assert works or ended.returncode != 0, f"it ends well and installs nothing; {told}"
        after = listing(self.home)
        command = ".local/bin/gradian"
        updated = works and after[command] != before.get(command)
        if act == "fail" and not updated:
            assert differences(before, after) == [], told
        self.must(self.run())
        assert self.works(), told
        assert len(self.installed) == 1, told
        self.must(self.run(GRADIAN_UNINSTALL="1"))
        assert differences(pristine, listing(self.home)) == [], told
        return "all as before" if not updated else "the new one"

    def every_step(
        self, act: str, *, installed: bool, uninstalling: bool = False, every: int = 1
    ) -> dict[str, Any]:
        """Disturb one step after the other; how many there are, and how often each outcome came."""
        run = "uninstall" if uninstalling else "update" if installed else "install"
        outcomes = collections.Counter[str]()
        for step in itertools.count(1, every):
            outcome = self.check(act, step, installed=installed, uninstalling=uninstalling)
            if outcome is None:
                break
            outcomes[outcome] += 1
        return {"run": run, "act": act, "steps": outcomes.total(), **outcomes}


# ---- a root of its own -----------------------------------------------------------------------------------------------

COMPILER = (
    "g++",
    "x86_64-linux-gnu-g++",
    "aarch64-linux-gnu-g++",
    "gcc",
    "x86_64-linux-gnu-gcc",
    "aarch64-linux-gnu-gcc",
    "as",
    "ld",
)
SHARED = (
    "/usr/lib",
    "/usr/share/python-wheels",
    "/usr/include",
    "/lib64",
    "/etc/ssl",
    "/etc/xdg",
    "/opt",
    "/dev",
    "/proc",
)
"""Mounted into the root while something runs in it: libraries, headers, Python's modules, certificates, pip's wheels."""


@dataclass
class Container:
    """A root with busybox, Python and a compiler: no git, no curl, no bash, nothing in the home."""

    root: Path
    python: str = "/usr/bin/python3"
    compiler: bool = True

    def __post_init__(self) -> None:
        for name in ("bin", "usr/bin", "etc", "tmp", "root", "lib", *(path.lstrip("/") for path in SHARED)):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        (self.root / "lib").rmdir()
        (self.root / "lib").symlink_to("usr/lib")
        shutil.copy(shutil.which("busybox") or "", self.root / "bin" / "busybox")
        for name in ("sh", *TOOLS):
            (self.root / "bin" / name).symlink_to("busybox")
        real = Path(self.python).resolve()
        shutil.copy(real, self.root / "usr" / "bin" / real.name)
        (self.root / "usr" / "bin" / "python3").symlink_to(real.name)
        for name in COMPILER if self.compiler else ():
            if (found := shutil.which(name, path="/usr/bin")) is not None:
                shutil.copy(found, self.root / "usr" / "bin" / name)
        for name in ("resolv.conf", "hosts", "nsswitch.conf"):
            if Path("/etc", name).exists():
                shutil.copy(Path("/etc", name), self.root / "etc" / name)
        (self.root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")

    def run(
        self, command: Sequence[str], stdin: Path | None = None, **settings: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the root; the mounts are gone when it ends."""
        mounts = [
            f"mount --rbind {shlex.quote(path)} {shlex.quote(str(self.root / path.lstrip('/')))}"
            for path in SHARED
            if Path(path).exists()
        ]
        inside = [
            "/bin/env",
            "-i",
            "HOME=/root",
            "PATH=/bin:/usr/bin",
            *(f"{name}={value}" for name, value in settings.items()),
        ]
        entering = f"chroot {shlex.quote(str(self.root))} {shlex.join([*inside, *command])}"
        with stdin.open() if stdin else open(os.devnull) as given:
            return subprocess.run(
                ["unshare", "--mount", "sh", "-ec", "\n".join([*mounts, f"exec {entering}"])],
                stdin=given,
                capture_output=True,
                text=True,
                check=False,
            )


def pip_configuration() -> dict[str, str]:
    """What pip is told on this machine, as environment variables."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    found = {name: os.environ[name] for name in NETWORK if name in os.environ}
    for line in told.stdout.splitlines():
        where, value = line.split("=", 1)
        if where.startswith("global."):
            found["PIP_" + where.removeprefix("global.").replace("-", "_").upper()] = value.strip("'\"")
    return found


@contextlib.contextmanager
def published(folder: Path, ref: str) -> Iterator[str]:
    """Serve the last commit as a hosting service serves a tag; its address."""
    (folder / "archive").mkdir(parents=True)
    archive = folder / "archive" / f"{ref}.tar.gz"
    subprocess.run(
        ["git", "archive", "--format=tar.gz", f"--prefix=gradian-{ref}/", f"--output={archive}", "HEAD"],
        cwd=ROOT,
        check=True,
    )

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def real(folder: Path) -> dict[str, Any]:
    """Install, update without the compiler, and remove; everything comes from the package index."""
    container = Container(folder / "root")
    home = container.root / "root"
    furnish(home)
    script = ROOT / "install.sh"
    before = listing(container.root)
    figures: dict[str, Any] = {}

    def install(name: str, address: str) -> None:
        settings = {
            **pip_configuration(),
            "GRADIAN_REPO": address,
            "GRADIAN_REF": "v0.1.0",
            "GRADIAN_CPU": "1",
        }
        started = time.monotonic()
        ended = container.run(["sh"], stdin=script, **settings)
        if ended.returncode:
            raise AssertionError(ended.stdout + ended.stderr)
        lines = ended.stdout.splitlines()
        figures[name] = {
            "seconds": round(time.monotonic() - started),
            "said": [line for line in ended.stderr.splitlines() if "WARNING" not in line],
            "doctor": [
                line.strip() for line in lines if line.startswith(("  torch ", "  compiled extension"))
            ],
            "installations": len(list((home / ".gradian/install/envs").iterdir())),
            "mib": sum(path.lstat().st_size for path in home.rglob("*")) >> 20,
            "version": container.run(["/root/.local/bin/gradian", "version"]).stdout.strip(),
        }

    with published(folder / "served", "v0.1.0") as address:
        install("install", address)
        for name in COMPILER:
            (container.root / "usr/bin" / name).unlink(missing_ok=True)
        install("update", address)
    changes = differences(
        {name: state for name, state in before.items() if "usr/bin" not in name}, listing(container.root)
    )
    figures["outside"] = [
        line for line in changes if ".gradian/install/" not in line and "usr/bin" not in line
    ]
    ended = container.run(["sh"], stdin=script, GRADIAN_UNINSTALL="1")
    figures["uninstall"] = ended.stderr.splitlines()
    changes = differences(before, listing(container.root))
    figures["left_or_lost"] = [line for line in changes if "usr/bin" not in line]
    return figures


def local(folder: Path) -> dict[str, Any]:
    """Install a checkout, editable and with its extension, from stand-ins, and remove it again."""
    home, checkout = folder / "home", tagged_repository(folder / "check out's")
    home.mkdir()
    furnish(home)
    before = listing(folder)
    (folder / "outside").mkdir()
    tools = tools_folder(
        folder / "outside" / "tools", [*TOOLS, *(name for name in COMPILER if shutil.which(name))]
    )
    settings = {**stand_ins(folder / "outside" / "wheels"), "GRADIAN_PYTHON": sys.executable}
    machine = Machine(home, [tools], next(iter(SHELLS.values())), checkout / "install.sh", settings)
    started = time.monotonic()
    ended = machine.run("--local", seconds=3000)
    if ended.returncode:
        raise AssertionError(ended.stdout + ended.stderr)
    seconds = round(time.monotonic() - started)
    made = [line for line in differences(before, listing(folder)) if "check out" in line]
    ended = machine.run(GRADIAN_UNINSTALL="1")
    left = [line for line in differences(before, listing(folder)) if ": outside" not in line]
    return {
        "seconds": seconds,
        "in_the_checkout": made,
        "uninstall": ended.stderr.splitlines(),
        "left_or_lost": left,
    }


def kills(folder: Path, shell: Sequence[str], count: int, seed: int) -> dict[str, Any]:
    """Kill all processes of a run with stand-ins for the packages at random moments, then let a run put it right."""
    chance = random.Random(seed)
    home = folder / "home"
    home.mkdir()
    furnish(home)
    before = listing(home)
    tools = tools_folder(folder / "tools", [*TOOLS, "git"])
    repository = tagged_repository(folder / "repository")
    settings = {
        **stand_ins(folder / "wheels"),
        "GRADIAN_REPO": str(repository),
        "GRADIAN_REF": "v0.1.0",
        "GRADIAN_PYTHON": str(lent_pip_python(folder)),
    }
    machine = Machine(home, [tools], shell, settings=settings)
    started = time.monotonic()
    ended = machine.run()
    whole = time.monotonic() - started
    if ended.returncode:
        raise AssertionError(ended.stdout + ended.stderr)
    outcomes = collections.Counter[str]()
    link = home / ".local" / "bin" / "gradian"
    for _ in range(count):
        last = link.readlink()
        name = chance.choice(["SIGKILL", "SIGTERM", "SIGINT"])
        command = [*shell, str(machine.script)]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        running = subprocess.Popen(command, env=machine.environment(), cwd=home, **quiet)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(chance.uniform(0, whole))
        running.send_signal(getattr(signal, name))
        running.wait()
        ran = subprocess.run(
            [link, "version"], env={"PATH": str(tools)}, capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise AssertionError(f"after {name}: {ran.stderr}")
        unfinished = [path for path in link.readlink().parents[1].iterdir() if (path / "building").exists()]
        if unfinished and name != "SIGKILL":
            raise AssertionError(f"after {name}, half-made: {unfinished}")
        outcomes[f"{name}: {'the last one stays' if link.readlink() == last else 'updated'}"] += 1
    ended = machine.run()
    if ended.returncode or len(list(link.readlink().parents[1].iterdir())) != 1:
        raise AssertionError(ended.stderr)
    machine.run(GRADIAN_UNINSTALL="1")
    return {
        "seconds_undisturbed": round(whole),
        **outcomes,
        "left_or_lost": differences(before, listing(home)),
    }


def full_disk(folder: Path, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Install into disks of a few MiB; fill the one that is large enough, and update and uninstall there."""
    figures = []
    for mib in sizes:
        home = folder / f"disk-{mib}"
        home.mkdir()
        tools = tools_folder(folder / f"tools-{mib}", [*TOOLS, "git"])
        settings = {**stand_ins(folder / f"wheels-{mib}"), "GRADIAN_REPO": str(ROOT), "GRADIAN_REF": "HEAD"}
        machine = Machine(
            home, [tools], SHELLS["dash"], settings={**settings, "GRADIAN_PYTHON": sys.executable}
        )
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(home)], check=True)

        def figure(
            ended: subprocess.CompletedProcess[str], before: Mapping[str, Any], home: Path = home
        ) -> dict[str, Any]:
            said = [line for line in ended.stderr.splitlines() if line.startswith(("install.sh", "The disk"))]
            return {
                "exit": ended.returncode,
                "said": said,
                "left_or_lost": differences(before, listing(home))[:5],
            }

        try:
            furnish(home)
            pristine = listing(home)
            ended = machine.run()
            if ended.returncode:
                figures.append({"mib": mib, "run": "install", **figure(ended, pristine)})
                continue
            with contextlib.suppress(OSError), (home / "filler").open("wb", buffering=0) as filler:
                while filler.write(bytes(4096)):
                    pass
            before = listing(home)
            figures.append({"mib": mib, "run": "update, full", **figure(machine.run(), before)})
            ended = machine.run(GRADIAN_UNINSTALL="1")
            (home / "filler").unlink()
            figures.append({"mib": mib, "run": "uninstall, full", **figure(ended, pristine)})
        finally:
            subprocess.run(["umount", str(home)], check=True)
    return figures


def main() -> None:
    """Run what is asked for, and print its figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["real", "local", "steps", "kills", "full-disk"])
    parser.add_argument("--shell", choices=SHELLS, default=next(iter(SHELLS)), help="for steps and kills")
    parser.add_argument("--act", choices=["fail", "kill"], default="fail", help="for steps")
    parser.add_argument("--every", type=int, default=1, help="for steps: one of so many")
    parser.add_argument("--count", type=int, default=20, help="for kills: how many")
    parser.add_argument("--seed", type=int, default=0, help="for kills")
    arguments = parser.parse_args()
    shell = SHELLS[arguments.shell]
    if arguments.what == "steps" and arguments.shell == "busybox":
        parser.error("busybox runs its own commands, and not those of PATH that fail and kill")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures: Any
        if arguments.what == "real":
            figures = real(folder)
        elif arguments.what == "local":
            figures = local(folder)
        elif arguments.what == "kills":
            figures = kills(folder, shell, arguments.count, arguments.seed)
        elif arguments.what == "full-disk":
            figures = full_disk(folder, [1, 2, 4, 8, 16, 32, 36, 40, 44, 64])
        else:
            rehearsal = Rehearsal(folder, shell)
            figures = [
                rehearsal.every_step(
                    arguments.act, installed=installed, uninstalling=uninstalling, every=arguments.every
                )
                for installed, uninstalling in ((False, False), (True, False), (True, True))
            ]
    print(json.dumps(figures, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
