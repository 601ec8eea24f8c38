"""How much disk an index takes, before anything is computed, and what makes it smaller."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from gradian.config import GradsConfig
from gradian.errors import DiskSpaceError
from gradian.store.durable import store_errors
from gradian.store.format import Layout, StorageDtype
from gradian.types import BlockSpec

RESERVE_BYTES = 16 << 20
"""For the journal, the manifest, folders and the unused end of each file's last disk block."""

_PROJECTION_DIM = 2048
_ANY_ID = "0" * 20


def estimate_bytes(blocks: Sequence[BlockSpec], n: int, dtype: StorageDtype, chunk_size: int) -> int:
    """Exact bytes of the chunk files and `examples.safetensors` of an index.

    Raises:
        ValueError: an index of that shape cannot exist.
    """
    return Layout(_ANY_ID, tuple(blocks), n, dtype, chunk_size).total_bytes


def check_disk(
    cache_dir: str | Path, need: int, grads: GradsConfig, *, blocks: Sequence[BlockSpec] = (), n: int = 0
) -> None:
    """Refuse an index that does not fit.

    Args:
        cache_dir: the cache folder, which need not exist yet.
        need: bytes that will be written.
        grads: the settings in force, whose levers the error names.
        blocks: with `n`, the index planned: each lever's effect is then given in bytes.
        n: number of examples.

    Raises:
        DiskSpaceError: there is less space than needed.
    """
    if shortage := _shortage(cache_dir, need):
        raise DiskSpaceError(
            "the gradient index does not fit on the disk",
            where=str(cache_dir),
            **shortage,
            fix="free space, give another cache_dir, or make the index smaller: "
            + "; ".join(levers(grads, blocks, n)),
        )


def check_disk_for_gram(folder: str | Path, need: int) -> None:
    """Refuse Gram matrices that do not fit beside their index.

    Args:
        folder: the index folder.
        need: bytes that will be written.

    Raises:
        DiskSpaceError: there is less space than needed.
    """
    if shortage := _shortage(folder, need):
        raise DiskSpaceError(
            "the Gram matrices do not fit on the disk",
            where=str(folder),
            **shortage,
            fix="free space, or set engine.gram: never, which gives the same scores from more reads of the index",
        )


def _shortage(path: str | Path, need: int) -> dict[str, str]:
    """What an error says about a disk that has not `need` bytes and the reserve; empty when it has."""
    folder = Path(path).absolute()
    while not folder.exists():
        folder = folder.parent
    with store_errors(folder):
        free = shutil.disk_usage(folder).free
    if need + RESERVE_BYTES <= free:
        return {}
    return {
        "found": f"{_size(free)} free",
        "expected": f"{_size(need)} and {_size(RESERVE_BYTES)} in reserve",
    }


def levers(grads: GradsConfig, blocks: Sequence[BlockSpec] = (), n: int = 0) -> tuple[str, ...]:
    """What would make the index smaller, and, given its blocks and rows, to how many bytes."""

    def effect(smaller: Sequence[BlockSpec], dtype: StorageDtype) -> str:
        if not blocks or not n:
            return ""
        now = estimate_bytes(blocks, n, grads.storage_dtype, grads.chunk_size)
        then = estimate_bytes(_packed(smaller), n, dtype, grads.chunk_size)
        return f" needs {_size(then)} instead of {_size(now)}"

    found = []
    kinds = sorted({_kind(block) for block in blocks}, key=lambda kind: (-_elements(blocks, kind), kind))
    if len(kinds) > 1:
        kept = [block for block in blocks if _kind(block) == kinds[0]]
        found.append(f"grads.module_filter: {kinds[0]}{effect(kept, grads.storage_dtype)}")
    elif not kinds:
        found.append("grads.module_filter: down_proj indexes one kind of module")
    if grads.storage_dtype == "float32":
        found.append(f"grads.storage_dtype: float16{effect(blocks, 'float16') or ' halves it'}")
    width = _PROJECTION_DIM if grads.projection_dim is None else max(1, grads.projection_dim // 2)
    projected = [BlockSpec(block.name, ((width,),), 0) for block in blocks]
    if not blocks or sum(block.size for block in projected) < sum(block.size for block in blocks):
        found.append(
            f"grads.projection_dim: {width}{effect(projected, grads.storage_dtype)} (at a cost in ranking fidelity)"
        )
    return tuple(found)


def _packed(blocks: Sequence[BlockSpec]) -> list[BlockSpec]:
    packed, offset = [], 0
    for block in blocks:
        packed.append(BlockSpec(block.name, block.shape, offset))
        offset += block.size
    return packed


def _kind(block: BlockSpec) -> str:
    name = block.name.removesuffix(".lora_A").removesuffix(".lora_B")
    return name.rpartition(".")[2]


def _elements(blocks: Sequence[BlockSpec], kind: str) -> int:
    return sum(block.size for block in blocks if _kind(block) == kind)


def _size(count: int) -> str:
    """Bytes, exactly and for people."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{count:,} bytes ({value:.1f} {unit})" if unit != "B" else f"{count} bytes"
