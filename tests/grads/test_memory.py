from __future__ import annotations

import pytest
import torch

from gradian.address_space import is_out_of_memory
from gradian.errors import DeviceMemoryError
from gradian.grads.memory import explain_out_of_memory
from tests.tiny_models import random_examples


def cpu_allocation_failure() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


def test_a_failed_allocation_on_the_cpu_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        cpu_allocation_failure()
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_a_batch_of_several_rows_is_told_to_halve_them() -> None:
    with (
        pytest.raises(DeviceMemoryError, match=r"lower grads.batch_size to 4\b") as caught,
        explain_out_of_memory(random_examples([9] * 8), "grads.batch_size"),
    ):
        cpu_allocation_failure()
    assert "8 rows of up to 9 tokens" in str(caught.value)
    assert "supervised; DefaultCPUAllocator: can't allocate memory" in str(caught.value)


def test_a_single_row_is_told_to_shorten() -> None:
    with (
        pytest.raises(DeviceMemoryError, match=r"lower grads.max_seq_length to 20\b"),
        explain_out_of_memory(random_examples([40]), "grads.batch_size"),
    ):
        cpu_allocation_failure()


def test_other_errors_pass_through() -> None:
    with pytest.raises(RuntimeError, match="shapes"), explain_out_of_memory(random_examples([4]), "x"):
        torch.zeros(2, 3) @ torch.zeros(2, 3)
