"""Ids by hand."""

import random
from pathlib import Path

import pytest

from dear.backbone import openclip as open_clip
from dear.backbone.prompts import ClipReader, describe_cut_prompts
from dear.backbone.tiny import WordTokenizer
from dear.errors import DataError

# <pad> 0, cat 1, red 2, the spelling: a to z 3 to 28, 0 to 9 29 to 38, marks 39 to 70, <start> 71, <end> 72
TOKENIZER = WordTokenizer(["red", "cat", "red"], context_length=7)


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
    with pytest.raises(DataError, match=r"vocabulary\.json"):
        WordTokenizer.load(path)
    with pytest.raises(DataError, match="absent"):
        WordTokenizer.load(tmp_path / "absent")


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
