from __future__ import annotations

import pytest
import torch

import gradian.ops.projection as module
from gradian.ops.projection import counter_hash, projection, projection_transposed, stream_key
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
    values = torch.randn(5, 700, generator=torch.Generator().manual_seed(0))
    key = stream_key(0, "x")
    whole = projection(values, 16, kind, key)
    assert torch.equal(whole[3:4], projection(values[3:4], 16, kind, key))
    assert torch.equal(projection(torch.zeros(1, 300), 16, kind, key), torch.zeros(1, 16))


# Sizes about a tile of 256 and a bucket's lanes; 513 columns have the other number of lanes.
CASES = [
    ("countsketch", 1, 1),
    ("countsketch", 300, 1),
    ("countsketch", 1031, 130),
    ("countsketch", 4097, 513),
    ("rademacher", 1, 1),
    ("rademacher", 255, 64),
    ("rademacher", 257, 65),
    ("rademacher", 769, 3),
]


@pytest.mark.parametrize(("kind", "size", "dim"), CASES)
def test_the_kernels_give_the_references_bits(
    kind: str, size: int, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TILES", 2)  # so that three tiles are more than one part
    generator = torch.Generator().manual_seed(size)
    # Magnitudes over many orders, and a row that is part of a wider one.
    values = torch.randn(2, size + 3, generator=generator) * 2.0 ** torch.randint(
        -20, 20, (2, size + 3), generator=generator
    )
    values = values[:, 1 : size + 1]
    values[0, ::7] = -0.0
    key = stream_key(5, f"{size}")
    expected = projection(values, dim, kind, key, impl="reference")
    found = projection(values, dim, kind, key, impl="triton")
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [2.0**-148, 2.0**-127, 1e-30, 1.0, 1e30])
def test_a_rademacher_sum_is_within_the_bound_whatever_the_magnitudes(
    scale: float, dtype: torch.dtype
) -> None:
    key = stream_key(1, "x")
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 600, generator=generator, dtype=dtype)
    values[1, 5] = 1e6  # one value drowns the others of its tile
    values[2] = 2.0 ** torch.randint(-30, 1, (600,), generator=generator).to(dtype)
    values = values * scale
    full = matrix("rademacher", 600, 65, key)
    exact = values.double() @ full.T
    terms = values.double().abs() @ full.abs().T
    error = (projection(values, 65, "rademacher", key).double() - exact).abs()
    # And the last rounding of a subnormal result.
    bound = SUMS["projection", torch.float32] * EPS * terms + torch.finfo(dtype).smallest_normal * EPS
    assert bool((error <= bound).all())


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


@pytest.mark.parametrize(("size", "dim"), [(1, 1), (37, 5), (300, 64), (513, 65)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_transpose_is_that_of_the_defined_matrix(kind: str, size: int, dim: int) -> None:
    key = stream_key(2, "block")
    rows = torch.randn(3, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = rows @ matrix(kind, size, dim, key)
    torch.testing.assert_close(projection_transposed(rows, size, kind, key), expected)
