"""Every threshold of the audit, in one place. Each is justified in the docstring of the check that reads it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gradian.config.fields import Count, NonNegative, Number, Positive, Section

Share = Annotated[Number, Field(ge=0, le=1)]


class ConfigLimits(Section):
    """Thresholds of the `config.*` checks."""

    lr_high: Positive = 1e-3
    """Effective learning rate (rate times alpha / r) from which `config.lr_too_high` is high."""
    lr_critical: Positive = 3e-3
    """Effective learning rate from which it is critical."""
    lr_low: Positive = 1e-5
    """Effective learning rate below which `config.lr_too_low` fires."""
    high_learning_rate: Positive = 3e-4
    """Learning rate from which a missing warmup or a tiny batch is a risk."""
    small_batch: Count = 2
    """Largest effective batch that counts as tiny."""
    epochs_medium: Positive = 3.0
    """Epochs from which `config.overtraining` is medium."""
    epochs_high: Positive = 8.0
    """Epochs from which it is high."""
    large_dataset_rows: Count = 10_000
    """Rows from which a dataset stands twice as many epochs."""
    min_steps: Count = 50
    """Optimizer steps below which `config.undertrained` fires."""
    max_dropout: Share = 0.1
    """LoRA dropout above which `config.high_lora_dropout` fires on a small dataset."""
    small_dataset_rows: Count = 1000
    """Rows below which a dataset is small for LoRA dropout."""
    parameters_per_token: Positive = 1000.0
    """Trained parameters for one supervised token from which `config.capacity_vs_data` fires."""
    length_percentile: Annotated[Number, Field(gt=0, le=100)] = 95.0
    """Percentile of row lengths that `max_seq_length` should hold."""
    dropped_rows_high: Share = 0.05
    """Share of rows dropped for their length from which `config.dropped_overlong_rows` is high."""


class DataLimits(Section):
    """Thresholds of the `data.*` checks."""

    tiny_dataset_rows: Count = 100
    """Rows below which `data.tiny_dataset` fires."""
    duplicate_share: Share = 0.05
    """Share of repeated rows from which `data.duplicates` and `data.near_duplicates` are medium."""
    near_duplicate_similarity: Share = 0.85
    """Jaccard similarity of word triples from which two rows are near-duplicates."""
    contamination_similarity: Share = 0.85
    """Jaccard similarity of word triples from which an eval item counts as being in the training data."""
    contamination_share_high: Share = 0.01
    """Share of eval items in the training data from which `data.train_eval_contamination` is high."""
    contamination_share_critical: Share = 0.1
    """Share of eval items in the training data from which it is critical."""
    template_rows: Count = 20
    """Training rows that one eval item is similar to from which the likeness is that of a shared template."""
    conflict_share_high: Share = 0.05
    """Share of rows whose answers contradict each other from which `data.conflicting_answers` is high."""
    open_question_answers: Count = 10
    """Different answers to one question above which the question is open and its answers are no conflict."""
    degenerate_share_high: Share = 0.05
    """Share of empty or meaningless targets from which `data.empty_or_degenerate_targets` is high."""
    echo_share_high: Share = 0.1
    """Share of targets equal to their prompt from which `data.prompt_equals_target` is high."""
    format_minority_share: Share = 0.1
    """Share of rows in a second target format, unasked for, from which `data.format_inconsistency` fires."""
    format_majority_share: Share = 0.6
    """Share of rows in one machine format from which every other row is a stray."""
    length_outlier_ratio: Positive = 8.0
    """Length over the median from which a row is an outlier."""
    length_outlier_tokens: Count = 512
    """Tokens below which a row is no outlier, however short the others are; four characters count as one."""
    low_mask_coverage: Share = 0.02
    """Supervised share of all tokens below which `data.loss_mask_coverage` fires."""
    prompt_share_trained: Share = 0.5
    """Prompt's share of all tokens from which a loss on prompts as well is worth a finding."""
    missing_eos_share_high: Share = 0.05
    """Share of answers without an end token from which `data.missing_eos` is high."""
    truncated_share_critical: Share = 0.05
    """Share of rows with a truncated target from which `data.completion_truncated` is critical."""
    unsupervised_share_critical: Share = 0.01
    """Share of rows without a target from which `data.no_supervised_tokens` is critical."""
    bad_rows_share_high: Share = 0.01
    """Share of rows that cannot be used, or end in no end token, from which such a finding is high."""
    cut_share: Share = 0.05
    """Share of rows cut from which `data.truncated` is medium."""
    dropped_share_high: Share = 0.05
    """Share of rows dropped from which `data.rows_dropped_by_trainer` is high."""


class DynamicsLimits(Section):
    """Thresholds of the `dynamics.*` checks."""

    spike_ratio: Positive = 3.0
    """Loss over the median loss from which a step is a spike."""
    spike_nats: NonNegative = 0.1
    """Rise over the losses before it, in nats, below which a step is no spike whatever its ratio."""
    clipping_share: Share = 0.9
    """Share of logged steps at the clip threshold from which `dynamics.always_clipping` fires."""
    explosion_ratio: Positive = 50.0
    """Gradient norm over its median from which it has exploded."""
    plateau_drop: Share = 0.02
    """Relative fall of the loss below which it has not moved."""
    min_logged_steps: Count = 10
    """Logged steps below which `dynamics.too_few_steps` fires."""
    overfitting_rise: NonNegative = 0.05
    """Relative rise of the eval loss above its minimum from which, with a falling training loss, it is overfitting."""
    overfitting_rise_high: NonNegative = 0.2
    """Relative rise from which `dynamics.overfitting` is high."""
    overfitting_nats_high: NonNegative = 0.1
    """Rise in nats below which it is not high whatever its share; a fifth of it is no overfitting at all."""
    schedule_floor: Share = 0.2
    """Last learning rate over the peak above which a decaying schedule has not run to its end."""


class ChecksConfig(Section):
    """Thresholds of the audit. They change findings and never a score, so they are not in the index id."""

    config: ConfigLimits = ConfigLimits()
    """Of the `config.*` checks."""
    data: DataLimits = DataLimits()
    """Of the `data.*` checks."""
    dynamics: DynamicsLimits = DynamicsLimits()
    """Of the `dynamics.*` checks."""
