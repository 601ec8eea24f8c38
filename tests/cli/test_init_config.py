from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from gradian.cli.main import app
from gradian.config import Config, load_config

runner = CliRunner()


def test_what_it_writes_loads_as_the_defaults_with_the_model_filled_in(tmp_path: Path) -> None:
    target = tmp_path / "g.yaml"
    result = runner.invoke(app, ["init-config", "-o", str(target), "-m", "org/model: #1"])
    assert result.exit_code == 0
    assert result.stdout == f"wrote {target}\n"
    assert load_config(target) == Config(base_model="org/model: #1")


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    target = tmp_path / "g.yaml"
    target.write_text("mine", encoding="utf-8")
    result = runner.invoke(app, ["init-config", "--out", str(target)])
    assert result.exit_code == 2
    assert str(target) in result.stderr
    assert target.read_text(encoding="utf-8") == "mine"


def test_a_folder_that_is_not_there_is_a_users_error(tmp_path: Path) -> None:
    result = runner.invoke(app, ["init-config", "--out", str(tmp_path / "none" / "g.yaml")])
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
