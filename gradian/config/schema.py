"""Every setting, its type, its default and its bounds.

Each field's docstring is what `docs/configuration.md` prints. Anything that changes a number is hashed
into the index id, so a differing number always has a differing setting behind it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, Field, model_validator

from gradian.config.checks import ChecksConfig
from gradian.config.fields import (
    Count,
    NonNegative,
    Number,
    PathText,
    Positive,
    Section,
    Seed,
    regular_expression,
)


class GradsConfig(Section):
    """Per-example gradient extraction: how long indexing takes and how much disk and memory it needs."""

    strategy: Literal["hooks", "loop", "vmap"] = "hooks"
    """How per-example gradients are captured. `hooks` is exact and fast; `loop` is the batch-of-one oracle; `vmap` is opt-in."""
    loss_reduction: Literal["mean", "sum"] = "mean"
    """Reduction of the loss over an example's supervised tokens."""
    normalization: Literal["none", "l2", "token_count"] = "none"
    """Normalisation of each gradient before it is stored: by its own norm, by its number of supervised tokens, or none."""
    batch_size: Count = 4
    """Most rows in one forward pass. The main memory lever: lower it first when memory runs out."""
    max_seq_length: Annotated[int, Field(ge=2)] = 1024
    """Rows are cut to this many tokens. The second memory lever."""
    module_filter: Annotated[str, AfterValidator(regular_expression)] | None = None
    """Regular expression searched in the module name (`model.layers.12.mlp.down_proj`); only matching modules are indexed."""
    block_granularity: Literal["module", "matrix"] = "module"
    """Whether a block is a whole adapted module or each of its A and B matrices."""
    projection_dim: Count | None = None
    """Johnson-Lindenstrauss width per block. Makes the store independent of model size, at a cost in ranking fidelity."""
    projection_kind: Literal["countsketch", "rademacher"] = "countsketch"
    """Family of random projections."""
    projection_seed: Seed = 0
    """Seed of the projection."""
    storage_dtype: Literal["float32", "float16"] = "float32"
    """Number format on disk. `float16` halves the index."""
    chunk_size: Count = 256
    """Examples in one file of the index: what a killed build can lose at most."""


class EngineConfig(Section):
    """How stored gradients and a query become scores."""

    name: str = "datainf"
    """Influence engine: `datainf`, `graddot` or `tracin`."""
    lambda_scale: Positive = 0.1
    """Damping of a block, relative to its mean squared gradient norm. Too small explodes, too large collapses to a dot product."""
    lambda_override: Positive | None = None
    """Damping as an absolute number for every block, instead of `lambda_scale`."""
    normalize_query: bool = False
    """Scale each query gradient to unit norm (curvature-free engines only)."""
    relative: bool = False
    """Rank by score divided by the example's own gradient norm. The raw and the relative score are both reported either way."""
    threads: Count | None = None
    """Threads of compiled scoring code; as many as torch uses if not set. Changes no score."""
    gram: Literal["auto", "always", "never"] = "auto"
    """Dot products of all training gradients with each other, kept beside the index, spare DataInf one of two reads of it. `auto` uses them where they are and builds them when the queries of the run repay it; `always` builds them; `never` reads the index. Scores agree to rounding."""


class EvaluationConfig(Section):
    """How the capability is measured, and when a change counts."""

    max_new_tokens: Count = 32
    """Longest generated answer, in tokens."""
    batch_size: Count = 8
    """Rows in one generation batch."""
    n_bootstrap: Annotated[int, Field(ge=100)] = 2000
    """Bootstrap resamples behind the confidence interval."""
    ci_level: Annotated[Number, Field(gt=0, lt=1)] = 0.95
    """Confidence level of the gate."""
    metric: Literal["exact_match", "contains", "not_contains", "loglik"] = "exact_match"
    """How an answer is judged. Use `exact_match` or `contains` for facts; `loglik` measures format more than content."""
    greedy: bool = True
    """Greedy decoding. `false` samples with the run's seed."""
    require_significant: bool = True
    """Refuse to attribute a change whose confidence interval includes zero."""
    query_signal: Literal["auto", "contrastive", "target"] = "auto"
    """What the query gradient is: expected answer minus what the model said, the expected answer alone, or the former whenever there is generated text."""


