"""Tokenizers with merges, one for each way in which model families write a conversation."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from random import Random

from tests.checks.healthy import rows

_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>\n{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TOOLS = (
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response><|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% else %}[SYSTEM]{{ m.content }}[/SYSTEM]{% endif %}"
    "{% endfor %}"
)
_QWEN3 = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% set said = m.content.split('</think>')[-1].lstrip('\n') %}"
    "<|im_start|>assistant\n{% if loop.last %}<think>\n{% if '</think>' in m.content %}"
    "{{ m.content.split('</think>')[0].split('<think>')[-1].strip('\n') }}{% endif %}\n</think>\n\n{% endif %}{{ said }}<|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Template, BOS, end token, padding, and the other special tokens.
FAMILIES = {
    "chatml": (_CHATML, "<|bos|>", "<|im_end|>", "<|pad|>", ("<|im_start|>",)),
    "tools": (_TOOLS, "<|bos|>", "<|im_end|>", "<|pad|>", ("<|im_start|>",)),
    "llama": (
        _LLAMA,
        "<|begin_of_text|>",
        "<|eot_id|>",
        "<|finetune_right_pad_id|>",
        ("<|start_header_id|>", "<|end_header_id|>"),
    ),
    "gemma": (_GEMMA, "<bos>", "<eos>", "<pad>", ("<start_of_turn>", "<end_of_turn>")),
    "mistral": (_MISTRAL, "<s>", "</s>", "<pad>", ("[INST]", "[/INST]")),
    "qwen3": (_QWEN3, "<|bos|>", "<|im_end|>", "<|endoftext|>", ("<|im_start|>",)),
    "base": (None, "<s>", "</s>", "<pad>", ()),
}
_VOCABULARY = 1500


def save_tokenizer(family: str, folder: Path) -> Path:
    """Write a tokenizer of a family into `folder`, as `save_pretrained` does."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    template, bos, eos, pad, others = FAMILIES[family]
    core = Tokenizer.from_str(_trained())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        additional_special_tokens=list(others),
        clean_up_tokenization_spaces=False,
    )
    if family in ("llama", "gemma", "mistral"):
        # These add a BOS of their own.
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos_token_id)]
        )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


@lru_cache(maxsize=1)
def _trained() -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=_VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    texts = (turn["content"] for row in rows.essays(Random(0), 60) for turn in row["messages"])
    core.train_from_iterator(texts, trainer)
    return str(core.to_str())
