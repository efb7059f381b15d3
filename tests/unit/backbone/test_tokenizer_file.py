"""Tokenizers read as data: the ids of transformers' own reader, and nothing that runs, hangs or grows."""

import base64
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.backbone.tokenizer_file import (
    BYTES_A_BYTE,
    MEMORY,
    MOST_MEMORY,
    FileTokenizer,
    _guarded,
    file_tokenizer,
)
from dear.backbone.tokenizer_parts import specials, tokenizer_parts
from dear.cli.main import Terminated
from dear.errors import DearError, WeightsError
from dear.limits import LimitError
from dear.reading.files import ReadingError
from tests.unit.backbone.tokenizer_files import KINDS, write_tokenizer

TEXTS = ["a photo of a cat", "Two  trees, photos of cats", "", "cat " * 20, "<eos> </s> [SEP] a"]


def read(folder: Path, *, context: int = 11, words: int = 1000, **options: Any) -> FileTokenizer:
    settings = {"clean": "whitespace", "strip_sep_token": False} | options
    return file_tokenizer(
        folder / "tokenizer.json", folder / "tokenizer_config.json", context=context, words=words, **settings
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clean", ["whitespace", "canonicalize"])
def test_the_ids_are_those_of_transformers(kind: str, clean: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from open_clip.tokenizer import HFTokenizer

    write_tokenizer(kind, tmp_path)
    theirs = HFTokenizer(str(tmp_path), context_length=11, clean=clean)
    assert torch.equal(read(tmp_path, clean=clean)(TEXTS), theirs(TEXTS))


def test_clipas_separator_becomes_zero(tmp_path: Path) -> None:
    write_tokenizer("BERT", tmp_path)
    assert read(tmp_path, context=5)(["a cat"]).tolist() == [[2, 5, 8, 3, 0]]
    assert read(tmp_path, context=5, strip_sep_token=True)("a cat").tolist() == [[2, 5, 8, 0, 0]]


def test_padding_is_as_the_settings_say(tmp_path: Path) -> None:
    write_tokenizer("T5", tmp_path, padding_side="left", pad_token={"content": "<pad>", "lstrip": True})
    assert read(tmp_path, context=4)(["a cat"]).tolist() == [[0, 3, 6, 1]]
    write_tokenizer("T5", tmp_path, pad_token="<other>")
    with pytest.raises(ReadingError, match="lacks the padding token '<other>'"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("key", "most"), [("unk_token", 32), ("continuing_subword_prefix", 4), ("end_of_word_suffix", 4)]
)
def test_what_stands_beside_parts_of_a_word_is_short(key: str, most: int) -> None:
    """It is put beside each part that is tried: 8 kB of it made one word of 1,000 letters take minutes."""
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": [], key: "#" * most}
    assert tokenizer_parts({"model": model}, "x")["model"] == model | {"type": "BPE"}
    model[key] = "#" * (most + 1)
    with pytest.raises(ReadingError, match=f"its model has a {key} of more than {most} characters"):
        tokenizer_parts({"model": model}, "x")


TOKENS = {"[A]": {"id": "[A]", "ids": [1, 2], "tokens": ["a", "b"]}}
TEXT, A = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[A]", "type_id": 0}}


@pytest.mark.parametrize(
    ("processor", "before", "after"),
    [
        (None, (), ()),
        ({"type": "ByteLevel"}, (), ()),
        ({"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}, (2,), (3,)),
        ({"type": "RobertaProcessing", "sep": ["x", 3], "cls": ["y", 2], "trim_offsets": True}, (2,), (3,)),
        ({"type": "TemplateProcessing", "single": [A, TEXT], "special_tokens": TOKENS}, (1, 2), ()),
        (
            {"type": "Sequence", "processors": [
                {"type": "BertProcessing", "sep": ["x", 3], "cls": ["y", 4]},
                {"type": "TemplateProcessing", "single": [TEXT, A], "special_tokens": TOKENS},
            ]},
            (4,), (3, 1, 2),
        ),
    ],
)  # fmt: skip
def test_special_tokens(processor: Any, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    assert specials(processor, "x") == (before, after)


@pytest.mark.parametrize(
    "single", [[TEXT] * 2, [TEXT] * 7, [A], [], [TEXT, A, A, A, A, A], [{}], [{"Sequence": {"id": "B"}}]]
)
def test_a_text_is_there_once_among_few_special_tokens(single: list[Any]) -> None:
    """Several times, the library combines all that it cuts off of each: gigabytes, and SIGABRT."""
    processor = {"type": "TemplateProcessing", "single": single, "special_tokens": TOKENS}
    with pytest.raises(
        ReadingError, match=r"its post_processor(.single)? (must have|has the part|adds more)"
    ):
        specials(processor, "x")


def test_special_tokens_beyond_the_context_are_refused(tmp_path: Path) -> None:
    write_tokenizer("BERT", tmp_path)
    assert read(tmp_path, context=2)("a cat").shape == (1, 2)
    with pytest.raises(ReadingError, match="more special tokens than the 1 ids"):
        read(tmp_path, context=1)


def test_a_long_text_leaves_nothing_behind(tmp_path: Path) -> None:
    """The library kept what it cut off, in as many pieces as there are ids."""
    write_tokenizer("BERT", tmp_path)
    tokenizer = read(tmp_path, context=3)
    encoding = tokenizer.rust.encode("a cat " * 500, add_special_tokens=False)
    assert (len(encoding.ids) > 500, encoding.overflowing) == (True, [])
    assert tokenizer("a cat " * 500).shape == (1, 3)


def test_ids_that_the_tower_lacks_are_refused(tmp_path: Path) -> None:
    write_tokenizer("T5", tmp_path)
    with pytest.raises(WeightsError, match="gives the id 6, the text tower has 6 words"):
        read(tmp_path, words=6)(["a cat"])


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("normalizer", {"type": "Python"}, "its normalizer is 'Python'"),
        (
            "normalizer",
            {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""},
            "known expressions",
        ),
        ("normalizer", {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}, "longer than what"),
        ("normalizer", {"type": "Replace", "pattern": {"String": ""}, "content": ""}, "neither a text"),
        # Of a text that is removed whole, an added token would spare the part that grows afterwards.
        ("normalizer", {"type": "Replace", "pattern": {"String": "aab"}, "content": ""}, "than 2 letters"),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 9}, "has 9 parts"),
        ("normalizer", {"type": "Prepend", "prepend": "ab"}, "longer than one character"),
        (
            "normalizer",
            {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(4) + b"x" * 99).decode()},
            "makes one character longer than 64",
        ),
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "(a|a)*"}, "behavior": "Removed"}, "known"),
        (
            "pre_tokenizer",
            {"type": "Sequence", "normalizers": [], "pretokenizers": [{"type": "Split", "pattern": {}}]},
            "must have the keys type and pretokenizers",
        ),
        (
            "pre_tokenizer",
            {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 2},
            "has ByteLevel twice",
        ),
        ("post_processor", {"type": "TemplateProcessing", "pair": [[0] * 2000]}, "more than 1,000 values"),
        ("model", {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.5}, r"its model.dropout is 0.5"),
        ("model", {"type": "WordLevel", "vocab": {}}, "its model is 'WordLevel'"),
        (
            "model",
            {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a" * 33, -1.0]]},
            "a token of more than 32 characters",
        ),
        ("model", {"type": [[]], "vocab": {}}, "its model is "),
        ("added_tokens", [{"id": 0, "content": ""}], "is empty"),
        ("added_tokens", [{"id": 0, "content": "a" * 201}], "or longer than 200 characters"),
    ],
)
def test_what_runs_hangs_or_grows_is_refused(key: str, value: Any, reason: str, tmp_path: Path) -> None:
    whole = json.loads(write_tokenizer("T5", tmp_path).read_text())
    assert tokenizer_parts(whole, "it")["model"]["type"] == "Unigram"
    with pytest.raises(ReadingError, match=reason):
        tokenizer_parts(whole | {key: value}, "it")


