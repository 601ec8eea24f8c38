"""Manifests that a machine could not have written, built from one that it did.

    python -m tests.stress.manifests [--examples 20000]

Hypothesis puts any JSON value, path, number or repeated key in any place, under a right checksum and often a right
id. Each must be refused by an error of the store, or be read as exactly the text that it is, within the limits of
`tests.stress.documents`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradian.errors import StoreError
from gradian.store.format import checksum_bytes, index_id
from gradian.store.manifest import Manifest
from gradian.store.reader import IndexReader
from tests.stress.corruption import build
from tests.stress.documents import MOST_BYTES, MOST_SECONDS

PATHS = (
    *(
        "../000000.safetensors",
        "/etc/passwd",
        "chunks/../../x",
        "chunks//000000.safetensors",
        "./chunks/000000",
    ),
    *(
        "chunks\\000000.safetensors",
        "~/x",
        "chunks/000000.safetensors\0",
        "\ufeffchunks",
        "C:\\x",
        "file:///x",
        "",
    ),
    *("x" * 100_000, "\u202ex", "\ud800"),
)
NUMBERS = (
    *(0, -1, 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**39, 10**40, 10**400),
    *(1.5, -0.0, 1e308, 5e-324, math.nan, math.inf, -math.inf),
)
# Written by hand: `json` has no word for them.
WORDS = ("1e999999", "-1e-999999", "01", "+1", ".5", "0x10", "1_000", "Infinity", "'a'", "nul", "[", "}")

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(NUMBERS)
    | st.sampled_from(PATHS)
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=12),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=6), inner, max_size=4)
        | st.builds(lambda depth, value: _nested(depth, value), st.integers(1, 400), inner)
    ),
    max_leaves=15,
)


def _nested(depth: int, value: Any) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def signed(text: str) -> bytes:
    """A manifest of an object's text, without its first brace, under a right checksum."""
    rest = f'",{text[1:]}\n'.encode("utf-8", "surrogatepass")
    return b'{"checksum":"' + checksum_bytes(rest).encode() + rest


@st.composite
def texts(draw: st.DrawFn, whole: dict[str, Any]) -> bytes:
    """A manifest with up to three places changed."""
    changed = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(1, 3))):
        place: Any = changed
        while True:
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            inner = place[key]
            if not isinstance(inner, dict | list) or not inner or draw(st.integers(0, 3)) == 0:
                break
            place = inner
        place[key] = draw(values)
    if draw(st.booleans()) and isinstance(changed.get("inputs"), dict):
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            changed["id"] = index_id(changed["inputs"])
    text = json.dumps(changed, sort_keys=draw(st.integers(0, 9)) > 0, separators=(",", ":"))
    how = draw(st.integers(0, 9))
    if how == 0:  # a key twice
        at = text.index(",") if draw(st.booleans()) else text.rindex(",")
        text = f"{text[:at]},{text[1:at]}{text[at:]}"
    elif how == 1:
        text = text.replace(
            draw(st.sampled_from(["4", "2", "null", "true", "[", '"'])), draw(st.sampled_from(WORDS)), 1
        )
    elif how == 2:
        text = draw(st.sampled_from(["\ufeff", " ", "\0", "\n"])) + text
    return signed(text if text.startswith("{") else "{" + text)


def read(path: Path, text: bytes) -> str:
    """Read a manifest and open an index that has it; how that ended."""
    try:
        manifest = Manifest.from_json(text)
    except StoreError:
        return "refused"
    assert manifest.to_json().encode() == text
    (path / "manifest.json").write_bytes(text)
    try:
        IndexReader.open(path, verify="checksums")
    except StoreError:
        return "refused by the files"
    return "read"


def check(path: Path, text: bytes) -> str:
    """The same, within a second and 256 MB. On a busy machine one try may take long; a long text takes it each time."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    while not seconds or (seconds[-1] >= MOST_SECONDS and len(seconds) < 3):
        start = time.process_time()
        outcome = read(path, text)
        seconds.append(time.process_time() - start)
    assert min(seconds) < MOST_SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MOST_BYTES
    return outcome


def run(examples: int) -> dict[str, int]:
    """Try so many manifests; how many ended how."""
    found: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = build(Path(folder))
        whole = Manifest.from_json((path / "manifest.json").read_bytes()).to_mapping()
        hashed = {key: whole[key] for key in whole.keys() - {"info"}}

        gc.freeze()  # Not the text's doing: the collector's walk over the libraries.

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(texts(whole))
        def tried(text: bytes) -> None:
            outcome = check(path, text)
            if outcome == "read":  # What is not hashed may say anything.
                said = json.loads(text)
                assert {key: said[key] for key in said.keys() - {"checksum", "info"}} == hashed
            found[outcome] = found.get(outcome, 0) + 1

        tried()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=20_000)
    print(json.dumps(run(parser.parse_args().examples)))


if __name__ == "__main__":
    main()
