"""Where the two lanes meet: harmful rows that a check of the data names as well.

The influence ranking never sees the checks and the checks never see the ranking, so an overlap beyond chance is
evidence from two sides, and it turns a list of rows into the name of a fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradian.types import Finding, Severity

ID = "attribution.cluster_matches_data_defect"
LEVEL = 0.01
"""Chance of a false match in one report, over all comparisons made in it (Bonferroni)."""
LEAST = 2
"""Rows that must coincide: one row in common names nothing."""


@dataclass(frozen=True)
class Overlap:
    """How many of some harmful rows a check names too.

    Attributes:
        defect: the check's finding.
        group: what the harmful rows are, for a sentence.
        size: their number.
        shared: ids of the harmful rows that the check names, in the ranking's order.
        rows: all training rows.
        p_value: chance of at least so many in common when rows were drawn blindly (upper tail of the hypergeometric
            distribution).
    """

    defect: Finding
    group: str
    size: int
    shared: tuple[str, ...]
    rows: int
    p_value: float

    @property
    def base_rate(self) -> float:
        """Share of all rows that the check names."""
        return len(set(self.defect.example_ids)) / self.rows


def overlaps(
    findings: Sequence[Finding], harmful: Mapping[str, Sequence[str]], rows: int
) -> tuple[Overlap, ...]:
    """Compare each finding about training rows with each group of harmful rows.

    Args:
        findings: of the audit; those under `data.` that name rows are compared.
        harmful: ids of harmful rows, by what the group is called.
        rows: number of training rows.

    Returns:
        One for each pair, the least likely by chance first.
    """
    from scipy.stats import hypergeom

    found = []
    for finding in findings:
        flagged = set(finding.example_ids)
        if not finding.id.startswith("data.") or not flagged:
            continue
        for group, ids in harmful.items():
            shared = tuple(row for row in ids if row in flagged)
            chance = float(hypergeom.sf(len(shared) - 1, rows, len(flagged), len(ids)))
            found.append(Overlap(finding, group, len(ids), shared, rows, chance))
    return tuple(sorted(found, key=lambda overlap: overlap.p_value))


def overlap_findings(compared: Sequence[Overlap]) -> tuple[Finding, ...]:
    """Return a finding for each check whose rows coincide with harmful rows more than chance allows.

    Args:
        compared: every comparison made; their number sets how unlikely one has to be.
    """
    made: dict[str, Finding] = {}
    for overlap in compared:
        corrected = min(1.0, overlap.p_value * len(compared))
        if len(overlap.shared) >= LEAST and corrected < LEVEL:
            made.setdefault(overlap.defect.id, _finding(overlap, corrected))
    return tuple(made.values())


def _finding(overlap: Overlap, corrected: float) -> Finding:
    flagged = len(set(overlap.defect.example_ids))
    return Finding(
        id=ID,
        severity=Severity.HIGH,
        title=f"{len(overlap.shared)} of the {overlap.size} {overlap.group} also have the defect"
        f" `{overlap.defect.id}`",
        evidence=f"{flagged} of the {overlap.rows} training rows ({overlap.base_rate:.1%}) have it, so by chance"
        f" {overlap.size * overlap.base_rate:.2g} would be expected: p = {overlap.p_value:.2g}"
        f" (hypergeometric; {corrected:.2g} over all comparisons). Ranking and check do not know of each other."
        f" The check says: {overlap.defect.title}.",
        fix=f"Repair the defect before judging what the rows say. {overlap.defect.fix}".rstrip(),
        example_ids=overlap.shared,
        figures={
            "defect": overlap.defect.id,
            "shared": len(overlap.shared),
            "harmful": overlap.size,
            "flagged": flagged,
            "rows": overlap.rows,
            "base_rate": overlap.base_rate,
            "p_value": overlap.p_value,
            "p_value_corrected": corrected,
        },
    )