def test_tokens_beside_the_vocabulary_are_few(tmp_path: Path) -> None:
    """100,000 of 100 letters each, 22 MB, took 53 s to load."""
    whole = json.loads(write_tokenizer("T5", tmp_path).read_text())
    whole["added_tokens"] = [{"id": n, "content": str(n)} for n in range(10_001)]
    with pytest.raises(LimitError, match="10,001 tokens beside the vocabulary of a tokenizer, above"):
        tokenizer_parts(whole, "it")


def charsmap(character: str, becomes: str) -> str:
    """Of one character below U+0080: a double array with a leaf under the root."""
    trie = [0] * 1024
    trie[0] = 256 << 10  # the root: where its children begin
    trie[256 ^ ord(character)] = ((256 ^ ord(character) ^ 512) << 10) | 1 << 8 | ord(character)  # has a leaf
    packed = b"".join(unit.to_bytes(4, "little") for unit in trie)
    return base64.b64encode(len(packed).to_bytes(4, "little") + packed + becomes.encode() + b"\0").decode()


def longer(times: int) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": charsmap("a", "a" * times)}


def test_a_character_map_does_what_it_says(tmp_path: Path) -> None:
    """So that the test below refuses what would grow."""
    file = write_tokenizer("T5", tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"normalizer": longer(3)}))
    rust = read(tmp_path).rust
    assert rust.normalizer.normalize_str("a cat") == "aaa caaat"


