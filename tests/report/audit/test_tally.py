from __future__ import annotations

from gradian.report.audit.model import SkippedPart
from gradian.report.audit.tally import skip_groups, tally_line

from . import samples


def part(name: str, reason: str, *missing: str) -> SkippedPart:
    return SkippedPart(id=name, reason=reason, missing=missing)


def test_skipped_checks_are_grouped_by_what_would_enable_them_the_largest_first_and_the_silent_last() -> None:
    groups = skip_groups(
        [
            part("a", "no seed"),
            part("b", "needs --run and x", "--run", "x", "y"),
            part("c", "needs --run", "--run"),
            part("d", "needs --run (or so)", "--run"),
            part("e", "no seed"),
            part("f", "no rate"),
        ]
    )
    assert [(group.reason, group.ids) for group in groups] == [
        ("needs `--run`", ("c", "d")),
        ("needs `--run`, `x` and `y`", ("b",)),
        ("no seed", ("a", "e")),
        ("no rate", ("f",)),
    ]


def test_one_line_says_how_many_passed_and_which_flag_would_enable_the_rest() -> None:
    assert tally_line(samples.faulty()) == (
        "2 checks passed, 4 skipped: 2 need `--base-model`, 1 needs `--eval-dataset`,"
        " 1 cannot tell from what is there."
    )
    assert tally_line(samples.clean()) == "2 checks passed, 1 skipped: 1 needs `--eval-dataset`."
