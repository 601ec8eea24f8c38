from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from gradian.config.schema import EvaluationConfig
from gradian.errors import EvaluationError, NonFiniteError, RowError
from gradian.evaluation import generate
from gradian.evaluation.generate import Generation, generate_answers, stop_tokens
from gradian.types import EncodedExample, Example

VOCABULARY = 64
PAD, EOS, END_OF_TURN = 0, 1, 2


@dataclass
class Vocabulary:
    """The few things that generation asks of a tokenizer; token 5 reads "t5"."""

    eos_token_id: int | None = EOS
    pad_token_id: int | None = PAD
    added: dict[str, int] = field(default_factory=lambda: {"<|im_end|>": END_OF_TURN})
    all_special_ids: tuple[int, ...] = (PAD, EOS)

    def get_added_vocab(self) -> dict[str, int]:
        return self.added

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return " ".join(f"t{i}" for i in ids if i not in (PAD, EOS))


@dataclass
class Prompts:
    """An encoder whose prompts are given, and the token that its template ends a turn with."""

    prompts: list[list[int]]
    last: int | None = END_OF_TURN

    def encode_answer(self, example: Example) -> EncodedExample:
        if self.last is None:
            raise RowError("the template wants a system turn")
        ids = np.array([5, 6, self.last], dtype=np.int64)
        return EncodedExample(example.id, example.position, ids, np.array([False, True, True]))

    def encode_prompt(self, example: Example) -> np.ndarray:
        return np.array(self.prompts[example.position], dtype=np.int64)


def llama(**extra: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**(SIZES | extra)))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_embd=32, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=64, initializer_range=0.3,
            bos_token_id=EOS, eos_token_id=EOS,
        )
    )  # fmt: skip


def qwen2() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**SIZES))


def mistral_with_a_window_of_five() -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=5))


def gemma2() -> Any:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    return Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, sliding_window=6))


SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "attn_implementation": "eager",
    "bos_token_id": EOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}


def loaded(model: Any, tokenizer: Vocabulary | None = None) -> Any:
    return SimpleNamespace(
        model=model.eval().requires_grad_(False),
        tokenizer=tokenizer or Vocabulary(),
        device=torch.device("cpu"),
        dtype=next(model.parameters()).dtype,
    )


def random_prompts(lengths: list[int]) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, VOCABULARY, size=n).tolist() for n in lengths]


LENGTHS = [1, 7, 2, 13, 7, 19, 3, 1, 11, 5]


def examples(n: int) -> list[Example]:
    return [Example(id=f"x-{i}", position=i, shape="messages") for i in range(n)]


def answers(model: Any, prompts: list[list[int]], seed: int = 0, **settings: Any) -> list[Generation]:
    config = EvaluationConfig(**({"max_new_tokens": 12} | settings))
    return generate_answers(model, Prompts(prompts), examples(len(prompts)), config, seed)  # type: ignore[arg-type]


def greedy_by_hand(model: Any, prompt: list[int], stops: tuple[int, ...], n: int) -> tuple[int, ...]:
    """No padding, no cache, no transformers decoding: the definition."""
    ids = list(prompt)
    for _ in range(n):
        with torch.no_grad():
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] in stops:
            break
    return tuple(ids[len(prompt) :])