@pytest.mark.parametrize(
    ("normalizers", "pre_tokenizers", "times"),
    [
        (["Lowercase", "Replace", longer(64)], ["Metaspace"], None),  # SigLIP's: 1.5 * 64 * 4
        (["NFC", "Lowercase"], ["ByteLevel"], None),  # CLIP's
        ([longer(2)] * 2, [], "4,096"),  # each is held to 64, whatever it does
        ([longer(64), "NFKC"], [], "704"),
        ([longer(64), "Lowercase"], ["ByteLevel", "Metaspace"], "768"),
        (["Replace"] * 5, [], "1,024"),
        ([], ["Metaspace"] * 5, "1,024"),
        (["NFD"] * 4, ["ByteLevel", "Metaspace"], "648"),
        (["BertNormalizer"] * 6, [], "729"),
    ],
)
def test_what_multiplies_a_text_is_refused(
    normalizers: list[Any], pre_tokenizers: list[str], times: str | None, tmp_path: Path
) -> None:
    whole = json.loads(write_tokenizer("T5", tmp_path).read_text())
    wide = {"pattern": {"String": "a"}, "content": "\N{MATHEMATICAL BOLD SMALL A}"}  # 4 bytes for 1
    thin = {"pattern": {"Regex": r"\s+"}, "content": " "}
    replace = wide if len(normalizers) == 5 else thin
    first = [{"type": part, **replace} if isinstance(part, str) else part for part in normalizers]
    whole["normalizer"] = {"type": "Sequence", "normalizers": first}
    whole["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": kind} for kind in pre_tokenizers],
    }
    if times is None:
        assert tokenizer_parts(whole, "it")["normalizer"] == whole["normalizer"]
        return
    with pytest.raises(ReadingError, match=f"a text {times} times as long: at most 600 times"):
        tokenizer_parts(whole, "it")


def test_a_replacement_says_what_it_puts_in_place(tmp_path: Path) -> None:
    parts = json.loads(write_tokenizer("T5", tmp_path).read_text())
    parts["normalizer"] = {"type": "Replace", "pattern": {"String": "a"}}
    with pytest.raises(ReadingError, match=r"normalizer\.content"):
        tokenizer_parts(parts, "it")


def test_a_text_that_becomes_long_is_refused(tmp_path: Path) -> None:
    """A word of 992 letters, of which a normalizer made 62,000, took 3.9 s, in which no other thread ran."""
    file = write_tokenizer("T5", tmp_path)
    parts = json.loads(file.read_text())
    file.write_text(json.dumps(parts | {"normalizer": longer(64)}))
    tokenizer = read(tmp_path)
    assert tokenizer("a" * 9).shape == (1, 11)
    with pytest.raises(WeightsError, match="the tokenizer makes 640 bytes of 10 letters: at most 600"):
        tokenizer("a" * 10)
    with pytest.raises(
        WeightsError, match="the tokenizer makes 64,000 bytes of 1,000 letters: at most 8,000"
    ):
        tokenizer("a" * 1000)
    nothing = {"type": "Replace", "pattern": {"String": "a"}, "content": ""}
    steps = {"type": "Sequence", "normalizers": [longer(64), nothing]}  # long only in between
    file.write_text(json.dumps(parts | {"normalizer": steps}))
    with pytest.raises(WeightsError, match="the tokenizer makes 8,064 bytes of 126 letters"):
        read(tmp_path)("a" * 126)
    bert = json.loads(write_tokenizer("BERT", tmp_path).read_text())
    bert["model"]["max_input_chars_per_word"] = 101
    with pytest.raises(ReadingError, match=r"max_input_chars_per_word is 101: it must be .*100"):
        tokenizer_parts(bert, "it")


@pytest.mark.parametrize(
    ("normalizers", "times"),
    [
        (["BertNormalizer", "Lowercase"], None),
        (["NFD", "Lowercase", "StripAccents"], None),
        (["NFKC"], 11),
        (["NFD", "BertNormalizer"], 9),
    ],
)
def test_words_that_wordpiece_splits_grow_little(
    normalizers: list[str], times: int | None, tmp_path: Path
) -> None:
    """It tries all parts of a word: 234 ligatures that became words of 195 letters took 41 ms."""
    bert = json.loads(write_tokenizer("BERT", tmp_path).read_text())
    bert["normalizer"] = {"type": "Sequence", "normalizers": [{"type": kind} for kind in normalizers]}
    if times is None:
        assert tokenizer_parts(bert, "it")["normalizer"] == bert["normalizer"]
        return
    with pytest.raises(ReadingError, match=f"a text {times} times as long: at most 5 times"):
        tokenizer_parts(bert, "it")


