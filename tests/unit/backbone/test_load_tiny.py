"""Loading the tiny CLIP: from a folder, from a broken one, and with random weights."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dear.backbone import tiny
from dear.backbone.load import load_clip
from dear.backbone.tiny import WordTokenizer
from dear.errors import WeightsError


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run-7"
    folder.mkdir()
    tokenizer = WordTokenizer(["red", "house"], 13)
    (folder / tiny.VOCABULARY).write_text(tokenizer.to_json())
    save_file({k: v.half() for k, v in tiny.build(tokenizer, 5).state_dict().items()}, folder / tiny.WEIGHTS)
    return folder


def test_the_tiny_clip_from_a_folder(tiny_folder: Path) -> None:
    clip = load_clip("tiny", str(tiny_folder))
    assert (clip.identity.model, clip.identity.pretrained) == ("tiny", "run-7")
    assert (clip.image.depth, clip.image_size, clip.image.projection.dtype) == (12, 48, torch.float32)
    assert clip.tokenize(["red house"]).shape == (1, 13)


def test_the_tiny_clip_from_no_folder_or_a_broken_one(tmp_path: Path, tiny_folder: Path) -> None:
    with pytest.raises(WeightsError, match=r"no vocabulary\.json in .*absent: .*tools/pretrain"):
        load_clip("tiny", str(tmp_path / "absent"))
    whole = (tiny_folder / tiny.WEIGHTS).read_bytes()
    (tiny_folder / tiny.WEIGHTS).write_bytes(whole[:-1])
    with pytest.raises(WeightsError, match=r"model\.safetensors is damaged"):
        load_clip("tiny", str(tiny_folder))
    (tiny_folder / tiny.WEIGHTS).write_bytes(whole)
    (tiny_folder / tiny.VOCABULARY).write_text(WordTokenizer(["red"], 13).to_json())
    with pytest.raises(WeightsError, match=r"1 of a different shape \(first: token_embedding\.weight\)"):
        load_clip("tiny", str(tiny_folder))
    (tiny_folder / tiny.WEIGHTS).unlink()
    with pytest.raises(WeightsError, match=r"no model\.safetensors in"):
        load_clip("tiny", str(tiny_folder))


def test_the_tiny_clip_with_random_weights(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "FOLDER", tmp := tiny_folder)
    (tmp / tiny.CONFIG).write_text(
        (Path(tiny.__file__).parent / "tiny" / tiny.CONFIG).read_text(encoding="utf-8"), encoding="utf-8"
    )
    clip = load_clip("tiny", "random:5")
    assert (clip.identity.model, clip.identity.pretrained) == ("tiny", "random:5")
    assert clip.identity.sha256 == load_clip("tiny", "random:5").identity.sha256
