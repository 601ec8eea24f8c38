from __future__ import annotations

import pytest

from gradian.engines import ENGINES
from gradian.errors import UnknownNameError


def test_the_published_engines_are_registered_with_a_summary() -> None:
    assert list(ENGINES) == ["datainf", "graddot", "tracin"]
    assert all(entry.summary.endswith((".", "5).", "3.2).")) for _, entry in ENGINES.items())


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"datainf, graddot, tracin(.|\n)*did you mean 'datainf'"):
        ENGINES["datinf"]
