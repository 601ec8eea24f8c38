"""Whether a model's logits are a plain linear map of its last hidden states, scaled and capped.

Only then can a loss bypass the head and the model's own code after it. What that code does is not read but
tried: the head's output is replaced once by known numbers, and the model's logits must be what the
configuration says they become. Whatever else a model does to its logits (masked tokens, other functions)
shows as a difference.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)

# Configuration keys that transformers' models read, by what they do to the head's output.
_FACTORS = ("logit_scale", "lm_head_multiplier")
_DIVISORS = ("logits_scaling",)
_SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
# Three roundings in the model's dtype, each of half an eps, and what tanh makes of the first.
_ROUNDINGS = 4.0


@dataclass(frozen=True)
class LogitForm:
    """What becomes of the head's output z: x = scale z, then softcap tanh(x / softcap).

    Attributes:
        scale: factor.
        softcap: bound, or None.
    """

    scale: float = 1.0
    softcap: float | None = None

    def logits(self, output: Tensor) -> Tensor:
        """Return the logits of the head's output, in its dtype."""
        scaled = output * self.scale
        return scaled if self.softcap is None else self.softcap * torch.tanh(scaled / self.softcap)


def _number(config: Any, key: str) -> float | None:
    value = getattr(config, key, None)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value else None


def configured_form(config: Any) -> LogitForm:
    """Return what a transformers configuration says about the head's output."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    scale = 1.0
    for key in _FACTORS:
        scale *= _number(text, key) or 1.0
    for key in _DIVISORS:
        scale /= _number(text, key) or 1.0
    softcaps = [cap for key in _SOFTCAPS if (cap := _number(text, key)) is not None]
    return LogitForm(scale, softcaps[0] if softcaps else None)


def head_obstacle(head: nn.Module) -> str | None:
    """Why the head's product cannot be computed from its weight alone, or None when it can.

    A head with LoRA, a quantised one, one that other code watches or moves between devices, and one that is
    being trained are run as modules.
    """
    # Subclasses compute something else: quantised products, parametrised weights.
    if type(head) is not nn.Linear:
        return f"it is a {type(head).__name__}"
    hooks = (head._forward_hooks, head._forward_pre_hooks, head._backward_hooks, head._backward_pre_hooks)
    if any(hooks) or "forward" in vars(head):
        return "other code is attached to it"
    if any(parameter.requires_grad for parameter in head.parameters()):
        return "it is being trained"
    if torch.is_autocast_enabled(head.weight.device.type):
        return "autocast chooses its dtype"
    return None


def _probe(vocabulary: int, like: Tensor) -> Tensor:
    """Return three rows of outputs, [1, 3, V]: each token sees a low, a high and a small value."""
    wide = torch.linspace(-80.0, 80.0, vocabulary, device=like.device)
    small = torch.linspace(1.0, -1.0, vocabulary, device=like.device)
    return torch.stack([wide, wide.flip(0) + 1.0, small]).to(like.dtype)[None]


def _follows(model: Any, head: nn.Linear, form: LogitForm, inputs: dict[str, Any]) -> bool:
    """Whether the model turns a probe in the place of the head's output into what `form` says."""
    seen: list[Tensor] = []

    def one_position(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (args[0][:1, :1], *args[1:])

    def replace(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        seen.append(_probe(output.shape[-1], output))
        return seen[-1].clone()

    handles = [head.register_forward_pre_hook(one_position), head.register_forward_hook(replace)]
    try:
        # Model code that draws random numbers must not draw others for the batch that happens to be first.
        device = head.weight.device
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            logits: Tensor = model(**inputs).logits
    finally:
        for handle in handles:
            handle.remove()
    if len(seen) != 1 or logits.shape != seen[0].shape:
        return False
    expected = form.logits(seen[0].double())
    allowed = _ROUNDINGS * torch.finfo(seen[0].dtype).eps * expected.abs().clamp(min=1e-2)
    # Written so that NaN fails.
    return bool(((logits.double() - expected).abs() <= allowed).all())


# The form that was tried on each model, and whether its logits followed it.
_TRIED: WeakKeyDictionary[Any, tuple[LogitForm, bool]] = WeakKeyDictionary()


def logit_form(model: Any, head: nn.Linear, inputs: dict[str, Any]) -> LogitForm | None:
    """Return what the model does to its head's output, or None when it does something else.

    Costs a forward pass of the first row of `inputs`, once for a model.

    Args:
        model: the model.
        head: its output head, without an obstacle.
        inputs: keyword arguments of a batch, tensors with one row an example.
    """
    form = configured_form(getattr(model, "config", None))
    if model not in _TRIED or _TRIED[model][0] != form:
        row = {key: value[:1] if isinstance(value, Tensor) else value for key, value in inputs.items()}
        follows = _follows(model, head, form, row)
        _TRIED[model] = form, follows
        if not follows:
            log.info("%s changes its logits in its own way: its head runs as a module", type(model).__name__)
    return form if _TRIED[model][1] else None
