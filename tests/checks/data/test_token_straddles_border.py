from __future__ import annotations

from gradian.checks.audit import Audit
from gradian.data.chat import ChatEncoder, load_tokenizer
from tests.checks.building import CASES, dataset
from tests.checks.data.rows import audit_rows, healthy, qa
from tests.checks.fixtures import only


def fires() -> Audit:
    # The tokenizer merges a colon and the space behind it; this template ends the prompt with the colon.
    tokenizer = load_tokenizer(str(CASES / "24-boundary-merge" / "tokenizer"))
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    return Audit(dataset=dataset([qa("Question?", " 42")]), encoder=ChatEncoder(tokenizer, 100))


def silent() -> Audit:
    return audit_rows(healthy(3), tokens=True)


def test_tokens_are_counted_and_the_row_named() -> None:
    finding = only("data.token_straddles_border", fires())
    assert (finding.figures["tokens"], finding.figures["rows"]) == (1, [1])
