from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gradian.data.collate import pad_batch
from gradian.errors import GradientError
from gradian.grads.loss import (
    TokenBatch,
    example_losses,
    per_example_ce,
    slot_in_owner,
    supervised_logits,
)
from gradian.model.load import LoadedModel
from tests.tiny_models import FAMILIES, VOCABULARY, random_examples, tiny_base, tiny_lora

CPU = torch.device("cpu")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 4), max_size=12), st.sampled_from(["mean", "sum"]))
def test_each_example_gets_the_loss_of_its_own_rows_in_any_order(owners: list[int], reduction: str) -> None:
    generator = torch.Generator().manual_seed(len(owners))
    logits = torch.randn(len(owners), 7, generator=generator)
    targets = torch.randint(0, 7, (len(owners),), generator=generator)
    owner = torch.tensor(owners, dtype=torch.int64)
    losses = per_example_ce(logits, targets, owner, 5, reduction)
    for example in range(5):
        mine = owner == example
        if mine.any():
            expected = F.cross_entropy(logits[mine], targets[mine], reduction=reduction)
            assert losses[example].item() == pytest.approx(expected.item(), rel=1e-5)
        else:
            assert losses[example].item() == 0.0


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=20))
def test_rows_of_one_owner_get_consecutive_slots(owners: list[int]) -> None:
    slot, width = slot_in_owner(torch.tensor(owners, dtype=torch.int64), 4)
    for owner in range(4):
        mine = [s for s, o in zip(slot.tolist(), owners, strict=True) if o == owner]
        assert mine == list(range(len(mine)))
    assert width == max([1, *(owners.count(o) for o in range(4))])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gathered_logits_are_those_of_the_whole_model_at_the_supervised_positions(
    family: str, side: str
) -> None:
    loaded = tiny_lora(family)
    encoded = random_examples([7, 3, 9])
    batch = TokenBatch.from_padded(pad_batch(encoded, 0, side), CPU)
    found = supervised_logits(loaded.model, batch)
    expected = []
    for example in encoded:
        logits = loaded.model(input_ids=torch.from_numpy(example.input_ids)[None]).logits[0]
        expected.append(logits[np.flatnonzero(example.supervised) - 1])
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-5, atol=1e-5)
    assert found.shape == (sum(e.n_supervised for e in encoded), VOCABULARY)


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_are_those_of_the_model_given_labels(family: str) -> None:
    loaded = tiny_lora(family)
    encoded = random_examples([7, 12, 3, 9], silent=(2,))
    losses = example_losses(loaded, encoded, batch_size=3)
    for example, loss in zip(encoded, losses, strict=True):
        ids = torch.from_numpy(example.input_ids)[None]
        labels = torch.where(torch.from_numpy(example.supervised)[None], ids, -100)
        expected = loaded.model(input_ids=ids, labels=labels).loss.item() if example.n_supervised else 0.0
        assert loss == pytest.approx(expected, rel=1e-5)
    assert losses.dtype == np.float64


def test_summed_losses_and_progress() -> None:
    loaded = tiny_lora("llama")
    encoded = random_examples([7, 5, 6])
    done: list[int] = []
    summed = example_losses(loaded, encoded, 2, reduction="sum", progress=done.append)
    mean = example_losses(loaded, encoded, 2)
    np.testing.assert_allclose(summed, mean * [e.n_supervised for e in encoded], rtol=1e-6)
    assert sum(done) == 3


def test_the_head_is_left_without_a_hook_even_when_the_model_fails() -> None:
    loaded = tiny_lora("llama")
    batch = TokenBatch.from_padded(pad_batch(random_examples([4]), 0), CPU)
    broken = TokenBatch(**{**batch.__dict__, "input_ids": batch.input_ids + 10**6})
    with pytest.raises(IndexError):
        supervised_logits(loaded.model, broken)
    assert not loaded.model.get_output_embeddings()._forward_pre_hooks


def test_a_model_without_an_output_head_is_refused() -> None:

    body = tiny_base("llama").model
    loaded = LoadedModel(body, tiny_lora("llama").tokenizer, CPU, torch.float32)
    with pytest.raises(GradientError, match="no output head"):
        example_losses(loaded, random_examples([4]), 1)
