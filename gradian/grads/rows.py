"""The rows of a batch's blocks, filled in one LoRA linear at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradian.grads.strategy import BatchGradients, Epilogue
from gradian.model.lora import LoraBlocks
from gradian.ops.per_example_grad import RowFigures, finish, per_example_grads


class BlockRows:
    """Blocks [b, d_l] in the epilogue's dtype; each linear's gradient is made where it lies in the row.

    So no gradient is held twice, in float32 and as stored, or by itself and in its block.
    """

    def __init__(self, blocks: LoraBlocks, n_rows: int, epilogue: Epilogue) -> None:
        self._n_rows = n_rows
        self._epilogue = epilogue
        self._granularity = blocks.granularity
        self._sizes = [spec.size for spec in blocks.specs]
        self._rows: dict[int, Tensor] = {}
        self._figures: dict[nn.Linear, tuple[Tensor, Tensor | None]] = {}
        # Per linear, in the order of the rows: which block, and where in it.
        self._places: dict[nn.Linear, tuple[int, int]] = {}
        for number, pair in enumerate(blocks.pairs):
            if blocks.granularity == "module":
                self._places[pair.a] = (number, 0)
                self._places[pair.b] = (number, pair.a.weight.numel())
            else:
                self._places[pair.a] = (2 * number, 0)
                self._places[pair.b] = (2 * number + 1, 0)

    def write(self, linears: Sequence[nn.Linear], pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Make the gradients of linears from their inputs X [b, t, in] and output gradients G [b, t, out]."""
        places = [self._place(linear) for linear in linears]
        figures = per_example_grads(pairs, places, self._epilogue.divisor, squares=self._epilogue.squares)
        self._keep(linears, figures)

    def write_grads(self, linear: nn.Linear, grads: Tensor) -> None:
        """Write the gradients [b, out, in] of a linear."""
        figures = finish(grads, self._place(linear), self._epilogue.divisor, self._epilogue.squares)
        self._keep([linear], figures)

    def finished(self, losses: Tensor) -> BatchGradients:
        """Return the blocks; zeros where the loss does not depend on a linear's output."""
        for linear in self._places:
            if linear not in self._figures:
                place = self._place(linear).zero_()
                nothing = torch.zeros(self._n_rows, device=place.device)
                self._figures[linear] = (nothing, nothing.double() if self._epilogue.squares else None)
        kept = [self._figures[linear] for linear in self._places]
        largest = torch.stack([top for top, _ in kept])
        norms = [square for _, square in kept if square is not None]
        squares = torch.stack(norms) if norms else None
        if self._granularity == "module":
            largest = largest.view(-1, 2, self._n_rows).amax(dim=1)
            squares = None if squares is None else squares.view(-1, 2, self._n_rows).sum(dim=1)
        blocks = [self._rows[number] for number in range(len(self._sizes))]
        return BatchGradients(losses, blocks, RowFigures(largest, squares))

    def _place(self, linear: nn.Linear) -> Tensor:
        number, offset = self._places[linear]
        weight = linear.weight
        if number not in self._rows:
            dtype = self._epilogue.dtype or torch.promote_types(weight.dtype, torch.float32)
            self._rows[number] = torch.empty(
                self._n_rows, self._sizes[number], dtype=dtype, device=weight.device
            )
        row = self._rows[number][:, offset : offset + weight.numel()]
        return row.view(self._n_rows, *weight.shape)

    def _keep(self, linears: Sequence[nn.Linear], figures: RowFigures) -> None:
        for i, linear in enumerate(linears):
            square = None if figures.squares is None else figures.squares[i]
            self._figures[linear] = (figures.largest[i], square)
