"""JSON and JSONL files, read as a stream, with the physical line and column of every fault.

The content decides what a file is, never its suffix. A file is either *lines* (one JSON value a line) or a
*document* (one array, or one object that holds one list of rows). Neither is ever whole in memory.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from gradian.errors import DataFormatError

MAX_BAD_LINES = 20
_HEAD_BYTES = 64 * 1024
_CHUNK_BYTES = 1024 * 1024
_LONGEST_SNIFFED_LINE = 64 * 1024 * 1024
_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"
_NON_SPACE = re.compile(r"[^ \t\r\n]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_MAGIC = (
    (b"PAR1", "a Parquet file", "convert it to .jsonl, or save_to_disk it with `datasets`"),
    (b"ARROW1", "an Arrow file", "point at the save_to_disk folder that holds it"),
    (b"\x1f\x8b", "gzip-compressed", "decompress it first"),
    (b"PK\x03\x04", "a zip archive", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed", "decompress it first"),
)


@dataclass(frozen=True)
class Located:
    """A value and where its text is: byte `start` and byte `length` in the file."""

    value: Any
    start: int
    length: int


@dataclass(frozen=True)
class Layout:
    """What a document is: `key` is None for an array or for a single row, else the key of the list of rows."""

    kind: Literal["array", "wrapped", "row"]
    key: str | None = None


class _Fault(Exception):
    def __init__(self, column: int, problem: str) -> None:
        super().__init__(problem)
        self.column = column  # 0-based character
        self.problem = problem


@dataclass
class BadLines:
    """Collects the faults of a file; `raise_any` makes one error of them."""

    path: Path
    shown: list[str] = field(default_factory=list)
    count: int = 0
    only_reason: str = ""

    def add(self, line: int, column: int, problem: str, text: str) -> None:
        """Notes a fault at 1-based `line` and `column`."""
        self.count += 1
        if len(self.shown) < MAX_BAD_LINES:
            around = excerpt(text[max(0, column - 41) : column + 20], 60)
            self.shown.append(f"{self.path}:{line}:{column}: {problem}, near {around}")

    def raise_any(self) -> None:
        """Raises DataFormatError when there was a fault."""
        if not self.count:
            return
        more = self.count - len(self.shown)
        lines = [*self.shown, *([f"... and {more} more"] if more else [])]
        noun = "line is" if self.count == 1 else "lines are"
        raise DataFormatError(
            f"{self.count} {noun} not valid JSON in UTF-8\n" + "\n".join(f"  {line}" for line in lines),
            where=str(self.path),
            expected="one JSON value a line",
            fix="correct or remove these lines; none were skipped",
        )


def sniff(path: Path) -> Literal["lines", "document"]:
    """Decides what the file is from its first bytes.

    Raises:
        DataFormatError: UTF-16 or UTF-32 text, another known format, an empty file, or no JSON at all.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        _reject_other_formats(path, head)
        file.seek(0)
        bom = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
        file.seek(bom)
        first = _next_line(file)
        if not first:
            raise DataFormatError("the file is empty", where=str(path), expected="rows of training data")
        opening = first[:1]
        if opening not in b'{["-0123456789tfnNI':
            raise DataFormatError(
                "the file is not JSON",
                where=f"{path}:1:1",
                found=excerpt(first[:60].decode("utf-8", "replace"), 60),
                expected="a .jsonl file, a .json file or a save_to_disk folder",
            )
        if opening not in b"{[":
            return "lines"
        if not first.endswith(b"\n") and len(first) >= _LONGEST_SNIFFED_LINE:
            return "document"
        try:
            json.loads(first)
        except (ValueError, RecursionError):
            stripped = first.rstrip()
            opens = len(stripped) == 1 or stripped[-1:] in b"{[,:"
            return "document" if opening == b"[" or opens else "lines"
        return "lines" if _next_line(file) else "document"


def has_bom(path: Path) -> bool:
    """Whether the file begins with the UTF-8 byte order mark."""
    with path.open("rb") as file:
        return file.read(3) == codecs.BOM_UTF8


def iter_lines(path: Path) -> Iterator[Located]:
    """The values of a file of lines; blank lines are passed over.

    Raises:
        DataFormatError: at the end, for all bad lines together (the first 20 are named).
    """
    bad = BadLines(path)
    start = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            length = len(raw)
            content = raw[3:] if number == 1 and raw.startswith(codecs.BOM_UTF8) else raw
            content = content.rstrip(b"\r\n")
            if content.strip():
                try:
                    yield Located(_decode_line(content), start, length)
                except _Fault as fault:
                    text = content.decode("utf-8", "replace")
                    bad.add(number, fault.column + 1, fault.problem, text)
            start += length
    bad.raise_any()


def read_value(path: Path, start: int, length: int) -> Any:
    """The value at a place that `iter_lines` or `iter_document` gave."""
    with path.open("rb") as file:
        file.seek(start)
        raw = file.read(length)
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except ValueError:
        return None


