from __future__ import annotations

from pathlib import Path

import pytest

from gradian.errors import ConfigError
from gradian.report import jsonfile, markdown
from gradian.report.audit import markdown as audit_markdown
from gradian.report.verification import markdown as verification_markdown
from gradian.report.write import check_writable, write_audit, write_figures, write_report, write_verification

from . import samples
from .audit.samples import faulty
from .hostile import EVERYTHING
from .test_markdown import attacked
from .verification.samples import recovered


def test_both_files_are_written_and_nothing_else_is_left(tmp_path: Path) -> None:
    report = samples.poisoned()
    paths = write_report(report, tmp_path / "new" / "reports")
    assert [path.name for path in paths] == ["report.json", "report.md"]
    assert sorted(path.name for path in (tmp_path / "new" / "reports").iterdir()) == [
        "report.json",
        "report.md",
    ]
    assert paths[0].read_bytes() == jsonfile.render(report).encode()
    assert paths[1].read_bytes() == markdown.render(report).encode()


def test_a_second_report_replaces_the_first(tmp_path: Path) -> None:
    write_report(samples.poisoned(), tmp_path)
    _, text = write_report(samples.not_significant(), tmp_path)
    assert "Not diagnosed" in text.read_text(encoding="utf-8")


def test_who_is_reading_the_old_report_reads_it_to_the_end(tmp_path: Path) -> None:
    first, _ = write_report(samples.poisoned(), tmp_path)
    with first.open("rb", buffering=0) as stream:
        head = stream.read(10)
        write_report(samples.not_significant(), tmp_path)
        assert head + stream.read() == jsonfile.render(samples.poisoned()).encode()


def test_rows_that_utf8_cannot_hold_are_written_all_the_same(tmp_path: Path) -> None:
    write_report(attacked(EVERYTHING), tmp_path)


def test_a_folder_that_cannot_be_made_is_the_users_error_and_leaves_no_partial_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        write_report(samples.poisoned(), tmp_path / "taken")
    assert caught.value.where == str(tmp_path / "taken")
    (tmp_path / "out" / "report.md").mkdir(parents=True)
    with pytest.raises(ConfigError):
        write_report(samples.poisoned(), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.json", "report.md"]


def test_an_audit_is_written_under_its_own_names(tmp_path: Path) -> None:
    write_report(samples.poisoned(), tmp_path)
    paths = write_audit(faulty(), tmp_path)
    assert [path.name for path in paths] == ["audit.json", "audit.md"]
    assert paths[0].read_bytes() == jsonfile.render(faulty()).encode()
    assert paths[1].read_bytes() == audit_markdown.render(faulty()).encode()
    assert len(list(tmp_path.iterdir())) == 4


def test_a_verification_is_written_under_its_own_names(tmp_path: Path) -> None:
    paths = write_verification(recovered(), tmp_path)
    assert [path.name for path in paths] == ["verify.json", "verify.md"]
    assert paths[0].read_bytes() == jsonfile.render(recovered()).encode()
    assert paths[1].read_bytes() == verification_markdown.render(recovered()).encode()


def test_figures_go_into_a_folder_that_is_made_and_what_keeps_them_out_is_named(tmp_path: Path) -> None:
    write_figures("{}", tmp_path / "new" / "figures.json")
    assert (tmp_path / "new" / "figures.json").read_text() == "{}"
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        write_figures("{}", tmp_path / "new")
    assert caught.value.where == str(tmp_path / "new")


def test_whether_a_folder_can_be_written_is_tried_without_touching_what_is_there(tmp_path: Path) -> None:
    for name in ("writable", "report.json"):
        (tmp_path / name).write_text("mine")
    check_writable(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "writable": "mine",
        "report.json": "mine",
    }
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be written"):
        check_writable(tmp_path / "taken")
