"""`training_args.bin`, a pickle, read without running any of it.

Python's own unpickler calls what the file names. This is a small stack machine over the file's opcodes instead: a
class becomes a record of its name and its state, an enum member its value, and there is nothing in it that could
import or call. What a training run's arguments do not need is refused by name: functions, classes of the standard
library but a few plain ones, opcodes that reach outside the stream.
"""

from __future__ import annotations

import pickletools
import re
import struct
import sys
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from typing import Any

FILE = "training_args.bin"
FILE_LIMIT = 16 << 20
# Real ones have 4 to 50 KB and at most a few thousand opcodes; a hundred thousand take half a second.
_PICKLE_LIMIT = 4 << 20
_MOST_OPCODES = 100_000
# One opcode may copy, or walk, a value that stands once in the file; real ones come to a few thousand bytes.
_MOST_COPIED = 4 << 20
# torch.save writes half a dozen.
_MOST_ENTRIES = 1_000
_ENTRY_HEAD = b"PK\x01\x02"
# The hash of a larger number takes time with its length, and many numbers have the same one.
_LARGEST_KEY = 2**60
# torch.save without a zip writes this number, a version and the byte order as pickles of their own before the object.
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PREFIX = 3

_CLASS_NAME = re.compile(r"_*[A-Z][A-Za-z0-9_]*")
_DOTTED_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_MEMBER_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_ENUM_LIBRARIES = ("transformers", "accelerate", "trl", "peft", "axolotl", "llamafactory", "torch")
_DTYPES = re.compile(r"b?float(8_\w+|16|32|64)|u?int(8|16|32|64)|bool|complex(64|128)|half|double|long")
_NUMPY_FORMATS = {"f2": "<e", "f4": "<f", "f8": "<d", "i4": "<i", "i8": "<q", "b1": "<?"}
# Below this protocol a stream has the names of Python 2.
_OWN_NAMES_FROM = 3


class RefusedPickle(Exception):
    """The file is not one that a training run's arguments would be saved as; the text says why."""


@dataclass
class PickledObject:
    """An instance of a class that was not imported.

    Attributes:
        module, name: of the class.
        state: its attributes.
    """

    module: str
    name: str
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Reference:
    """A class by its name, or one of the few constructors in `_CONSTRUCTORS`."""

    module: str
    name: str

    @cached_property
    def text(self) -> str:
        # Kept, since it may be the key of thousands of dictionaries.
        return f"{self.module}.{self.name}"

    def __str__(self) -> str:
        return self.text


def read_training_args(data: bytes) -> PickledObject:
    """Return the object saved in a `training_args.bin`.

    Args:
        data: the file; at most `FILE_LIMIT` bytes.

    Raises:
        RefusedPickle: it is damaged, not such a file, or names something that could run.
    """
    try:
        value = interpret(_stream(data))
    except RefusedPickle:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, struct.error, MemoryError) as error:
        raise RefusedPickle(f"damaged pickle: {type(error).__name__}: {str(error)[:120]}") from None
    if isinstance(value, dict):
        return PickledObject("builtins", "dict", {k: v for k, v in value.items() if isinstance(k, str)})
    if not isinstance(value, PickledObject):
        raise RefusedPickle(f"holds no training arguments but a {type(value).__name__}")
    return value


def _stream(data: bytes) -> bytes:
    """Return the pickle in the file: of torch's zip, or the file itself from before torch 1.6."""
    if not data.startswith(b"PK"):
        return data
    if data.count(_ENTRY_HEAD) > _MOST_ENTRIES:
        raise RefusedPickle(f"a zip with more than {_MOST_ENTRIES} files; torch.save writes a few")
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.split("/")[-1] == "data.pkl"]
            if len(entries) != 1:
                raise RefusedPickle(f"a zip with {len(entries)} files data.pkl; torch.save writes one")
            (entry,) = entries
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                raise RefusedPickle("data.pkl is compressed or encrypted, which torch.save never does")
            if entry.file_size > _PICKLE_LIMIT:
                raise RefusedPickle(
                    f"data.pkl claims {entry.file_size} bytes; at most {_PICKLE_LIMIT} are read"
                )
            return archive.read(entry)
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError) as error:
        raise RefusedPickle(f"damaged zip: {str(error)[:120]}") from None


