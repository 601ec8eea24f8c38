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


class DataLimits(Section):
    """Thresholds of the `data.*` checks."""

    tiny_dataset_rows: Count = 100
    """Rows below which `data.tiny_dataset` fires."""
    near_duplicate_similarity: Share = 0.85
    """Jaccard similarity of word shingles from which two rows are near-duplicates."""
    contamination_similarity: Share = 0.85
    """Jaccard similarity from which an eval item counts as being in the training data."""
    length_outlier_ratio: Positive = 8.0
    """Length over the median from which a row is an outlier."""
    low_mask_coverage: Share = 0.02
    """Supervised share of all tokens below which `data.loss_mask_coverage` fires."""
    truncated_share_high: Share = 0.05
    """Share of rows with a truncated target from which it is critical."""
    format_minority_share: Share = 0.1
    """Share of rows in a second target format from which `data.format_inconsistency` fires."""


class DynamicsLimits(Section):
    """Thresholds of the `dynamics.*` checks."""

    spike_ratio: Positive = 3.0
    """Loss over the median loss from which a step is a spike."""
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
