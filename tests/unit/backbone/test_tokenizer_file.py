"""Tokenizers of files have the ids of transformers' own reader, without its code; those of the tiny CLIP and
of long prompts by hand.
"""

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.backbone import openclip as open_clip
from dear.backbone.loading.tiny import WordTokenizer
from dear.backbone.loading.tokenizer_file import FileTokenizer, find_tokenizer, read_tokenizer
from dear.backbone.prompts import ClipReader, describe_cut_prompts
from dear.errors import DataError, DearError, WeightsError
from dear.reading.files import ReadingError
from tests.helpers.errors import refuses
from tests.unit.backbone.tokenizer_files import KINDS, write_tokenizer

TEXTS = ["a photo of a cat", "Two  trees, photos of cats", "", "cat " * 20, "<eos> </s> [SEP] a"]


def read(folder: Path, *, context: int = 11, words: int = 1000, **options: Any) -> FileTokenizer:
    settings = {"clean": "whitespace", "strip_sep_token": False} | options
    return read_tokenizer(
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
    refuses(ReadingError, "lacks the padding token '<other>'", read, tmp_path)


CLS, SEP = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
TOKENS = {
    "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
    "[SEP]": {"id": "[SEP]", "ids": [3, 4], "tokens": ["[SEP]", "[MASK]"]},
}


def template(*single: dict[str, Any]) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": TOKENS}


@pytest.mark.parametrize(
    ("processor", "ids"),
    [  # "a cat" is 5, 8; [PAD] is 0
        (None, [5, 8, 0, 0, 0, 0]),
        ({"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}, [2, 5, 8, 3, 0, 0]),
        (template(CLS, TEXT), [2, 5, 8, 0, 0, 0]),
        (template(CLS, TEXT, SEP), [2, 5, 8, 3, 4, 0]),
        (template(CLS, CLS, TEXT, SEP), [2, 2, 5, 8, 3, 4]),
        (template(CLS, CLS, CLS, TEXT, SEP), [2, 2, 2, 5, 3, 4]),  # the text is cut
    ],
)
def test_special_tokens(processor: Any, ids: list[int], tmp_path: Path) -> None:
    file = write_tokenizer("BERT", tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"post_processor": processor}))
    assert read(tmp_path, context=6)("a cat").tolist() == [ids]


def test_ids_that_the_tower_lacks_are_refused(tmp_path: Path) -> None:
    write_tokenizer("T5", tmp_path)
    with pytest.raises(WeightsError, match="gives the id 6, the text tower has 6 words"):
        read(tmp_path, words=6)(["a cat"])


def test_the_settings_name_no_file_and_no_code(tmp_path: Path) -> None:
    write_tokenizer(
        "BERT", tmp_path, vocab_file="/etc/passwd", auto_map={"AutoTokenizer": ["evil.Evil", None]},
        tokenizer_class="Evil", tokenizer_file="/etc/passwd", trust_remote_code=True,
    )  # fmt: skip
    assert read(tmp_path, context=5)(["a cat"]).tolist() == [[2, 5, 8, 3, 0]]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("normalizer", {"type": "Python"}),
        ("model", {"type": "Unigram", "unk_id": 9, "vocab": []}),
        ("model", {"type": [[]], "vocab": {}}),
        ("model", 3),
        ("added_tokens", [{"id": "x"}]),
        # The library panics.
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(4)).decode()}),
    ],
)
def test_a_damaged_file_is_one_line(key: str, value: Any, tmp_path: Path) -> None:
    file = write_tokenizer("T5", tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    refuses(DearError, "", lambda: read(tmp_path)(["a"]))


# <pad> 0, cat 1, red 2, the spelling: a to z 3 to 28, 0 to 9 29 to 38, marks 39 to 70, <start> 71, <end> 72
TOKENIZER = WordTokenizer(["red", "cat", "red"], context_length=7)


def test_an_older_tokenizer_is_told_how_to_become_one_that_is_read(tmp_path: Path) -> None:
    text = {"hf_tokenizer_name": "owner/siglip"}
    for file, words in ((None, "Copy tokenizer.json"), ("spiece.model", "transformers import AutoTokenizer")):
        if file:
            (tmp_path / file).write_bytes(b"")
        with pytest.raises(WeightsError, match=words) as caught:
            find_tokenizer("ViT-B-16-SigLIP", text, tmp_path)
        assert "\n" not in str(caught.value)


def test_known_words_are_one_token() -> None:
    assert TOKENIZER.vocab_size == 73
    assert TOKENIZER("Red  CAT").tolist() == [[71, 2, 1, 72, 0, 0, 0]]
    assert TOKENIZER([]).shape == (0, 7)
    assert TOKENIZER(["red cat", "cat"]).tolist() == [[71, 2, 1, 72, 0, 0, 0], [71, 1, 72, 0, 0, 0, 0]]


def test_other_words_are_spelled() -> None:
    assert TOKENIZER("red car 7").tolist() == [[71, 2, 5, 3, 20, 36, 72]]


def test_marks_are_tokens_and_foreign_characters_a_question_mark() -> None:
    bang, question = 39, 39 + "!\"#$%&'()*+,-./:;<=>?".index("?")
    assert TOKENIZER("cat!é").tolist() == [[71, 1, bang, question, 72, 0, 0]]


def test_save_and_load(tmp_path: Path) -> None:
    (tmp_path / "vocabulary.json").write_text(TOKENIZER.to_json())
    again = WordTokenizer.load(tmp_path / "vocabulary.json")
    assert (again.words, again.context_length) == (["cat", "red"], 7)
    assert again("red dog").tolist() == TOKENIZER("red dog").tolist()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"words": ["a"]}', '{"words": 3, "context_length": 7}'])
def test_a_broken_vocabulary_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_text(text, encoding="utf-8")
    refuses(DataError, "vocabulary.json", WordTokenizer.load, path)
    refuses(DataError, "absent", WordTokenizer.load, tmp_path / "absent")


def test_a_prompt_is_cut_where_a_longer_context_has_more_tokens() -> None:
    longer, reader, cut = open_clip.SimpleTokenizer(context_length=400), ClipReader(), 0
    rng = random.Random(0)
    words = ["maple", "tree,", "antidisestablishmentarianism", "of", "1997", "x's", "crêpe", "東京", "ok."]
    for _ in range(40):
        prompt = " ".join(rng.choices(words, k=rng.randint(8, 40)))
        is_longer = int(longer([prompt]).argmax()) - 1 > 75
        assert bool(describe_cut_prompts(reader, ["name"], [[prompt]])) == is_longer
        cut += is_longer
    assert 5 < cut < 35
