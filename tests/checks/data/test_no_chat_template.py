from __future__ import annotations

from gradian.checks.audit import Audit
from tests.checks.building import dataset, encoder
from tests.checks.data.rows import Row, audit_rows, chat, healthy, qa
from tests.checks.fixtures import only, verdict

ID = "data.no_chat_template"


def without_template(*rows: Row) -> Audit:
    return Audit(dataset=dataset(rows), encoder=encoder(chat_template=None))


def fires() -> Audit:
    return without_template(chat("Hi", "Hello."), {"text": "plain"})


def silent() -> Audit:
    return audit_rows([*healthy(3), chat("Hi", "Hello.")], tokens=True)


def test_chats_weigh_more_than_plain_pairs_and_raw_text_needs_no_template() -> None:
    finding = only(ID, fires())
    assert (finding.severity.value, finding.figures["rows"]) == ("high", [1])
    assert verdict(ID, without_template(qa("Hi", "Hello."))) == "medium"
    assert verdict(ID, without_template({"text": "plain"})) == "passed"
