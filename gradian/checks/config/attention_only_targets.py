"""The adapter leaves the MLP alone.

What it detects
    Every entry of target_modules names an attention projection (q_proj and v_proj, query_key_value, c_attn,
    qkv_proj and their like), and no expert weights are targeted. Of a regular expression the names in it are
    read, without running it; where these do not settle it, the check cannot tell.

Why it matters
    Two thirds of a transformer's weights, and most of what it knows of facts, sit in the MLP. Attention alone
    is a fair choice for style and format, and a recorded run with q_proj and v_proj improved; when new facts do
    not stick, it is the first thing to widen. A decision worth a thought rather than an error, hence medium.

What to do
    Set target_modules to "all-linear", or add gate_proj, up_proj and down_proj; halve r to keep the size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gradian.checks.audit import Audit
from gradian.checks.registry import CannotTell, Need, check
from gradian.checks.row_findings import excerpt
from gradian.types import Finding, Severity

_ATTENTION = {
    *(
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "out_proj",
        "qkv_proj",
        "q_a_proj",
        "q_b_proj",
        "kv_a_proj_with_mqa",
    ),
    *(
        "kv_b_proj",
        "query_key_value",
        "c_attn",
        "q_attn",
        "attn.c_proj",
        "wqkv",
        "wq",
        "wk",
        "wv",
        "wo",
        "qkv",
    ),
    *("query", "key", "value", "q", "k", "v", "o", "in_proj_qkv"),
}
# Parts of module paths that say nothing by themselves.
_PATH = {
    *("model", "layers", "layer", "transformer", "h", "decoder", "language_model", "text_model", "base_model")
}
_INSIDE = {"self_attn", "attention", "attn", "self_attention", "attention.self"}


@check("config.attention_only_targets", "target_modules covers attention only", needs=(Need.RUN,))
def attention_only_targets(audit: Audit) -> Iterator[Finding]:
    """Look at what kind of layer each target is."""
    lora = audit.artifact.lora
    targets = lora.target_modules if lora else None
    if lora is None or not targets:
        raise CannotTell("the run folder records no target_modules")
    if lora.raw.get("target_parameters"):
        return
    names = _named(targets) if isinstance(targets, str) else list(targets)
    if not names or not all(map(_is_attention, names)):
        return
    yield Finding(
        "config.attention_only_targets",
        Severity.MEDIUM,
        f"LoRA adapts attention only: {', '.join(map(excerpt, names[:6]))}",
        f"{len(names)} target(s), none of them in the MLP, where most facts are stored.",
        'Set target_modules to "all-linear".',
        figures={"target_modules": names},
    )


def _is_attention(target: str) -> bool:
    parts = target.lower().split(".")
    return parts[-1] in _ATTENTION or ".".join(parts[-2:]) in _ATTENTION or parts[-1] in _INSIDE


def _named(pattern: str) -> Sequence[str]:
    """The attention layers that a pattern names; none where it is sure to reach others.

    The pattern itself is never run: it comes from a file, and a hostile one need not end.

    Raises:
        CannotTell: it holds words that are neither layers of attention nor parts of a path.
    """
    if pattern == "all-linear":
        return []
    words: list[str] = re.findall(r"[A-Za-z][A-Za-z0-9_]*", re.sub(r"\\[a-zA-Z]", " ", pattern))
    others = [word for word in words if not _is_attention(word) and word.lower() not in _PATH]
    attention = [word for word in words if word.lower() in _ATTENTION]
    if others and any(_reaches_mlp(word) for word in others):
        return []
    if others or not attention:
        raise CannotTell("target_modules is a pattern whose names do not say which layers it reaches")
    return list(dict.fromkeys(attention))


def _reaches_mlp(word: str) -> bool:
    return bool(
        re.search(r"(?i)mlp|feed_forward|ffn|gate|up_proj|down_proj|fc1|fc2|fc_|c_fc|4h|moe|expert", word)
    )
