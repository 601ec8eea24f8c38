from __future__ import annotations

import hashlib
import json

from hypothesis import given
from hypothesis import strategies as st

from gradian.data.ids import canonical_json, dataset_hash, example_id
from gradian.types import Example

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_an_id_is_twelve_hex_digits_of_the_canonical_row_and_the_position() -> None:
    row = {"b": "é", "a": 1}
    wanted = hashlib.sha256('{"a":1,"b":"é"}'.encode()).hexdigest()[:12]
    assert example_id(row, 7) == f"{wanted}-7"


def test_nan_and_infinity_are_null() -> None:
    assert canonical_json({"x": [float("nan"), float("inf")], "y": 1.5}) == '{"x":[null,null],"y":1.5}'


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=5))
def test_the_order_of_keys_does_not_change_an_id(row: dict[str, object]) -> None:
    backwards = dict(reversed(row.items()))
    assert example_id(row, 0) == example_id(backwards, 0)
    assert json.loads(canonical_json(row)) == row


def test_the_dataset_hash_sees_order_content_and_count() -> None:
    one, two = Example("a-0", 0, "text"), Example("b-1", 1, "text")
    hashes = {dataset_hash(rows) for rows in ([one, two], [two, one], [one], [])}
    assert len(hashes) == 4