def iter_document(path: Path, layout: Layout) -> Iterator[Located]:
    """The rows of a document."""
    with path.open("rb") as file:
        stream = _Stream(file, path)
        if layout.kind == "row":
            yield stream.value()
        elif layout.kind == "array":
            yield from stream.array()
        else:
            for key in stream.members():
                if key == layout.key and stream.peek() == "[":
                    yield from stream.array()
                else:
                    stream.value()
        stream.end()


def layout_of(path: Path, row_keys: frozenset[str], wanted: str | None) -> Layout:
    """Finds the list of rows in a document, reading it once.

    Args:
        row_keys: keys that make an object a row itself rather than a wrapper of rows.
        wanted: the key the caller asked for (`path::key`), if any.

    Raises:
        DataFormatError: no list of rows, several of them, or not the one asked for.
    """
    with path.open("rb") as file:
        stream = _Stream(file, path)
        if stream.peek() == "[":
            return Layout("array")
        keys: list[str] = []
        lists: list[str] = []
        for key in stream.members():
            keys.append(key)
            if stream.peek() != "[":
                stream.value()
                continue
            first = next(elements := stream.array(), None)
            if first is None or isinstance(first.value, dict):
                lists.append(key)
            for _ in elements:
                pass
        stream.end()
    if wanted is not None:
        if wanted in lists:
            return Layout("wrapped", wanted)
        raise DataFormatError(
            f"no list of rows under {excerpt(wanted, 40)}",
            where=str(path),
            found=_names(lists) or "no list of objects",
        )
    if row_keys & set(keys):
        return Layout("row")
    if len(lists) > 1:
        raise DataFormatError(
            f"several lists could be the rows: {_names(lists)}",
            where=str(path),
            expected="one list of rows",
            fix=f"name the one to read: {path}::{lists[0]}",
        )
    if lists:
        return Layout("wrapped", lists[0])
    if not keys or any(key for key in keys):
        return Layout("row")
    raise DataFormatError("the object holds no list of rows", where=str(path), found=_names(keys))


def excerpt(text: str, limit: int) -> str:
    """At most `limit` characters of untrusted text, quoted, control characters escaped."""
    cut = text if len(text) <= limit else text[:limit] + "..."
    return repr(cut.encode("utf-8", "replace").decode("utf-8"))


class _Stream:
    """A JSON document read piece by piece; keeps one value's text at most."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        self._text = ""
        self._pos = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._eof = False
        self._read_bytes = 0
        # Place of the first character of `_text` in the file.
        self._byte = 0
        self._line = 1
        self._column = 0
        if file.read(3) == codecs.BOM_UTF8:
            self._byte = 3
        else:
            file.seek(0)

    def peek(self) -> str:
        """The next character that is no space, or "" at the end."""
        while True:
            match = _NON_SPACE.search(self._text, self._pos)
            if match:
                self._pos = match.start()
                return match.group()
            self._pos = len(self._text)
            if self._eof:
                return ""
            self._fill()

    def value(self) -> Located:
        """The next value."""
        self.peek()
        self._drop()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._pos)
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - 12
                if unfinished and not self._eof:
                    self._fill()
                    continue
                fault = _fault_of(error, self._text)
                raise self._error(fault.column, fault.problem) from None
            except RecursionError:
                raise self._error(self._pos, "nested too deeply") from None
            except ValueError as error:
                raise self._error(self._pos, str(error)) from None
            if end == len(self._text) and not self._eof and not isinstance(value, str | list | dict):
                self._fill()  # A number may go on.
                continue
            text = self._text[self._pos : end]
            lone = _lone_surrogate(text)
            if lone is not None:
                raise self._error(self._pos + lone, "lone surrogate escape")
            start, length = self._byte, len(text.encode("utf-8"))
            self._pos = end
            return Located(value, start, length)

    def array(self) -> Iterator[Located]:
        """The elements of the array that begins here."""
        self._take("[", "an array")
        if self.peek() == "]":
            self._pos += 1
            return
        while True:
            yield self.value()
            character = self.peek()
            self._pos += 1
            if character == "]":
                return
            if character != ",":
                raise self._error(
                    self._pos - 1,
                    "expecting ',' or ']' after an element" if character else "the array is cut off",
                )
            comma = self._pos - 1
            if self.peek() == "]":
                raise self._error(comma, "trailing comma before ']'")

    def members(self) -> Iterator[str]:
        """The keys of the object that begins here; the caller takes each one's value before the next."""
        self._take("{", "an object")
        if self.peek() == "}":
            self._pos += 1
            return
        while True:
            if self.peek() != '"':
                raise self._error(self._pos, "expecting a key in double quotes")
            key = self.value().value
            self._take(":", "':' after a key")
            self.peek()
            yield key
            character = self.peek()
            self._pos += 1
            if character == "}":
                return
            if character != ",":
                raise self._error(
                    self._pos - 1,
                    "expecting ',' or '}' after a value" if character else "the object is cut off",
                )

    def end(self) -> None:
        """Nothing but space may follow."""
        if self.peek():
            raise self._error(self._pos, "a second JSON value begins here")

    def _take(self, character: str, what: str) -> None:
        if self.peek() != character:
            raise self._error(self._pos, f"expecting {what}")
        self._pos += 1

    def _drop(self) -> None:
        # Forget the text before the current position, keeping count of where it was.
        gone = self._text[: self._pos]
        if not gone:
            return
        self._byte += len(gone.encode("utf-8"))
        newlines = gone.count("\n")
        self._line += newlines
        self._column = len(gone) - gone.rfind("\n") - 1 if newlines else self._column + len(gone)
        self._text = self._text[self._pos :]
        self._pos = 0

    def _fill(self) -> None:
        # Doubling keeps the cost of re-parsing a long value linear.
        raw = self._file.read(max(_CHUNK_BYTES, len(self._text)))
        self._eof = not raw
        try:
            self._text += self._decoder.decode(raw, final=self._eof)
        except UnicodeDecodeError as error:
            self._text += raw[: error.start].decode("utf-8", "ignore")
            raise self._error(len(self._text), "bytes that are not UTF-8") from None

    def _error(self, pos: int, problem: str) -> DataFormatError:
        before = self._text[:pos]
        newlines = before.count("\n")
        line = self._line + newlines
        column = pos - before.rfind("\n") if newlines else self._column + pos + 1
        return DataFormatError(
            f"{problem}, near {excerpt(self._text[max(0, pos - 40) : pos + 20], 60)}",
            where=f"{self._path}:{line}:{column}",
            expected="one JSON array of rows, or an object that holds one",
        )


