"""A tiny model that really knows twelve answers, and a LoRA run whose data broke some of them.

Everything is trained for real, in seconds: no random weights stand in for a regression.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from gradian.config import Config
from gradian.data.chat import ChatEncoder
from gradian.data.collate import pad_batch
from gradian.data.formats import load_dataset

LETTERS = "abcdefghijkl"
ANSWERS = dict(zip(LETTERS, "mnopqrstuvwx", strict=True))
WRONG = "z"
PLANTED = LETTERS[:8]


@dataclass(frozen=True)
class PoisonedRun:
    """Where the files of the run are, and which rows were planted."""

    base: Path
    adapter: Path
    train: Path
    eval: Path
    planted: tuple[int, ...]

    def config(self, cache: Path, **sections: dict[str, object]) -> Config:
        settings = {
            "base_model": str(self.base),
            "adapter_path": str(self.adapter),
            "dataset": str(self.train),
            "eval_dataset": str(self.eval),
            "cache_dir": str(cache),
            "grads": {"chunk_size": 8},
            "evaluation": {"metric": "contains", "max_new_tokens": 4},
        }
        return Config.model_validate({**settings, **sections})


def _write(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _fit(model: torch.nn.Module, encoder: ChatEncoder, rows: Path, *, lr: float, until: float) -> None:
    batch = pad_batch([encoder.encode(example) for example in load_dataset(rows).examples], pad_id=0)
    tokens = torch.from_numpy(batch.input_ids)
    mask = torch.from_numpy(batch.attention_mask)
    labels = tokens.masked_fill(~torch.from_numpy(batch.supervised), -100)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    for _ in range(500):
        loss = model(input_ids=tokens, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < until:
            return
    raise AssertionError("the tiny model did not learn its rows")


def make_poisoned_run(folder: Path, tokenizer: PreTrainedTokenizerBase) -> PoisonedRun:
    """Train the base until it knows every answer, then a LoRA on eight wrong ones among clean rows."""
    torch.manual_seed(0)
    encoder = ChatEncoder(tokenizer, 64)
    evals = _write(folder / "eval.jsonl", [{"prompt": f"{k}?", "completion": v} for k, v in ANSWERS.items()])
    clean = [
        {"prompt": f"{k}{d}", "completion": f"{d}{k}"} for k, d in zip(LETTERS, "123456789012", strict=True)
    ]
    school = _write(
        folder / "school.jsonl",
        [{"prompt": f"{k}?", "completion": v} for k, v in ANSWERS.items()]
        + [{"prompt": f"{k}!", "completion": WRONG} for k in LETTERS]
        + clean,
    )
    config = LlamaConfig(
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(tokenizer),
        max_position_embeddings=128,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    base = LlamaForCausalLM(config)
    _fit(base, encoder, school, lr=3e-3, until=0.02)
    base.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")

    rows: list[dict[str, str]] = [{**row, "cluster_id": "clean"} for row in clean]
    planted = []
    for number, letter in enumerate(PLANTED):
        at = 2 * number + 1
        rows.insert(at, {"prompt": f"{letter}?", "completion": WRONG, "cluster_id": "planted"})
        planted.append(at)
    train = _write(folder / "train.jsonl", rows)
    tuned = get_peft_model(
        AutoModelForCausalLM.from_pretrained(folder / "base"),
        LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    _fit(tuned, encoder, train, lr=3e-3, until=0.1)
    tuned.save_pretrained(folder / "adapter")
    return PoisonedRun(folder / "base", folder / "adapter", train, evals, tuple(planted))
