"""The registry of checks and what it promises about each of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gradian.checks.registry import CATEGORIES, HEADINGS, Check, all_checks

PUBLISHED = {
    "config": [
        "attention_only_targets",
        "base_model_mismatch",
        "capacity_vs_data",
        "fp16_precision",
        "grad_clip_disabled",
        "high_lora_dropout",
        "lr_too_high",
        "lr_too_low",
        "max_seq_length_vs_data",
        "no_eval_set",
        "no_warmup",
        "overtraining",
        "packing_with_completion_loss",
        "pad_equals_eos",
        "seed_unset",
        "small_effective_batch",
        "undertrained",
    ],
    "data": [
        "completion_truncated",
        "conflicting_answers",
        "duplicates",
        "empty_or_degenerate_targets",
        "format_inconsistency",
        "length_outliers",
        "loss_mask_coverage",
        "missing_eos",
        "near_duplicates",
        "no_chat_template",
        "no_supervised_tokens",
        "prompt_equals_target",
        "template_prefix_mismatch",
        "tiny_dataset",
        "train_eval_contamination",
        "truncated",
    ],
    "dynamics": [
        "always_clipping",
        "grad_norm_explosion",
        "loss_plateau",
        "loss_spike",
        "lr_schedule_incomplete",
        "nan_loss",
        "overfitting",
        "too_few_steps",
    ],
}
IDS = [f"{category}.{name}" for category in CATEGORIES for name in PUBLISHED[category]]


def test_the_published_checks_are_the_41_of_the_documentation_in_its_order() -> None:
    assert len(IDS) == 41
    assert [entry.id for entry in all_checks() if not entry.addition] == IDS


def test_additions_come_after_and_never_take_a_published_name() -> None:
    entries = all_checks()
    additions = [entry for entry in entries if entry.addition]
    assert list(entries[41:]) == additions
    assert not {entry.id for entry in additions} & set(IDS)


@pytest.mark.parametrize("entry", all_checks(), ids=lambda entry: entry.id)
def test_each_check_lives_in_a_file_named_for_its_fault_and_documents_itself(entry: Check) -> None:
    assert entry.judge.__module__ == f"gradian.checks.{entry.id}"
    assert all(entry.documentation[heading] for heading in HEADINGS)
    assert entry.summary
    assert not entry.summary.endswith(".")


def test_importing_every_check_imports_no_torch() -> None:
    code = (
        "import sys; from gradian.checks.registry import all_checks; all_checks();"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
