"""From a run to a verdict: measure, index, query, score, cluster, report."""

from __future__ import annotations

import logging
import math
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradian.checks.attribution import dataset_finding, truncation_finding
from gradian.checks.audit import NO_LIMIT, Audit, AuditResult, recorded_length, run_audit
from gradian.clustering.cluster import Clustering, cluster_examples
from gradian.clustering.summary import summarise
from gradian.config import Config
from gradian.data.chat import ChatEncoder, encoding_findings
from gradian.data.formats import Dataset, load_dataset
from gradian.data.ids import dataset_hash
from gradian.engines import ENGINES, EngineSettings, GramStore
from gradian.engines.gram import gram_matrices
from gradian.errors import EvaluationError, RunError
from gradian.evaluation.capability import CapabilityResult, measure_capability
from gradian.evaluation.metrics import METRICS
from gradian.grads.collect import skipped_finding
from gradian.grads.provenance import library_versions
from gradian.ops._dispatch import ENVIRONMENT_VARIABLE, decisions, instruction_sets
from gradian.progress import Advance, Progress
from gradian.query.contrastive import QueryItem, Signal, item_queries, resolve_signal, with_average
from gradian.query.score_summary import join_summaries, score_summaries, summarise_scores
from gradian.query.scorer import (
    QueryGradients,
    gradient_norms,
    rank_correlation,
    relative_influence,
    score_index,
)
from gradian.report.build import TOP_PER_ITEM, build_report
from gradian.report.model import Engines, Report, Skipped
from gradian.report.write import check_writable, write_report
from gradian.runs.artifact import RunArtifact
from gradian.runs.gradian_run import read_run
from gradian.runs.read import read_run_folder
from gradian.session import Session
from gradian.types import Example, Finding, FloatArray, Scores, ScoreSummary

if TYPE_CHECKING:
    from torch import Tensor

    from gradian.store.reader import IndexReader

log = logging.getLogger(__name__)

# Name of the query that averages the items.
AVERAGE = "average"
# Rows that stand in for a capability when there is no eval set.
SMOKE_TEST_ROWS = 8
# Query gradients held in memory at a time; more items are scored in several sweeps of the store.
QUERY_BYTES = 2 * 1024**3
# Whole scores held in memory at a time, all engines together. A sweep holds a few arrays of their size; where they
# would be larger, an item's rows are picked chunk by chunk. Half of what the queries themselves may take.
SCORE_BYTES = 1024**3


@dataclass(frozen=True, eq=False)
class Influence:
    """Scores of every training row averaged over the items, and the rows that matter most to each of them.

    Attributes:
        average: per engine float64 [n].
        per_item: the primary engine's scores on each item, of which the report names `TOP_PER_ITEM` rows. Whole,
            they would take 8 bytes for each item and row, and nothing reads them.
        signal: what the queries were made of.
        from_gram: whether scores came from kept Gram matrices, which round differently from a streamed store.
    """

    average: dict[str, FloatArray]
    per_item: ScoreSummary
    signal: Signal
    from_gram: bool


