"""The `hf` backend: transformers' own Trainer over rows that Gradian encoded."""

from __future__ import annotations

from transformers import Trainer, TrainingArguments

from gradian.model.backends.base import BACKENDS, TrainingJob, TrainingOutcome
from gradian.model.backends.obstacles import unavailable
from gradian.model.backends.trainer import (
    Collator,
    Watch,
    padding_id,
    refuse_four_bit,
    seeded,
    train_and_save,
    training_arguments,
    with_lora,
)
from gradian.model.load import load_model


class HfBackend:
    """transformers.Trainer; needs `accelerate`."""

    @property
    def unavailable(self) -> str | None:
        """Why it cannot run here, or None."""
        return unavailable("hf")

    def fit(self, job: TrainingJob) -> TrainingOutcome:
        """Train and write the files; bit-reproducible on one CPU with one number of threads.

        Raises:
            ConfigError: an argument that the Trainer does not take.
            RunError: the adapter is no longer finite.
            ModelError: the base model.
        """
        settings = job.config.train
        refuse_four_bit(settings, "hf")
        loaded = load_model(job.config, adapter=False)
        with seeded(job.config.seed):
            model = with_lora(loaded.model, settings, job.base_model)
            watch = Watch(job, model)
            trainer = Trainer(
                model=model,
                args=training_arguments(job, loaded.device, TrainingArguments),
                train_dataset=list(job.encoded),
                data_collator=Collator(padding_id(loaded.tokenizer)),
                callbacks=[watch],
            )
            return train_and_save(job, model, trainer, watch)


BACKENDS.register("hf")(HfBackend())
