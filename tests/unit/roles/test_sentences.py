"""Sentence models: the embeddings of sentence-transformers, and nothing that a model's files run or fetch."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.errors import WeightsError
from dear.limits import LimitError
from dear.roles import sentences
from dear.roles.phrases import PACKAGED, embed_phrases, general_pool
from dear.roles.sentences import load_sentence_model
from tests.unit.roles.sentence_files import write_model

TEXTS = ["a photo of two cats", "", "Cat [PAD] tree", "a " * 40, "trees", "  a cat  "]

LEFT = {"direction": "Left", "max_length": 5, "strategy": "LongestFirst", "stride": 0}


def change(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | changes))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_embeddings_of_sentence_transformers(tmp_path: Path, pooling: str) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = str(write_model(tmp_path / "model", pooling))
    theirs = library.SentenceTransformer(folder, device="cpu").encode(
        TEXTS, convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False
    )
    model = load_sentence_model(folder)
    torch.testing.assert_close(model(TEXTS, 2), theirs, rtol=0, atol=1e-5)
    torch.testing.assert_close(model(TEXTS, 100), theirs, rtol=0, atol=1e-5)


def test_a_model_that_it_saves_anew(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(write_model(tmp_path / "model", "cls")), device="cpu")
    model.save(str(tmp_path / "anew"))
    first, again = (load_sentence_model(str(tmp_path / name))(TEXTS, 4) for name in ("model", "anew"))
    torch.testing.assert_close(first, again, rtol=0, atol=1e-6)


def test_the_packaged_model() -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = str(pytest.importorskip(PACKAGED).MODEL_DIR)
    phrases = [*general_pool().phrases[::499], "ein Gemälde &amp; [PAD] 日本", "word " * 300]
    theirs = library.SentenceTransformer(folder, device="cpu").encode(
        phrases, convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False
    )
    torch.testing.assert_close(embed_phrases(phrases, folder), theirs, rtol=0, atol=1e-5)


def test_a_wide_layer_is_made_for_few_texts_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """128 texts of 1,024 tokens through a layer of 32,768 numbers took over 12 GB, from a model of 0.6 MB."""
    model = load_sentence_model(str(write_model(tmp_path / "model")))
    whole = model(TEXTS, 100)
    counts, forward = list[int](), model.bert.forward

    def counted(ids: torch.Tensor, real: torch.Tensor) -> Any:
        counts.append(ids.shape[0] * ids.shape[1] * max(model.bert.widest, model.bert.heads * ids.shape[1]))
        return forward(ids, real)

    monkeypatch.setattr(model.bert, "forward", counted)
    model(TEXTS, 100)
    assert len(counts) == 1
    most = counts.pop() // 3
    monkeypatch.setattr(sentences, "AT_ONCE", most)
    torch.testing.assert_close(model(TEXTS, 100), whole, rtol=0, atol=1e-6)
    assert len(counts) == 3
    assert max(counts) <= most


def test_eight_tensors_of_a_layer_fit_into_a_gibibyte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of 9.7 MB took 5.5 GB: some seven of 1 GiB each were in memory at once."""
    model = load_sentence_model(str(write_model(tmp_path / "model")))
    counts, forward = list[int](), model.bert.forward
    monkeypatch.setattr(model.bert, "widest", 2**20)

    def counted(ids: torch.Tensor, real: torch.Tensor) -> Any:
        counts.append(ids.numel() * model.bert.widest)
        return forward(ids, real)

    monkeypatch.setattr(model.bert, "forward", counted)
    model(TEXTS * 10, 100)
    assert max(counts) * 8 * torch.float32.itemsize <= 2**30


class Code:
    """What a pickle may hold: a call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.folder),)


def test_no_code_of_a_model_is_run(tmp_path: Path) -> None:
    """Its settings turned off what protects from pickles: the library hands them to transformers."""
    folder = write_model(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save({"x": Code(tmp_path / "code-was-run")}, folder / "pytorch_model.bin")
    unsafe = {"weights_only": False, "use_safetensors": False}
    change(folder / "sentence_bert_config.json", model_args=unsafe, model_kwargs=unsafe)
    with pytest.raises(WeightsError, match=r"cannot load the sentence model .*no model.safetensors"):
        embed_phrases(["a phrase that is in no pool"], str(folder))
    assert not (tmp_path / "code-was-run").exists()


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"model_type": "mpnet"}, "it must be one of bert"),
        ("config.json", {"num_attention_heads": 5}, "no multiple"),
        ("config.json", {"hidden_size": 2**40}, "it must be a whole number from 1 to 2048"),
        ("config.json", {"intermediate_size": 8193}, "it must be a whole number from 1 to 8192"),
        ("config.json", {"hidden_size": 24}, "of a different shape"),
        ("config.json", {"max_position_embeddings": 1}, "it must be a whole number from 2 to 1024"),
        ("config.json", {"vocab_size": 2**40}, "it must be a whole number from 1 to 1e.06"),
        ("config.json", {"num_hidden_layers": 128}, "missing"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "must pool by the mean"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
        ("tokenizer_config.json", {"strip_accents": False}, "its strip_accents contradicts"),
        ("tokenizer_config.json", {"tokenize_chinese_chars": False}, "tokenize_chinese_chars contra"),
        ("config_sentence_transformers.json", {"truncate_dim": 4}, "truncate_dim is 4"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task"),
        ("sentence_bert_config.json", {"modality_config": {"text": {"method": "x"}}}, "modality_config"),
        ("tokenizer.json", {"truncation": LEFT}, "cuts texts on the left"),
        ("tokenizer_config.json", {"padding_side": "left"}, "pads on the left"),
        ("tokenizer_config.json", {"do_lower_case": False}, r"its do_lower_case contradicts tokenizer\.json"),
        (
            "sentence_bert_config.json",
            {"processing_kwargs": {"text": {"max_length": 4}}},
            "processing_kwargs",
        ),
        ("config_sentence_transformers.json", {"default_prompt_name": "document"}, "it puts 'x' before each"),
    ],
)
def test_models_that_are_refused(tmp_path: Path, file: str, changes: dict[str, Any], message: str) -> None:
    folder = write_model(tmp_path / "model")
    change(folder / file, **changes)
    with pytest.raises((WeightsError, LimitError), match=message):
        load_sentence_model(str(folder))


@pytest.mark.parametrize("path", ["../elsewhere", "/etc", "1_Pooling/.."])
def test_modules_elsewhere_and_other_modules(tmp_path: Path, path: str) -> None:
    folder = write_model(tmp_path / "model")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(WeightsError, match="its modules must be Transformer, Pooling, Normalize"):
        load_sentence_model(str(folder))
    modules[1] = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(WeightsError, match="its modules must be Transformer, Pooling, Normalize"):
        load_sentence_model(str(folder))


def test_a_sentence_model_in_the_cache_of_the_hub(tmp_path: Path) -> None:
    """There each file is a link to a blob, also below a folder."""
    folder = write_model(tmp_path / "models--a--b" / "snapshots" / "0", "mean")
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir()
    for number, file in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        file.rename(blobs / str(number))
        file.symlink_to(os.path.relpath(blobs / str(number), file.parent))
    (folder / "config_sentence_transformers.json").unlink()  # of a model before version 2.4
    (tmp_path / "named").symlink_to(folder)
    assert load_sentence_model(str(tmp_path / "named"))(TEXTS, 4).isfinite().all()
