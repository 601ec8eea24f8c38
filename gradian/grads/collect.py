"""From encoded examples to per-example gradients, and from those to an index on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

# The strategies register themselves.
import gradian.grads.hooks
import gradian.grads.loop
import gradian.grads.vmap  # noqa: F401
from gradian.config.schema import GradsConfig
from gradian.data.collate import length_batches, pad_batch
from gradian.errors import NonFiniteError
from gradian.grads.loss import TokenBatch, pad_token
from gradian.grads.memory import explain_out_of_memory
from gradian.grads.projection import project_blocks, projected_specs, unproject_directions
from gradian.grads.strategy import AS_CAPTURED, STRATEGIES, BatchGradients, Epilogue, finished
from gradian.grads.token_slopes import token_slopes
from gradian.model.load import LoadedModel, freeze_for_gradients
from gradian.model.lora import coverage_findings, find_blocks
from gradian.types import BlockSpec, EncodedExample, Finding, FloatArray, IntArray, Severity

if TYPE_CHECKING:
    from gradian.store.writer import IndexWriter

log = logging.getLogger(__name__)

_STORAGE = {"float32": torch.float32, "float16": torch.float16}


@dataclass(frozen=True, eq=False)
class GradientBatch:
    """Gradients of some examples.

    Attributes:
        indices: int64 [b]; positions into the sequence that was given.
        loss: float64 [b], nats; NaN marks an example that was skipped as non-finite.
        blocks: per block [b, d_l], on the CPU.
    """

    indices: IntArray
    loss: FloatArray
    blocks: list[Tensor]


class GradientCollector:
    """Per-example gradients of one model under one gradient specification.

    Args:
        loaded: the model with its adapter.
        grads: the gradient specification.
        seed: seeds torch's generators before each batch, for model code that draws random numbers.
        skip_nonfinite: give an example whose loss or gradient is not finite a zero gradient and list it in
            `skipped`, instead of stopping.

    Raises:
        NoLoraBlocksError: the adapter has no block to differentiate with respect to.
    """

    def __init__(
        self, loaded: LoadedModel, grads: GradsConfig, seed: int, *, skip_nonfinite: bool = False
    ) -> None:
        self.loaded = loaded
        self.grads = grads
        self.seed = seed
        self.skip_nonfinite = skip_nonfinite
        self._strategy = STRATEGIES[grads.strategy]
        self._blocks = find_blocks(loaded.model, grads.module_filter, grads.block_granularity)
        self._specs = projected_specs(self._blocks.specs, grads.projection_dim)
        self._skipped: dict[str, None] = {}

    @property
    def specs(self) -> tuple[BlockSpec, ...]:
        """The blocks of each gradient as stored, in order."""
        return self._specs

    @property
    def coverage(self) -> float:
        """Share of the adapter's trained parameters that gradients can cover."""
        return self._blocks.coverage

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What loading and the adapter have to say."""
        return (*self.loaded.findings, *coverage_findings(self._blocks))

    @property
    def skipped(self) -> tuple[str, ...]:
        """Ids of the examples so far that were skipped as non-finite, training rows and queries alike."""
        return tuple(self._skipped)

    def batches(self, encoded: Sequence[EncodedExample]) -> Iterator[GradientBatch]:
        """Yield the gradients of all examples in the storage dtype, normalised as configured.

        Batches come longest first; examples without a supervised token come last, with exact zeros. How
        examples share batches depends only on their lengths and on `grads.batch_size`.

        Raises:
            NonFiniteError: a loss, a gradient or its stored value is not finite.
            DeviceMemoryError: the device has no memory for a batch.
        """
        storage = _STORAGE[self.grads.storage_dtype]
        for indices, loss, captured in self._captured(encoded, self._stored_epilogue):
            rows = [encoded[int(i)] for i in indices]
            blocks = self._projected(self._normalised(captured))
            stored = [block.to(storage) for block in blocks]
            if storage == torch.float16:
                whole = captured.figures.largest
                self._check_stored(whole if self._cast_early else _largest(stored), rows)
            yield GradientBatch(indices, loss, [block.cpu() for block in stored])

    def gradients(self, encoded: Sequence[EncodedExample]) -> list[Tensor]:
        """Return per block the gradients [n, d_l] of all examples in order, float32 on the CPU.

        For queries: never normalised (a query is a difference of gradients) and never cast to the storage
        dtype.

        Raises:
            NonFiniteError: a loss or a gradient is not finite.
            DeviceMemoryError: the device has no memory for a batch.
        """
        result = [torch.zeros(len(encoded), spec.size) for spec in self.specs]
        for indices, _, captured in self._captured(encoded, lambda rows: AS_CAPTURED):
            at = torch.from_numpy(indices)
            for whole, part in zip(result, self._projected(captured.blocks), strict=True):
                whole[at] = part.to("cpu", torch.float32)
        return result

    def dots(self, encoded: Sequence[EncodedExample], directions: Sequence[Tensor]) -> FloatArray:
        """Return <v, g_i> of every example's gradient with m directions, float64 [n, m], and keep no gradient.

        Gradients are those of `gradients`: never normalised, never cast.

        Args:
            encoded: n examples.
            directions: v, per block [m, d_l] over the blocks as stored.

        Raises:
            NonFiniteError: a loss or a gradient is not finite.
            DeviceMemoryError: the device has no memory for a batch.
        """
        result = np.zeros((len(encoded), directions[0].shape[0]))
        wide = [direction.to(self.loaded.device, torch.float64) for direction in directions]
        for indices, _, captured in self._captured(encoded, lambda rows: AS_CAPTURED):
            blocks = self._projected(captured.blocks)
            total = sum(block.double() @ v.T for block, v in zip(blocks, wide, strict=True))
            result[indices] = torch.as_tensor(total).cpu().numpy()
        return result

    def slopes(self, encoded: EncodedExample, direction: Sequence[Tensor]) -> FloatArray:
        """Return <v, grad loss_t> of every supervised token t in order, float64 [n_supervised].

        One forward pass; see `gradian.grads.token_slopes`.

        Args:
            encoded: an example with supervised tokens.
            direction: v, per block [d_l] over the blocks as stored.

        Raises:
            GradientError: a part of the model has no forward-mode derivative.
            DeviceMemoryError: the device has no memory for the pass.
        """
        rows = [part.float().reshape(1, -1) for part in direction]
        whole = [part[0] for part in unproject_directions(rows, self._blocks.specs, self.grads)]
        freeze_for_gradients(self.loaded.model)
        with explain_out_of_memory([encoded], "grads.max_seq_length"), torch.random.fork_rng():
            torch.manual_seed(self.seed)
            padded = pad_batch([encoded], pad_token(self.loaded.tokenizer))
            tokens = TokenBatch.from_padded(padded, self.loaded.device)
            return token_slopes(self.loaded.model, self._blocks, tokens, whole).double().cpu().numpy()

    def stored_scale(self, encoded: EncodedExample) -> float:
        """Return what an example's stored gradient is, relative to the gradient itself (`grads.normalization`)."""
        if self.grads.normalization == "none" or not encoded.n_supervised:
            return 1.0
        if self.grads.normalization == "token_count":
            return 1.0 / encoded.n_supervised
        ((_, _, captured),) = self._captured([encoded], lambda rows: AS_CAPTURED)
        norm = torch.stack([block.double().square().sum() for block in captured.blocks]).sum().sqrt()
        return 1.0 / float(norm) if norm > 0 else 1.0

    @property
    def _cast_early(self) -> bool:
        """Whether a gradient can be cast as it is made: nothing that needs all of it in float32 comes before."""
        return self.grads.normalization != "l2" and self.grads.projection_dim is None

    def _stored_epilogue(self, rows: list[EncodedExample]) -> Epilogue:
        """What a strategy can do at once of what is done to stored gradients."""
        device = self.loaded.device
        divisor = None
        if self.grads.normalization == "token_count":
            divisor = torch.tensor([float(row.n_supervised) for row in rows], device=device)
        return Epilogue(
            dtype=_STORAGE[self.grads.storage_dtype] if self._cast_early else None,
            divisor=divisor,
            # On the CPU a pass for each layer would buy nothing.
            squares=self.grads.normalization == "l2" and device.type != "cpu",
        )

    def _captured(
        self, encoded: Sequence[EncodedExample], epilogue: Callable[[list[EncodedExample]], Epilogue]
    ) -> Iterator[tuple[IntArray, FloatArray, BatchGradients]]:
        """Yield (indices [b], loss [b], gradients on the device), checked to be finite."""
        live = np.array([i for i, e in enumerate(encoded) if e.n_supervised], dtype=np.int64)
        silent = np.array([i for i, e in enumerate(encoded) if not e.n_supervised], dtype=np.int64)
        freeze_for_gradients(self.loaded.model)
        for batch in length_batches([len(encoded[int(i)]) for i in live], self.grads.batch_size):
            indices = live[batch]
            rows = [encoded[int(i)] for i in indices]
            yield indices, *self._one_batch(rows, epilogue(rows))
        for start in range(0, len(silent), self.grads.batch_size):
            indices = silent[start : start + self.grads.batch_size]
            zeros = [torch.zeros(len(indices), spec.size) for spec in self._blocks.specs]
            yield (
                indices,
                np.zeros(len(indices)),
                finished(torch.zeros(len(indices)), zeros, AS_CAPTURED),
            )

    def _one_batch(self, rows: list[EncodedExample], epilogue: Epilogue) -> tuple[FloatArray, BatchGradients]:
        with explain_out_of_memory(rows, "grads.batch_size"), torch.random.fork_rng():
            torch.manual_seed(self.seed)
            padded = pad_batch(rows, pad_token(self.loaded.tokenizer))
            tokens = TokenBatch.from_padded(padded, self.loaded.device)
            captured = self._strategy(
                self.loaded.model, self._blocks, tokens, self.grads.loss_reduction, epilogue
            )
            loss = captured.losses.double().cpu().numpy()
            largest = captured.figures.largest.cpu().numpy()
        bad = ~np.isfinite(loss) | ~np.isfinite(largest).all(axis=0)
        if bad.any():
            if not self.skip_nonfinite:
                raise self._nonfinite(rows, loss, largest, int(np.flatnonzero(bad)[0]))
            self._skipped.update(dict.fromkeys(rows[int(i)].id for i in np.flatnonzero(bad)))
            loss[bad] = np.nan
            figures = captured.figures
            for part in (*(block.T for block in captured.blocks), figures.largest, figures.squares):
                if part is not None:
                    part[:, torch.from_numpy(bad).to(part.device)] = 0.0
        return loss, captured

    def _nonfinite(
        self, rows: list[EncodedExample], loss: FloatArray, largest: FloatArray, row: int
    ) -> NonFiniteError:
        example = rows[row]
        blocks = np.flatnonzero(~np.isfinite(largest[:, row]))
        if not np.isfinite(loss[row]):
            found = f"a loss of {loss[row]}"
        else:
            found = f"a gradient with NaN or infinity in {self._blocks.specs[int(blocks[0])].name}"
        return NonFiniteError(
            "the example's loss or gradient is not finite",
            where=f"example {example.id} (row {example.position + 1})",
            found=f"{found} ({len(blocks)} of {len(self.specs)} blocks)",
            fix="set dtype to float32 or bfloat16 if the model runs in float16; look at the row; "
            "--skip-nonfinite stores a zero gradient for such rows and lists them",
        )

    def _projected(self, blocks: list[Tensor]) -> list[Tensor]:
        return project_blocks(blocks, self._blocks.specs, self.grads)

    def _normalised(self, captured: BatchGradients) -> list[Tensor]:
        """What is left of the normalisation: a norm is known only when all blocks are there."""
        if self.grads.normalization != "l2":
            return captured.blocks
        if captured.figures.squares is not None:
            size = captured.figures.squares.sum(dim=0).sqrt().float()
        else:
            squares = [
                torch.linalg.vector_norm(block, dim=1, dtype=torch.float32).square()
                for block in captured.blocks
            ]
            size = torch.stack(squares).sum(dim=0).sqrt()
        size = torch.where(size > 0, size, torch.ones_like(size))
        return [block / size[:, None] for block in captured.blocks]

    def _check_stored(self, largest: Tensor, rows: list[EncodedExample]) -> None:
        overflow = ~torch.isfinite(largest.half())
        if bool(overflow.any()):
            block, at = overflow.nonzero()[0].tolist()
            row = rows[at]
            raise NonFiniteError(
                "the gradient does not fit into float16, which ends at 65504",
                where=f"example {row.id} (row {row.position + 1}), {self.specs[block].name}",
                fix="set grads.storage_dtype to float32, or grads.loss_reduction to mean",
            )


