from __future__ import annotations

import pytest
import torch

from gradian.ops.projection import counter_hash, projection, stream_key
from tests.tolerances import EPS, SUMS

KINDS = ("countsketch", "rademacher")
_MASK = (1 << 64) - 1


def splitmix64(counter: int, key: int) -> int:
    """The hash in Python's own integers."""
    x = ((counter + 1) * 0x9E3779B97F4A7C15 + key) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def matrix(kind: str, size: int, dim: int, key: int) -> torch.Tensor:
    """The projection's matrix [dim, size], written out from its definition."""
    full = torch.zeros(dim, size, dtype=torch.float64)
    words = -(-dim // 64)
    for j in range(size):
        if kind == "countsketch":
            bits = splitmix64(j, key)
            full[(bits >> 2) % dim, j] = 1 - 2 * (bits & 1)
        else:
            for c in range(dim):
                bits = splitmix64(j * words + c // 64, key)
                full[c, j] = (1 - 2 * (bits >> (c % 64) & 1)) / dim**0.5
    return full


def test_the_hash_is_splitmix64() -> None:
    counters = torch.tensor([0, 1, 2, 12345, 2**40])
    for key in (0, 7, -(2**63), stream_key(3, "model.layers.0")):
        assert [value & _MASK for value in counter_hash(counters, key).tolist()] == [
            splitmix64(c, key) for c in counters.tolist()
        ]
    # Published first output of splitmix64 with seed 0.
    assert counter_hash(torch.tensor([0]), 0).item() & _MASK == 0xE220A8397B1DCDAF


def test_a_streams_key_is_the_same_on_every_machine() -> None:
    assert stream_key(0, "model.layers.0.mlp.down_proj") == -3138477841912756682
    assert stream_key(0, "a") != stream_key(1, "a") != stream_key(1, "b")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "dim"), [(1, 1), (37, 5), (130, 64), (63, 65), (200, 7)])
def test_rows_are_multiplied_by_the_defined_matrix(kind: str, size: int, dim: int) -> None:
    key = stream_key(11, "block")
    values = torch.randn(3, size, generator=torch.Generator().manual_seed(0))
    full = matrix(kind, size, dim, key)
    exact = values.double() @ full.T
    terms = values.double().abs() @ full.abs().T
    error = (projection(values, dim, kind, key).double() - exact).abs()
    assert bool((error <= SUMS["projection", torch.float32] * EPS * terms).all())


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_projects_to_the_same_bits_whatever_shares_its_batch(kind: str) -> None:
    values = torch.randint(-8, 9, (5, 300)).float()
    key = stream_key(0, "x")
    whole = projection(values, 16, kind, key)
    assert torch.equal(whole[3:4], projection(values[3:4], 16, kind, key))
    assert torch.equal(projection(torch.zeros(1, 300), 16, kind, key), torch.zeros(1, 16))


@pytest.mark.parametrize("kind", KINDS)
def test_inner_products_are_kept_on_average(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, 500, generator=generator, dtype=torch.float64)
    estimates = []
    for seed in range(300):
        px, py = projection(torch.stack([x, y]), 32, kind, stream_key(seed, "block"))
        estimates.append(float(px @ py))
    spread = float(torch.tensor(estimates).std()) / 300**0.5
    assert abs(sum(estimates) / 300 - float(x @ y)) < 4 * spread
    # The variance of either family is about (|x|^2 |y|^2 + <x, y>^2) / k.
    predicted = float((x @ x) * (y @ y) + (x @ y) ** 2) / 32
    assert float(torch.tensor(estimates).var()) == pytest.approx(predicted, rel=0.4)


def test_what_cannot_be_projected_is_refused() -> None:
    with pytest.raises(ValueError, match="float32 or float64"):
        projection(torch.zeros(2, 3, dtype=torch.float16), 2, "countsketch", 0)
