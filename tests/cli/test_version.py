from __future__ import annotations

from importlib.metadata import version

from typer.testing import CliRunner

from gradian.cli.main import app


def test_it_prints_the_version_of_the_distribution_alone() -> None:
    result = CliRunner().invoke(app, ["version"])
    assert result.exit_code == 0
    assert result.stdout == f"{version('gradian-ml')}\n"