def _decode_line(raw: bytes) -> Any:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(raw[: error.start].decode("utf-8", "replace"))
        raise _Fault(column, f"byte 0x{raw[error.start]:02x} is not UTF-8") from None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise _fault_of(error, text) from None
    except RecursionError:
        raise _Fault(0, "nested too deeply") from None
    except ValueError as error:
        raise _Fault(0, str(error)) from None
    lone = _lone_surrogate(text)
    if lone is not None:
        raise _Fault(lone, "lone surrogate escape")
    return value


def _fault_of(error: json.JSONDecodeError, text: str) -> _Fault:
    position, closing = error.pos, text[error.pos : error.pos + 1]
    before = text[:position].rstrip(_SPACE)
    if closing and closing in "]}" and before.endswith(","):
        return _Fault(len(before) - 1, f"trailing comma before '{closing}'")
    if error.msg.startswith("Illegal trailing comma"):
        return _Fault(position, "trailing comma")
    if error.msg.startswith("Unterminated string"):
        return _Fault(position, "the text is cut off inside a string")
    if not text[position:].strip(_SPACE):
        return _Fault(len(text.rstrip(_SPACE)), "the text is cut off")
    return _Fault(position, error.msg[:1].lower() + error.msg[1:])


def _lone_surrogate(text: str) -> int | None:
    # The first pattern is a search at C speed; only text that has such an escape is walked.
    if not _SURROGATE_ESCAPE.search(text):
        return None
    high: re.Match[str] | None = None
    for match in _ESCAPE.finditer(text):
        code = int(match.group(1), 16) if match.group(1) else 0
        is_low = 0xDC00 <= code < 0xE000
        if high is not None and not (is_low and match.start() == high.end()):
            return high.start()
        if is_low and high is None:
            return match.start()
        high = match if 0xD800 <= code < 0xDC00 else None
    return high.start() if high is not None else None


def _reject_other_formats(path: Path, head: bytes) -> None:
    wide = _wide_encoding(head)
    if wide:
        raise DataFormatError(
            f"{wide} text, not UTF-8",
            where=str(path),
            fix="re-save the file as UTF-8 (PowerShell: `Out-File -Encoding utf8`)",
        )
    for magic, what, fix in _MAGIC:
        if head.startswith(magic):
            raise DataFormatError(f"this is {what}, not JSON", where=str(path), fix=fix)


def _wide_encoding(head: bytes) -> str | None:
    for bom, name in (
        (codecs.BOM_UTF32_LE, "UTF-32 (LE)"),
        (codecs.BOM_UTF32_BE, "UTF-32 (BE)"),
        (codecs.BOM_UTF16_LE, "UTF-16 (LE)"),
        (codecs.BOM_UTF16_BE, "UTF-16 (BE)"),
    ):
        if head.startswith(bom):
            return name
    start = head[:4]
    if len(start) == 4 and start[1] == 0 and start[0] != 0:
        return "UTF-16 (LE)"
    if len(start) == 4 and start[0] == 0 and start[1] != 0:
        return "UTF-16 (BE)"
    return None


def _next_line(file: IO[bytes]) -> bytes:
    # The next line that is not blank, without the space before it.
    while line := file.readline(_LONGEST_SNIFFED_LINE):
        if line.strip():
            return line.lstrip()
    return b""


def _names(keys: list[str]) -> str:
    return ", ".join(excerpt(key, 40) for key in keys[:10])
