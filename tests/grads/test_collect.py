from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gradian.config.schema import GradsConfig
from gradian.errors import NonFiniteError
from gradian.grads.collect import GradientCollector, build_index, skipped_finding
from gradian.model.load import LoadedModel
from gradian.model.lora import lora_pairs
from gradian.store.reader import IndexReader
from gradian.store.writer import open_writer
from gradian.types import EncodedExample
from tests.tiny_models import random_examples, tiny_lora

LENGTHS = [7, 12, 3, 9, 12, 5, 8]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return tiny_lora("llama")


def joined(collector: GradientCollector, encoded: list[EncodedExample]) -> tuple[np.ndarray, torch.Tensor]:
    """Losses [n] and whole gradient vectors [n, d] of `batches`, in order."""
    loss = np.full(len(encoded), -1.0)
    vectors = torch.full((len(encoded), sum(spec.size for spec in collector.specs)), 9.0)
    for batch in collector.batches(encoded):
        loss[batch.indices] = batch.loss
        vectors[torch.from_numpy(batch.indices)] = torch.cat([b.float() for b in batch.blocks], dim=1)
    return loss, vectors


def with_broken_token(loaded: LoadedModel, token: int, value: float) -> None:
    """Make every row that holds `token` overflow in the forward pass."""
    loaded.model.get_input_embeddings().weight.data[token] = value


def broken_row(rows: list[EncodedExample], row: int, token: int) -> list[EncodedExample]:
    for i, example in enumerate(rows):
        example.input_ids[example.input_ids == token] = token + 1
        if i == row:
            example.input_ids[0] = token
    return rows


def test_every_example_comes_once_and_no_batch_is_larger_than_allowed(loaded: LoadedModel) -> None:
    encoded = random_examples(LENGTHS, silent=(1,))
    batches = list(GradientCollector(loaded, GradsConfig(batch_size=2), 0).batches(encoded))
    assert sorted(int(i) for b in batches for i in b.indices) == list(range(7))
    assert max(len(b.indices) for b in batches) == 2
    lengths = [max(len(encoded[i]) for i in b.indices) for b in batches[:-1]]
    assert lengths == sorted(lengths, reverse=True)


def test_an_example_without_targets_is_exactly_zero(loaded: LoadedModel) -> None:
    encoded = random_examples(LENGTHS, silent=(1, 4))
    collector = GradientCollector(loaded, GradsConfig(batch_size=3), 0)
    loss, vectors = joined(collector, encoded)
    assert [i for i in range(7) if not vectors[i].any()] == [1, 4]
    assert loss[1] == loss[4] == 0.0
    assert collector.findings == ()


def test_nothing_but_silent_examples_never_enters_the_model(loaded: LoadedModel) -> None:
    encoded = random_examples([4, 5], silent=(0, 1))
    calls: list[object] = []
    handle = loaded.model.register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        _, vectors = joined(GradientCollector(loaded, GradsConfig(), 0), encoded)
    finally:
        handle.remove()
    assert not calls
    assert not vectors.any()


def test_batches_agree_with_query_gradients(loaded: LoadedModel) -> None:
    encoded = random_examples(LENGTHS)
    collector = GradientCollector(loaded, GradsConfig(batch_size=2), 0)
    assert torch.equal(joined(collector, encoded)[1], torch.cat(collector.gradients(encoded), dim=1))


def test_l2_gives_unit_vectors_over_all_blocks_and_leaves_queries_alone(loaded: LoadedModel) -> None:
    encoded = random_examples(LENGTHS, silent=(2,))
    plain = GradientCollector(loaded, GradsConfig(), 0)
    unit = GradientCollector(loaded, GradsConfig(normalization="l2"), 0)
    raw, normalised = joined(plain, encoded)[1], joined(unit, encoded)[1]
    norms = raw.norm(dim=1, keepdim=True)
    torch.testing.assert_close(normalised, torch.where(norms > 0, raw / norms, raw))
    assert torch.equal(torch.cat(unit.gradients(encoded), dim=1), raw)


