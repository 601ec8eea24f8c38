from __future__ import annotations

import pytest

from gradian.errors import UnknownNameError
from gradian.registry import Registry


@pytest.fixture
def engines() -> Registry[int]:
    registry: Registry[int] = Registry("engine")
    registry.register("datainf")(1)
    registry.register("graddot")(2)
    return registry


def test_entries_come_back_under_their_names_in_order(engines: Registry[int]) -> None:
    assert engines["graddot"] == 2
    assert list(engines) == ["datainf", "graddot"]
    assert list(engines.items()) == [("datainf", 1), ("graddot", 2)]
    assert len(engines) == 2
    assert "datainf" in engines
    assert "tracin" not in engines


def test_registering_returns_the_entry_itself() -> None:
    registry: Registry[object] = Registry("check")
    entry = object()
    assert registry.register("a")(entry) is entry


def test_a_name_can_be_taken_only_once(engines: Registry[int]) -> None:
    with pytest.raises(ValueError, match="engine 'datainf' is registered twice"):
        engines.register("datainf")(3)
    assert engines["datainf"] == 1


def test_an_unknown_name_lists_the_known_ones_and_the_closest(engines: Registry[int]) -> None:
    with pytest.raises(UnknownNameError) as caught:
        engines["datainff"]
    text = str(caught.value)
    assert "no engine of that name" in text
    assert "'datainff'" in text
    assert "one of datainf, graddot" in text
    assert "did you mean 'datainf'?" in text


def test_a_name_unlike_any_other_gets_no_guess(engines: Registry[int]) -> None:
    with pytest.raises(UnknownNameError) as caught:
        engines["zzz"]
    assert caught.value.fix is None


def test_an_empty_registry_says_so() -> None:
    with pytest.raises(UnknownNameError, match="none registered"):
        Registry("engine")["datainf"]
