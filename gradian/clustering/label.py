"""Names for clusters: the terms that set each apart from the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import log

from gradian.clustering.embed import terms

NO_WORDS = "(no words)"


def label_clusters(texts: Sequence[str], assignment: Sequence[str], top_terms: int) -> Mapping[str, str]:
    """Return a label for every cluster: its `top_terms` strongest terms, comma-separated.

    A term's weight is class-based TF-IDF (Grootendorst 2022): its share of the cluster's terms times
    log(1 + mean terms a cluster / its count over all clusters). A text counts each of its terms once, so that
    one long text does not name the cluster. English stop words and bare numbers are dropped unless nothing
    else is left. Ties go by the alphabet.
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    counts: dict[str, Counter[str]] = {cluster: Counter() for cluster in assignment}
    for text, cluster in zip(texts, assignment, strict=True):
        counts[cluster].update(set(terms(text)))
    overall: Counter[str] = Counter()
    for own in counts.values():
        overall.update(own)
    mean_size = overall.total() / max(len(counts), 1)

    def weight(own: Counter[str], term: str) -> float:
        return own[term] / own.total() * log(1 + mean_size / overall[term])

    labels = {}
    for cluster, own in counts.items():
        telling = [term for term in own if term not in ENGLISH_STOP_WORDS and not term.isnumeric()]
        ranked = sorted(telling or own, key=lambda term: (-weight(own, term), term))
        labels[cluster] = ", ".join(ranked[:top_terms]) or NO_WORDS
    return labels
