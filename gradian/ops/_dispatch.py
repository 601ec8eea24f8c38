"""Which implementation of an operation runs: the one place where fast paths attach.

`impl=` beats the environment variable `GRADIAN_OPS` (`auto`, `reference`, `native` or `triton`), which
beats `auto`. An explicit choice that cannot run raises OpUnavailableError with the reason; `auto` decides on
device, dtype and what is installed, never by catching a kernel's error. The variable is about the operations
that have an implementation of that name; the others go on as under `auto`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gradian.errors import OpUnavailableError
from gradian.registry import Registry

if TYPE_CHECKING:
    import torch

ENVIRONMENT_VARIABLE = "GRADIAN_OPS"
CHOICES = ("auto", "reference", "native", "triton")
# What `auto` tries, best first. `reference` runs everywhere, so the search always ends.
_PREFERENCE = ("triton", "native", "reference")

F = TypeVar("F", bound=Callable[..., Any])
Supports = Callable[["torch.device", "torch.dtype"], "str | None"]

# Stand for device and dtype where torch, which the light commands do without, is not imported.
_HOST: Any = SimpleNamespace(type="cpu")
_BYTES: Any = "bytes"


@cache
def missing_backend(name: str) -> str | None:
    """Why a backend's code cannot be imported here, or None when it can."""
    module = {"native": "gradian._native", "triton": "gradian.kernels"}.get(name)
    if module is None:
        return None
    try:
        import_module(module)
    except ImportError as error:
        return f"{module} cannot be imported ({error})"
    return None


def native() -> ModuleType:
    """The compiled extension `gradian._native`."""
    return import_module("gradian._native")


def instruction_sets() -> tuple[str, ...]:
    """The instruction sets that the compiled extension can use here, best first; none without it."""
    return tuple(native().instruction_sets()) if missing_backend("native") is None else ()


def triton_kernel(name: str) -> ModuleType:
    """The module of Triton kernels called `name`."""
    return import_module(f"gradian.kernels.{name}")


def triton_obstacle(device: torch.device) -> str | None:
    """Why Triton kernels cannot run on tensors of `device`; its interpreter, when asked for, runs on any."""
    if device.type == "cuda" or os.environ.get("TRITON_INTERPRET", "0") == "1":
        return None
    return "Triton kernels run on CUDA and ROCm devices"


def cpu_obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why compiled kernels cannot run on tensors of `device`."""
    return None if device.type == "cpu" else "compiled kernels run on the CPU"


def _anywhere(device: torch.device, dtype: torch.dtype) -> str | None:
    return None


@dataclass(frozen=True)
class Implementation(Generic[F]):
    """One way to compute an operation.

    Attributes:
        function: the computation.
        supports: given device and dtype of the first tensor, the reason why it cannot run, or None.
    """

    function: F
    supports: Supports


@dataclass
class Op(Generic[F]):
    """An operation and its implementations by backend name.

    Attributes:
        name: the operation.
        stored: it reads stored gradients: it always runs on the CPU, and changes no byte of an index.
        implementations: by backend.
    """

    name: str
    stored: bool = False
    implementations: dict[str, Implementation[F]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        OPS.register(self.name)(self)

    def implementation(self, backend: str, supports: Supports = _anywhere) -> Callable[[F], F]:
        """Return a decorator that files a function as this operation's `backend` implementation."""
        if backend not in CHOICES[1:]:
            raise ValueError(f"unknown backend {backend!r}: one of {CHOICES[1:]}")

        def decorate(function: F) -> F:
            self.implementations[backend] = Implementation(function, supports)
            return function

        return decorate

    def obstacle(self, backend: str, device: torch.device, dtype: torch.dtype) -> str | None:
        """Why `backend` cannot run this operation on these tensors, or None when it can."""
        if backend not in self.implementations:
            return f"there is no {backend} implementation of {self.name}"
        return missing_backend(backend) or self.implementations[backend].supports(device, dtype)

    def backend(self, device: torch.device, dtype: torch.dtype, impl: str | None = None) -> str:
        """Return the name of the backend that will run.

        Raises:
            OpUnavailableError: an explicit choice is unknown or cannot run.
        """
        choice = impl if impl is not None else os.environ.get(ENVIRONMENT_VARIABLE, "auto")
        source = "impl" if impl is not None else ENVIRONMENT_VARIABLE
        if choice not in CHOICES:
            raise OpUnavailableError(
                "no such implementation",
                where=source,
                found=repr(choice),
                expected=f"one of {', '.join(CHOICES)}",
            )
        if choice in self.implementations or (choice != "auto" and impl is not None):
            reason = self.obstacle(choice, device, dtype)
            if reason is not None:
                raise OpUnavailableError(
                    f"{self.name} cannot run as {choice} here",
                    where=source,
                    found=f"{reason} (tensors on {device.type}, {dtype})",
                    fix=f"{ENVIRONMENT_VARIABLE}=auto picks what can run",
                )
            return choice
        return next(
            name
            for name in _PREFERENCE
            # The interpreter is a test's choice, never a fast path.
            if not (name == "triton" and device.type == "cpu") and self.obstacle(name, device, dtype) is None
        )

    def choose(self, like: torch.Tensor, impl: str | None = None) -> F:
        """Return the function that will run on tensors of the device and dtype of `like`."""
        return self.implementations[self.backend(like.device, like.dtype, impl)].function

    def choose_on_host(self, impl: str | None = None) -> F:
        """Return the function that will run on what is in no tensor, such as a file. Does not import torch."""
        return self.implementations[self.backend(_HOST, _BYTES, impl)].function


OPS: Registry[Op[Any]] = Registry("operation")


@dataclass(frozen=True)
class Decision:
    """What runs for one operation, and why not the others.

    Attributes:
        op: the operation.
        device: the kind of device that it runs on.
        backend: what `auto` or `GRADIAN_OPS` picks; `unavailable` when that choice cannot run.
        reasons: per backend that the operation has and that cannot run, the reason.
    """

    op: str
    device: str
    backend: str
    reasons: dict[str, str]


def decision_table(
    device: torch.device | None = None, dtype: torch.dtype | None = None
) -> tuple[Decision, ...]:
    """Return, for every operation by name, what runs on `device` (the CPU if None) in `dtype` (or float32)."""
    import torch

    # The operations register when their modules are imported.
    import gradian.ops as package

    package.load_all()
    chosen = device if device is not None else torch.device("cpu")
    numbers = dtype if dtype is not None else torch.float32
    table = []
    for name, op in sorted(OPS.items()):
        where = torch.device("cpu") if op.stored else chosen
        obstacles = {backend: op.obstacle(backend, where, numbers) for backend in op.implementations}
        reasons = {backend: reason for backend, reason in obstacles.items() if reason is not None}
        try:
            backend = op.backend(where, numbers)
        except OpUnavailableError:
            backend = "unavailable"
        table.append(Decision(name, where.type, backend, reasons))
    return tuple(table)


def decisions(device: torch.device | None = None, dtype: torch.dtype | None = None) -> dict[str, str]:
    """Return the backend that runs each operation, by name; see `decision_table`."""
    return {decision.op: decision.backend for decision in decision_table(device, dtype)}


def capture_decisions(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """Return `decisions` of the operations that change the bytes of an index."""
    return {name: backend for name, backend in decisions(device, dtype).items() if not OPS[name].stored}
