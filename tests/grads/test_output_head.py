from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import CohereConfig, CohereForCausalLM, GraniteConfig, GraniteForCausalLM, LlamaForCausalLM

import gradian.grads.loss as loss_module
from gradian.data.collate import pad_batch
from gradian.grads.loss import TokenBatch, batch_losses
from gradian.grads.output_head import LogitForm, configured_form, head_obstacle, logit_form
from gradian.model.load import LoadedModel
from tests.tiny_models import family_config, random_examples, tiny_base, tiny_lora, with_lora

CPU = torch.device("cpu")
SCALED = {
    "cohere": (CohereConfig, CohereForCausalLM, {"logit_scale": 0.25}, LogitForm(0.25)),
    "granite": (GraniteConfig, GraniteForCausalLM, {"logits_scaling": 8.0}, LogitForm(0.125)),
}
FORMS = {
    "llama": LogitForm(),
    "qwen2": LogitForm(),
    "gemma2": LogitForm(softcap=3.0),
    "gpt2": LogitForm(),
    "gpt_neox": LogitForm(),
    **{family: row[3] for family, row in SCALED.items()},
}


def scaled(family: str) -> LoadedModel:
    config, model, settings, _ = SCALED[family]
    shape = {
        key: value
        for key, value in family_config("llama").to_dict().items()
        if key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "initializer_range")
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return with_lora(
            model(config(**shape, **heads, **ids, **settings)), target_modules=["q_proj", "v_proj"]
        )


def loaded(family: str) -> LoadedModel:
    return scaled(family) if family in SCALED else tiny_lora(family)


def small_batch(side: str = "right") -> TokenBatch:
    return TokenBatch.from_padded(pad_batch(random_examples([7, 3, 9]), 0, side), CPU)


def losses_and_gradients(
    model: Any, batch: TokenBatch, fused_head: str | None
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    weights = [weight for name, weight in model.named_parameters() if "lora_" in name]
    for weight in weights:
        weight.requires_grad_(True)
    losses = batch_losses(model, batch, fused_head=fused_head)
    gradients = torch.autograd.grad((losses * torch.tensor([1.0, 2.0, 3.0])).sum(), weights)
    for weight in weights:
        weight.requires_grad_(False)
    return losses.detach(), list(gradients)


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("the other path was taken")


@pytest.mark.parametrize(
    ("family", "impl"),
    [*((family, "reference") for family in FORMS), ("llama", "triton"), ("gemma2", "triton")],
)
def test_bypassing_the_head_gives_the_losses_and_gradients_of_running_it(
    family: str, impl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(family).model
    batch = small_batch("left" if family == "gpt_neox" else "right")
    expected, expected_gradients = losses_and_gradients(model, batch, None)
    monkeypatch.setattr(loss_module, "supervised_logits", refuse)
    found, gradients = losses_and_gradients(model, batch, impl)
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)
    for one, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))
    head = model.get_output_embeddings()
    assert not head._forward_hooks
    assert not head._forward_pre_hooks


@pytest.mark.parametrize("family", FORMS)
def test_what_a_model_does_to_its_logits_is_recognised(family: str) -> None:
    model = loaded(family).model
    inputs = {"input_ids": torch.tensor([[5, 6, 7], [1, 2, 3]]), "use_cache": False}
    assert logit_form(model, model.get_output_embeddings(), inputs) == FORMS[family]


class MaskingLlama(LlamaForCausalLM):
    """Never says one token, as models of images and text do."""

    def forward(self, **inputs: Any) -> Any:
        output = super().forward(**inputs)
        output.logits[..., 30] = torch.finfo(output.logits.dtype).min
        return output


def masking() -> LoadedModel:
    return with_lora(MaskingLlama(family_config("llama")), target_modules=["q_proj"])


def ignoring_its_softcap() -> LoadedModel:
    base = tiny_base("llama")
    base.config.final_logit_softcapping = 5.0
    return with_lora(base, target_modules=["q_proj"])


def watched() -> LoadedModel:
    made = tiny_lora("llama")
    made.model.get_output_embeddings().register_forward_hook(lambda *_: None)
    return made


def trained() -> LoadedModel:
    made = tiny_lora("llama")
    made.model.get_output_embeddings().weight.requires_grad_(True)
    return made


@pytest.mark.parametrize(
    "make",
    [
        masking,
        ignoring_its_softcap,
        watched,
        trained,
        lambda: tiny_lora("llama", target_modules=["q_proj", "lm_head"]),
        lambda: tiny_lora("llama", target_modules=["q_proj"], modules_to_save=["lm_head"]),
    ],
    ids=["masking", "ignored softcap", "watched", "trained", "LoRA on the head", "the head saved whole"],
)
def test_a_head_that_is_more_than_a_frozen_linear_map_runs_as_a_module(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make().model
    expected = losses_and_gradients(model, small_batch(), None)
    monkeypatch.setattr(loss_module.fused, "linear_cross_entropy", refuse)
    found = losses_and_gradients(model, small_batch(), "reference")
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_head_is_tried_once_and_again_when_its_configuration_changes() -> None:
    made = tiny_lora("gemma2")
    head = made.model.get_output_embeddings()
    passes = []
    made.model.register_forward_pre_hook(lambda *_: passes.append(1))
    inputs = {"input_ids": torch.tensor([[5, 6, 7]]), "use_cache": False}
    for _ in range(2):
        assert logit_form(made.model, head, inputs) == LogitForm(softcap=3.0)
    assert len(passes) == 1
    made.model.config.final_logit_softcapping = None
    assert logit_form(made.model, head, inputs) == LogitForm()
    assert len(passes) == 2


def test_trying_a_head_draws_no_random_numbers() -> None:
    made = tiny_lora("llama")

    def draw(*_: Any) -> None:
        torch.rand(3)

    made.model.register_forward_pre_hook(draw)
    before = torch.random.get_rng_state()
    logit_form(made.model, made.model.get_output_embeddings(), {"input_ids": torch.tensor([[5, 6]])})
    assert torch.equal(torch.random.get_rng_state(), before)


def test_obstacles_are_named() -> None:
    head = nn.Linear(3, 4).requires_grad_(False)
    assert head_obstacle(head) is None
    with torch.autocast("cpu"):
        assert head_obstacle(head) == "autocast chooses its dtype"
    head.forward = head.forward  # as libraries do that move weights between devices
    assert head_obstacle(head) == "other code is attached to it"
    assert head_obstacle(nn.LazyLinear(3)) == "it is a LazyLinear"


def test_settings_that_are_no_numbers_are_left_out() -> None:
    config = family_config("llama")
    config.logit_scale, config.final_logit_softcapping, config.logits_scaling = True, None, 0
    assert configured_form(config) == LogitForm()
    assert configured_form(None) == LogitForm()
