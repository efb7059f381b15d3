"""Stored embeddings: complete, of the model, and enough on their own."""

import pytest
import torch
from safetensors.torch import load_file

from dear.errors import SettingsError, WeightsError
from dear.roles import phrases as embed
from dear.roles.phrases import PACKAGED, STORED, embed_phrases, general_pool, stored_embeddings, world_pool


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
    monkeypatch.setattr(embed, "sentence_model", lambda *_: pytest.fail("a model was loaded"))
    assert embed_phrases(["a dog", "the color red", "a dog"]).shape == (3, 384)


def test_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> None:
        raise ImportError

    monkeypatch.setattr(embed, "import_module", missing)
    with pytest.raises(SettingsError, match=r"pip install 'dear-vlm\[roles\]'"):
        embed_phrases(["a phrase that is in no pool"])


def test_the_stored_ones_are_the_models() -> None:
    pytest.importorskip("sentence_transformers")
    folder = str(pytest.importorskip(PACKAGED).MODEL_DIR)
    phrases = [*general_pool().phrases[::499], *world_pool().phrases[::307]]
    torch.testing.assert_close(embed_phrases(phrases, folder), embed_phrases(phrases), rtol=0, atol=2e-3)
    mixed = embed_phrases(["a dog", "a dog that no pool has"], None)
    torch.testing.assert_close(mixed.norm(dim=1), torch.ones(2), rtol=0, atol=1e-5)
    with pytest.raises(WeightsError, match=r"cannot load the sentence model .*nowhere"):
        embed_phrases(["a dog"], "./nowhere")