class ClusteringConfig(Section):
    """How training examples are grouped in the report."""

    method: Literal["auto", "hdbscan", "kmeans", "declared", "none"] = "auto"
    """`declared` uses each row's `cluster_id` or `cluster`; `auto` does so when every row has one."""
    n_clusters: Annotated[int, Field(ge=2)] = 8
    """Clusters for k-means."""
    min_cluster_size: Annotated[int, Field(ge=2)] = 5
    """Smallest cluster for HDBSCAN."""
    embed_model: str = "sentence-transformers/all-MiniLM-L6-v2"
    """Embedding model."""
    embed_backend: Literal["auto", "sentence-transformers", "tfidf"] = "auto"
    """`auto` falls back to TF-IDF when sentence-transformers is not installed."""
    max_features: Count = 4096
    """Vocabulary cap of TF-IDF."""
    svd_dim: Count = 64
    """Width of the SVD after TF-IDF."""
    top_examples_per_cluster: Annotated[int, Field(ge=0)] = 5
    """Excerpts shown for a cluster."""
    label_top_terms: Count = 4
    """Terms in a cluster's label."""


class TrainConfig(Section):
    """Settings of the optional `gradian train`. They do not affect attribution."""

    backend: Literal["hf", "unsloth"] = "hf"
    """Training backend."""
    base_model: PathText = ""
    """Model to train from; empty means the top-level `base_model`."""
    output_dir: PathText = "runs/run"
    """Folder of the run."""
    r: Count = 8
    """LoRA rank."""
    lora_alpha: Count = 16
    """LoRA alpha; updates are scaled by alpha / r."""
    lora_dropout: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """Dropout on the LoRA input while training. Always off during attribution."""
    target_modules: list[str] | None = None
    """Modules that get an adapter; null means every linear layer but the head."""
    learning_rate: Positive = 0.0002
    """Peak learning rate."""
    num_train_epochs: Positive = 1.0
    """Passes over the data."""
    per_device_train_batch_size: Count = 2
    """Rows in one training batch."""
    gradient_accumulation_steps: Count = 1
    """Batches in one optimizer step."""
    warmup_ratio: Annotated[Number, Field(ge=0, lt=1)] = 0.03
    """Share of the steps that warm up."""
    lr_scheduler_type: str = "linear"
    """Learning-rate schedule."""
    max_seq_length: Annotated[int, Field(ge=2)] = 512
    """Rows are cut to this many tokens in training."""
    logging_steps: Count = 1
    """Steps between log rows."""
    save_steps: Annotated[int, Field(ge=0)] = 0
    """Steps between checkpoints; 0 means once an epoch."""
    save_checkpoints: bool = False
    """Whether checkpoints are kept."""
    max_grad_norm: NonNegative = 1.0
    """Gradient clipping; 0 turns it off."""
    weight_decay: NonNegative = 0.0
    """Weight decay."""
    load_in_4bit: bool = False
    """Train on a 4-bit base. Attribution always uses full precision."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further arguments for the trainer, passed through as they are."""


class Config(Section):
    """One run's settings."""

    seed: Seed = 1234
    """Seeds everything; part of the index id."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")] = "auto"
    """`auto` takes CUDA when visible, else the CPU. `mps` only when named."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Number format of the model. `auto`: float32 on the CPU, the checkpoint's own elsewhere."""
    base_model: PathText = ""
    """Model id or local path that was fine-tuned."""
    tokenizer: PathText | None = None
    """Tokenizer to use instead of the base model's."""
    adapter_path: PathText | None = Field(
        default=None, validation_alias=AliasChoices("adapter_path", "adapter")
    )
    """PEFT LoRA adapter folder; needed for attribution. `adapter` is the same key."""
    dataset: PathText | None = None
    """Training data."""
    eval_dataset: PathText | None = None
    """Items that describe the capability, with the wanted answers."""
    run_dir: PathText | None = None
    """Run folder with the trainer's settings and logs, which the audit reads."""
    cache_dir: PathText = ".gradian"
    """Where indexes are kept."""
    trust_remote_code: bool = False
    """Passed to transformers. Runs code that comes with the model."""
    attn_implementation: str = "eager"
    """Attention implementation of the loaded model."""
    grads: GradsConfig = GradsConfig()
    engine: EngineConfig = EngineConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    clustering: ClusteringConfig = ClusteringConfig()
    train: TrainConfig = TrainConfig()
    checks: ChecksConfig = ChecksConfig()

    @model_validator(mode="before")
    @classmethod
    def _one_adapter_key(cls, data: Any) -> Any:
        if isinstance(data, dict) and "adapter" in data and "adapter_path" in data:
            raise ValueError("`adapter` and `adapter_path` are the same setting: give one of them")
        return data
