"""Near-duplicates among many texts without comparing all pairs: MinHash signatures and banding (Broder 1997;
Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, ch. 3).

The share of equal entries in two signatures estimates the Jaccard similarity J of the texts' sets of three
consecutive words, with a standard error of sqrt(J (1 - J) / 128): 0.03 at 0.85. Two texts are compared when
all eight entries of one of sixteen bands agree, which at J = 0.85 happens for 99.4% of pairs. A crowded bucket
costs no more than a sparse one: each text meets the bucket's first and its neighbours in an order that
puts similar texts side by side.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gradian.types import FloatArray, IntArray

BANDS = 16
BAND_ROWS = 8
SIGNATURE = BANDS * BAND_ROWS
SHINGLE_WORDS = 3
LONGEST_TEXT = 200_000
"""Characters of a text that are looked at."""

_CHUNK_BYTES = 512 * 1024
_PAIR_CHUNK = 32_768
_WORD_BASE = 0x9E3779B97F4A7C15  # Odd, so that it has an inverse modulo 2^64.
_PICKS = 3  # Texts of a bucket that a text from outside is compared with.

UInt64Array = npt.NDArray[np.uint64]
UInt32Array = npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class Sketches:
    """Signatures of n texts.

    Attributes:
        signatures: uint32 [n, SIGNATURE].
        words: words in each text, int64 [n]; a text without words is similar to none.
    """

    signatures: UInt32Array
    words: IntArray

    def __len__(self) -> int:
        return len(self.words)

    def take(self, chosen: IntArray) -> Sketches:
        """The sketches of some of the texts, in the order asked for."""
        return Sketches(self.signatures[chosen], self.words[chosen])

    def band_keys(self) -> UInt64Array:
        """One hash a band, uint64 [BANDS, n]."""
        bands = self.signatures.reshape(len(self), BANDS, BAND_ROWS)
        keys = np.zeros((BANDS, len(self)), dtype=np.uint64)
        for entry in range(BAND_ROWS):
            keys *= np.uint64(_WORD_BASE)
            keys += bands[:, :, entry].T
        return _mixed(keys)


@dataclass(frozen=True, eq=False)
class Matches:
    """For each of m texts the most similar one found among n others.

    Attributes:
        index: 0-based text, or -1 when none reaches the threshold, int64 [m].
        similarity: estimated Jaccard similarity, 0 where there is none, float64 [m].
        crowd: how many of the others fall in the same bucket, at the least; 0 where there is no match, int64 [m].
        widest: how many at the most, int64 [m].
    """

    index: IntArray
    similarity: FloatArray
    crowd: IntArray
    widest: IntArray


def sketch(texts: Iterable[str]) -> Sketches:
    """Compute the signatures of texts, a chunk of texts at a time.

    Words are runs of letters and digits in lower case; a character of a script written without spaces is a word
    by itself. A text of fewer than three words counts as one shingle.
    """
    multipliers = np.random.default_rng(0).integers(0, 2**31, SIGNATURE, dtype=np.uint32) * 2 + 1
    signatures: list[UInt32Array] = []
    words: list[IntArray] = []
    for chunk in _chunks(texts):
        shingles, starts, counts = _shingles(chunk)
        signature = np.full((SIGNATURE, len(chunk)), np.iinfo(np.uint32).max, dtype=np.uint32)
        filled = np.flatnonzero(counts)
        if len(filled):
            product = np.empty_like(shingles)
            for k in range(SIGNATURE):
                np.multiply(shingles, multipliers[k], out=product)
                signature[k, filled] = np.minimum.reduceat(product, starts[filled])
        signatures.append(np.ascontiguousarray(signature.T))
        words.append(counts)
    if not signatures:
        return Sketches(np.zeros((0, SIGNATURE), np.uint32), np.zeros(0, np.int64))
    return Sketches(np.concatenate(signatures), np.concatenate(words))


def groups(sketches: Sketches, threshold: float) -> IntArray:
    """Group texts that are linked by pairs of at least `threshold` similarity.

    Returns:
        int64 [n]: texts with the same number are in one group.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = len(sketches)
    usable = np.flatnonzero(sketches.words)
    keys = sketches.band_keys()
    left: list[IntArray] = [np.zeros(0, np.int64)]
    right: list[IntArray] = [np.zeros(0, np.int64)]
    for band in range(BANDS):
        first, second = _bucket_pairs(usable, keys[band], keys[(band + 1) % BANDS])
        close = _similarity(sketches, first, sketches, second) >= threshold
        left.append(first[close])
        right.append(second[close])
    linked, to = np.concatenate(left), np.concatenate(right)
    graph = coo_array((np.ones(len(linked), np.bool_), (linked, to)), shape=(n, n))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def matches(wanted: Sketches, among: Sketches, threshold: float) -> Matches:
    """Find for each of `wanted` a text in `among` of at least `threshold` similarity."""
    m = len(wanted)
    index, crowd, widest = np.full(m, -1, np.int64), np.zeros(m, np.int64), np.zeros(m, np.int64)
    best = np.zeros(m)
    usable = np.flatnonzero(among.words)
    asking, offered = wanted.band_keys(), among.band_keys()
    for band in range(BANDS):
        order = usable[np.argsort(offered[band][usable], kind="stable")]
        ordered = offered[band][order]
        low, high = (np.searchsorted(ordered, asking[band], side=side) for side in ("left", "right"))
        found = np.flatnonzero((high > low) & (wanted.words > 0))
        for pick in range(_PICKS):
            place = low[found] + (high[found] - 1 - low[found]) * pick // (_PICKS - 1)
            candidate = order[place]
            similarity = _similarity(wanted, found, among, candidate)
            better = (similarity >= threshold) & (similarity > best[found])
            at = found[better]
            index[at], best[at] = candidate[better], similarity[better]
            close = found[similarity >= threshold]
            size = high[close] - low[close]
            crowd[close] = np.where(crowd[close] > 0, np.minimum(crowd[close], size), size)
            widest[close] = np.maximum(widest[close], size)
    return Matches(index, best, crowd, widest)