def _largest(blocks: list[Tensor]) -> Tensor:
    """Return the largest magnitudes [n_blocks, b] of each block's rows; NaN where a row holds one."""
    norms = [torch.linalg.vector_norm(block, ord=float("inf"), dim=1).float() for block in blocks]
    return torch.stack(norms)


def skipped_finding(ids: tuple[str, ...]) -> Finding:
    """Return the finding for examples whose gradient was replaced by zero because it was not finite."""
    return Finding(
        id="attribution.nonfinite_skipped",
        severity=Severity.HIGH,
        title=f"{len(ids)} examples were skipped: their loss or gradient is not finite",
        evidence="They count with a gradient of zero: a training row's score says nothing, and an eval item adds "
        "nothing to the query.",
        fix="look at these rows; set dtype to float32 or bfloat16 if the model ran in float16",
        example_ids=ids,
        figures={"count": len(ids)},
    )


def build_index(
    collector: GradientCollector,
    encoded: Sequence[EncodedExample],
    writer: IndexWriter,
    *,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write every chunk that the index still lacks.

    Batches never cross a chunk's border, so a chunk's bytes do not depend on which chunks were there before.
    Chunks are built in the order of their most expensive batch: what does not fit into memory fails first.

    Args:
        collector: makes the gradients.
        encoded: all examples of the index, in dataset order.
        writer: the open index.
        progress: called with the number of examples done after each batch.

    Raises:
        NonFiniteError, DeviceMemoryError: as `GradientCollector.batches`.
        StoreError: the index cannot be written.
    """

    def cost(number: int) -> int:
        # The longest rows decide; the batches of a chunk are longest first.
        lengths = sorted((len(encoded[i]) for i in writer.chunk_rows(number)), reverse=True)
        return sum(lengths[: collector.grads.batch_size])

    for number in sorted(writer.pending, key=lambda number: (-cost(number), number)):
        rows = np.arange(writer.chunk_rows(number).start, writer.chunk_rows(number).stop, dtype=np.int64)
        part = [encoded[int(i)] for i in rows]
        with writer.chunk(number) as chunk:
            for batch in collector.batches(part):
                at = rows[batch.indices]
                chunk.write_rows(at, [values.numpy() for values in batch.blocks])
                counts = np.array([part[int(i)].n_supervised for i in batch.indices], dtype=np.int64)
                chunk.write_examples(at, batch.loss, counts)
                if progress is not None:
                    progress(len(at))
    if collector.skipped:
        more = f" and {len(collector.skipped) - 20} more" if len(collector.skipped) > 20 else ""
        log.warning(
            "%d of %d examples are not finite and were stored as zeros: %s%s",
            len(collector.skipped),
            len(encoded),
            ", ".join(collector.skipped[:20]),
            more,
        )