@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux only")
def test_building_it_takes_little_memory(tmp_path: Path) -> None:
    """The library normalises added tokens: 3,000 of 200 letters took 2.5 GB."""
    file = write_tokenizer("T5", tmp_path)
    parts = json.loads(file.read_text())
    rng = random.Random(0)
    tokens = {"".join(rng.choices("ab", k=200)) for _ in range(3000)}
    parts["added_tokens"] = [
        {
            "id": 100 + number, "content": token, "normalized": True, "special": False, "single_word": False,
            "lstrip": False, "rstrip": False,
        }
        for number, token in enumerate(sorted(tokens))
    ]  # fmt: skip
    parts["normalizer"] = longer(64)
    file.write_text(json.dumps(parts))
    with pytest.raises(DearError, match=r"tokenizer\.json: it .*takes more than 2\d\d MiB of memory to read"):
        read(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux only")
def test_a_vocabulary_of_emoji_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took 12 letters of JSON, and there was no bound for large files: one of 98 MB took 8.7 GB."""
    file, bounds = write_tokenizer("T5", tmp_path), list[int]()
    parts = json.loads(file.read_text())
    parts["model"]["vocab"] += [["\U0001f600" * 8 + chr(0x1F300 + number), -9] for number in range(2000)]
    file.write_text(text := json.dumps(parts, ensure_ascii=False), encoding="utf-8")

    def recorded(*_: object, memory: int, **__: object) -> None:
        bounds.append(memory)

    monkeypatch.setattr("dear.backbone.tokenizer_file.isolated", recorded)
    read(tmp_path)
    assert bounds[0] == pytest.approx(MEMORY + BYTES_A_BYTE * len(text.encode()), rel=0.01)
    monkeypatch.setattr("dear.backbone.tokenizer_file.MOST_MEMORY", MEMORY + 2**20)
    read(tmp_path)
    assert bounds[1] == MEMORY + 2**20
    assert MOST_MEMORY <= 2**30


def test_the_settings_name_no_file_and_no_code(tmp_path: Path) -> None:
    write_tokenizer(
        "BERT", tmp_path, vocab_file="/etc/passwd", auto_map={"AutoTokenizer": ["evil.Evil", None]},
        tokenizer_class="Evil", tokenizer_file="/etc/passwd", trust_remote_code=True,
    )  # fmt: skip
    assert read(tmp_path, context=5)(["a cat"]).tolist() == [[2, 5, 8, 3, 0]]


def test_a_panic_of_the_library_is_a_line() -> None:
    class PanicException(BaseException):
        """As pyo3's, which is no Exception."""

    def panic() -> None:
        raise PanicException("index out of bounds\nand more")

    with pytest.raises(WeightsError, match=r"cannot use it \(index out of bounds\)\.?$"):
        _guarded(panic)


@pytest.mark.skipif(os.name == "nt", reason="writes to the descriptor of stderr")
def test_a_signal_is_no_fault_of_the_library(capfd: pytest.CaptureFixture[str]) -> None:
    """SIGTERM while it reads a text was a file that it cannot use, with exit code 2 in place of 143."""

    def ended() -> None:
        os.write(2, b"a line\n")
        raise Terminated

    with pytest.raises(Terminated):
        _guarded(ended)
    assert capfd.readouterr().err == "a line\n"


@pytest.mark.skipif(os.name == "nt", reason="reads the descriptor of stderr")
def test_a_panic_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Rust prints the place of a panic, and its stack, on the descriptor of stderr."""
    file = write_tokenizer("T5", tmp_path)
    parts = json.loads(file.read_text())
    parts["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(4)).decode()}
    file.write_text(json.dumps(parts))
    with pytest.raises(WeightsError, match="the library tokenizers cannot use it"):
        file_tokenizer(file, None, context=13, words=1000, clean="whitespace", strip_sep_token=False)(["a"])
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(os.name == "nt", reason="writes to the descriptor of stderr")
def test_what_others_print_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert _guarded(lambda: os.write(2, b"a line\n")) == 7
    assert capfd.readouterr().err == "a line\n"
    with pytest.raises(WeightsError):
        _guarded(lambda: [os.write(2, b"another\n"), int("x")])
    assert capfd.readouterr().err == "another\n"
