"""Every error that a user of Gradian can cause or meet.

    GradianError
    ├── ConfigError              a config file, key or flag
    ├── DataError                a dataset file or a row of it
    │   ├── DataFormatError      the file as a whole cannot be read
    │   └── RowError             one or more rows cannot be read or rendered
    ├── ModelError               the base model or its tokenizer
    │   ├── AdapterError         the adapter folder or its tensors
    │   └── NoLoraBlocksError    nothing to differentiate with respect to
    ├── GradientError            gradients cannot be captured
    │   ├── NonFiniteError       a NaN or an infinity, with the example's id
    │   └── DeviceMemoryError    the device has no memory for the batch
    ├── StoreError               the gradient index on disk
    │   ├── CorruptIndexError    bytes are not what was written
    │   ├── IncompleteIndexError a build that has not finished
    │   ├── IndexLockedError     another process is writing it
    │   └── DiskSpaceError       the index does not fit
    ├── EvaluationError          the eval set or its metric
    ├── RunError                 a run directory
    ├── NothingAccusedError      rows are to be dropped, and the verdict accuses none
    ├── OpUnavailableError       an implementation was asked for that cannot run here
    ├── UnknownNameError         a name that no registry holds
    └── MissingExtraError        an optional dependency is needed

The command line prints such an error without a traceback and exits with code 2. Anything else is a
fault of Gradian's own, printed with its traceback, exit code 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


def is_panic(error: BaseException) -> bool:
    """Whether a library that is written in Rust gave up: what it raises then is no Exception."""
    return type(error).__module__ == "pyo3_runtime"


class GradianError(Exception):
    """A problem that its reader can act on.

    Args:
        problem: one sentence that says what is wrong.
        where: the file, row, key, flag or tensor concerned.
        found: what is there.
        expected: what should be there.
        fix: what to do about it.
        details: what belongs to the problem and has a line each, such as every fault of a file.
    """

    def __init__(
        self,
        problem: str,
        *,
        where: str | None = None,
        found: str | None = None,
        expected: str | None = None,
        fix: str | None = None,
        details: Sequence[str] = (),
    ) -> None:
        self.problem = problem
        self.where = where
        self.found = found
        self.expected = expected
        self.fix = fix
        self.details = tuple(details)
        super().__init__(str(self))

    def __str__(self) -> str:
        head = f"{self.where}: {self.problem}" if self.where else self.problem
        parts = (("found", self.found), ("expected", self.expected), ("fix", self.fix))
        lines = [head, *(f"  {text}" for text in self.details)]
        lines += [f"  {name}: {text}" for name, text in parts if text]
        # A file's name or a template's message may hold line breaks, and would write parts of its own.
        return "\n".join(line.replace("\n", "\\n") for line in lines)

    def within(self, outer: str | None) -> Self:
        """Return the same error with an outer place in front, such as the file of a row."""
        where = ": ".join(part for part in (outer, self.where) if part)
        return type(self)(
            self.problem,
            where=where or None,
            found=self.found,
            expected=self.expected,
            fix=self.fix,
            details=self.details,
        )

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive Exception's own pickling (process pools use it).
        parts = (self.problem, self.where, self.found, self.expected, self.fix, self.details)
        return (_rebuild, (type(self), *parts))


def _rebuild(
    kind: type[GradianError],
    problem: str,
    where: str | None,
    found: str | None,
    expected: str | None,
    fix: str | None,
    details: tuple[str, ...],
) -> GradianError:
    return kind(problem, where=where, found=found, expected=expected, fix=fix, details=details)


class ConfigError(GradianError):
    """A config file, key or flag."""


class DataError(GradianError):
    """A dataset file or a row of it."""


class DataFormatError(DataError):
    """The file as a whole cannot be read."""


class RowError(DataError):
    """One or more rows cannot be read or rendered."""


class ModelError(GradianError):
    """The base model or its tokenizer."""


class AdapterError(ModelError):
    """The adapter folder or its tensors."""


class NoLoraBlocksError(ModelError):
    """Nothing to differentiate with respect to."""


class GradientError(GradianError):
    """Gradients cannot be captured."""


class NonFiniteError(GradientError):
    """A NaN or an infinity, with the example's id."""


class DeviceMemoryError(GradientError):
    """The device has no memory for the batch."""


class StoreError(GradianError):
    """The gradient index on disk."""


class CorruptIndexError(StoreError):
    """Bytes are not what was written."""


class IncompleteIndexError(StoreError):
    """A build that has not finished."""


class IndexLockedError(StoreError):
    """Another process is writing the index."""


class DiskSpaceError(StoreError):
    """The index does not fit on the disk."""


class EvaluationError(GradianError):
    """The eval set or its metric."""


class RunError(GradianError):
    """A run directory."""


class NothingAccusedError(GradianError):
    """Rows are to be dropped, and the verdict accuses none."""


class OpUnavailableError(GradianError):
    """An implementation was asked for that cannot run here."""


class UnknownNameError(GradianError):
    """A name that no registry holds."""


class MissingExtraError(GradianError):
    """An optional dependency is needed."""
