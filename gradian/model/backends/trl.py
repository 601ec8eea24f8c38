"""The `trl` backend: trl's SFTTrainer over rows that Gradian encoded, under Gradian's mask.

Left to itself SFTTrainer tokenises rows, closes them with an end token, cuts or packs them, and builds labels its own
way, which differs between its versions. Here it does none of that: it gets token ids with labels, is told to leave
them as they are, and its collator is replaced by the one of the hf backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from torch import Tensor

from gradian.errors import ConfigError, MissingExtraError
from gradian.model.backends.base import BACKENDS, TrainingJob, TrainingOutcome
from gradian.model.backends.obstacles import INSTALL_TRAIN, unavailable
from gradian.model.backends.trainer import (
    IGNORED_LABEL,
    Collator,
    Watch,
    padding_id,
    refuse_four_bit,
    seeded,
    train_and_save,
    training_arguments,
    with_lora,
)
from gradian.model.load import LoadedModel, load_model
from gradian.types import EncodedExample

# What would change rows or their masks, switched off; each version of trl knows some of them.
_ROWS_AS_THEY_ARE: Mapping[str, Any] = {
    "dataset_kwargs": {"skip_prepare_dataset": True},
    "max_length": None,
    "max_seq_length": None,
    "packing": False,
    "padding_free": False,
    "completion_only_loss": False,
    "assistant_only_loss": False,
    "chat_template_path": None,
    "eos_token": None,
}


class TrlBackend:
    """trl.SFTTrainer; needs `trl` and `datasets`."""

    @property
    def unavailable(self) -> str | None:
        """Why it cannot run here, or None."""
        return unavailable("trl")

    def fit(self, job: TrainingJob) -> TrainingOutcome:
        """Train and write the files.

        Rows come in the order of the hf backend, and losses agree with it to the rounding of the loss: newer
        versions of trl compute it by themselves.

        Raises:
            ConfigError: an argument that SFTTrainer does not take.
            MissingExtraError: trl does not fit the libraries that are installed beside it.
            RunError: the adapter is no longer finite.
            ModelError: the base model.
        """
        settings = job.config.train
        refuse_four_bit(settings, "trl")
        trl = _trl()
        loaded = load_model(job.config, adapter=False)
        with seeded(job.config.seed):
            model = with_lora(loaded.model, settings, job.base_model)
            watch = Watch(job, model)
            trainer = _sft_trainer(trl, job, loaded, model, watch)
            return train_and_save(job, model, trainer, watch)


BACKENDS.register("trl")(TrlBackend())


@dataclass(frozen=True)
class _RowCollator:
    """Pads rows of a `datasets.Dataset`."""

    collate: Collator

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        return self.collate(
            [
                EncodedExample(
                    id="",
                    position=place,
                    input_ids=np.asarray(row["input_ids"], dtype=np.int64),
                    supervised=np.asarray(row["labels"], dtype=np.int64) != IGNORED_LABEL,
                )
                for place, row in enumerate(rows)
            ]
        )


def _trl() -> Any:
    try:
        import trl
        from trl import SFTConfig, SFTTrainer  # noqa: F401  (trl imports its parts when they are asked for)
    except ImportError as error:
        raise MissingExtraError(
            "trl cannot be imported beside the installed libraries", found=str(error), fix=INSTALL_TRAIN
        ) from None
    return trl


def _sft_trainer(trl: Any, job: TrainingJob, loaded: LoadedModel, model: Any, watch: Watch) -> Any:
    from datasets import Dataset

    labels = [np.where(row.supervised, row.input_ids, IGNORED_LABEL) for row in job.encoded]
    arguments = _sft_arguments(trl.SFTConfig, job, loaded)
    try:
        return trl.SFTTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict(
                {"input_ids": [row.input_ids for row in job.encoded], "labels": labels}
            ),
            data_collator=_RowCollator(Collator(padding_id(loaded.tokenizer))),
            processing_class=loaded.tokenizer,
            callbacks=[watch],
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(
            "SFTTrainer refuses the run", where="train", found=" ".join(str(error).split())
        ) from None


def _sft_arguments(kind: type[Any], job: TrainingJob, loaded: LoadedModel) -> Any:
    known = {entry.name for entry in fields(kind) if entry.init}
    own = {name: value for name, value in _ROWS_AS_THEY_ARE.items() if name in known}
    return training_arguments(job, loaded.device, kind, own)
