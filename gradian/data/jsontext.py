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
from gradian.jsonvalue import check_depth, parse_json

MAX_SHOWN_FAULTS = 20
_HEAD_BYTES = 64 * 1024
_CHUNK_BYTES = 128 * 1024
# More was read for a long value, and is too much to be looked through for each short one behind it.
_MOST_CHUNKS_AHEAD = 4
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
    def __init__(self, column: int, problem: str, end: int | None = None) -> None:
        super().__init__(problem)
        self.column = column  # 0-based character
        self.problem = problem
        self.end = end  # Where the broken value ends, if that is known.


@dataclass
class Faults:
    """Collects the faults of a file; `raise_any` makes one error of them.

    Attributes:
        path: the file.
        unit: what a fault is in, `line` or `place`.
        expected: what the file should hold.
        shown: the first faults, one line of text each.
        count: all of them.
        unread: whether reading had to stop at the last one.
    """

    path: Path
    unit: str
    expected: str
    shown: list[str] = field(default_factory=list)
    count: int = 0
    unread: bool = False

    def add(self, line: int, column: int, problem: str, around: str) -> None:
        """Notes a fault at 1-based `line` and `column`."""
        self.count += 1
        if len(self.shown) < MAX_SHOWN_FAULTS:
            self.shown.append(f"{self.path}:{line}:{column}: {problem}, near {excerpt(around, 60)}")

    def error(self) -> DataFormatError:
        """The error that names all faults."""
        more = self.count - len(self.shown)
        lines = [*self.shown, *([f"... and {more} more"] if more else [])]
        if self.unread:
            lines.append("What follows was not looked at: where the next row begins cannot be told.")
        noun = f"{self.unit} is" if self.count == 1 else f"{self.unit}s are"
        return DataFormatError(
            f"{self.count} {noun} not valid JSON in UTF-8",
            details=lines,
            where=str(self.path),
            expected=self.expected,
            fix=f"correct {'this' if self.count == 1 else 'these'} {noun.split()[0]}; no row was skipped",
        )

    def raise_any(self) -> None:
        """Raises DataFormatError when there was a fault."""
        if self.count:
            raise self.error()


def _around(text: str, position: int) -> str:
    return text[max(0, position - 40) : position + 21]


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
                fix="write the rows as one JSON object a line (pandas: to_json(orient='records', lines=True))",
            )
        if opening not in b"{[":
            return "lines"
        if not first.endswith(b"\n") and len(first) >= _LONGEST_SNIFFED_LINE:
            return "document"
        try:
            parse_json(first)
        except ValueError:
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
    bad = Faults(path, "line", "one JSON value a line")
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
                    bad.add(number, fault.column + 1, fault.problem, _around(text, fault.column))
            start += length
    bad.raise_any()


def read_value(path: Path, start: int, length: int) -> Any:
    """The value at a place that `iter_lines` or `iter_document` gave."""
    with path.open("rb") as file:
        file.seek(start)
        raw = file.read(length)
    try:
        return parse_json(raw.decode("utf-8-sig"))
    except ValueError:
        return None


def iter_document(path: Path, layout: Layout) -> Iterator[Located]:
    """The rows of a document.

    A row that is broken is passed over where its end can be told: at once when only its characters are at fault,
    else at the next line that begins as the row's own line did, indentation included.

    Raises:
        DataFormatError: at the end, for all broken rows together (the first 20 are named), or at the fault
            behind which the next row cannot be found.
    """
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
        stream.faults.raise_any()