def _bucket_pairs(usable: IntArray, key: UInt64Array, next_key: UInt64Array) -> tuple[IntArray, IntArray]:
    # Each text with the one before it in its bucket, and with the bucket's first.
    order = usable[np.lexsort((next_key[usable], key[usable]))]
    ordered = key[order]
    same = np.concatenate([[False], ordered[1:] == ordered[:-1]]) if len(order) else np.zeros(0, np.bool_)
    member = np.flatnonzero(same)
    head = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
    beyond = member[head[member] != member - 1]
    first = np.concatenate([order[member - 1], order[head[beyond]]])
    return first, np.concatenate([order[member], order[beyond]])


def _similarity(a: Sketches, i: IntArray, b: Sketches, j: IntArray) -> FloatArray:
    shares = np.empty(len(i))
    for start in range(0, len(i), _PAIR_CHUNK):
        part = slice(start, start + _PAIR_CHUNK)
        shares[part] = (a.signatures[i[part]] == b.signatures[j[part]]).mean(axis=1)
    return shares


def _chunks(texts: Iterable[str]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for text in texts:
        plain = unicodedata.normalize("NFKC", text[:LONGEST_TEXT]).lower().encode("utf-8", "surrogatepass")
        if chunk and size + len(plain) > _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(plain)
        size += len(plain) + 1
    if chunk:
        yield chunk


def _shingles(chunk: list[bytes]) -> tuple[UInt32Array, IntArray, IntArray]:
    # Shingle hashes of all texts one after another, where each text's begin, and how many words it has.
    lengths = np.array([len(text) for text in chunk], dtype=np.int64)
    text_starts = np.concatenate([[0], np.cumsum(lengths + 1)])
    data = np.frombuffer(b"\x00".join(chunk) + b"\x00", dtype=np.uint8)
    begins, ends = _word_bounds(data)
    powers, inverses = _powers(1 << len(data).bit_length())
    reached = np.zeros(len(data) + 1, dtype=np.uint64)
    np.cumsum(data * powers[: len(data)], out=reached[1:])
    words = _mixed((reached[ends] - reached[begins]) * inverses[begins])
    borders = np.searchsorted(begins, text_starts)  # First word of each text, and the end.
    counts = np.diff(borders)
    # A shingle begins at each word that has two more behind it, or at the first word of a shorter text.
    combined = words.copy()
    left = np.repeat(borders[1:], counts) - np.arange(len(words))  # Words from here to the text's end.
    for ahead in range(1, SHINGLE_WORDS):
        more = np.flatnonzero(left > ahead)
        combined[more] = combined[more] * np.uint64(_WORD_BASE) + words[more + ahead]
    keep = left >= SHINGLE_WORDS
    keep[borders[:-1][counts > 0]] = True
    shingles = (_mixed(combined[keep]) >> np.uint64(32)).astype(np.uint32)
    kept = np.where(counts > 0, np.maximum(counts - SHINGLE_WORDS + 1, 1), 0)
    return shingles, np.concatenate([[0], np.cumsum(kept)])[:-1], counts


_WORD_BYTE = np.array([chr(code).isalnum() if code < 128 else True for code in range(256)])


def _word_bounds(data: npt.NDArray[np.uint8]) -> tuple[IntArray, IntArray]:
    # First byte of each word and the byte behind it. UTF-8 characters of three bytes and more are words of
    # their own (Chinese, Japanese, Thai); of these, typographic and ideographic punctuation is none.
    inside = _WORD_BYTE[data]
    wide = data >= 0xE0
    starts = np.zeros(len(data) + 4, dtype=np.bool_)
    if wide.any():
        lead = np.flatnonzero(wide)
        after = data[np.minimum(lead + 1, len(data) - 1)]
        punctuation = lead[
            ((data[lead] == 0xE2) & ((after == 0x80) | (after == 0x81)))
            | ((data[lead] == 0xE3) & (after == 0x80))
        ]
        for offset in range(3):
            inside[punctuation + offset] = False
        starts[lead] = True
        starts[lead + np.where(data[lead] >= 0xF0, 4, 3)] = True
    begins = inside.copy()
    begins[1:] &= ~inside[:-1] | starts[1 : len(data)]
    ends = inside.copy()
    ends[:-1] &= ~inside[1:] | begins[1:]
    return np.flatnonzero(begins), np.flatnonzero(ends) + 1


@lru_cache(maxsize=2)
def _powers(n: int) -> tuple[UInt64Array, UInt64Array]:
    inverse = pow(_WORD_BASE, -1, 2**64)
    made = []
    for base in (_WORD_BASE, inverse):
        factors = np.full(n, base, dtype=np.uint64)
        factors[0] = 1
        made.append(np.cumprod(factors, dtype=np.uint64))
    return made[0], made[1]


def _mixed(values: UInt64Array) -> UInt64Array:
    # The finaliser of SplitMix64: every bit depends on every other.
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)
