"""docs/cli.md and the commands say the same, in both directions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

from gradian.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Option:
    long: str
    short: str
    default: str


def commands() -> dict[str, Any]:
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def sections(page: str) -> dict[str, str]:
    parts = re.split(r"^## gradian (\S+)\n", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def documented_options(section: str) -> set[Option]:
    return {
        Option(long, short, default.strip().strip("`"))
        for long, short, default in re.findall(
            r"^\| `(--[a-z-]+)` \| (?:`(-\w)`)? ?\|([^|]*)\|", section, flags=re.MULTILINE
        )
    }


def documented_arguments(section: str) -> set[str]:
    return set(re.findall(r"^\| `([a-z_]+)` \|", section, flags=re.MULTILINE))


def real_options(command: Any) -> set[Option]:
    found = set()
    for parameter in command.params:
        if parameter.param_type_name != "option" or "--help" in parameter.opts:
            continue
        long = next(name for name in parameter.opts if name.startswith("--"))
        short = next((name for name in parameter.opts if not name.startswith("--")), "")
        default = getattr(parameter.default, "value", parameter.default)
        shown = "" if default in (None, False, "") else str(default)
        found.add(Option(long, short, shown))
    return found


def compared(options: set[Option]) -> set[Option]:
    # A flag without a default of its own may be documented with the setting it falls back to.
    return {
        Option(option.long, option.short, "" if option.default.startswith("the config's") else option.default)
        for option in options
    }


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(sections(PAGE)) == set(commands())


def test_every_command_is_in_the_overview() -> None:
    overview = set(re.findall(r"^\| \[`([a-z-]+)`\]\(#gradian-\1\)", PAGE, flags=re.MULTILINE))
    assert overview == set(commands())


@pytest.mark.parametrize("name", sorted(commands()))
def test_the_documented_options_are_the_commands_options(name: str) -> None:
    assert compared(documented_options(sections(PAGE)[name])) == real_options(commands()[name])


@pytest.mark.parametrize("name", sorted(commands()))
def test_the_documented_arguments_are_the_commands_arguments(name: str) -> None:
    real = {p.name for p in commands()[name].params if p.param_type_name == "argument"}
    assert documented_arguments(sections(PAGE)[name]) == real


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_shows_an_example_of_itself(name: str) -> None:
    command = commands()[name]
    assert f"Example:\n  gradian {name}" in command.help.replace("\b\n", "")
    assert f"```bash\ngradian {name}" in sections(PAGE)[name]


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_option_says_what_it_does(name: str) -> None:
    assert [p.name for p in commands()[name].params if not p.help] == []


def test_every_command_line_in_the_documentation_parses() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                words = line.split("#")[0].split()
                if words[:1] != ["gradian"]:
                    continue
                name, arguments = words[1], words[2:]
                # Parsing alone: the command is not run.
                commands()[name].make_context(name, [a for a in arguments if a != "--help"])