def score_items(
    session: Session,
    reader: IndexReader,
    items: list[QueryItem],
    engines: list[str],
    settings: EngineSettings,
) -> Influence:
    """Score the index on the average query and on each item's own.

    Items whose gradients do not fit in `QUERY_BYTES` together are scored group by group.

    Args:
        session: the run.
        reader: its index.
        items: the eval items to explain, one at least.
        engines: the primary engine first.
        settings: damping and learning rate.
    """
    config = session.config
    signal = resolve_signal(config.evaluation.query_signal, items)
    width = 4 * sum(spec.size for spec in reader.blocks) * (2 if signal == "contrastive" else 1)
    size = max(1, QUERY_BYTES // width)
    groups = [items[start : start + size] for start in range(0, len(items), size)]
    # Only engines that correct for curvature look at the training rows' products with each other.
    gram = None
    if any(not ENGINES[name].curvature_free for name in engines):
        gram = gram_matrices(
            reader,
            config.engine.gram,
            queries=len(items) + 1,
            sweeps=len(groups),
            threads=settings.threads,
            progress=session.progress,
        )
    sums = None
    average: dict[str, FloatArray] = {}
    parts: list[ScoreSummary] = []
    with (
        session.progress.task("Query gradients", len(items)) as queried,
        session.progress.task("Scoring", len(groups) * len(reader.blocks)) as scored,
    ):
        for number, group in enumerate(groups):
            queries: QueryGradients = item_queries(session.collector, session.encoder, group, signal)
            queried(len(group))
            totals = [block.double().sum(dim=0) for block in queries.blocks]
            sums = totals if sums is None else [a + b for a, b in zip(sums, totals, strict=True)]
            last = number == len(groups) - 1
            mean = [total / len(items) for total in sums] if last else None
            of_mean, of_items = _score_group(
                reader, queries, mean, engines, settings, config.engine.normalize_query, gram, scored
            )
            average.update(of_mean)
            parts.append(of_items)
    return Influence(average, join_summaries(parts), signal, gram is not None)


def _score_group(
    reader: IndexReader,
    queries: QueryGradients,
    mean: Sequence[Tensor] | None,
    engines: list[str],
    settings: EngineSettings,
    normalize_query: bool,
    gram: GramStore | None,
    progress: Advance,
) -> tuple[dict[str, FloatArray], ScoreSummary]:
    """Return the scores on the mean query by engine, if there is one, and the primary engine's on the items."""
    used = engines if mean is not None else engines[:1]
    whole = partial(score_index, reader, settings=settings, normalize_query=normalize_query, gram=gram)
    rows = len(queries.ids) + (mean is not None)
    if 8 * reader.n * rows * len(used) <= SCORE_BYTES:
        together = with_average(queries, mean, AVERAGE) if mean is not None else queries
        scores = whole(queries=together, engines=used, progress=progress)
        of_items = Scores(engines[0], scores[engines[0]].values[rows - len(queries.ids) :], queries.ids)
        summary = summarise_scores(of_items, TOP_PER_ITEM)
    else:
        summary = score_summaries(
            reader,
            queries,
            engines[0],
            settings,
            TOP_PER_ITEM,
            normalize_query=normalize_query,
            progress=progress,
        )
        scores = {}
        if mean is not None:
            alone = QueryGradients((AVERAGE,), tuple(block.float().reshape(1, -1) for block in mean))
            scores = whole(queries=alone, engines=used)
    average = {name: each.values[0] for name, each in scores.items()} if mean is not None else {}
    return average, summary


def attribute_run(
    config: Config,
    *,
    capability: str,
    engine: str | None,
    cross_check: str | None,
    out: Path | None,
    force: bool,
    skip_nonfinite: bool,
    progress: Progress,
) -> Report:
    """Run one attribution from settings to report; see `gradian.api.analyze`.

    The capability is measured first: it is cheap, and its failures should not wait for an index.
    """
    primary = engine or config.engine.name
    skipped = []
    if cross_check == primary:
        skipped.append(
            Skipped(
                id="cross_check",
                reason=f"{primary} would agree with itself perfectly, which would read as confidence",
            )
        )
        cross_check = None
    engines = [primary, *([cross_check] if cross_check else [])]
    for name in engines:
        ENGINES[name]  # an unknown engine is refused before anything is loaded
    run = read_run_folder(config.run_dir) if config.run_dir else None
    if out is not None:
        check_writable(out)
    session = Session(config, progress, skip_nonfinite=skip_nonfinite)
    examples = session.dataset.examples
    eval_set = load_dataset(config.eval_dataset) if config.eval_dataset else None
    eval_examples: Sequence[Example] = eval_set.examples if eval_set else ()
    # Both need no measurement, so their failures should not wait for one.
    clustering = cluster_examples(examples, config.clustering, config.seed)
    collector = session.collector
    measured = measure(session, eval_examples, capability) if eval_set else None
    reader = session.index(force=force)
    items = items_to_explain(measured, eval_examples, examples)
    settings = engine_settings(config, run, engines)
    influence = score_items(session, reader, items, engines, settings)
    findings: list[Finding] = [*collector.findings]
    if run:
        audited = _audit(session, eval_set, run)
        findings += audited.findings
        skipped += [Skipped(id=check.id, reason=check.reason) for check in audited.skipped]
        findings += _mismatches(session, run)
    else:
        skipped.append(Skipped(id="audit", reason="needs --run: the checks of settings, logs and data"))
        findings += [*session.dataset.findings, *encoding_findings(session.encoder, session.encoded)]
    if eval_set:
        findings += (replace(finding, id=f"eval.{finding.id}") for finding in eval_set.findings)
    zeroed = (examples[int(row)].id for row in np.flatnonzero(np.isnan(reader.loss)))
    # Rows from the index and not from the build: an index that was found, or resumed, has them too.
    unusable = tuple(dict.fromkeys((*zeroed, *collector.skipped)))
    if unusable:
        findings.append(skipped_finding(unusable))
    findings = list({(finding.id, finding.title): finding for finding in findings}.values())
    provenance = _provenance(session, reader, eval_examples, influence)
    report = _report(
        session, reader, clustering, measured, influence, primary, cross_check, findings, skipped, provenance
    )
    if out is not None:
        write_report(report, out)
    return report


def _audit(session: Session, eval_set: Dataset | None, run: RunArtifact) -> AuditResult:
    """Run the checks on the rows as training saw them, which may be cut elsewhere than the index cuts them."""
    config = session.config
    limit, encoder = recorded_length(run), session.encoder
    same = limit == encoder.max_seq_length
    if not same:
        encoder = ChatEncoder(encoder.tokenizer, limit or NO_LIMIT)
    with session.progress.task("Auditing", len(session.dataset.examples)) as advance:
        return run_audit(
            Audit(
                dataset=session.dataset,
                eval_dataset=eval_set,
                run=run,
                encoder=encoder,
                max_seq_length=limit,
                base_model=config.base_model,
                limits=config.checks,
                rows=session.encoded if same else None,
                progress=advance,
            )
        )


def _mismatches(session: Session, run: RunArtifact) -> Iterator[Finding]:
    """Yield what training saw otherwise than the index: other rows, or rows cut elsewhere."""
    record = read_run(run.folder)
    scored = session.inputs["dataset"]
    if record and (found := dataset_finding(record.dataset, scored["sha256"], scored["n"])):
        yield found
    lengths = {row.id: len(row) + row.truncated for row in session.encoded}
    dropped = run.hyper.overlong_rows == "drop"
    if found := truncation_finding(
        recorded_length(run), session.config.grads.max_seq_length, lengths, dropped
    ):
        yield found


def engine_settings(config: Config, run: RunArtifact | None, engines: Sequence[str]) -> EngineSettings:
    """Return the numbers that the engines may use.

    Raises:
        RunError: tracin is among the engines and the run records no learning rate.
    """
    rate = _learning_rate(run) if run and "tracin" in engines else 1.0
    return EngineSettings(
        config.engine.lambda_scale, config.engine.lambda_override, rate, config.engine.threads
    )


def _learning_rate(run: RunArtifact) -> float:
    # A scale on TracIn's scores, which no other engine reads.
    rate = run.hyper.learning_rate
    if rate is not None and math.isfinite(rate) and rate > 0:
        return rate
    raise RunError(
        "the run records no learning rate, which tracin needs",
        where=f"--run {run.folder}",
        found=repr(rate),
        expected="a number above 0",
    )


def measure(session: Session, examples: Sequence[Example], name: str) -> CapabilityResult:
    """Judge the base and the tuned model on eval rows; see `measure_capability`."""
    loaded = session.loaded
    with session.progress.task("Answering eval items", 2 * len(examples)) as advance:
        measured = measure_capability(loaded, examples, session.config, name, advance)
    log.info(
        "%s: base %.4f, tuned %.4f, delta %+.4f [%+.4f, %+.4f], %s",
        name,
        measured.base,
        measured.tuned,
        measured.delta,
        measured.ci_low,
        measured.ci_high,
        measured.verdict,
    )
    return measured


def _report(
    session: Session,
    reader: IndexReader,
    clustering: Clustering,
    measured: CapabilityResult | None,
    influence: Influence,
    primary: str,
    cross_check: str | None,
    findings: list[Finding],
    skipped: list[Skipped],
    provenance: dict[str, Any],
) -> Report:
    config, examples = session.config, session.dataset.examples
    raw = influence.average[primary]
    norms = gradient_norms(reader)
    relative = relative_influence(raw, norms)
    summaries = summarise(clustering, examples, raw, relative, config.clustering)
    if config.engine.relative:
        summaries = tuple(sorted(summaries, key=lambda cluster: cluster.relative_mean * cluster.n))
    return build_report(
        examples=examples,
        assignment=clustering.assignment,
        clusters=summaries,
        scores=raw,
        relative=relative,
        capability=measured,
        query_signal=influence.signal,
        engines=Engines(
            primary=primary,
            cross_check=cross_check,
            spearman=rank_correlation(raw, influence.average[cross_check]) if cross_check else None,
            relative_spearman=rank_correlation(raw, relative),
            ranked_by="relative" if config.engine.relative else "raw",
        ),
        item_scores=influence.per_item if measured else None,
        norms=norms,
        findings=findings,
        provenance=provenance,
        skipped=skipped,
        clustered=clustering.method != "none",
        require_significant=config.evaluation.require_significant,
        ci_level=config.evaluation.ci_level,
    )


def items_to_explain(
    measured: CapabilityResult | None, eval_examples: Sequence[Example], training: Sequence[Example]
) -> list[QueryItem]:
    """Return the eval items behind the query: those that regressed, or all of them when none did.

    Items that did not regress come without what the model said: it is the wanted answer, more or less, and the
    difference of the two would be a query of zeros.
    Without an eval set the first few training rows stand in: a smoke test of the pipeline.

    Raises:
        EvaluationError: there is no eval set and none of the first training rows has a target.
    """
    if measured is None:
        stand_ins = [
            QueryItem(example)
            for example in training[:SMOKE_TEST_ROWS]
            if example.messages and example.target
        ]
        if stand_ins:
            return stand_ins
        raise EvaluationError(
            f"none of the first {SMOKE_TEST_ROWS} training rows has an answer to stand in for a capability",
            where="--eval-dataset",
            fix="pass an eval set",
        )
    numbered = regressed_items(measured, eval_examples)
    return [item for _, item in numbered]


def regressed_items(
    measured: CapabilityResult, eval_examples: Sequence[Example]
) -> list[tuple[int, QueryItem]]:
    """Return the items that got worse with their numbers, or all of them, without answers, when none did."""
    holds_answer = METRICS[measured.metric].answer_is_wanted
    items = [
        QueryItem(
            example,
            said=item.tuned_token_ids or None,
            wanted=None if holds_answer else item.base_token_ids,
        )
        for example, item in zip(eval_examples, measured.items, strict=True)
    ]
    numbered = list(enumerate(items))
    regressed = [(number, item) for number, item in numbered if measured.items[number].regressed]
    return regressed or [(number, replace(item, said=None)) for number, item in numbered]


def _provenance(
    session: Session, reader: IndexReader, eval_examples: Sequence[Example], influence: Influence
) -> dict[str, Any]:
    # Everything a number in the report follows from, and nothing that differs between two equal runs.
    return {
        "index": reader.manifest.to_mapping(),
        "config": session.config.model_dump(mode="json"),
        "eval_dataset": {"sha256": dataset_hash(eval_examples), "n": len(eval_examples)},
        "ops": {
            "environment": os.environ.get(ENVIRONMENT_VARIABLE, "auto"),
            "implementations": decisions(session.loaded.device, session.loaded.dtype),
            "instruction_set": next(iter(instruction_sets()), None),
            "from_gram": influence.from_gram,
        },
        "versions": library_versions(),
        "python": platform.python_version(),
    }