def layout_of(path: Path, row_keys: frozenset[str], wanted: str | None) -> Layout:
    """Finds the list of rows in a document, reading it once.

    Args:
        row_keys: keys that make an object a row itself rather than a wrapper of rows.
        wanted: the key the caller asked for (`path::key`), if any.

    Raises:
        DataFormatError: no list of rows, several of them, or not the one asked for; broken rows, as `iter_document`.
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
        stream.faults.raise_any()
    if wanted is not None:
        if wanted in lists:
            return Layout("wrapped", wanted)
        raise DataFormatError(
            f"no list of rows under {excerpt(wanted, 40)}",
            where=str(path),
            found=_names(lists) or "no list of objects",
            expected="the key of a list of rows behind ::",
            fix="give the path without `::` and what follows, or one of the keys that were found",
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
    """A JSON document read piece by piece; keeps little more than one value's text.

    Bytes that are not UTF-8 come through decoding as lone surrogates, which no valid text decodes to.
    """

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.faults = Faults(path, "place", "one JSON array of rows, or an object that holds one")
        self._file = file
        self._text = ""
        self._pos = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._eof = False
        # Whether the place of a row was ever guessed: what is odd outside the rows may follow from that.
        self._guessed = False
        # How much of `_text` is counted, and where in the file that ends.
        self._mark = 0
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
        try:
            return self._parse()
        except _Fault as fault:
            raise self._stop(fault.column, fault.problem) from None

    def array(self) -> Iterator[Located]:
        """The elements of the array that begins here; broken ones go to `faults`."""
        self._take("[", "an array")
        if self.peek() == "]":
            self._pos += 1
            return
        while True:
            self.peek()
            indent = self._indent()
            try:
                yield self._parse()
            except _Fault as fault:
                later = "\n" in self._text[self._mark : fault.column]
                began = f" (in the row that begins on line {self._line})" if later else ""
                self._note(fault.column, fault.problem + began)
                if not self._pass_over(fault, indent):
                    # Rows that begin their lines were searched for to the end; others could be anywhere.
                    self.faults.unread = indent is None
                    raise self.faults.error() from None
                if fault.end is None:
                    continue
            character = self.peek()
            if character == "{":
                self._note(self._pos, "expecting ',' or ']' after an element")
                continue
            self._pos += 1
            if character == "]":
                return
            if character != ",":
                raise self._stop(
                    self._pos - 1,
                    "expecting ',' or ']' after an element" if character else "the array is cut off",
                    among_rows=True,
                )
            comma = self._pos - 1
            if self.peek() == "]":
                self._note(comma, "trailing comma before ']'")
                self._pos += 1
                return

    def members(self) -> Iterator[str]:
        """The keys of the object that begins here; the caller takes each one's value before the next."""
        self._take("{", "an object")
        if self.peek() == "}":
            self._pos += 1
            return
        while True:
            if self.peek() != '"':
                raise self._stop(self._pos, "expecting a key in double quotes")
            key = self.value().value
            self._take(":", "':' after a key")
            self.peek()
            yield key
            character = self.peek()
            self._pos += 1
            if character == "}":
                return
            if character != ",":
                raise self._stop(
                    self._pos - 1,
                    "expecting ',' or '}' after a value" if character else "the object is cut off",
                )

    def end(self) -> None:
        """Nothing but space may follow."""
        if self.peek():
            raise self._stop(self._pos, "a second JSON value begins here")

    def _parse(self) -> Located:
        # A fault carries its position in `_text`: it is to be noted before anything else is read.
        self.peek()
        self._count()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._pos)
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - 12
                if unfinished and not self._eof:
                    self._fill()
                    continue
                raise _fault_of(error, self._text, self._pos) from None
            except RecursionError:
                raise _Fault(self._pos, "nested too deeply") from None
            except ValueError as error:
                raise _Fault(self._pos, str(error)) from None
            if end == len(self._text) and not self._eof and not isinstance(value, str | list | dict):
                self._fill()  # A number may go on.
                continue
            text = self._text[self._pos : end]
            lone = _lone_surrogate(text)
            if lone is not None:
                raise _Fault(self._pos + lone, "lone surrogate escape", end)
            try:
                check_depth(value, text)
            except ValueError as error:
                raise _Fault(self._pos, str(error), end) from None
            try:
                length = len(text if text.isascii() else text.encode("utf-8"))
            except UnicodeEncodeError as error:
                raise _Fault(self._pos + error.start, _not_utf8(text[error.start]), end) from None
            start = self._byte
            self._pos = end
            return Located(value, start, length)

    def _indent(self) -> str | None:
        # What stands before the current position on its line; None when that is more than space, or forgotten.
        newline = self._text.rfind("\n", self._mark, self._pos)
        before = self._text[max(newline + 1, self._mark) : self._pos]
        known = newline >= 0 or self._column == 0
        return before if known and not before.strip(_SPACE) else None

    def _pass_over(self, fault: _Fault, indent: str | None) -> bool:
        # Moves behind the broken element, whose text may be forgotten on the way.
        if fault.end is not None:
            self._pos = fault.end
            return True
        if indent is None:
            return False
        opening = f"\n{indent}{{"
        while (found := self._text.find(opening, self._pos)) < 0:
            if self._eof:
                return False
            self._pos = max(self._pos, len(self._text) - len(opening))
            self._count()
            self._fill()
        self._pos = found + len(opening) - 1
        self._guessed = True
        return True

    def _take(self, character: str, what: str) -> None:
        if self.peek() != character:
            raise self._stop(self._pos, f"expecting {what}")
        self._pos += 1

    def _count(self) -> None:
        # Count the text before the current position, which nobody asks for again, and forget it now and then.
        gone = self._text[self._mark : self._pos]
        if gone:
            self._byte += len(gone.encode("utf-8", "surrogateescape"))
            newlines = gone.count("\n")
            self._line += newlines
            self._column = len(gone) - gone.rfind("\n") - 1 if newlines else self._column + len(gone)
        if len(self._text) - self._pos > _MOST_CHUNKS_AHEAD * _CHUNK_BYTES:
            self._file.seek(self._byte)
            self._decoder.reset()
            self._eof = False
            self._text = ""
            self._pos = 0
        elif self._pos > _CHUNK_BYTES:
            self._text = self._text[self._pos :]
            self._pos = 0
        self._mark = self._pos

    def _fill(self) -> None:
        # Doubling keeps the cost of re-parsing a long value linear.
        raw = self._file.read(max(_CHUNK_BYTES, len(self._text)))
        self._eof = not raw
        self._text += self._decoder.decode(raw, final=self._eof)

    def _note(self, pos: int, problem: str) -> None:
        before = self._text[self._mark : pos]
        newlines = before.count("\n")
        line = self._line + newlines
        column = len(before) - before.rfind("\n") if newlines else self._column + len(before) + 1
        broken = self._text[pos : pos + 1]
        if "\udc80" <= broken <= "\udcff":
            problem = _not_utf8(broken)
        self.faults.add(line, column, problem, _around(self._text, pos))

    def _stop(self, pos: int, problem: str, *, among_rows: bool = False) -> DataFormatError:
        # The error for a fault behind which nothing can be read.
        if among_rows or not self._guessed:
            self._note(pos, problem)
        self.faults.unread = not self._eof or _NON_SPACE.search(self._text, pos + 1) is not None
        return self.faults.error()


