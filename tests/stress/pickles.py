"""Small pickles whose values cost far more than they take in the file, once one opcode after another copies them."""

from __future__ import annotations

import struct
from collections.abc import Mapping

MEBIBYTE = 1 << 20


def _text(text: str) -> bytes:
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _arguments(*values: bytes) -> bytes:
    return b"(" + b"".join(values) + b"tq\x010"


def _many(setup: bytes, each: bytes, times: int) -> bytes:
    # Memo 0 is a class, memo 1 what it is called with.
    return b"\x80\x02" + setup + b"(" + each * times + b"l."


_CALL = b"h\x00h\x01R"

PICKLES: Mapping[str, bytes] = {
    "one text as bytes": _many(
        b"c_codecs\nencode\nq\x000" + _arguments(_text("x" * MEBIBYTE), _text("latin1")), _CALL, 4_000
    ),
    "one list in many sizes": _many(
        b"ctorch\nSize\nq\x000" + _arguments(b"(" + b"N" * 40_000 + b"l"), _CALL, 10_000
    ),
    "one list of pairs in many mappings": _many(
        b"ccollections\nOrderedDict\nq\x000"
        + _arguments(b"(" + b"".join(b"J" + struct.pack("<i", i) + b"N\x86" for i in range(20_000)) + b"l"),
        _CALL,
        10_000,
    ),
    "one part of many paths": _many(
        b"cpathlib\nPosixPath\nq\x000" + _arguments(_text("x" * MEBIBYTE), _text("y")), _CALL, 4_000
    ),
    "one number in many devices": _many(
        b"ctorch\ndevice\nq\x000" + _arguments(_text("cuda"), b"L" + b"9" * 4_000 + b"L\n"), _CALL, 30_000
    ),
    "one name of many members": _many(
        b"cbuiltins\ngetattr\nq\x000" + _arguments(b"ctransformers\nA\n", _text("X" * MEBIBYTE)), _CALL, 4_000
    ),
    "many arguments of many paths": _many(
        b"cpathlib\nPosixPath\nq\x000" + _arguments(b"N" * 40_000), _CALL, 10_000
    ),
    "one state of many objects": _many(
        b"cmy\nThing\nq\x000" + b"}(" + b"".join(_text(str(i)) + b"N" for i in range(20_000)) + b"uq\x010",
        b"h\x00)\x81h\x01b",
        9_000,
    ),
    "one class as a key": _many(b"cmy\n" + b"A" * MEBIBYTE + b"\nq\x000", b"}h\x00Ns", 4_000),
    "one name of many classes": _many(
        _text("a" * MEBIBYTE) + b"q\x000" + _text("A" * MEBIBYTE) + b"q\x010", b"h\x00h\x01\x93", 4_000
    ),
    "one long number as a key": _many(
        b"\x8b" + struct.pack("<i", MEBIBYTE) + b"\x01" * MEBIBYTE + b"q\x000", b"}h\x00Ns", 20_000
    ),
    "numbers with one hash": b"\x80\x02}("
    + b"".join(b"\x8a\x0a" + (i * (2**61 - 1)).to_bytes(10, "little") + b"N" for i in range(1, 45_000))
    + b"u.",
    "a kind of number that is a tuple of itself": b"\x80\x02cnumpy.core.multiarray\nscalar\n)"
    + b"2\x86" * 60
    + b"C\x01a\x86R.",
}
"""What cost seconds or gigabytes before there was a limit on it."""

NESTED: Mapping[str, bytes] = {
    f"settings that are a {name} of itself twice, sixty times": b"\x80\x02}("
    + b"".join(_text(key) + empty + twice * 60 for key in ("learning_rate", "optim", "bf16", "seed"))
    + b"u."
    for name, empty, twice in (("tuple", b")", b"2\x86"), ("list", b"]", b"q\x000]h\x00ah\x00a"))
}
"""What costs nothing as long as nobody walks it."""
