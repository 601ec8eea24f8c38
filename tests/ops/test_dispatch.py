from __future__ import annotations

import pytest
import torch

from gradian.errors import OpUnavailableError
from gradian.ops import _dispatch
from gradian.ops._dispatch import Op
from gradian.registry import Registry

CPU = torch.device("cpu")


@pytest.fixture
def op(monkeypatch: pytest.MonkeyPatch) -> Op:
    """An operation with a reference and a native path that takes float32 only, in a registry of its own."""
    monkeypatch.setattr(_dispatch, "OPS", Registry("operation"))
    monkeypatch.setattr(_dispatch, "missing_backend", lambda name: None)
    monkeypatch.delenv("GRADIAN_OPS", raising=False)
    op: Op = Op("double")
    op.implementation("reference")(lambda x: 2 * x)

    def only_float32(device: torch.device, dtype: torch.dtype) -> str | None:
        return None if dtype == torch.float32 else "it takes float32 only"

    op.implementation("native", only_float32)(lambda x: x + x)
    return op


def test_auto_takes_the_best_that_supports_the_dtype(op: Op) -> None:
    assert op.backend(CPU, torch.float32) == "native"
    assert op.backend(CPU, torch.float16) == "reference"


def test_the_argument_beats_the_environment(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIAN_OPS", "native")
    assert op.backend(CPU, torch.float32) == "native"
    assert op.backend(CPU, torch.float32, impl="reference") == "reference"


def test_the_environment_sends_everything_to_the_reference(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIAN_OPS", "reference")
    assert op.backend(CPU, torch.float32) == "reference"


def test_an_explicit_choice_that_cannot_run_says_why(op: Op) -> None:
    with pytest.raises(OpUnavailableError, match="float32 only"):
        op.backend(CPU, torch.float16, impl="native")
    with pytest.raises(OpUnavailableError, match="no triton implementation of double"):
        op.backend(CPU, torch.float32, impl="triton")


def test_an_unknown_choice_lists_the_known_ones(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIAN_OPS", "fast")
    with pytest.raises(OpUnavailableError, match=r"GRADIAN_OPS(.|\n)*auto, reference, native, triton"):
        op.backend(CPU, torch.float32)


def test_only_known_backends_can_be_registered(op: Op) -> None:
    with pytest.raises(ValueError, match="unknown backend"):
        op.implementation("cuda")
    assert _dispatch.missing_backend("reference") is None


def test_the_table_names_every_operation_and_the_reason_for_each_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADIAN_OPS", "reference")
    table = {decision.op: decision for decision in _dispatch.decision_table()}
    assert {"cross_entropy", "per_example_grad", "projection"} <= set(table)
    assert set(_dispatch.decisions().values()) == {"reference"}
    assert all(reason for decision in table.values() for reason in decision.reasons.values())


def test_a_choice_that_an_operation_has_but_cannot_run_shows_as_unavailable(
    op: Op, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIAN_OPS", "native")
    assert _dispatch.decisions(dtype=torch.float16) == {"double": "unavailable"}


def test_the_environment_leaves_operations_alone_that_have_no_such_implementation(
    op: Op, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIAN_OPS", "triton")
    assert _dispatch.decisions() == {"double": "native"}


def test_auto_never_interprets_a_kernel_on_the_cpu(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    op.implementation("triton", lambda device, dtype: _dispatch.triton_obstacle(device))(lambda x: x * 2)
    assert op.backend(torch.device("cuda"), torch.float16) == "triton"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert op.backend(CPU, torch.float32) == "native"
    assert op.backend(CPU, torch.float32, impl="triton") == "triton"


def test_an_operation_on_stored_gradients_stays_on_the_cpu_and_out_of_the_index_id(op: Op) -> None:
    stored: Op = Op("stored", stored=True)
    stored.implementation("reference")(lambda x: x)
    table = {decision.op: decision.device for decision in _dispatch.decision_table(torch.device("cuda"))}
    assert table == {"double": "cuda", "stored": "cpu"}
    assert set(_dispatch.capture_decisions(CPU, torch.float32)) == {"double"}
