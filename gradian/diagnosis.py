"""From settings to an audit: read the data and the run folder, run the checks, report."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradian.checks.audit import NO_LIMIT, SHORTEST, Audit, AuditResult, recorded_length, run_audit
from gradian.checks.registry import all_checks
from gradian.config import Config
from gradian.data.formats import Dataset, load_dataset
from gradian.data.ids import dataset_hash
from gradian.errors import ConfigError, GradianError
from gradian.progress import Progress
from gradian.report.audit.build import audit_report, dataset_read, run_read
from gradian.report.audit.model import AuditReport, Inputs
from gradian.report.write import check_writable, write_audit
from gradian.runs.artifact import RunArtifact
from gradian.runs.gradian_run import RUN_FILE, GradianRun, read_run
from gradian.runs.read import read_run_folder
from gradian.types import Finding, Severity

if TYPE_CHECKING:
    from gradian.data.chat import ChatEncoder

LENGTH_FLAG = "--max-seq-length"
NAMED_FILES = 5


@dataclass(frozen=True, eq=False)
class Prepared:
    """An audit ready to run, and what there is to say about its inputs.

    Attributes:
        audit: the inputs of the checks.
        inputs: the same as the report shows them.
        findings: on the inputs themselves, before any check.
        notes: what was assumed, and which inputs would tell more.
    """

    audit: Audit
    inputs: Inputs
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


def diagnose_run(
    config: Config, *, max_seq_length: int | None, out: Path | None, progress: Progress
) -> AuditReport:
    """Run one audit from settings to report; see `gradian.api.diagnose`."""
    prepared = prepare(config, max_seq_length=max_seq_length)
    if out is not None:
        check_writable(out)
    report = audit_report(run_checks(prepared, progress), prepared.inputs, prepared.notes)
    if out is not None:
        write_audit(report, out)
    return report


def run_checks(prepared: Prepared, progress: Progress) -> AuditResult:
    """Run every check, showing how far they are, and how far the encoding of the rows is where there is any."""
    audit, checks = prepared.audit, all_checks()
    rows = len(audit.dataset) if audit.dataset and audit.encoder else 0
    with ExitStack() as tasks:
        checked = tasks.enter_context(progress.task("Checking", len(checks)))
        if rows:
            encoded = tasks.enter_context(progress.task("Encoding training rows", rows))
            audit = replace(audit, progress=encoded)
        result = run_audit(audit, checks, checked)
    findings = sorted([*prepared.findings, *result.findings], key=lambda finding: finding.severity.rank)
    return replace(result, findings=tuple(findings))


def prepare(config: Config, *, max_seq_length: int | None = None) -> Prepared:
    """Read what the settings name; the tokenizer is loaded last, since nothing else needs torch.

    Args:
        config: `dataset`, `eval_dataset`, `run_dir`, `base_model`, `tokenizer` and `checks` matter here.
        max_seq_length: where training cut the rows, in tokens; None takes what the run folder records.

    Raises:
        ConfigError: neither a dataset nor a run folder is given, or the length is impossible.
        GradianError: one of them cannot be read.
    """
    if not (config.dataset or config.run_dir):
        raise ConfigError(
            "there is nothing to diagnose",
            where="--dataset, --run",
            fix="pass a training dataset, a run folder, or both; `dataset` and `run_dir` in the config do the same",
        )
    if max_seq_length is not None and max_seq_length < SHORTEST:
        raise ConfigError(
            "rows cannot be cut to so few tokens",
            where=LENGTH_FLAG,
            found=str(max_seq_length),
            expected=f"{SHORTEST} or more",
        )
    notes: list[str] = []
    run = read_run_folder(config.run_dir) if config.run_dir else None
    record = read_run(config.run_dir) if config.run_dir and run and run.trainer == "gradian" else None
    dataset = load_dataset(config.dataset) if config.dataset else _recorded_dataset(record, notes)
    eval_dataset = load_dataset(config.eval_dataset) if config.eval_dataset else None
    length, source = _length(max_seq_length, run)
    tokenizer = config.tokenizer or config.base_model or None
    notes += _hints(config, run)
    return Prepared(
        Audit(
            dataset=dataset,
            eval_dataset=eval_dataset,
            run=run,
            encoder=_encoder(tokenizer, config, length) if tokenizer else None,
            max_seq_length=length,
            base_model=config.base_model or None,
            limits=config.checks,
        ),
        Inputs(
            dataset=dataset_read(dataset) if dataset else None,
            eval_dataset=dataset_read(eval_dataset) if eval_dataset else None,
            run=run_read(run) if run else None,
            base_model=config.base_model or None,
            tokenizer=tokenizer,
            max_seq_length=length,
            max_seq_length_source=source,
            limits=config.checks.model_dump(mode="json"),
        ),
        (*_other_rows(record, dataset), *_unread(run)),
        tuple(notes),
    )


def _recorded_dataset(record: GradianRun | None, notes: list[str]) -> Dataset | None:
    if record is None:
        return None
    try:
        dataset = load_dataset(record.dataset.path)
    except GradianError as error:
        notes.append(f"`{RUN_FILE}` names its training data, which cannot be read: {error.problem}.")
        return None
    notes.append(f"No `--dataset` was given: the rows are those that `{RUN_FILE}` names.")
    return dataset


def _other_rows(record: GradianRun | None, dataset: Dataset | None) -> tuple[Finding, ...]:
    if record is None or dataset is None or dataset_hash(dataset.examples) == record.dataset.hash:
        return ()
    n = len(dataset)
    return (
        Finding(
            id="audit.other_rows",
            severity=Severity.HIGH,
            title=f"The run was trained on {record.dataset.n} rows that are not the {n} given: content or order differ",
            evidence=f"`{RUN_FILE}` records a hash of the rows it was trained on, and these give another one. Whatever"
            " the checks of the data say is about the file as it is now.",
            fix=f"Pass the file that the run was trained on: `--dataset {record.dataset.path}`, as it was then.",
            figures={"trained_rows": record.dataset.n, "given_rows": n},
        ),
    )


def _unread(run: RunArtifact | None) -> tuple[Finding, ...]:
    if run is None or not run.unread:
        return ()
    n = len(run.unread)
    weights = all(Path(entry.file).name.startswith("adapter_model") for entry in run.unread)
    listed = "; ".join(f"{entry.file}: {entry.reason}" for entry in run.unread[:NAMED_FILES])
    return (
        Finding(
            id="audit.unread_files",
            severity=Severity.LOW if weights else Severity.MEDIUM,
            title=f"{n} file{'' if n == 1 else 's'} of the run folder could not be read, and nothing in there was judged",
            evidence=listed + ("; ..." if n > NAMED_FILES else "."),
            fix="Fetch these files whole or write them again (weights as safetensors), and do not load one that was"
            " refused with anything else.",
            figures={"files": [entry.file for entry in run.unread]},
        ),
    )


def _length(flag: int | None, run: RunArtifact | None) -> tuple[int | None, str | None]:
    if flag is not None:
        return flag, LENGTH_FLAG
    recorded = recorded_length(run)
    if run is None or recorded is None:
        return None, None
    return recorded, run.sources.get("max_length", "the run folder")


def _encoder(tokenizer: str, config: Config, length: int | None) -> ChatEncoder:
    from gradian.data.chat import ChatEncoder, load_tokenizer

    loaded = load_tokenizer(tokenizer, trust_remote_code=config.trust_remote_code)
    return ChatEncoder(loaded, NO_LIMIT if length is None else min(length, NO_LIMIT))


def _hints(config: Config, run: RunArtifact | None) -> Sequence[str]:
    # The folder's word alone loads nothing: a tokenizer comes from where the user says.
    if run is None or run.base_model is None or config.base_model or config.tokenizer:
        return ()
    name = run.base_model.replace("`", "'")
    return (f"The adapter was trained on `{name}`; pass it as `--base-model` to have tokens counted.",)
