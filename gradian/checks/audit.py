"""Running the checks: what they are given, and what comes out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gradian.checks.near_duplicates import Sketches, sketch
from gradian.checks.registry import CannotTell, Check, Need, all_checks
from gradian.checks.turn_keys import TurnKeys, row_text, turn_keys
from gradian.config.checks import ChecksConfig
from gradian.runs.artifact import RunArtifact
from gradian.types import EncodedExample, Example, Finding, IntArray, Severity

if TYPE_CHECKING:
    from gradian.data.chat import ChatEncoder
    from gradian.data.formats import Dataset

log = logging.getLogger(__name__)

# No limit that any row reaches: rows are encoded whole when nobody says where training cut them.
NO_LIMIT = 2**31 - 1
# Fewest tokens that a row can be cut to: nothing predicts the first.
SHORTEST = 2


def recorded_length(run: RunArtifact | None) -> int | None:
    """Return where a run cut its rows, in tokens; None where it does not say, or names no possible length."""
    length = run.hyper.max_length if run else None
    return None if length is None or length < SHORTEST else min(length, NO_LIMIT)


_LENGTH_SETTING = "max_seq_length"
_LENGTH_SETTINGS = {"trl": "max_length", "axolotl": "sequence_len", "llamafactory": "cutoff_len"}
# A log that goes back ten thousand times tells no more than one that goes back twenty times.
MOST_FINDINGS = 20


@dataclass(frozen=True, eq=False)
class Audit:
    """What the checks look at. Everything may be absent; a check names what it needs.

    Attributes:
        dataset: the training data.
        eval_dataset: the eval data.
        run: the normalised run folder.
        encoder: rows to masked tokens, as training and attribution see them. Its limit is `max_seq_length`, or
            `NO_LIMIT` where that is not known.
        max_seq_length: where training cut the rows, in tokens.
        base_model: the model that the user says was fine-tuned.
        limits: the thresholds.
        rows: the training rows as `encoder` encodes them, where that was done already.
        progress: called with the number of rows encoded.
    """

    dataset: Dataset | None = None
    eval_dataset: Dataset | None = None
    run: RunArtifact | None = None
    encoder: ChatEncoder | None = None
    max_seq_length: int | None = None
    base_model: str | None = None
    limits: ChecksConfig = field(default_factory=ChecksConfig)
    rows: tuple[EncodedExample, ...] | None = None
    progress: Callable[[int], None] | None = None

    @cached_property
    def examples(self) -> tuple[Example, ...]:
        """The training rows, read once: those of a large file come from the file each time they are asked for."""
        return tuple(self.dataset.examples) if self.dataset else ()

    @cached_property
    def turn_keys(self) -> TurnKeys:
        """Hashes of what is asked and answered in the training rows."""
        return turn_keys(self.examples)

    @cached_property
    def sketches(self) -> Sketches:
        """MinHash signatures of the training rows."""
        return sketch(row_text(example) for example in self.examples)

    @property
    def artifact(self) -> RunArtifact:
        """The run, for checks that need one.

        Raises:
            CannotTell: there is none.
        """
        if self.run is None:
            raise CannotTell("there is no run folder")
        return self.run

    @cached_property
    def encoded(self) -> tuple[EncodedExample, ...]:
        """The training rows as masked tokens, encoded once for all checks; refused rows have no targets.

        Raises:
            CannotTell: there is no tokenizer.
        """
        from gradian.data.chat import encode_all

        if self.encoder is None:
            raise CannotTell("there is no tokenizer")
        return self.rows if self.rows is not None else encode_all(self.encoder, self.examples, self.progress)

    @cached_property
    def token_counts(self) -> IntArray:
        """Tokens of each training row before any cut, int64 [n]."""
        return np.array([len(row) + row.truncated for row in self.encoded], dtype=np.int64)

    @property
    def length_setting(self) -> str:
        """What the run's trainer calls the limit on a row's tokens, so that a fix names a setting that it has."""
        if self.run is None:
            return _LENGTH_SETTING
        recorded = self.run.sources.get("max_length", "").rpartition(": ")[2]
        known = recorded in (_LENGTH_SETTING, *_LENGTH_SETTINGS.values())
        return recorded if known else _LENGTH_SETTINGS.get(self.run.trainer, _LENGTH_SETTING)

    @cached_property
    def encoding(self) -> dict[str, Finding]:
        """What encoding the training rows had to say, by finding id."""
        from gradian.data.chat import encoding_findings

        encoded = self.encoded
        return {finding.id: finding for finding in encoding_findings(self._encoder, encoded)}

    @cached_property
    def reading(self) -> dict[str, Finding]:
        """What reading the training file had to say, by finding id."""
        return {finding.id: finding for finding in self.dataset.findings} if self.dataset else {}

    @property
    def _encoder(self) -> ChatEncoder:
        if self.encoder is None:
            raise CannotTell("there is no tokenizer")
        return self.encoder

    def has(self, need: Need) -> bool:
        """Whether an input is there."""
        present = {
            Need.DATASET: self.dataset,
            Need.EVAL_DATASET: self.eval_dataset,
            Need.TOKENIZER: self.encoder,
            Need.RUN: self.run,
            Need.LENGTH: self.max_seq_length,
        }
        return present[need] is not None


@dataclass(frozen=True)
class SkippedCheck:
    """A check that could not run.

    Attributes:
        id: the check.
        reason: what is missing, with the flag that would give it.
        missing: the inputs that were not given; empty where they were there but did not say.
    """

    id: str
    reason: str
    missing: tuple[Need, ...] = ()


@dataclass(frozen=True)
class AuditResult:
    """What an audit found.

    Attributes:
        findings: most severe first, then in the order of the checks.
        skipped: checks that could not run.
        passed: ids of the checks that ran and found nothing.
    """

    findings: tuple[Finding, ...]
    skipped: tuple[SkippedCheck, ...]
    passed: tuple[str, ...]


def run_audit(
    audit: Audit, checks: Sequence[Check] | None = None, done: Callable[[int], None] | None = None
) -> AuditResult:
    """Run the checks; one that crashes becomes a finding against itself and stops no other.

    Args:
        audit: the inputs.
        checks: those to run; None runs all.
        done: called with 1 after each check.
    """
    findings: list[Finding] = []
    skipped: list[SkippedCheck] = []
    passed: list[str] = []
    for entry in _counted(all_checks() if checks is None else checks, done):
        missing = [need for need in entry.needs if not audit.has(need)]
        if missing:
            skipped.append(SkippedCheck(entry.id, _needs(missing), tuple(missing)))
            continue
        try:
            made = _bounded(tuple(_own(entry, entry.judge(audit))))
        except CannotTell as reason:
            skipped.append(SkippedCheck(entry.id, str(reason)))
        except Exception as error:  # Whatever it is, silence would read as a pass.
            log.debug("check %s failed", entry.id, exc_info=True)
            findings.append(_crashed(entry, error))
        else:
            findings += made
            if not made:
                passed.append(entry.id)
    ordered = sorted(findings, key=lambda finding: finding.severity.rank)
    return AuditResult(tuple(ordered), tuple(skipped), tuple(passed))


def _counted(checks: Sequence[Check], done: Callable[[int], None] | None) -> Iterator[Check]:
    for entry in checks:
        yield entry
        if done is not None:
            done(1)


def _own(entry: Check, findings: Iterable[Finding]) -> Iterable[Finding]:
    for finding in findings:
        if finding.id != entry.id:
            raise ValueError(f"the check made a finding under another id, {finding.id!r}")
        yield finding


def _bounded(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The most severe findings of one check, and one more that counts the rest."""
    if len(findings) <= MOST_FINDINGS:
        return findings
    ordered = sorted(findings, key=lambda finding: finding.severity.rank)
    shown, rest = ordered[: MOST_FINDINGS - 1], ordered[MOST_FINDINGS - 1 :]
    return (
        *shown,
        Finding(
            id=rest[0].id,
            severity=rest[0].severity,
            title=f"{len(rest)} more findings of this kind, of {len(findings)}, are not listed one by one",
            evidence=f"None of them is more severe than {rest[0].severity.value}. The first: {rest[0].title}",
            fix="Put the listed ones right and run the audit again.",
            figures={"count": len(rest), "findings": len(findings)},
        ),
    )


def _needs(missing: Sequence[Need]) -> str:
    def flag(need: Need) -> str:
        # A run folder mostly says where training cut the rows.
        return f"{need.value} (or --run)" if need is Need.LENGTH else need.value

    return "needs " + " and ".join(flag(need) for need in missing)


def _crashed(entry: Check, error: Exception) -> Finding:
    return Finding(
        id="audit.check_failed",
        severity=Severity.MEDIUM,
        title=f"The check {entry.id} failed, so it says nothing about this run",
        evidence=f"{type(error).__name__}: {str(error)[:300]}",
        fix="Report this with the output of `gradian doctor`; the other checks are not affected.",
        figures={"check": entry.id, "error": type(error).__name__},
    )
