"""Turning an out-of-memory failure into advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gradian.address_space import is_out_of_memory
from gradian.errors import DeviceMemoryError
from gradian.types import EncodedExample


@contextmanager
def explain_out_of_memory(examples: Sequence[EncodedExample], batch_key: str) -> Iterator[None]:
    """While active, an out-of-memory failure becomes a DeviceMemoryError that says what to lower.

    Args:
        examples: the batch that runs.
        batch_key: the setting that bounds the batch's rows, such as `grads.batch_size`.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        rows, longest = len(examples), max(len(example) for example in examples)
        supervised = sum(example.n_supervised for example in examples)
        if rows > 1:
            fix = f"lower {batch_key} to {max(1, rows // 2)}"
            fix += "" if rows > 2 else f", then grads.max_seq_length below {longest}"
        else:
            fix = f"lower grads.max_seq_length to {max(2, longest // 2)} (this batch has one row already)"
        raise DeviceMemoryError(
            "no memory for this batch",
            where=f"example {examples[0].id}",
            found=f"{rows} rows of up to {longest} tokens, {supervised} of them supervised; {_first_line(error)}",
            fix=fix,
        ) from error


def _first_line(error: BaseException) -> str:
    line = (str(error).splitlines() or [type(error).__name__])[0]
    # torch puts the place in its own source before what the CPU's allocator says.
    return line[max(0, line.find("DefaultCPUAllocator:")) :][:200]
