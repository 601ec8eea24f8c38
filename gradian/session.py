"""One run's inputs, loaded once and only when needed: data, tokenizer, model, gradients, index."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gradian.config import Config
from gradian.config.required import required
from gradian.data.formats import Dataset, load_dataset
from gradian.data.ids import dataset_hash
from gradian.errors import DataError
from gradian.progress import Progress
from gradian.store.cache import find_index
from gradian.store.disk import check_disk
from gradian.store.format import index_id
from gradian.store.writer import open_writer

if TYPE_CHECKING:
    from gradian.data.chat import ChatEncoder
    from gradian.grads.collect import GradientCollector
    from gradian.model.load import LoadedModel
    from gradian.store.reader import IndexReader
    from gradian.types import EncodedExample

log = logging.getLogger(__name__)


class Session:
    """What the verbs share. Nothing is loaded until it is asked for.

    Args:
        config: the run's settings.
        progress: shows how far long work is.
        skip_nonfinite: store zeros for rows whose loss or gradient is not finite, instead of stopping.
    """

    def __init__(self, config: Config, progress: Progress, *, skip_nonfinite: bool = False) -> None:
        self.config = config
        self.skip_nonfinite = skip_nonfinite
        self.progress = progress
        required(config.base_model, "base_model", "--base-model", "there is no model to load")
        required(
            config.adapter_path,
            "adapter_path",
            "--adapter",
            "attribution differentiates with respect to a LoRA adapter's parameters, and without one there is"
            " nothing to differentiate",
        )
        required(config.dataset, "dataset", "--dataset", "there is no training data to attribute to")

    @cached_property
    def dataset(self) -> Dataset:
        """The training data."""
        return load_dataset(self.config.dataset or "")

    @cached_property
    def encoder(self) -> ChatEncoder:
        """Rows to masked tokens, with the sequence length of indexing."""
        from gradian.data.chat import ChatEncoder, load_tokenizer
        from gradian.model.checkpoint import base_folder

        # Before the tokenizer: a folder that holds no model should be told so, not that it has no tokenizer.
        base_folder(self.config.base_model)
        tokenizer = load_tokenizer(
            self.config.tokenizer or self.config.base_model, trust_remote_code=self.config.trust_remote_code
        )
        return ChatEncoder(tokenizer, self.config.grads.max_seq_length)

    @cached_property
    def encoded(self) -> tuple[EncodedExample, ...]:
        """The training data as masked tokens, in dataset order; refused rows stand there without targets."""
        from gradian.data.chat import encode_all

        examples = self.dataset.examples
        with self.progress.task("Encoding training rows", len(examples)) as advance:
            return encode_all(self.encoder, examples, advance)

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """Everything that changes a number of the index, hashed into its id."""
        from gradian.grads.provenance import index_inputs
        from gradian.model.load import checkpoint_fingerprint, resolve_device, resolve_dtype
        from gradian.ops import _dispatch

        device = resolve_device(self.config)
        dtype = resolve_dtype(self.config, device)
        return index_inputs(
            self.config,
            checkpoint=checkpoint_fingerprint(self.config.base_model, self.config.adapter_path or ""),
            tokenizer=self.encoder.fingerprint,
            dataset=dataset_hash(self.dataset.examples),
            n=len(self.dataset.examples),
            device=device.type,
            dtype=str(dtype).removeprefix("torch."),
            skip_nonfinite=self.skip_nonfinite,
            ops=_dispatch.capture_decisions(device, dtype),
        )

    @cached_property
    def loaded(self) -> LoadedModel:
        """The base model with its adapter."""
        from gradian.model.load import load_model

        return load_model(self.config)

    @cached_property
    def collector(self) -> GradientCollector:
        """Per-example gradients of the loaded model."""
        from gradian.grads.collect import GradientCollector

        return GradientCollector(
            self.loaded, self.config.grads, self.config.seed, skip_nonfinite=self.skip_nonfinite
        )

    def index(self, *, force: bool = False) -> IndexReader:
        """Return the whole index of this run, building or resuming it when there is none.

        Raises:
            DiskSpaceError: it would not fit; raised before the first forward pass.
        """
        id_ = index_id(self.inputs)
        found = None if force else find_index(self.config.cache_dir, id_)
        if found is None:
            return self._build(id_, force)
        log.info("index %s: found whole with %d rows; no training row goes through the model", id_, found.n)
        self.progress.keep("index", lambda: f"index {id_}, which is whole")
        found.verify()
        return found

    def _check_context(self, encoded: Sequence[EncodedExample]) -> None:
        from gradian.model.context import context_length

        limit = context_length(self.loaded.model)
        over = [row.position + 1 for row in encoded if limit is not None and len(row) > limit]
        if over:
            raise DataError(
                f"{len(over)} training rows are longer than the model's context of {limit} tokens",
                where=f"{self.config.dataset}: rows {', '.join(map(str, over[:20]))}",
                fix=f"set grads.max_seq_length to {limit} or less, as the training must have done",
            )

    def _build(self, id_: str, force: bool) -> IndexReader:
        from gradian.grads.collect import build_index

        grads, n = self.config.grads, len(self.dataset.examples)
        specs = self.collector.specs
        encoded = self.encoded
        self._check_context(encoded)
        with open_writer(
            self.config.cache_dir,
            self.inputs,
            specs,
            n,
            grads.storage_dtype,
            grads.chunk_size,
            force=force,
            on_message=log.info,
        ) as writer:
            chunks = -(-n // grads.chunk_size)
            self.progress.keep(
                "index",
                lambda: f"index {id_}: {chunks - len(writer.pending)} of {chunks} chunks",
                forced=force,
            )
            if not writer.finished:
                check_disk(self.config.cache_dir, writer.bytes_left, grads, blocks=specs, n=n)
                rows = sum(len(writer.chunk_rows(k)) for k in writer.pending)
                log.info(
                    "index %s: %d of %d rows to go through the model, %.2f GB to write",
                    id_,
                    rows,
                    n,
                    writer.bytes_left / 1e9,
                )
                with self.progress.task("Capturing gradients", rows) as advance:
                    build_index(self.collector, encoded, writer, progress=advance)
            return writer.finish({})