def test_token_count_divides_by_the_number_of_targets(loaded: LoadedModel) -> None:
    encoded = random_examples(LENGTHS)
    raw = joined(GradientCollector(loaded, GradsConfig(loss_reduction="sum"), 0), encoded)[1]
    grads = GradsConfig(loss_reduction="sum", normalization="token_count")
    counts = torch.tensor([[e.n_supervised] for e in encoded])
    torch.testing.assert_close(joined(GradientCollector(loaded, grads, 0), encoded)[1], raw / counts)


def test_float16_storage_rounds_each_value_once(loaded: LoadedModel) -> None:
    encoded = random_examples(LENGTHS)
    full = joined(GradientCollector(loaded, GradsConfig(), 0), encoded)[1]
    half = GradientCollector(loaded, GradsConfig(storage_dtype="float16"), 0)
    assert next(iter(half.batches(encoded))).blocks[0].dtype == torch.float16
    assert torch.equal(joined(half, encoded)[1], full.half().float())
    assert half.gradients(encoded)[0].dtype == torch.float32


def test_a_gradient_too_large_for_float16_is_an_error_that_names_the_setting() -> None:
    loaded = tiny_lora("llama")
    for pair in lora_pairs(loaded.model):
        if pair.name.endswith("1.mlp.down_proj"):
            pair.a.weight.data *= 1e8
            pair.b.weight.data *= 1e-8
    collector = GradientCollector(loaded, GradsConfig(storage_dtype="float16"), 0)
    with pytest.raises(NonFiniteError, match=r"row-.*down_proj(.|\n)*storage_dtype to float32"):
        list(collector.batches(random_examples(LENGTHS)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_with_the_examples_id(value: float) -> None:
    loaded = tiny_lora("llama")
    with_broken_token(loaded, 10, value)
    encoded = broken_row(random_examples(LENGTHS), 3, 10)
    with pytest.raises(NonFiniteError, match=r"row-3 \(row 4\)(.|\n)*loss of nan"):
        list(GradientCollector(loaded, GradsConfig(batch_size=3), 0).batches(encoded))


def test_a_gradient_that_is_not_finite_stops_with_the_modules_name() -> None:
    loaded = tiny_lora("gpt_neox", lora_alpha=3000)
    # A = 0 keeps the loss finite; the gradient of A carries B and the scaling, and overflows.
    pair = lora_pairs(loaded.model)[0]
    pair.a.weight.data.zero_()
    pair.b.weight.data.fill_(3e38)
    with pytest.raises(
        NonFiniteError, match=r"(?s)example row-.*gradient with NaN or infinity in .*query_key_value"
    ):
        list(GradientCollector(loaded, GradsConfig(), 0).batches(random_examples([6])))


def test_skipping_stores_zeros_for_the_broken_example_and_changes_no_other() -> None:
    loaded = tiny_lora("llama")
    encoded = broken_row(random_examples(LENGTHS), 3, 10)
    clean_loss, clean = joined(GradientCollector(loaded, GradsConfig(batch_size=3), 0), encoded)
    with_broken_token(loaded, 10, float("nan"))
    collector = GradientCollector(loaded, GradsConfig(batch_size=3), 0, skip_nonfinite=True)
    loss, vectors = joined(collector, encoded)
    others = [i for i in range(7) if i != 3]
    assert torch.equal(vectors[others], clean[others])
    np.testing.assert_array_equal(loss[others], clean_loss[others])
    assert not vectors[3].any()
    assert np.isnan(loss[3])
    assert collector.skipped == ("row-3",)
    finding = skipped_finding(collector.skipped)
    assert (finding.id, finding.example_ids) == ("attribution.nonfinite_skipped", ("row-3",))


def test_a_build_that_skips_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded = tiny_lora("llama")
    with_broken_token(loaded, 10, float("nan"))
    collector = GradientCollector(loaded, GradsConfig(batch_size=3), 0, skip_nonfinite=True)
    encoded = broken_row(random_examples(LENGTHS), 3, 10)
    with open_writer(tmp_path, {"a": 1}, collector.specs, 7, "float32", 3) as writer:
        build_index(collector, encoded, writer)
    assert "1 of 7 examples are not finite and were stored as zeros: row-3" in caplog.text


def test_skipping_a_gradient_whose_loss_is_finite_marks_the_loss_too() -> None:
    loaded = tiny_lora("gpt_neox", lora_alpha=3000)
    pair = lora_pairs(loaded.model)[0]
    pair.a.weight.data.zero_()
    pair.b.weight.data.fill_(3e38)
    collector = GradientCollector(loaded, GradsConfig(), 0, skip_nonfinite=True)
    loss, vectors = joined(collector, random_examples([6]))
    assert np.isnan(loss[0])
    assert not vectors.any()


def test_capture_leaves_torchs_random_state_alone(loaded: LoadedModel) -> None:
    before = torch.get_rng_state()
    GradientCollector(loaded, GradsConfig(), 7).gradients(random_examples([5]))
    assert torch.equal(torch.get_rng_state(), before)


def built(
    loaded: LoadedModel, folder: Path, encoded: list[EncodedExample], **settings: object
) -> IndexReader:
    grads = GradsConfig(batch_size=2, chunk_size=3, **settings)
    collector = GradientCollector(loaded, grads, 0)
    inputs = {"test": str(settings)}
    with open_writer(folder, inputs, collector.specs, len(encoded), grads.storage_dtype, 3) as writer:
        build_index(collector, encoded, writer)
        return writer.finish({})


@pytest.mark.parametrize("settings", [{}, {"storage_dtype": "float16"}, {"block_granularity": "matrix"}])
def test_the_index_holds_every_gradient_in_dataset_order(
    loaded: LoadedModel, tmp_path: Path, settings: dict[str, object]
) -> None:
    encoded = random_examples(LENGTHS, silent=(4,))
    reader = built(loaded, tmp_path, encoded, **settings)
    collector = GradientCollector(loaded, GradsConfig(batch_size=2, **settings), 0)
    loss, vectors = joined(collector, encoded)
    for block, spec in enumerate(reader.blocks):
        for first, tile in reader.tiles(block):
            expected = vectors[first : first + len(tile), spec.offset : spec.offset + spec.size]
            np.testing.assert_allclose(tile, expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(reader.loss, loss, rtol=1e-5)
    assert reader.supervised_tokens.tolist() == [e.n_supervised for e in encoded]


def test_a_build_that_was_interrupted_ends_in_the_same_bytes(loaded: LoadedModel, tmp_path: Path) -> None:
    encoded = random_examples(LENGTHS)

    class Killed(Exception):
        pass

    def kill_after_four(done: int) -> None:
        progress.append(done)
        if sum(progress) >= 4:
            raise Killed

    whole = built(loaded, tmp_path / "whole", encoded)
    collector = GradientCollector(loaded, GradsConfig(batch_size=2, chunk_size=3), 0)
    progress: list[int] = []
    with (
        pytest.raises(Killed),
        open_writer(tmp_path / "cut", {"test": "{}"}, collector.specs, 7, "float32", 3) as writer,
    ):
        build_index(collector, encoded, writer, progress=kill_after_four)
    resumed = built(loaded, tmp_path / "cut", encoded)
    files = sorted(path.relative_to(whole.path) for path in whole.path.rglob("*") if path.is_file())
    assert any("chunks" in str(path) for path in files)
    for path in files:
        assert (whole.path / path).read_bytes() == (resumed.path / path).read_bytes(), path


def test_the_chunk_with_the_most_expensive_batch_is_built_first(loaded: LoadedModel, tmp_path: Path) -> None:
    encoded = random_examples([4, 4, 4, 5, 20, 5, 6])
    collector = GradientCollector(loaded, GradsConfig(batch_size=2, chunk_size=3), 0)
    seen: list[int] = []
    batches = collector.batches

    def recorded(part: list[EncodedExample]):
        seen.append(part[0].position)
        return batches(part)

    collector.batches = recorded  # type: ignore[method-assign]
    with open_writer(tmp_path, {"a": 1}, collector.specs, 7, "float32", 3) as writer:
        build_index(collector, encoded, writer)
    assert seen == [3, 0, 6]
