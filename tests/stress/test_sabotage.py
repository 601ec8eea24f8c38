"""Each script of this folder finds the faults that it is there to find."""

from __future__ import annotations

import pytest

from tests.stress import syscalls
from tests.stress.sabotage import SABOTAGES, found_by


@pytest.mark.skipif(
    not syscalls.available(), reason="the calls of most are watched, by a library that cc makes"
)
@pytest.mark.parametrize("name", SABOTAGES)
def test_it_is_found_that(name: str) -> None:
    assert found_by(name)
