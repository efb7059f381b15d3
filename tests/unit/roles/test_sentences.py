"""Sentence models: means of token states, and nothing that a model's files run."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from dear.errors import WeightsError
from dear.roles.phrases import MODEL_SETTINGS, PACKAGED, embed_phrases

MODEL = Path(pytest.importorskip(PACKAGED).MODEL_DIR)


def test_embeddings_are_means_of_token_states() -> None:
    """By transformers alone, one text at a time, as the model's card says."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, bert = AutoTokenizer.from_pretrained(MODEL), AutoModel.from_pretrained(MODEL)
    texts = ["a photo of two cats", "ein Gemälde &amp; 日本", "word " * 300, "trees"]
    with torch.no_grad():
        states = [
            bert(**tokenizer(text, return_tensors="pt", truncation=True, max_length=256)).last_hidden_state[0]
            for text in texts
        ]
    want = normalize(torch.stack([tokens.mean(dim=0) for tokens in states]), dim=1)
    torch.testing.assert_close(embed_phrases(texts, str(MODEL), batch=3), want, rtol=0, atol=1e-5)


class Code:
    """What a pickle may hold: a call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.folder),)


def foreign_module(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "own.Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "own.py").write_text(f"import os\nos.mkdir({str(folder.parent / 'code-was-run')!r})\n")


def unsafe_arguments(folder: Path) -> None:
    path = folder / MODEL_SETTINGS
    unsafe = {"weights_only": False, "use_safetensors": False, "trust_remote_code": True}
    settings = json.loads(path.read_text()) | {"model_args": unsafe, "model_kwargs": unsafe}
    path.write_text(json.dumps(settings))


@pytest.mark.parametrize("change", [foreign_module, unsafe_arguments, lambda _folder: None])
def test_no_code_of_a_model_is_run(change: Any, tmp_path: Path) -> None:
    """Not its modules, not what its settings allow, and not its weights if they are a pickle."""
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save({"x": Code(tmp_path / "code-was-run")}, folder / "pytorch_model.bin")
    change(folder)
    with pytest.raises(WeightsError, match="cannot load the sentence model"):
        embed_phrases(["a phrase that is in no pool"], str(folder))
    assert not (tmp_path / "code-was-run").exists()