@pytest.mark.parametrize("make", [llama, gpt2, qwen2, mistral_with_a_window_of_five, gemma2])
def test_batched_answers_are_those_of_greedy_decoding_one_at_a_time(make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model = loaded(make())
    # Enough stop tokens that some answers of a batch end early and others do not.
    stops = (EOS, END_OF_TURN, *range(20, 28))
    model.model.generation_config.eos_token_id = list(stops)
    prompts = random_prompts(LENGTHS)
    want = [greedy_by_hand(model.model, prompt, stops, 12) for prompt in prompts]
    assert len({len(ids) for ids in want}) > 1
    for batch_size in (1, 3, 8, 16):
        assert [a.token_ids for a in answers(model, prompts, batch_size=batch_size)] == want


def with_rounding_that_differs_by_batch(model: Any) -> Any:
    """Every token has a twin of the same logit, up to noise that depends on the shape of the batch.

    So do kernels on a GPU round: each shape its own way, the same way every time.
    """

    def rounding(module: Any, inputs: Any, logits: torch.Tensor) -> torch.Tensor:
        rows, steps, width = logits.shape
        half = logits[..., : width // 2]
        twins = torch.cat([half, half], dim=-1)
        shape_seed = torch.Generator().manual_seed(1000 * rows + steps)
        return twins + 1e-5 * torch.randn(twins.shape, generator=shape_seed)

    model.lm_head.register_forward_hook(rounding)
    return model


def test_answers_do_not_depend_on_the_batch_where_rounding_does() -> None:
    torch.manual_seed(0)
    model = loaded(with_rounding_that_differs_by_batch(llama()))
    prompts = random_prompts(LENGTHS)
    alone = answers(model, prompts, batch_size=1)
    for batch_size in (3, 10):
        assert answers(model, prompts, batch_size=batch_size) == alone
    sampled = answers(model, prompts, batch_size=1, greedy=False)
    assert answers(model, prompts, batch_size=7, greedy=False) == sampled


def test_the_checkpoints_own_generation_settings_do_not_leak_in_and_are_put_back() -> None:
    from transformers import GenerationConfig

    torch.manual_seed(1)
    model = loaded(llama())
    prompts = random_prompts([4, 9])
    plain = answers(model, prompts)
    own = GenerationConfig(
        do_sample=True, temperature=0.3, top_p=0.5, top_k=3, repetition_penalty=9.0, max_length=6,
        no_repeat_ngram_size=1, min_new_tokens=5, forced_eos_token_id=7, suppress_tokens=list(range(8, 40)),
        eos_token_id=EOS,
    )  # fmt: skip
    model.model.generation_config = own
    assert answers(model, prompts) == plain
    assert model.model.generation_config is own


def always(token: int) -> Any:
    """A model that says `token`, whatever it is asked."""
    model = llama()
    model.lm_head = torch.nn.Linear(32, VOCABULARY)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.zero_()
        model.lm_head.bias[token] = 5.0
    return model


@pytest.mark.parametrize("token", [EOS, END_OF_TURN, 9])
def test_an_answer_ends_at_any_stop_token_which_it_includes_but_does_not_print(token: int) -> None:
    model = loaded(always(token))
    model.model.generation_config.eos_token_id = [EOS, 9]
    (answer,) = answers(model, [[5, 6]])
    assert answer == Generation("", (token,), hit_cap=False)


def test_an_answer_that_nothing_ends_says_that_it_hit_the_cap() -> None:
    (answer,) = answers(loaded(always(8)), [[5, 6]], max_new_tokens=3)
    assert answer == Generation("t8 t8 t8", (8, 8, 8), hit_cap=True)


@pytest.mark.parametrize(("last", "more"), [(11, [11]), (12, []), (PAD, [PAD]), (None, [])])
def test_stop_tokens_come_from_the_tokenizer_the_checkpoint_and_the_chat_template(
    last: int | None, more: list[int]
) -> None:
    # A template may end a turn with an added or a special token; an ordinary word ends nothing.
    model = loaded(llama(), Vocabulary(eos_token_id=4, added={"<end_of_turn>": 11}))
    model.model.generation_config.eos_token_id = [7, 8]
    model.model.config.eos_token_id = 9
    assert stop_tokens(model, Prompts([], last)) == tuple(sorted([4, 7, 8, 9, *more]))  # type: ignore[arg-type]


@pytest.mark.parametrize("pad", [EOS, None])
def test_a_missing_pad_token_or_one_that_is_eos_changes_nothing(pad: int | None) -> None:
    torch.manual_seed(2)
    model = llama()
    prompts = random_prompts(LENGTHS)
    got = answers(loaded(model, Vocabulary(pad_token_id=pad)), prompts)
    assert got == answers(loaded(model), prompts)


@pytest.mark.parametrize("make", [llama, gpt2])
def test_answers_stop_at_the_end_of_the_context(make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model = loaded(make(), Vocabulary(eos_token_id=None, added={}))
    model.model.config.eos_token_id = model.model.generation_config.eos_token_id = None
    prompts = random_prompts([63, 10, 60, 62])
    got = answers(model, prompts, max_new_tokens=12)
    assert [len(answer.token_ids) for answer in got] == [1, 12, 4, 2]
    assert all(answer.hit_cap for answer in got)
    assert got[2].token_ids == greedy_by_hand(model.model, prompts[2], (), 4)


def test_a_prompt_that_fills_the_context_is_refused_with_its_row() -> None:
    model = loaded(llama())
    with pytest.raises(EvaluationError, match=r"eval row 2: .*\n.*64 tokens"):
        answers(model, random_prompts([3, 64]))


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(EvaluationError, match="eval row 1"):
        answers(loaded(llama()), [[]])


def test_a_model_that_gives_no_numbers_is_refused_with_the_row() -> None:
    model = loaded(llama())
    model.model.lm_head.weight[:] = float("nan")
    with pytest.raises(NonFiniteError, match="eval row 1"):
        answers(model, [[5]])


def test_samples_depend_on_the_seed_and_the_row_and_not_on_the_batch() -> None:
    torch.manual_seed(3)
    model = loaded(llama(initializer_range=0.1))
    prompts = random_prompts(LENGTHS) + [[7, 8]] * 6
    alone = answers(model, prompts, greedy=False, batch_size=1)
    for batch_size in (3, 16):
        assert answers(model, prompts, greedy=False, batch_size=batch_size) == alone
    assert answers(model, prompts, greedy=False, seed=1) != alone
    assert len({answer.token_ids for answer in alone[-6:]}) > 1


def test_samples_follow_the_models_own_distribution() -> None:
    torch.manual_seed(4)
    model = loaded(llama(initializer_range=0.1))
    got = answers(model, [[7, 8]] * 1500, greedy=False, batch_size=500, max_new_tokens=1)
    counts = np.bincount([answer.token_ids[0] for answer in got], minlength=VOCABULARY)
    with torch.no_grad():
        chances = model.model(input_ids=torch.tensor([[7, 8]])).logits[0, -1].double().softmax(0).numpy()
    assert stats.chisquare(counts, chances / chances.sum() * 1500).pvalue > 1e-3


def test_progress_counts_every_answer_once() -> None:
    seen: list[int] = []
    config = EvaluationConfig(max_new_tokens=1, batch_size=3)
    generate_answers(
        loaded(llama()),
        Prompts(random_prompts(LENGTHS)),
        examples(10),
        config,
        0,
        seen.append,  # type: ignore[arg-type]
    )
    assert sum(seen) == 10
    assert len(seen) == 4


def test_a_near_tie_is_looked_at_alone_and_a_clear_choice_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    original = generate._Chooser._scores_alone

    def counting(self: Any, sequence: torch.Tensor) -> torch.Tensor:
        looked.append(len(sequence))
        return original(self, sequence)

    monkeypatch.setattr(generate._Chooser, "_scores_alone", counting)
    model = always(8)
    answers(loaded(model), [[5, 6], [5]], max_new_tokens=3)
    assert looked == []
    with torch.no_grad():
        model.lm_head.bias[9] = 5.0
    got = answers(loaded(model), [[5, 6], [5]], max_new_tokens=2)
    assert sorted(looked) == [1, 2, 2, 3]
    assert got[0].token_ids == (8, 8)