def interpret(data: bytes) -> Any:
    """Return the value that a pickle stream builds, with `PickledObject` for every instance.

    Raises:
        RefusedPickle: it names something that could run, or an opcode that arguments do not need.
        ArithmeticError, LookupError, TypeError, ValueError, struct.error: the stream is damaged.
    """
    if len(data) > _PICKLE_LIMIT:
        raise RefusedPickle(f"{len(data)} bytes; at most {_PICKLE_LIMIT} are read")
    stream = BytesIO(data)
    value = _Machine().run(stream)
    if value == _LEGACY_MAGIC:
        for _ in range(_LEGACY_PREFIX):
            value = _Machine().run(stream)
    return value


class _Machine:
    """One pickle's stack and memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.protocol = 0
        self.copied = 0

    def run(self, stream: BytesIO) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if count >= _MOST_OPCODES:
                raise RefusedPickle(f"more than {_MOST_OPCODES} opcodes")
            name = opcode.name
            if name in _LITERALS:
                self.stack.append(argument)
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name]())
            elif name in _STEPS:
                _STEPS[name](self, argument)
            elif name == "STOP":
                return self.stack[-1]
            elif name == "PROTO":
                self.protocol = int(argument or 0)
            elif name != "FRAME":
                raise RefusedPickle(f"refused: {FILE} uses the pickle opcode {name}")
        raise ValueError("no end")

    def spend(self, *values: Any) -> None:
        """Count values that are about to be copied or walked, one level deep, against what a file may have."""
        self.copied += sum(sys.getsizeof(value) for value in values if isinstance(value, _SIZED))
        if self.copied > _MOST_COPIED:
            raise RefusedPickle(f"copies more than {_MOST_COPIED} bytes of its own values")

    def pop(self) -> Any:
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise IndexError("a value is taken from below a mark")
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def pop_mark(self, _: Any) -> None:
        self.pop_to_mark()

    def drop(self, _: Any) -> None:
        # On a mark, POP removes the mark.
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.pop()

    def mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def duplicate(self, _: Any) -> None:
        self.stack.append(self.stack[-1])

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def tuple_of(self, size: int) -> None:
        items = [self.pop() for _ in range(size)]
        self.stack.append(tuple(reversed(items)))

    def tuple_to_mark(self, _: Any) -> None:
        self.stack.append(tuple(self.pop_to_mark()))

    def list_to_mark(self, _: Any) -> None:
        self.stack.append(self.pop_to_mark())

    def dict_to_mark(self, _: Any) -> None:
        made: dict[Any, Any] = {}
        _set_items(made, self.pop_to_mark())
        self.stack.append(made)

    def append(self, _: Any) -> None:
        value = self.pop()
        _append_items(self.stack[-1], [value])

    def appends(self, _: Any) -> None:
        items = self.pop_to_mark()
        _append_items(self.stack[-1], items)

    def set_item(self, _: Any) -> None:
        value, key = self.pop(), self.pop()
        _set_items(self.stack[-1], [key, value])

    def set_items(self, _: Any) -> None:
        items = self.pop_to_mark()
        _set_items(self.stack[-1], items)

    def global_name(self, text: str) -> None:
        module, _, name = text.partition(" ")
        self.stack.append(_reference(*self.renamed(module, name)))

    def stack_global(self, _: Any) -> None:
        name, module = self.pop(), self.pop()
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError("a name that is no text")
        self.spend(module, name)
        self.stack.append(_reference(*self.renamed(module, name)))

    def renamed(self, module: str, name: str) -> tuple[str, str]:
        if self.protocol >= _OWN_NAMES_FROM:
            return module, name
        if (module, name) in NAME_MAPPING:
            return NAME_MAPPING[module, name]
        return IMPORT_MAPPING.get(module, module), name

    def new_object(self, _: Any) -> None:
        arguments, kind = self.pop(), self.pop()
        self.spend_arguments(arguments)
        self.stack.append(_instance(kind, arguments))

    def new_object_with_keywords(self, _: Any) -> None:
        keywords, arguments, kind = self.pop(), self.pop(), self.pop()
        if keywords:
            raise RefusedPickle(f"refused: {FILE} uses the pickle opcode NEWOBJ_EX with keywords")
        self.spend_arguments(arguments)
        self.stack.append(_instance(kind, arguments))

    def reduce(self, _: Any) -> None:
        arguments, kind = self.pop(), self.pop()
        self.spend_arguments(arguments)
        self.stack.append(_constructed(kind, arguments))

    def spend_arguments(self, arguments: Any) -> None:
        self.spend(arguments)
        if isinstance(arguments, tuple):
            self.spend(*arguments)

    def build(self, _: Any) -> None:
        state = self.pop()
        target = self.stack[-1]
        if isinstance(state, tuple) and len(state) == 2:  # (__dict__, slots)
            self.spend(*state)
            for part in state:
                _set_state(target, part or {})
        else:
            self.spend(state)
            _set_state(target, state)


def _reference(module: str, name: str) -> _Reference:
    if not _DOTTED_NAME.fullmatch(module) or not _DOTTED_NAME.fullmatch(name):
        raise RefusedPickle(f"refused: {FILE} references something without a plain name")
    found = _Reference(module, name)
    if (module, name) in _CONSTRUCTORS:
        return found
    if module == "torch":
        # torch.float16 and its like are named as globals; of torch itself nothing else is needed.
        allowed = _DTYPES.fullmatch(name) is not None
    else:
        allowed = module.split(".")[0] not in sys.stdlib_module_names and all(
            _CLASS_NAME.fullmatch(part) for part in name.split(".")
        )
    if not allowed:
        raise RefusedPickle(f"refused: {FILE} references {_shown(found)}")
    return found


def _shown(reference: _Reference) -> str:
    return str(reference) if len(str(reference)) <= 100 else f"{str(reference)[:100]}..."


def _instance(kind: Any, arguments: Any) -> Any:
    if not isinstance(kind, _Reference):
        raise TypeError("an instance of something that is no class")
    if (kind.module, kind.name) in _CONSTRUCTORS:
        return _constructed(kind, arguments)
    # A named tuple or an enum of its own kind comes with arguments: its first one is its value.
    if arguments:
        return _constructed(kind, arguments)
    return PickledObject(kind.module, kind.name)


def _constructed(kind: Any, arguments: Any) -> Any:
    if not isinstance(kind, _Reference) or not isinstance(arguments, tuple):
        raise TypeError("a call of something that is no class")
    make = _CONSTRUCTORS.get((kind.module, kind.name))
    if make is not None:
        return make(arguments)
    if not arguments:
        return PickledObject(kind.module, kind.name)
    # What an enum member is saved as: its class, called with its value.
    if len(arguments) == 1 and isinstance(arguments[0], str | int | float):
        return arguments[0]
    raise RefusedPickle(f"refused: {FILE} builds {_shown(kind)} from values that are no enum's")


def _scalar_key(key: Any) -> Any:
    # The hash of a tuple nested a million deep overruns the C stack; arguments have plain keys.
    if key is None or isinstance(key, str | float | bytes):
        return key
    if isinstance(key, int) and abs(key) <= _LARGEST_KEY:
        return key
    if isinstance(key, _Reference):
        return str(key)
    raise RefusedPickle(f"refused: {FILE} has a dictionary with a key that is no plain value")


def _set_items(target: Any, items: list[Any]) -> None:
    if isinstance(target, PickledObject):
        target = target.state
    if not isinstance(target, dict) or len(items) % 2:
        raise TypeError("items are set in something that is no dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        target[_scalar_key(key)] = value


def _append_items(target: Any, items: list[Any]) -> None:
    if isinstance(target, PickledObject):
        target = target.state.setdefault("items", [])
    if not isinstance(target, list):
        raise TypeError("items are added to something that is no list")
    target.extend(items)


def _set_state(target: Any, state: Any) -> None:
    if not isinstance(target, PickledObject):
        # An OrderedDict or an enum member with attributes of its own: they are no setting.
        return
    if not isinstance(state, Mapping):
        raise TypeError("state that is no dictionary")
    target.state.update({key: value for key, value in state.items() if isinstance(key, str)})


def _path(arguments: tuple[Any, ...]) -> str:
    parts = [part for part in arguments if isinstance(part, str)]
    return ("/" + "/".join(parts[1:])) if parts[:1] == ["/"] else "/".join(parts)


def _device(arguments: tuple[Any, ...]) -> str:
    return ":".join(str(part) for part in arguments if isinstance(part, str | int))


def _items(arguments: tuple[Any, ...]) -> list[Any]:
    return list(arguments[0]) if arguments and isinstance(arguments[0], list | tuple) else []


def _mapping(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for pair in _items(arguments):
        if isinstance(pair, list | tuple) and len(pair) == 2:
            made[_scalar_key(pair[0])] = pair[1]
    return made


def _default_mapping(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    return {}


def _nothing(arguments: tuple[Any, ...]) -> None:
    return None


def _numpy_dtype(arguments: tuple[Any, ...]) -> str:
    return arguments[0] if arguments and isinstance(arguments[0], str) else ""


def _latin1(arguments: tuple[Any, ...]) -> bytes:
    # How protocol 2 writes bytes.
    if len(arguments) == 2 and isinstance(arguments[0], str) and arguments[1] == "latin1":
        return arguments[0].encode("latin-1")
    raise RefusedPickle(f"refused: {FILE} references _codecs.encode")


def _numpy_scalar(arguments: tuple[Any, ...]) -> Any:
    # A learning rate that came out of a numpy sweep.
    kind, data = arguments
    if not isinstance(kind, str):  # The hash of a tuple of itself twice, sixty times over, takes for ever.
        raise TypeError("a number of no kind")
    return struct.unpack(_NUMPY_FORMATS[kind], data)[0]


def _enum_member(arguments: tuple[Any, ...]) -> str:
    # Python 3.11.0 to 3.11.3 save an enum member as getattr(its class, its name); no other use is read.
    if len(arguments) == 2:
        kind, name = arguments
        if (
            isinstance(kind, _Reference)
            and kind.module.split(".")[0] in _ENUM_LIBRARIES
            and isinstance(name, str)
            and _MEMBER_NAME.fullmatch(name)
        ):
            return name.lower()
    raise RefusedPickle(f"refused: {FILE} references builtins.getattr")


_CONSTRUCTORS: Mapping[tuple[str, str], Callable[[tuple[Any, ...]], Any]] = {
    ("collections", "OrderedDict"): _mapping,
    ("collections", "defaultdict"): _default_mapping,
    **{("builtins", name): _items for name in ("set", "frozenset")},
    **{
        (module, name): _path
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path")
    },
    ("datetime", "timedelta"): _nothing,
    ("_codecs", "encode"): _latin1,
    ("numpy", "dtype"): _numpy_dtype,
    ("numpy.core.multiarray", "scalar"): _numpy_scalar,
    ("numpy._core.multiarray", "scalar"): _numpy_scalar,
    ("torch", "device"): _device,
    ("torch", "Size"): _items,
    ("builtins", "getattr"): _enum_member,
}

_SIZED = (int, str, bytes, bytearray, list, tuple, dict)
_LITERALS = frozenset(
    {
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    }
)
_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": list,
}
_STEPS: Mapping[str, Callable[[_Machine, Any], None]] = {
    "POP": _Machine.drop,
    "POP_MARK": _Machine.pop_mark,
    "MARK": _Machine.mark,
    "DUP": _Machine.duplicate,
    "PUT": _Machine.put,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.memoize,
    "GET": _Machine.get,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "TUPLE": _Machine.tuple_to_mark,
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "LIST": _Machine.list_to_mark,
    "FROZENSET": _Machine.list_to_mark,
    "DICT": _Machine.dict_to_mark,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "ADDITEMS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "GLOBAL": _Machine.global_name,
    "STACK_GLOBAL": _Machine.stack_global,
    "NEWOBJ": _Machine.new_object,
    "NEWOBJ_EX": _Machine.new_object_with_keywords,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}
