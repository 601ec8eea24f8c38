"""Audits for the renderers' tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gradian.checks.audit import AuditResult, SkippedCheck
from gradian.checks.registry import Need
from gradian.data.formats import Dataset
from gradian.report.audit.build import audit_report, dataset_read, run_read
from gradian.report.audit.model import AuditReport, Inputs
from gradian.runs.artifact import (
    EvalRow,
    HyperParameters,
    LogRow,
    LoraSettings,
    Resume,
    RunArtifact,
    Unread,
)
from gradian.types import Example, Finding, Severity

RUN = RunArtifact(
    folder=Path("runs/my-finetune"),
    trainer="trl",
    hyper=HyperParameters(learning_rate=2e-3, epochs=12.0, max_length=512, scheduler="cosine", bf16=True),
    lora=LoraSettings(
        r=8, alpha=16, dropout=0.0, target_modules=("q_proj", "v_proj"), raw={"peft_type": "LORA"}
    ),
    base_model="org/base",
    train_log=(LogRow(1, 2.5), LogRow(2, 2.0)),
    eval_log=(EvalRow(2, 2.1),),
    global_step=1200,
    total_steps=1200,
    checkpoint="checkpoint-1200",
    resumes=(Resume(600, (601, 602)),),
    versions={"transformers": "5.2.0"},
    sources={
        "learning_rate": "training_args.bin: learning_rate",
        "max_length": "training_args.bin: max_length",
    },
    unread=(Unread("optimizer.pt", "never opened"),),
    has_log=True,
)
DATASET = Dataset(
    Path("train.jsonl"),
    tuple(Example(f"00000000000{i}-{i}", i, "text", text="x") for i in range(8)),
    ("The file is named .json but holds one JSON value a line.",),
    shapes={"text": 8},
)
FINDINGS = (
    Finding(
        "data.no_supervised_tokens",
        Severity.CRITICAL,
        "3 of 8 examples have zero supervised tokens",
        "Their gradient is exactly zero; rows: 1, 2, 3.",
        "Give these rows an answer, or remove them.",
        ("000000000001-1", "000000000002-2", "000000000003-3"),
        {"count": 3, "rows": [1, 2, 3]},
    ),
    Finding(
        "config.lr_too_high",
        Severity.CRITICAL,
        "The effective learning rate is high (lr=0.002 x alpha/r=2 = 0.004)",
        fix="Set `learning_rate` to 0.0002.",
        figures={"effective": 0.004},
    ),
    Finding(
        "config.overtraining",
        Severity.HIGH,
        "12 epochs over 800 examples",
        "",
        "Set `num_train_epochs` to 2.",
    ),
    Finding("data.duplicates", Severity.LOW, "2 of 8 rows are exact duplicates"),
)
RESULT = AuditResult(
    FINDINGS,
    (
        SkippedCheck("data.train_eval_contamination", "needs --eval-dataset", (Need.EVAL_DATASET,)),
        SkippedCheck("config.seed_unset", "the run folder records no seed"),
        SkippedCheck("data.truncated", "needs --base-model", (Need.TOKENIZER,)),
        SkippedCheck("data.missing_eos", "needs --base-model", (Need.TOKENIZER,)),
    ),
    ("config.no_warmup", "dynamics.nan_loss"),
)
INPUTS = Inputs(
    dataset=dataset_read(DATASET),
    run=run_read(RUN),
    max_seq_length=512,
    max_seq_length_source="training_args.bin: max_length",
    limits={"config": {"lr_high": 0.001}},
)


def faulty() -> AuditReport:
    return audit_report(
        RESULT, INPUTS, ("The adapter was trained on `org/base`; pass it as `--base-model`.",)
    )


def clean() -> AuditReport:
    """A run without findings, of a dataset alone."""
    return audit_report(AuditResult((), RESULT.skipped[:1], RESULT.passed), Inputs(dataset=INPUTS.dataset))


def attacked(text: str) -> AuditReport:
    """An audit in which everything that can come from outside is `text`."""
    shown = text if text.isprintable() and text else "x"
    run = replace(
        RUN,
        folder=Path(text),
        hyper=HyperParameters(learning_rate=float("nan"), scheduler=text, pad_token=text),
        lora=LoraSettings(r=8, target_modules=(text,), bias=text, zero_b=(text,), raw={text: text}),
        base_model=text,
        checkpoint=text or None,
        versions={"torch": text},
        sources={"scheduler": text, "pad_token": text, "learning_rate": text},
        unread=(Unread(text, text),),
    )
    dataset = Dataset(Path(text), DATASET.examples, (text,), shapes={text: 8})
    finding = Finding(
        "data.duplicates", Severity.HIGH, text, text, text, (shown,), {"text": text, "ratio": float("inf")}
    )
    return audit_report(
        AuditResult((finding,), (SkippedCheck("config.seed_unset", text),), ("config.no_warmup",)),
        Inputs(
            dataset=dataset_read(dataset),
            eval_dataset=dataset_read(dataset),
            run=run_read(run),
            base_model=text,
            tokenizer=text,
            max_seq_length=512,
            max_seq_length_source=text,
        ),
        (text,),
    )
