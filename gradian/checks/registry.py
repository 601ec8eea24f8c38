"""What a check is, and the registry of them.

A check is one function in a file of its own under `checks/config`, `checks/data` or `checks/dynamics`, named for
the fault. The file's docstring documents it for people, under three headings; `gradian checks` and
`docs/checks.md` are made from it.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from gradian.registry import Registry
from gradian.types import Finding

if TYPE_CHECKING:
    from gradian.checks.audit import Audit

CATEGORIES = ("config", "data", "dynamics")
HEADINGS = ("What it detects", "Why it matters", "What to do")


class Need(str, Enum):
    """An input that a check cannot run without; the value says how to give it."""

    DATASET = "--dataset"
    EVAL_DATASET = "--eval-dataset"
    TOKENIZER = "--base-model"
    RUN = "--run"
    LENGTH = "--max-seq-length"


class CannotTell(Exception):
    """Raised by a check whose inputs are there but do not hold what it judges; its text says what is missing."""


Judge = Callable[["Audit"], Iterable[Finding]]


@dataclass(frozen=True)
class Check:
    """One deterministic check.

    Attributes:
        id: `<category>.<fault>`; also the id of its findings.
        summary: what it catches, in a few words.
        needs: inputs without which it is skipped.
        addition: whether it is one beyond the published list.
        judge: yields a finding for each fault seen; nothing when all is well.
    """

    id: str
    summary: str
    needs: tuple[Need, ...]
    addition: bool
    judge: Judge

    @property
    def category(self) -> str:
        """`config`, `data` or `dynamics`."""
        return self.id.partition(".")[0]

    @property
    def documentation(self) -> dict[str, str]:
        """The text under each of `HEADINGS`, from the docstring of the check's file.

        Raises:
            ValueError: a heading is missing or has no text.
        """
        sections: dict[str, list[str]] = {}
        current: list[str] = []
        for line in (sys.modules[self.judge.__module__].__doc__ or "").splitlines():
            if line.strip() in HEADINGS:
                current = sections.setdefault(line.strip(), [])
            elif line.strip():
                current.append(line.strip())
        missing = [heading for heading in HEADINGS if not sections.get(heading)]
        if missing:
            raise ValueError(f"{self.id}: its file's docstring has no text under {', '.join(missing)}")
        return {heading: " ".join(sections[heading]) for heading in HEADINGS}


CHECKS: Registry[Check] = Registry("check")


def check(
    id_: str, summary: str, *, needs: tuple[Need, ...], addition: bool = False
) -> Callable[[Judge], Judge]:
    """Return a decorator that registers a function as the check `id_`."""

    def decorate(judge: Judge) -> Judge:
        CHECKS.register(id_)(Check(id_, summary, needs, addition, judge))
        return judge

    return decorate


def all_checks() -> tuple[Check, ...]:
    """Return every check, the published ones first, by category and then by name."""
    for category in CATEGORIES:
        package = importlib.import_module(f"gradian.checks.{category}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
    found = [entry for _, entry in CHECKS.items()]
    return tuple(sorted(found, key=lambda c: (c.addition, CATEGORIES.index(c.category), c.id)))
