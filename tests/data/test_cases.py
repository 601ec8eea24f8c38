"""The shared cases that concern rows and masks, each with its expected value (`README.md` of the case)."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradian.data.chat import ChatEncoder, encode_all, encoding_findings, load_tokenizer
from gradian.data.formats import Dataset, load_dataset
from gradian.data.masks import (
    contains_ids,
    has_generation_block,
    marker_rows,
    markers_present,
    targets_lost_to_padding_id,
    text_border,
)
from gradian.data.rows import alternation_problem
from gradian.errors import DataFormatError, RowError
from gradian.types import EncodedExample, Finding

CASES = Path(__file__).resolve().parents[1] / "fixtures" / "cases"


class Encoded:
    def __init__(self, file: str, tokenizer: str = "_tok", max_seq_length: int = 4096) -> None:
        self.dataset: Dataset = load_dataset(f"{CASES}/{file}")
        self.encoder = ChatEncoder(load_tokenizer(str(CASES / tokenizer)), max_seq_length)
        self.rows: tuple[EncodedExample, ...] = encode_all(self.encoder, self.dataset)
        listed = (*self.dataset.findings, *encoding_findings(self.encoder, self.rows))
        self.findings: dict[str, Finding] = {finding.id: finding for finding in listed}

    @property
    def counts(self) -> list[int]:
        return [row.n_supervised for row in self.rows]

    def targets(self, row: int) -> str:
        encoded = self.rows[row]
        return str(self.encoder.tokenizer.decode(encoded.input_ids[encoded.supervised]))


def own(case: str) -> Encoded:
    return Encoded(f"{case}/train.jsonl", f"{case}/tokenizer")


def test_01_bom_and_crlf_load_as_the_plain_file_does(tmp_path: Path) -> None:
    case = Encoded("01-bom-crlf-jsonl/train.jsonl")
    assert (len(case.dataset), sum(case.counts)) == (3, 21)
    raw = (CASES / "01-bom-crlf-jsonl/train.jsonl").read_bytes()
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(raw.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n"))
    assert [e.id for e in load_dataset(plain)] == [e.id for e in case.dataset]
    assert "byte order mark" in case.dataset.notes[0]
    assert case.findings == {}


def test_02_utf16_is_one_clear_error() -> None:
    with pytest.raises(DataFormatError, match=r"train\.jsonl: UTF-16 \(LE\) text, not UTF-8"):
        load_dataset(CASES / "02-utf16-jsonl/train.jsonl")


def test_04_both_bad_lines_are_named() -> None:
    with pytest.raises(DataFormatError) as caught:
        load_dataset(CASES / "04-bad-line-trailing-comma/train.jsonl")
    assert "train.jsonl:2:78: trailing comma" in str(caught.value)
    assert "train.jsonl:4:" in str(caught.value)


def test_05_wrapped_rows_load_and_two_lists_are_ambiguous() -> None:
    case = Encoded("05-json-wrapped-data/train.json")
    assert case.counts == [2, 2]
    assert "'data'" in case.dataset.notes[0]
    ambiguous = CASES / "05-json-wrapped-data/ambiguous.json"
    with pytest.raises(DataFormatError, match="'train', 'test'"):
        load_dataset(ambiguous)
    assert [e.text for e in load_dataset(f"{ambiguous}::test")] == ["b"]


@pytest.mark.parametrize("name", ["really_array.jsonl", "really_jsonl.json"])
def test_06_content_beats_the_suffix(name: str) -> None:
    case = Encoded(f"06-wrong-extension/{name}")
    assert (len(case.dataset), sum(case.counts)) == (3, 21)


def test_08_five_shapes_are_counted_and_row_five_flagged() -> None:
    case = Encoded("08-mixed-row-shapes/train.jsonl")
    shapes = {"messages": 1, "prompt_completion": 1, "instruction": 1, "text": 1, "unknown": 1}
    assert case.dataset.shapes == shapes
    figures = case.findings["data.unknown_row_shape"].figures
    assert (figures["rows"], figures["shapes"]) == ([5], shapes)


def test_09_sharegpt_loads_with_its_system_texts() -> None:
    case = Encoded("09-sharegpt-basic/train.json")
    assert case.counts == [7, 12]
    assert sum(turn.role == "assistant" for e in case.dataset for turn in e.messages) == 3
    assert [e.messages[0].content for e in case.dataset] == ["Be brief.", "Be kind."]


def test_11_rows_that_a_sharegpt_trainer_drops_are_known_with_reasons() -> None:
    dataset = load_dataset(CASES / "11-sharegpt-bad-order/train.json")
    problems = {e.position + 1: alternation_problem(e.messages) for e in dataset}
    assert [row for row, problem in problems.items() if problem] == [1, 2, 3, 4, 6]
    assert problems[4] == "has no turns"


def test_12_null_content_with_tool_calls_is_a_row_error_and_never_the_word_none() -> None:
    case = Encoded("12-null-content-tool-calls/train.jsonl")
    assert case.counts == [0, 6]
    finding = case.findings["data.unrenderable_rows"]
    assert finding.figures["rows"] == [1]
    assert "template cannot render turn 2 (content null, tool_calls set)" in finding.evidence
    assert "None" not in case.targets(1)
    with pytest.raises(RowError, match="row 1: template cannot render turn 2"):
        case.encoder.encode(case.dataset.examples[0])


def test_14_text_parts_are_joined_and_an_image_is_a_row_error() -> None:
    case = Encoded("14-multimodal-list-content/train.jsonl")
    assert case.counts == [3, 0]
    assert case.findings["data.unreadable_rows"].figures["rows"] == [2]
    with pytest.raises(RowError, match="row 2: image content not supported"):
        case.encoder.encode(case.dataset.examples[1])


def test_15_nan_and_null_are_empty_and_rows_without_a_target_flagged() -> None:
    case = Encoded("15-nan-null-alpaca/train.jsonl")
    assert case.counts == [2, 2, 0, 5, 2, 0]
    assert case.findings["data.row_without_target"].figures["rows"] == [3, 6]
    assert case.findings["data.null_like_text"].figures["rows"] == [4]
    assert case.findings["data.value_converted"].figures["rows"] == [5]
    assert [e.messages[0].content for e in case.dataset][:2] == ["Add 1+1", "Add 2+2"]


def test_17_stripped_thinking_is_masked_from_the_full_render_and_told() -> None:
    case = own("17-qwen3-think-stripped")
    assert case.counts == [49]
    assert case.targets(0).startswith("It is 4.<|im_end|><think>three")
    assert "row 1, turn 2" in case.findings["data.template_prefix_mismatch"].evidence
    assert "row 1, turn 2" in case.findings["data.template_alters_text"].evidence


def test_18_the_clock_of_a_template_stands_still() -> None:
    case = own("18-llama3-date")
    assert case.counts == [6]
    assert "26 Jul 2024" in case.encoder.tokenizer.decode(case.rows[0].input_ids)
    assert "data.template_depends_on_date" in case.findings


def test_19_a_template_that_refuses_a_system_turn_is_a_row_error() -> None:
    case = own("19-gemma-no-system")
    assert case.counts == [0, 4]
    finding = case.findings["data.unrenderable_rows"]
    assert finding.figures["rows"] == [1]
    assert "template refuses: System role not supported" in finding.evidence


def test_21_answers_are_found_without_generation_blocks() -> None:
    case = own("21-no-generation-block")
    assert case.counts == [7]
    assert not has_generation_block(str(case.encoder.tokenizer.chat_template))
    assert has_generation_block((CASES / "_tok/chat_template.jinja").read_text())


def test_22_an_end_token_outside_the_generation_block_is_told() -> None:
    case = own("22-terminator-outside-mask")
    assert case.counts == [7]
    figures = case.findings["data.end_of_turn_not_supervised"].figures
    assert (figures["supervised"], figures["turns"]) == (0, 2)


def test_23_a_collator_that_masks_the_padding_id_loses_the_end_token() -> None:
    case = own("23-pad-equals-eos")
    tokenizer = case.encoder.tokenizer
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert targets_lost_to_padding_id(case.rows, tokenizer.pad_token_id) == 1
    other = Encoded("23-pad-equals-eos/train.jsonl")
    assert targets_lost_to_padding_id(other.rows, other.encoder.tokenizer.pad_token_id) == 0


def test_24_a_merge_across_the_border_is_found_in_row_one_only() -> None:
    tokenizer = load_tokenizer(str(CASES / "24-boundary-merge/tokenizer"))
    pairs = [("Question?\nAnswer:", " 42"), ("Question?\nAnswer: ", "42")]
    dataset = load_dataset(CASES / "24-boundary-merge/train.jsonl")
    assert [(e.messages[0].content, e.messages[1].content) for e in dataset] == pairs
    borders = [text_border(tokenizer, prompt, completion + "<|im_end|>") for prompt, completion in pairs]
    assert [border.prompt_is_prefix for border in borders] == [False, True]
    assert [border.straddling for border in borders] == [":\u0120", None]
    template = tokenizer("Answer:", add_special_tokens=False)["input_ids"]
    for (prompt, completion), border in zip(pairs, borders, strict=True):
        ids = tokenizer(prompt + completion + "<|im_end|>", add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids[border.n_prompt :]) == "42<|im_end|>"
        assert not contains_ids(ids, template)


def test_26_a_target_behind_the_cut_is_counted() -> None:
    case = Encoded("26-truncation-removes-target/train.jsonl", max_seq_length=64)
    assert case.counts == [0, 5]
    assert case.rows[0].truncated_supervised == 6
    assert len(case.rows[0]) == 64
    assert case.findings["data.no_supervised_tokens"].figures["rows"] == [1]
    assert case.findings["data.completion_truncated"].figures["rows"] == [1]


def test_27_rows_of_the_packing_case_load() -> None:
    assert Encoded("27-packing-and-masking/train.jsonl").counts == [2, 2]


def test_28_a_very_long_line_loads() -> None:
    case = Encoded("28-very-long-line/train.jsonl", max_seq_length=1_000_000)
    assert case.counts == [3, 2]


def test_43_save_to_disk_needs_a_split_and_reads_no_state_as_data() -> None:
    with pytest.raises(DataFormatError, match="splits train, test"):
        load_dataset(CASES / "43-save-to-disk-dict/ds")
    train = Encoded("43-save-to-disk-dict/ds::train")
    assert (len(train.dataset), sum(train.counts)) == (3, 21)
    assert len(load_dataset(f"{CASES}/43-save-to-disk-dict/ds::test")) == 1
    assert len(load_dataset(CASES / "43-save-to-disk-dict/single")) == 2


def test_45_a_response_marker_that_is_nowhere_is_told_from_one_that_is() -> None:
    dataset = load_dataset(CASES / "45-text-rows-wrong-marker/train.jsonl")
    assert marker_rows(dataset, "<|start_header_id|>assistant<|end_header_id|>\n\n") == ()
    assert markers_present(dataset.examples) == (("<|im_start|>assistant\n", 1), ("### Response:", 1))
