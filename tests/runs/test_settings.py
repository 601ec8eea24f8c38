from __future__ import annotations

from gradian.runs.settings import Key, Settings


def test_the_upper_source_wins_and_each_value_keeps_its_own() -> None:
    laid = Settings.of("a: x", {"seed": 1}).over(Settings.of("b: y", {"seed": 2, "epochs": 3.0}))

    assert laid.values == {"seed": 1, "epochs": 3.0}
    assert laid.sources == {"seed": "a: x", "epochs": "b: y"}


def test_what_a_source_sets_to_nothing_stays_nothing() -> None:
    assert Settings.of("a", {"max_steps": None}).over(Settings.of("b", {"max_steps": 5})).values == {
        "max_steps": None
    }
    assert Settings.of("a", {"max_steps": None}).said().values == {}


def test_steps_of_warmup_in_one_source_silence_a_share_in_another() -> None:
    laid = Settings.of("a", {"warmup_steps": 5}).over(Settings.of("b", {"warmup_ratio": 0.1}))
    assert laid.values == {"warmup_steps": 5}


def test_of_two_spellings_the_one_that_is_set_counts() -> None:
    keys = (Key("max_length", "max_length", int), Key("max_seq_length", "max_length", int))
    unset = (Key("max_length", "max_length", lambda value: value), keys[1])

    assert Settings.read({"max_length": 1, "max_seq_length": 2}, "f", keys).sources == {
        "max_length": "f: max_length"
    }
    assert Settings.read({"max_length": None, "max_seq_length": 2}, "f", unset).values == {"max_length": 2}
