"""install.sh: what it makes, what it leaves, what it says. `python -m tests.stress.install` is the whole of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.stress.install import (
    ROOT,
    SHELLS,
    TOOLS,
    Machine,
    Rehearsal,
    differences,
    furnish,
    lent_pip_python,
    listing,
    quick_python,
    stand_ins,
    tagged_repository,
    tools_folder,
)

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it for Python 3.10
    import tomli as tomllib

SCRIPT = ROOT / "install.sh"
QUICKEST = next(iter(SHELLS.values()))


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    return Rehearsal(tmp_path / "rehearsal", QUICKEST)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_what_is_installed_from_a_tag_runs_outlives_a_failed_update_and_goes_without_a_trace(
    tmp_path: Path,
) -> None:
    home = tmp_path / "ho me 'é' #%41"
    home.mkdir()
    furnish(home)
    before = listing(home)
    offline = stand_ins(tmp_path / "wheels")
    # Neither a compiler nor another Python.
    tools = tools_folder(tmp_path / "tools", [*TOOLS, "git"])
    repository = tagged_repository(tmp_path / "repository")
    settings = {**offline, "GRADIAN_PYTHON": str(lent_pip_python(tmp_path)), "GRADIAN_REPO": str(repository)}
    machine = Machine(home, [tools], QUICKEST, settings=settings)

    ended = machine.run(GRADIAN_REF="v0.1.0", GRADIAN_CPU="1")
    assert ended.returncode == 0, ended.stderr
    assert f"installed in {home}/.gradian/install/envs/" in ended.stdout
    assert "The compiled scorer was not built" in ended.stderr
    assert f"one line was added to {home}/.bashrc" in ended.stderr
    shell = ["/bin/sh", "-c", ". ./.bashrc && gradian version"]
    ran = subprocess.run(
        shell, cwd=home, env={"PATH": str(tools)}, capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", ran.stdout)

    installed = listing(home)
    ended = machine.run(GRADIAN_REF="v0.2.0")
    assert ended.returncode == 1
    assert "has no tag, branch or commit v0.2.0" in ended.stderr
    assert "What was installed before is unchanged." in ended.stderr
    assert differences(installed, listing(home)) == []

    ended = machine.run(GRADIAN_UNINSTALL="1")
    assert ended.returncode == 0, ended.stderr
    assert f"Kept, because it holds your data and not the installation: {home}/.gradian" in ended.stderr
    assert differences(before, listing(home)) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_an_update_leaves_one_installation_whatever_the_shell(tmp_path: Path, shell: str) -> None:
    rehearsal = Rehearsal(tmp_path / "rehearsal", SHELLS[shell])
    before = rehearsal.reset(installed=True)
    first = rehearsal.installed
    rehearsal.must(rehearsal.run())
    assert rehearsal.works()
    assert len(rehearsal.installed) == 1
    assert rehearsal.installed != first
    rehearsal.must(rehearsal.run(GRADIAN_UNINSTALL="1"))
    assert differences(before, listing(rehearsal.home)) == []


# Renaming the link, reading the start file.
@pytest.mark.parametrize("step", [27, 39])
def test_a_step_that_fails_or_is_the_last_leaves_a_whole_installation_or_none(
    rehearsal: Rehearsal, step: int
) -> None:
    assert rehearsal.check("kill" if step % 2 else "fail", step, installed=step > 20)


WRONG = {
    "what is half made stays": ('rm -rf "$build" 2>/dev/null ||', "true ||", "fail", range(9, 12)),
    "the command is gone for a moment": (
        'mv -f "$bin/.gradian.$$" "$bin/gradian"',
        'rm -f "$bin/gradian"; mv "$bin/.gradian.$$" "$bin/gradian"',
        *("kill", range(21, 25)),
    ),
    "its folders stay": ('remove_folders "$folders"\n}', "}", "fail", range(19, 22)),
}


@pytest.mark.parametrize("fault", WRONG)
def test_the_rehearsal_finds_that(fault: str, rehearsal: Rehearsal) -> None:
    right, wrong, act, steps = WRONG[fault]
    script = rehearsal.checkout / "install.sh"
    text = script.read_text()
    assert text.count(right) == 1
    script.write_text(text.replace(right, wrong))
    found = 0
    for step in steps:
        try:
            rehearsal.check(act, step, installed=True)
        except AssertionError:
            found += 1
    assert found


def test_a_removal_cut_short_is_finished_by_the_next(rehearsal: Rehearsal) -> None:
    assert rehearsal.check("kill", 15, installed=True, uninstalling=True)


def test_a_download_cut_short_runs_nothing(home: Path, tmp_path: Path) -> None:
    text = SCRIPT.read_bytes()
    ends = [*range(0, len(text) - 200, 997), *range(text.rindex(b"\n{ main"), len(text) - 2, 3)]
    assert text.endswith(b"; }\n")
    for end in ends:
        ended = subprocess.run(
            QUICKEST, input=text[:end], env={"HOME": str(home), "PATH": "/nonexistent"}, capture_output=True
        )
        assert ended.stdout == b"", end
        assert b"not supported" not in ended.stderr, end
    assert not any(home.iterdir())


def test_what_the_file_holds_by_the_time_it_ends_is_not_run(home: Path) -> None:
    ended = subprocess.run(
        QUICKEST,
        input=SCRIPT.read_bytes() + b"echo changed\n",
        env={"HOME": str(home), "PATH": os.environ["PATH"], "GRADIAN_UNINSTALL": "1"},
        capture_output=True,
        check=True,
    )
    assert ended.stdout == b""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_it_at_once_with_all_that_it_started_and_leaves_nothing(
    rehearsal: Rehearsal, name: str
) -> None:
    before = rehearsal.reset(installed=False)
    # A pip that has started another process.
    python = quick_python(rehearsal.folder, pip=': >"$HOME/../started"; sleep 60 & sleep 60')
    machine = Machine(rehearsal.home, [rehearsal.plain], QUICKEST, rehearsal.checkout / "install.sh")
    running = subprocess.Popen(
        [*machine.shell, str(machine.script), "--local"],
        env=machine.environment(GRADIAN_PYTHON=str(python)),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    while not (rehearsal.folder / "started").exists():
        assert running.poll() is None
        time.sleep(0.02)
    started = time.monotonic()
    running.send_signal(getattr(signal, name))
    # Ends when the last process has closed the pipe.
    _, told = running.communicate(timeout=60)
    assert time.monotonic() - started < 10
    assert running.returncode == 128 + getattr(signal, name)
    assert "nothing is left of this run" in told
    assert differences(before, listing(rehearsal.home)) == []


def test_of_two_at_once_one_is_left(rehearsal: Rehearsal) -> None:
    before = rehearsal.reset(installed=False)
    machine = Machine(rehearsal.home, [rehearsal.plain], QUICKEST, rehearsal.checkout / "install.sh")
    command = [*machine.shell, str(machine.script), "--local"]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    both = [
        subprocess.Popen(command, env=machine.environment(**rehearsal.settings), **quiet) for _ in range(2)
    ]
    assert [each.wait(timeout=60) for each in both] == [0, 0]
    assert rehearsal.works()
    rehearsal.must(rehearsal.run())
    assert len(rehearsal.installed) == 1
    rehearsal.must(rehearsal.run(GRADIAN_UNINSTALL="1"))
    assert differences(before, listing(rehearsal.home)) == []


def test_what_still_runs_is_neither_removed_nor_replaced_under_its_feet(rehearsal: Rehearsal) -> None:
    rehearsal.reset(installed=True)
    (first,) = rehearsal.installed
    # As the start script runs it: by its path in the environment.
    command = [str(first / "venv" / "bin" / "python"), "-c", "import time; time.sleep(60)"]
    running = subprocess.Popen(command, executable=sys.executable)
    try:
        ended = rehearsal.run(GRADIAN_UNINSTALL="1")
        assert ended.returncode == 1
        assert f"Gradian is running, as process {running.pid}" in ended.stderr
        ended = rehearsal.run()
        assert ended.returncode == 0, ended.stderr
        assert first in rehearsal.installed
        assert f"as process {running.pid}: the next run of this installer removes {first}" in ended.stderr
    finally:
        running.kill()
        running.wait()
    rehearsal.must(rehearsal.run())
    assert first not in rehearsal.installed


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"HOME": "/nonexistent/home"}, "HOME is no folder: /nonexistent/home"),
        ({"GRADIAN_HOME": "here"}, "not an absolute path: here"),
        ({"GRADIAN_HOME": "/a:b"}, "a path with a colon or a dollar sign cannot be used: /a:b"),
        ({"GRADIAN_BIN": "/a\nb"}, "a path with a line break cannot be used: /a\nb"),
        ({"GRADIAN_HOME": "/proc/gradian"}, "/proc/gradian/install cannot be made"),
        (
            {"GRADIAN_REF": "--upload-pack=touch"},
            "not the name of a tag, branch or commit: GRADIAN_REF=--upload-pack=touch",
        ),
        ({"GRADIAN_REF": "$(touch here)"}, "not the name of a tag, branch or commit"),
        ({"GRADIAN_REPO": "--upload-pack=touch"}, "not a repository: GRADIAN_REPO=--upload-pack=touch"),
        ({"GRADIAN_EXTRAS": "train;x"}, "not names of extras: GRADIAN_EXTRAS=train;x"),
        (
            {"GRADIAN_UNSLOTH": "1", "GRADIAN_CPU": "1"},
            "GRADIAN_UNSLOTH=1 and GRADIAN_CPU=1 exclude each other",
        ),
        ({"GRADIAN_PYTHON": "python2.0"}, "found: none of them on PATH"),
        ({"GRADIAN_PYTHON": "false"}, "false does not run"),
        ({"GRADIAN_REPO": "/"}, "is fetched by git, which is not here"),
        (
            {"GRADIAN_REPO": "http://127.0.0.1:9/nowhere"},
            "cannot be fetched from http://127.0.0.1:9/nowhere/archive/main.tar.gz",
        ),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(
    home: Path, tmp_path: Path, settings: dict[str, str], told: str
) -> None:
    tools = tools_folder(tmp_path / "tools", [*TOOLS, "false"])
    ended = Machine(home, [tools], QUICKEST, settings={"GRADIAN_PYTHON": sys.executable}).run(**settings)
    assert ended.returncode == 1
    assert told in ended.stderr
    assert not any(home.iterdir())


def test_another_command_of_the_name_is_left_alone(rehearsal: Rehearsal) -> None:
    rehearsal.reset(installed=False)
    (rehearsal.home / ".local" / "bin" / "gradian").write_text("mine")
    before = listing(rehearsal.home)
    ended = rehearsal.run()
    assert "exists, but this installer did not make it" in ended.stderr
    assert ended.returncode == 1
    assert differences(before, listing(rehearsal.home)) == []


OLD = """#!/bin/sh
# Python {version}, as the script sees it.
case "$2" in *"def obstacle"*) exec {python} -c 'import sys
sys.version_info = ({version_info}, 0, "final", 0)
exec(sys.argv[1])' "$2" ;; esac
exit 1
"""


def test_a_python_that_does_not_fit_is_passed_over_for_one_that_does(home: Path, tmp_path: Path) -> None:
    tools = tools_folder(tmp_path / "tools")
    for name, version in (("python3", "3.9"), ("python3.12", "3.13")):
        old = OLD.format(version=version, version_info=version.replace(".", ", "), python=sys.executable)
        (tools / name).write_text(old)
        (tools / name).chmod(0o755)
    machine = Machine(home, [tools], QUICKEST)
    ended = machine.run(GRADIAN_REPO="/nonexistent")
    assert f"{tools}/python3 is Python 3.9" in ended.stderr
    assert f"{tools}/python3.12 is Python 3.13" in ended.stderr
    assert "GRADIAN_PYTHON=/path/to/python" in ended.stderr
    (tools / "python3.10").symlink_to(sys.executable)
    assert f"with {tools}/python3.10" in machine.run(GRADIAN_REPO="/nonexistent").stderr


def test_the_start_file_is_left_alone_when_asked_and_when_the_folder_is_on_path(rehearsal: Rehearsal) -> None:
    rehearsal.reset(installed=False)
    before = (rehearsal.home / ".bashrc").read_text()
    ended = rehearsal.run(GRADIAN_NO_RC="1")
    assert f"Add this line to {rehearsal.home}/.bashrc" in ended.stderr
    assert (rehearsal.home / ".bashrc").read_text() == before
    ended = rehearsal.run(
        PATH=os.pathsep.join([str(rehearsal.plain), str(rehearsal.home / ".local" / "bin")])
    )
    assert ended.returncode == 0
    assert "PATH" not in ended.stderr
    assert (rehearsal.home / ".bashrc").read_text() == before


def test_a_start_file_that_is_a_link_stays_one_and_what_was_added_later_stays(rehearsal: Rehearsal) -> None:
    rehearsal.reset(installed=False)
    (rehearsal.home / "dotfiles").mkdir()
    (rehearsal.home / ".bashrc").rename(rehearsal.home / "dotfiles" / "bashrc")
    (rehearsal.home / ".bashrc").symlink_to("dotfiles/bashrc")
    rehearsal.must(rehearsal.run())
    with (rehearsal.home / ".bashrc").open("a") as file:
        file.write("export LATER=1\n")
    rehearsal.must(rehearsal.run(GRADIAN_UNINSTALL="1"))
    assert (rehearsal.home / ".bashrc").is_symlink()
    assert (
        rehearsal.home / "dotfiles" / "bashrc"
    ).read_text() == "alias ll='ls -l'\nexport EDITOR=vi\nexport LATER=1\n"


def test_the_pythons_it_takes_are_those_of_the_package() -> None:
    wanted = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    lowest, highest = re.search(
        r"\((\d, \d+)\) <= sys.version_info\[:2\] <= \((\d, \d+)\)", SCRIPT.read_text()
    ).groups()  # type: ignore[union-attr]
    taken = [minor for minor in range(30) if f"3.{minor}.0" in wanted]
    assert [f"3, {taken[0]}", f"3, {taken[-1]}"] == [lowest, highest]


def test_every_setting_that_it_reads_is_in_its_help_and_the_documentation_names_no_other() -> None:
    text = SCRIPT.read_text()
    shown = subprocess.run(
        [*QUICKEST, str(SCRIPT), "--help"], capture_output=True, text=True, check=True
    ).stdout
    known = set(re.findall(r"(?:GRADIAN|TORCH)_[A-Z_]+", shown))
    assert known == set(re.findall(r"\$\{((?:GRADIAN|TORCH)_[A-Z_]+):", text))
    for page in (ROOT / "README.md", ROOT / "docs" / "quickstart.md"):
        blocks = re.findall(r"```bash\n(.*?)```", page.read_text(), flags=re.DOTALL)
        lines = [
            line for block in blocks for line in block.splitlines() if "install.sh" in line or "| sh" in line
        ]
        assert lines, page
        for line in lines:
            assert set(re.findall(r"GRADIAN_[A-Z]+", line)) <= known, line
