"""A disk that loses power: from what a run did to its files, every state that a restart may find.

The model promises as little as POSIX does. Until a file was flushed, each write to it and each change of its
length may be there, missing, half there, or there as zeros. Until a folder was flushed, each name given, taken
or moved in it may be there or not, in any order and whatever happened to the file. A flush of a file says
nothing about its name, and one of a name nothing about the file. What a flush that failed was to save never
gets there by a later one. A rename is one change, or, with `split_renames`, two.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from tests.stress.syscalls import Operation

_FEW = 5


@dataclass
class _Folder:
    names: dict[str, _Folder | _File] = field(default_factory=dict)


@dataclass
class _File:
    data: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, eq=False)
class _Change:
    """Something that is not yet flushed.

    Attributes:
        node: the file or folder that it changes.
        names: for a folder, each name and what it then stands for (None: for nothing).
        offset: for a file, where it is written; below zero, what is set is the length.
        data: for a file, what is written; for a length, None.
        size: the bytes written or the length.
    """

    node: _Folder | _File
    names: tuple[tuple[str, _Folder | _File | None], ...] = ()
    offset: int = 0
    data: bytes | None = None
    size: int = 0


Tree = dict[str, bytes | None]
"""Path to content; None is a folder."""


class SimulatedDisk:
    """Follows the operations of a run below a folder.

    Args:
        root: the folder; what lies in it now is taken for flushed.
        split_renames: whether a rename may be half there.
    """

    def __init__(self, root: Path, *, split_renames: bool = False) -> None:
        self._root = str(root)
        self._split = split_renames
        self._pending: list[_Change] = []
        # What is on the medium, by what a reader sees now.
        self._kept: dict[int, _Folder | _File] = {}
        self._top = _Folder()
        self._adopt(root, self._top)

    def _adopt(self, path: Path, node: _Folder) -> None:
        self._remember(node)
        for entry in sorted(path.iterdir()) if path.is_dir() else ():
            child: _Folder | _File = _Folder() if entry.is_dir() else _File(bytearray(entry.read_bytes()))
            node.names[entry.name] = child
            if isinstance(child, _Folder):
                self._adopt(entry, child)
            else:
                self._remember(child)
        self._kept[id(node)] = _Folder(dict(node.names))

    def _remember(self, node: _Folder | _File) -> None:
        self._kept[id(node)] = _copy(node)

    def follow(self, operation: Operation) -> None:
        """Take in the next operation."""
        if operation.what == "S":
            self._flush(operation)
            return
        if operation.what in "CMUR":
            self._rename_or_name(operation)
            return
        node = self._find(operation.path)
        if not isinstance(node, _File):
            return  # Of a file that has no name any more.
        if operation.what == "W":
            change = _Change(node, offset=operation.offset, data=operation.data, size=operation.size)
        elif operation.what == "A":
            change = _Change(node, offset=-1, size=max(len(node.data), operation.offset + operation.size))
        else:
            change = _Change(node, offset=-1, size=operation.size)
        self._do(change)

    def _rename_or_name(self, operation: Operation) -> None:
        folder, name = self._place(operation.path)
        if operation.what == "R":
            to, new = self._place(operation.target)
            node = folder.names[name]
            if folder is to and not self._split:
                self._do(_Change(folder, names=((name, None), (new, node))))
            else:
                self._do(_Change(to, names=((new, node),)))
                self._do(_Change(folder, names=((name, None),)))
            return
        node_or_none: _Folder | _File | None = None
        if operation.what != "U":
            node_or_none = _File() if operation.what == "C" else _Folder()
            self._remember(node_or_none)
        self._do(_Change(folder, names=((name, node_or_none),)))

    def _do(self, change: _Change) -> None:
        _apply(change.node, change)
        self._pending.append(change)

    def _flush(self, operation: Operation) -> None:
        node = self._find(operation.path)
        if node is None or (operation.failed and isinstance(node, _Folder)):
            return
        for change in self._pending:
            if change.node is node and not operation.failed:
                _apply(self._kept[id(node)], change)
        self._pending = [change for change in self._pending if change.node is not node]

    def _place(self, path: str) -> tuple[_Folder, str]:
        parts = path[len(self._root) :].strip("/").split("/")
        folder = self._top
        for part in parts[:-1]:
            inner = folder.names[part]
            assert isinstance(inner, _Folder)
            folder = inner
        return folder, parts[-1]

    def _find(self, path: str) -> _Folder | _File | None:
        if path == self._root:
            return self._top
        try:
            folder, name = self._place(path)
        except KeyError:
            return None
        return folder.names.get(name)

    @property
    def flushed(self) -> Tree:
        """What is there when nothing that is pending gets there."""
        return self._tree(())

    def states(self, rng: random.Random, draws: int) -> Iterator[Tree]:
        """What a restart may find now.

        All combinations of few pending changes; of more, none, all, each alone, each missing, each beginning,
        and `draws` drawn ones in which writes are torn and zeroed too.
        """
        pending, n = self._pending, len(self._pending)
        if n <= _FEW:
            masks = [tuple(mask) for mask in product((False, True), repeat=n)]
        else:
            masks = [tuple(i < k for i in range(n)) for k in range(n + 1)]
            masks += [tuple((i == k) == keep for i in range(n)) for k in range(n) for keep in (False, True)]
        for mask in masks:
            yield self._tree([change for change, there in zip(pending, mask, strict=True) if there])
        for _ in range(draws if n else 0):
            share = rng.random()
            yield self._tree([_damaged(change, rng) for change in pending if rng.random() < share])

    def _tree(self, changes: Sequence[_Change]) -> Tree:
        now = {key: _copy(node) for key, node in self._kept.items()}
        for change in changes:
            _apply(now[id(change.node)], change)
        found: Tree = {}

        def walk(folder: _Folder, prefix: str) -> None:
            for name, node in folder.names.items():
                there = now[id(node)]
                found[prefix + name] = bytes(there.data) if isinstance(there, _File) else None
                if isinstance(there, _Folder):
                    walk(there, f"{prefix}{name}/")

        top = now[id(self._top)]
        assert isinstance(top, _Folder)
        walk(top, "")
        return found


def _copy(node: _Folder | _File) -> _Folder | _File:
    return _Folder(dict(node.names)) if isinstance(node, _Folder) else _File(bytearray(node.data))


def _apply(node: _Folder | _File, change: _Change) -> None:
    if isinstance(node, _Folder):
        for name, there in change.names:
            if there is None:
                node.names.pop(name, None)
            else:
                node.names[name] = there
        return
    if change.data is None:
        del node.data[change.size :]
        node.data.extend(bytes(change.size - len(node.data)))
    else:
        node.data.extend(bytes(max(0, change.offset - len(node.data))))
        node.data[change.offset : change.offset + len(change.data)] = change.data


def _damaged(change: _Change, rng: random.Random) -> _Change:
    """The change as it may be half there: a beginning, a piece, zeros, or garbage in place of what is written."""
    data = change.data
    if not data or rng.random() < 0.5:
        return change
    a, b = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    start, torn = rng.choice(
        [(0, data[:a]), (a, data[a:b]), (0, bytes(len(data))), (0, data[:a] + rng.randbytes(len(data) - a))]
    )
    return _Change(change.node, offset=change.offset + start, data=torn, size=len(torn))


def materialise(tree: Tree, folder: Path) -> None:
    """Put a state down in a real folder."""
    folder.mkdir()
    for path, content in tree.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
