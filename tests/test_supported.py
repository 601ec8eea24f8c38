"""The supported windows: how they read, and that pip is told the same as the doctor."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gradian import supported
from gradian.supported import (
    UNSLOTH_WINDOWS,
    WINDOWS,
    Window,
    installed_version,
    unmet_requirements,
    unsafe_reader,
)

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("window", "version", "inside"),
    [
        (Window("2.4", "2.13"), "2.4.0", True),
        (Window("2.4", "2.13"), "2.13.1+cpu", True),
        (Window("2.4", "2.13"), "2.13", True),
        (Window("2.4", "2.13"), "2.14.0", False),
        (Window("2.4", "2.13"), "2.3.9", False),
        (Window("2.4", "2.13"), "2.4.0rc1", False),
        (Window("0.18", None), "3.0", True),
        (Window(None, "0.24"), "0.24.9", True),
        (Window(None, "0.24"), "0.25.0.dev0", False),
    ],
)
def test_a_window_holds_both_its_ends(window: Window, version: str, inside: bool) -> None:
    assert window.holds(version) is inside


def test_a_window_reads_as_the_documentation_writes_it() -> None:
    assert str(Window("2.4", "2.13")) == "2.4 to 2.13"
    assert str(Window("0.18", None)) == "0.18 and above"
    assert str(Window(None, "0.24")) == "0.24 and below"


def requirements(file: str) -> dict[str, Requirement]:
    lines = (ROOT / "constraints" / file).read_text(encoding="utf-8").splitlines()
    return {
        wanted.name: wanted for line in lines if line and line[0] != "#" and (wanted := Requirement(line))
    }


@pytest.mark.parametrize("file", ["cpu.txt", "oldest.txt"])
def test_the_tested_pins_lie_in_the_supported_window(file: str) -> None:
    pins = {name: next(iter(wanted.specifier)).version for name, wanted in requirements(file).items()}
    outside = [name for name, window in WINDOWS.items() if not window.holds(pins[name])]
    assert outside == []


def test_both_ends_of_a_window_are_tested_pins() -> None:
    newest, oldest = (
        {name: next(iter(wanted.specifier)).version for name, wanted in requirements(file).items()}
        for file in ("cpu.txt", "oldest.txt")
    )
    for name, window in WINDOWS.items():
        assert oldest[name].startswith(f"{window.lowest}.")
        assert window.highest is None or newest[name].startswith(f"{window.highest}.")


def edges(windows: Mapping[str, Window]) -> dict[str, tuple[list[str], list[str]]]:
    """Versions at the ends of each window: inside, and outside."""
    found = {}
    for name, window in windows.items():
        inside, outside = [], []
        if window.lowest:
            inside.append(window.lowest)
            outside.append(f"{window.lowest}.dev0")
        if window.highest:
            major, minor = window.highest.split(".")
            inside.append(f"{window.highest}.9")
            outside.append(f"{major}.{int(minor) + 1}.0")
        found[name] = inside, outside
    return found


def test_unsloths_window_is_the_one_of_its_constraints() -> None:
    wanted = requirements("unsloth.txt")
    assert wanted.keys() == UNSLOTH_WINDOWS.keys()
    for name, (inside, outside) in edges(UNSLOTH_WINDOWS).items():
        assert all(wanted[name].specifier.contains(version) for version in inside), name
        assert not any(wanted[name].specifier.contains(version, prereleases=True) for version in outside), (
            name
        )


def test_the_extras_ask_for_a_trl_of_the_window() -> None:
    texts = re.findall(r'"(trl[^"]*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = [Requirement(text) for text in texts if text != "trl.*"]
    assert len(extras) == 2
    inside, outside = edges(WINDOWS)["trl"]
    for wanted in extras:
        assert wanted.specifier.contains(inside[-1])
        assert not any(wanted.specifier.contains(version, prereleases=True) for version in outside)


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert installed_version("no-such-package-anywhere") is None
    assert installed_version("numpy") == importlib.metadata.version("numpy")


def test_what_a_package_asks_for_and_does_not_get_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "asking-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: asking\nVersion: 1.0\n"
        "Requires-Dist: numpy>=1000\n"
        "Requires-Dist: numpy>=1\n"
        "Requires-Dist: no-such-package-anywhere>=3\n"
        'Requires-Dist: numpy<1 ; extra == "old"\n'
        'Requires-Dist: numpy<1 ; python_version < "3"\n',
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    assert list(unmet_requirements("asking")) == [f"numpy>=1000 ({installed_version('numpy')} is here)"]
    assert list(unmet_requirements("no-such-package-anywhere")) == []


def test_the_windows_are_those_of_the_command_reference() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert f"SFTTrainer, from {WINDOWS['trl']}, " in page


@pytest.mark.parametrize(
    ("package", "version", "safe"),
    [
        ("torch", "2.5.1+cpu", False),
        ("torch", "2.6.0+cpu", True),
        ("pyarrow", "14.0.0", False),
        ("pyarrow", "14.0.1", True),
    ],
)
def test_a_release_that_runs_what_it_reads_is_known(
    package: str, version: str, safe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supported, "installed_version", lambda _: version)
    assert unsafe_reader(package) == (None if safe else f"{package} {version}")
