"""Checkpoint folders of a run, in order of their steps."""

from __future__ import annotations

import re

from gradian.runs.files import MEBIBYTE, RunFiles
from gradian.runs.scalars import as_count
from gradian.runs.trainer_state import FILE as STATE_FILE

_CHECKPOINT = re.compile(r"checkpoint-([0-9]{1,15})")
# The states of earlier checkpoints are read for one number each.
_EARLIER_STATE_LIMIT = 4 * MEBIBYTE
_MOST_EARLIER_STATES = 50


def checkpoint_folders(files: RunFiles) -> tuple[tuple[int, str], ...]:
    """Return (step, name) of each `checkpoint-N`, by number; other folders are no checkpoints."""
    matches = [(name, _CHECKPOINT.fullmatch(name)) for name in files.folders()]
    return tuple(sorted((int(match[1]), name) for name, match in matches if match))


def newest_with(files: RunFiles, name: str) -> str | None:
    """Return the name of the newest checkpoint that has a file, or None."""
    for _, folder in reversed(checkpoint_folders(files)):
        if files.has(f"{folder}/{name}"):
            return folder
    return None


def batch_sizes(files: RunFiles) -> tuple[tuple[int, int], ...]:
    """Return (step, batch size) of the newest checkpoints that record one, in order."""
    found = []
    for step, folder in checkpoint_folders(files)[-_MOST_EARLIER_STATES:]:
        path = files.folder / folder / STATE_FILE
        # A large one is read where it is the run's own state, and missing here says nothing wrong.
        if not path.is_file() or path.stat().st_size > _EARLIER_STATE_LIMIT:
            continue
        state = files.json(f"{folder}/{STATE_FILE}") or {}
        size = as_count(state.get("train_batch_size"))
        if size is not None:
            found.append((step, size))
    return tuple(found)
