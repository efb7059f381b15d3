"""Loading by name: names, seeds, paths and files that are refused, and what the message says."""

import argparse
import pickle
import zipfile
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dear.backbone.loading import tiny
from dear.backbone.loading.load import load_clip
from dear.backbone.loading.tiny import WordTokenizer
from dear.backbone.loading.weights import read_weights
from dear.backbone.names import check_model
from dear.errors import WeightsError
from dear.limits import LimitError
from tests.helpers.errors import refuses
from tests.unit.backbone.prime import NAME

pytestmark = pytest.mark.usefixtures("prime_architecture")


@pytest.mark.parametrize(
    ("pretrained", "message"),
    [
        (None, r"needs weights: a tag \(by_url, plain, quick\), a local file, or random:0"),
        ("quik", r"'quik'. It takes a tag \(quick, "),
        ("absent/x.pt", r"no weights file at absent/x\.pt"),
        ("here.bin", r"no weights file at here\.bin"),
        (".", "is a folder"),
        *((f"random:{seed}", "seed") for seed in ("", "x", "-1", "1.5", "²", 2**63)),
    ],
)
def test_no_weights(pretrained: str | None, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        load_clip(NAME, pretrained)


@pytest.mark.parametrize("name", ["roberta-ViT-B-32", "xlm-roberta-base-ViT-B-32"])
def test_architectures_that_do_not_fit_are_refused_before_any_download(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dear.backbone.loading.hub.fetch", lambda *_, **__: pytest.fail("downloaded"))
    with pytest.raises(WeightsError, match=f"{name} does not fit: its "):
        load_clip(name, open_clip.list_pretrained_tags_by_model(name)[0])


@pytest.mark.parametrize("form", ["pt", "safetensors"])
@pytest.mark.parametrize("keep", [0, 1000, None])
def test_cut_and_foreign_files(tmp_path: Path, state: dict[str, Tensor], form: str, keep: int | None) -> None:
    path = tmp_path / f"cut.{form}"
    torch.save(state, path) if form == "pt" else save_file(state, path)
    path.write_bytes(bytes(range(256)) * 9 if keep is None else path.read_bytes()[:keep])
    with pytest.raises(WeightsError, match=rf"cut\.{form}"):
        load_clip(NAME, str(path))


class Exploit:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("code of the file ran",)


@pytest.mark.parametrize(
    "model", ["models/clip.pt", "clip.safetensors", "./clip.bin", "/models/clip/clip.pth"]
)
def test_weights_in_place_of_a_model(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first was taken for a repository of the hub."""
    monkeypatch.setattr("dear.backbone.loading.hub.fetch", lambda *_, **__: pytest.fail("downloaded"))
    for load in (load_clip, check_model):
        with pytest.raises(WeightsError, match=f"{model} is a file of weights, .* give it as --pretrained"):
            load(model)


def write_torchscript(value: object, path: Path) -> None:
    """An archive with a pickle of its own."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/constants.pkl", b"")
        file.writestr("a/data.pkl", pickle.dumps(value))


@pytest.mark.parametrize(
    "model", [torch.nn.Linear(3, 5), {"state_dict": {}, "args": argparse.Namespace(lr=3)}]
)
def test_a_whole_model_is_no_state_dict(tmp_path: Path, model: object) -> None:
    """It was called damaged: nothing is wrong with the file."""
    torch.save(model, tmp_path / "model.pt")
    with pytest.raises(WeightsError, match=r"save model\.state_dict\(\) alone") as caught:
        load_clip(NAME, str(tmp_path / "model.pt"))
    assert "damaged" not in str(caught.value)


@pytest.mark.parametrize(
    "write", [torch.save, write_torchscript, lambda value, path: path.write_bytes(pickle.dumps(value))]
)
@pytest.mark.parametrize(
    "saved",
    [{"a": Exploit()}, torch.zeros(3), [torch.zeros(3)], {"a": 3}, {}, {"state_dict": {"a": 3}}, "hello"],
    ids=["code", "tensor", "list", "number", "empty", "nested", "text"],
)
def test_a_checkpoint_that_is_no_state_dict(
    tmp_path: Path, write: Any, saved: object, capsys: pytest.CaptureFixture[str]
) -> None:
    write(saved, tmp_path / "odd.pt")
    refuses(WeightsError, "odd.pt", load_clip, NAME, str(tmp_path / "odd.pt"))
    assert "ran" not in capsys.readouterr().out


def test_weights_that_promise_more_than_their_file_has(
    tmp_path: Path, state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor that repeats one number; a header of terabytes; a file above the limit."""
    path = tmp_path / "large.pt"
    torch.save(state | {"visual.proj": torch.zeros(1).expand(10**7, 10**7)}, path)
    with pytest.raises(WeightsError, match=r"1 of a different shape \(first: visual.proj\)"):
        load_clip(NAME, str(path))
    header = b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'
    forged = tmp_path / "forged.safetensors"
    for length in (len(header), 2**40):
        forged.write_bytes(length.to_bytes(8, "little") + header)
        refuses(WeightsError, "forged.safetensors", load_clip, NAME, str(forged))
    monkeypatch.setenv("DEAR_LIMIT_TENSOR_BYTES", "1000")
    refuses(LimitError, "DEAR_LIMIT_TENSOR_BYTES", read_weights, path)


def test_names_and_shapes_are_compared_before_a_value_is_read(
    tmp_path: Path, state: dict[str, Tensor]
) -> None:
    path = tmp_path / "nan.safetensors"
    for value in (float("nan"), 1j):
        for name, shape in (("foreign", (1, 23)), ("visual.proj", (1, 23)), ("visual.proj", (21, 17))):
            save_file(state | {name: torch.full(shape, value)}, path)
            reason = "values of" if shape == (21, 17) else "tensors 1"
            with pytest.raises(WeightsError, match=f"{reason} .*{name}"):
                load_clip(NAME, str(path))


def test_the_tiny_clip_from_no_folder_or_a_broken_one(tmp_path: Path) -> None:
    tokenizer, weights = WordTokenizer(["red", "house"], 13), tmp_path / tiny.WEIGHTS
    (tmp_path / tiny.VOCABULARY).write_text(tokenizer.to_json())
    save_file({k: v.half() for k, v in tiny.build(tokenizer, 5).state_dict().items()}, weights)
    clip = load_clip("tiny", str(tmp_path))
    assert (clip.identity.model, clip.identity.pretrained) == ("tiny", tmp_path.name)
    assert (clip.image.depth, clip.image_size, clip.image.projection.dtype) == (12, 48, torch.float32)
    assert clip.tokenize(["red house"]).shape == (1, 13)
    with pytest.raises(WeightsError, match=r"no vocabulary\.json in .*absent"):
        load_clip("tiny", str(tmp_path / "absent"))
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    refuses(WeightsError, "model.safetensors", load_clip, "tiny", str(tmp_path))
    weights.write_bytes(whole)
    (tmp_path / tiny.VOCABULARY).write_text(WordTokenizer(["red"], 13).to_json())
    refuses(WeightsError, "token_embedding.weight", load_clip, "tiny", str(tmp_path))
