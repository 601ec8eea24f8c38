"""Answers from a model: batched, and equal token for token to answers made one at a time.

`model.generate` does the decoding, since it knows every architecture's cache. Two things are taken out of its
hands. The checkpoint's `generation_config` (temperature, top_p, repetition_penalty, max_length of instruct
models) is set aside, so that greedy is greedy. And the choice of each token is made here: padding and batch
size change logits by rounding error, which tips a near tie one way or the other, most often in bfloat16. A
near tie is therefore settled by a forward pass over that example alone, without padding, which gives the same
answer in every batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gradian.address_space import is_out_of_memory
from gradian.config.schema import EvaluationConfig
from gradian.data.collate import length_batches
from gradian.errors import DeviceMemoryError, EvaluationError, NonFiniteError, RowError
from gradian.model.context import context_length
from gradian.types import Example, IntArray, Message

if TYPE_CHECKING:
    from gradian.data.chat import ChatEncoder
    from gradian.model.load import LoadedModel

# Two scores closer than this many units in the last place of the best one are a near tie: rounding error of
# a whole forward pass, with room to spare.
_NEAR_TIE_ULPS: Mapping[torch.dtype, float] = {torch.float32: 1024.0, torch.float16: 8.0, torch.bfloat16: 4.0}
# A conversation whose render shows what ends an assistant turn.
_PROBE = Example(
    id="probe", position=0, shape="messages", messages=(Message("user", "a"), Message("assistant", "b"))
)


@dataclass(frozen=True)
class Generation:
    """One generated answer.

    Attributes:
        text: decoded without special tokens, stripped.
        token_ids: what was generated, the token that ended it included.
        hit_cap: nothing ended it; `max_new_tokens` or the model's context cut it off.
    """

    text: str
    token_ids: tuple[int, ...]
    hit_cap: bool


def generate_answers(
    loaded: LoadedModel,
    encoder: ChatEncoder,
    examples: Sequence[Example],
    config: EvaluationConfig,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> list[Generation]:
    """Return the model's answer to every example's prompt, in order.

    Greedy unless `config.greedy` is false; then each example samples from the plain softmax (temperature 1)
    with a random stream of its own, made of `seed` and its row. Either way an answer does not depend on
    `config.batch_size` nor on what else is in the batch. Whether the adapter is on is up to the caller.

    Args:
        loaded: the model.
        encoder: renders the prompts.
        examples: eval rows; their final assistant turn is not shown to the model.
        config: `max_new_tokens`, `batch_size`, `greedy`.
        seed: seed of the sampling.
        progress: called with the number of answers just finished.

    Raises:
        EvaluationError: a prompt leaves no room in the model's context.
        DeviceMemoryError: a batch does not fit.
    """
    prompts = [encoder.encode_prompt(example) for example in examples]
    context = context_length(loaded.model)
    # Rows by how many tokens they may generate: near the end of the context that is less than the cap, and a
    # batch has one limit.
    limits: dict[int, list[int]] = {}
    for row, (example, prompt) in enumerate(zip(examples, prompts, strict=True)):
        _check_prompt(example, prompt, context)
        room = config.max_new_tokens if context is None else context - len(prompt)
        limits.setdefault(min(room, config.max_new_tokens), []).append(row)
    stops = stop_tokens(loaded, encoder)
    answers: dict[int, Generation] = {}
    for limit, rows in limits.items():
        for picked in length_batches([len(prompts[row]) for row in rows], config.batch_size):
            batch = [rows[int(k)] for k in picked]
            own = [examples[row] for row in batch]
            noise = None if config.greedy else [np.random.default_rng([seed, x.position]) for x in own]
            tokens = _decode(loaded, [prompts[row] for row in batch], own, limit, stops, noise)
            for row, ids in zip(batch, tokens, strict=True):
                answers[row] = _generation(loaded.tokenizer, ids, stops)
            if progress is not None:
                progress(len(batch))
    return [answers[row] for row in range(len(examples))]


def stop_tokens(loaded: LoadedModel, encoder: ChatEncoder) -> tuple[int, ...]:
    """Return the tokens that end an answer, sorted.

    They are the tokenizer's EOS, every EOS of the checkpoint's generation config and config, and the token
    that the chat template writes after an answer, which instruct checkpoints do not always list.
    """
    model, tokenizer = _plain_model(loaded.model), loaded.tokenizer
    found: set[int] = set()
    for source in (tokenizer, getattr(model, "generation_config", None), model.config):
        value = getattr(source, "eos_token_id", None)
        found.update(value if isinstance(value, (list, tuple)) else [] if value is None else [value])
    try:
        probe = encoder.encode_answer(_PROBE)
    except RowError:
        # A template that wants more than two turns: what the checkpoint lists must do.
        return tuple(sorted(int(token) for token in found))
    last = int(probe.input_ids[-1])
    if not probe.truncated and last in {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}:
        found.add(last)
    return tuple(sorted(int(token) for token in found))


def _check_prompt(example: Example, prompt: IntArray, context: int | None) -> None:
    where = f"eval row {example.position + 1}"
    if len(prompt) == 0:
        raise EvaluationError("the prompt has no tokens", where=where, fix="give the row a question")
    if context is not None and len(prompt) >= context:
        raise EvaluationError(
            "the prompt leaves no room for an answer in the model's context",
            where=where,
            found=f"{len(prompt)} tokens",
            expected=f"fewer than {context}",
            fix="shorten the row or leave it out",
        )


def _decode(
    loaded: LoadedModel,
    prompts: Sequence[IntArray],
    examples: Sequence[Example],
    max_new_tokens: int,
    stops: tuple[int, ...],
    noise: Sequence[np.random.Generator] | None,
) -> list[list[int]]:
    from transformers import GenerationConfig, LogitsProcessorList

    width = max(len(prompt) for prompt in prompts)
    pad = loaded.tokenizer.pad_token_id
    if pad is None:
        # Masked on the left, cut off on the right: any token will do.
        pad = stops[0] if stops else 0
    input_ids = torch.full((len(prompts), width), pad, dtype=torch.int64)
    attention_mask = torch.zeros_like(input_ids)
    for row, prompt in enumerate(prompts):
        input_ids[row, width - len(prompt) :] = torch.from_numpy(np.asarray(prompt, dtype=np.int64))
        attention_mask[row, width - len(prompt) :] = 1
    base = _plain_model(loaded.model)
    chooser = _Chooser(base, loaded.dtype, examples, [len(prompt) for prompt in prompts], stops, noise)
    settings = GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=max_new_tokens,
        eos_token_id=list(stops) or None,
        pad_token_id=pad,
        use_cache=True,
    )
    with torch.inference_mode(), _own_defaults_aside(base), _memory_errors(len(prompts)):
        output = base.generate(
            input_ids=input_ids.to(loaded.device),
            attention_mask=attention_mask.to(loaded.device),
            generation_config=settings,
            logits_processor=LogitsProcessorList([chooser]),
        )
    return [_until_stop(ids, stops) for ids in output[:, width:].tolist()]


class _Chooser:
    # A logits processor that leaves one finite score a row: the token that was chosen.

    def __init__(
        self,
        model: Any,
        dtype: torch.dtype,
        examples: Sequence[Example],
        prompt_lengths: Sequence[int],
        stops: tuple[int, ...],
        noise: Sequence[np.random.Generator] | None,
    ) -> None:
        self.model = model
        self.examples = examples
        self.prompt_lengths = prompt_lengths
        self.stops = frozenset(stops)
        self.noise = noise
        self.near = _NEAR_TIE_ULPS.get(dtype, 4.0) * torch.finfo(dtype).eps
        self.width = max(prompt_lengths)
        self.running = torch.ones(len(prompt_lengths), dtype=torch.bool)
        parameters = inspect.signature(model.forward).parameters
        self.last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.float()
        noise = None if self.noise is None else _gumbel(self.noise, scores)
        best = (scores if noise is None else scores + noise).topk(2, dim=-1)
        gap = (best.values[:, 0] - best.values[:, 1]).cpu()
        top = scores.gather(1, best.indices).abs().amax(dim=1).clamp(min=1.0).cpu()
        chosen = best.indices[:, 0].cpu()
        for row in torch.nonzero(self.running & ~(gap > self.near * top)).flatten().tolist():
            # Not finite lands here too: no comparison with it is true.
            alone = self._scores_alone(input_ids[row, self.width - self.prompt_lengths[row] :])
            if not torch.isfinite(alone.max()):
                raise NonFiniteError(
                    "the model's output is not a finite number",
                    where=f"eval row {self.examples[row].position + 1}",
                    found=f"example {self.examples[row].id}",
                    fix="try dtype: float32, and check the adapter's weights",
                )
            chosen[row] = (alone if noise is None else alone + noise[row]).argmax()
        self.running &= torch.tensor([token not in self.stops for token in chosen.tolist()])
        forced = torch.full_like(scores, float("-inf"))
        return forced.scatter_(1, chosen.to(scores.device)[:, None], 0.0)

    def _scores_alone(self, sequence: torch.Tensor) -> torch.Tensor:
        ids = sequence[None]
        output = self.model(
            input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **self.last_only
        )
        last: torch.Tensor = output.logits[0, -1].float()
        return last


def _gumbel(streams: Sequence[np.random.Generator], scores: torch.Tensor) -> torch.Tensor:
    # The largest of logits + Gumbel noise is a sample of their softmax.
    drawn = np.stack([stream.gumbel(size=scores.shape[1]) for stream in streams])
    return torch.from_numpy(drawn).to(scores)


def _plain_model(model: Any) -> Any:
    # Under a LoRA adapter this is the same network, adapter layers in place.
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def _own_defaults_aside(model: Any) -> Iterator[None]:
    from transformers import GenerationConfig

    own = model.generation_config
    # Which cache an architecture needs is no matter of taste: that one setting stays.
    model.generation_config = GenerationConfig(
        cache_implementation=getattr(own, "cache_implementation", None)
    )
    try:
        yield
    finally:
        model.generation_config = own


@contextmanager
def _memory_errors(rows: int) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceMemoryError(
            "the device ran out of memory while generating answers",
            found=f"a batch of {rows} prompts",
            fix="lower evaluation.batch_size" if rows > 1 else "lower evaluation.max_new_tokens",
        ) from error


def _until_stop(ids: Sequence[int], stops: tuple[int, ...]) -> list[int]:
    for index, token in enumerate(ids):
        if token in stops:
            return list(ids[: index + 1])
    return list(ids)


def _generation(tokenizer: Any, ids: Sequence[int], stops: tuple[int, ...]) -> Generation:
    ended = bool(ids) and ids[-1] in stops
    # An end-of-turn token need not be marked as special, so it is cut off by hand.
    words = list(ids[:-1] if ended else ids)
    text = tokenizer.decode(words, skip_special_tokens=True).strip()
    return Generation(text, tuple(int(token) for token in ids), not ended)