def _not_utf8(escaped: str) -> str:
    return f"byte 0x{ord(escaped) - 0xDC00:02x} is not UTF-8"


def _decode_line(raw: bytes) -> Any:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(raw[: error.start].decode("utf-8", "replace"))
        raise _Fault(column, _not_utf8(chr(0xDC00 + raw[error.start]))) from None
    try:
        value = parse_json(text)
    except json.JSONDecodeError as error:
        raise _fault_of(error, text, 0) from None
    except ValueError as error:
        raise _Fault(0, str(error)) from None
    lone = _lone_surrogate(text)
    if lone is not None:
        raise _Fault(lone, "lone surrogate escape")
    return value


def _fault_of(error: json.JSONDecodeError, text: str, start: int) -> _Fault:
    # The value begins at `start`.
    position, closing = error.pos, text[error.pos : error.pos + 1]
    before = text[start:position].rstrip(_SPACE)
    if closing and closing in "]}" and before.endswith(","):
        return _Fault(start + len(before) - 1, f"trailing comma before '{closing}'")
    if error.msg.startswith("Illegal trailing comma"):
        return _Fault(position, "trailing comma")
    if error.msg.startswith("Unterminated string"):
        return _Fault(position, "the text is cut off inside a string")
    if not _NON_SPACE.search(text, position):
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
