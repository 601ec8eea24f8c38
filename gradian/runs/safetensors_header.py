"""The header of a safetensors file, believed only where it describes the file that it stands in.

What the safetensors library refuses is refused here too, so that an audit and a model that is loaded see the same
file: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from gradian.jsonvalue import parse_strict_json

# Of the largest adapters a few mebibytes.
HEADER_LIMIT = 32 << 20
_METADATA = "__metadata__"
_LARGEST = 2**63
# What later versions of the format add is not measured.
_ELEMENT_BITS: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies.

    Attributes:
        dtype: its name in the format.
        shape: its shape.
        begin: its first byte, counted from the beginning of the file.
        end: the byte after its last.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def read_header(file: IO[bytes], length: int) -> dict[str, StoredTensor]:
    """Return the tensors of an open safetensors file of `length` bytes, by name.

    Raises:
        ValueError: it is not such a file, or its tensors do not fill it, each in a place of its own.
        OSError: it cannot be read.
    """
    size = int.from_bytes(file.read(8), "little")
    if not 2 <= size <= min(HEADER_LIMIT, length - 8):
        raise ValueError(f"a header of {size} bytes")
    text = file.read(size)
    if not text.startswith(b"{"):
        raise ValueError("a header that is no object")
    header = parse_strict_json(text)
    metadata = header.pop(_METADATA, None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise ValueError("metadata that is not text")
    tensors = {name: _tensor(name, entry, 8 + size) for name, entry in header.items()}
    end = 8 + size
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != end:
            raise ValueError(f"{name[:80]!r} does not begin where the tensor before it ends")
        end = tensor.end
    if end != length:
        raise ValueError(f"tensors that end at byte {end} of {length}: it was cut off, or more was added")
    return tensors


def _tensor(name: str, entry: Any, start: int) -> StoredTensor:
    try:
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        begin, end = offsets
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{name[:80]!r} has no dtype, shape and two offsets") from None
    if not isinstance(dtype, str) or not isinstance(shape, list):
        raise ValueError(f"{name[:80]!r} has a dtype or a shape of another kind")
    numbers = (*shape, begin, end)
    if not all(type(number) is int and 0 <= number < _LARGEST for number in numbers):
        raise ValueError(f"{name[:80]!r} has a number that is no size")
    # One by one: the product of many sizes is itself too long to be reckoned with.
    elements = 0 if 0 in shape else 1
    for extent in shape:
        elements *= extent
        if elements >= _LARGEST:
            raise ValueError(f"{name[:80]!r} has more elements than any file holds")
    bits = _ELEMENT_BITS.get(dtype)
    if end < begin or (bits is not None and elements * bits != 8 * (end - begin)):
        raise ValueError(f"{name[:80]!r} has another size than its shape and dtype need")
    return StoredTensor(dtype, tuple(shape), start + begin, start + end)
