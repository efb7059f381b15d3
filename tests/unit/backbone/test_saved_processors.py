"""Pixels and tokenizers as transformers saves them are the model's own, or refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dear.backbone.loading.load import load_clip
from dear.backbone.loading.tokenizer_file import is_clip_tokenizer
from dear.errors import DearError, WeightsError
from tests.helpers.clips import compare, saved
from tests.helpers.errors import refuses
from tests.standin_hub import StandIn
from tests.unit.backbone.tokenizer_files import clips

transformers = pytest.importorskip("transformers")
NAME = "someone/clip"
PIXELS = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.8, 0.7]}
TEXTS = ["a photo of a dog", "Two  cats, and a Café", "it's 3 o'clock", ""]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a model without a processor, and the model."""
    folder = tmp_path_factory.mktemp("model")
    return folder, saved(folder, "CLIP", image={"image_size": 20})


@pytest.fixture
def folder(whole: tuple[Path, Any], tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole[0], tmp_path / "model"))


def processor() -> Any:
    model = clips()["model"]
    tokenizer = transformers.CLIPTokenizer(vocab=model["vocab"], merges=[*map(tuple, model["merges"])])
    size = {"size": {"shortest_edge": 20}, "crop_size": {"height": 20, "width": 20}}
    return transformers.CLIPProcessor(transformers.CLIPImageProcessor(**PIXELS, **size), tokenizer)


def with_pixels(folder: Path, file: str, **changes: Any) -> dict[str, Any]:
    """The identity and the mean with such a file of pixels."""
    content = PIXELS | changes
    nested = {"processor_class": "x", "image_processor": content}
    (folder / file).write_text(json.dumps(nested if file.startswith("processor") else content))
    clip = load_clip(str(folder))
    return {"identity": clip.identity, "mean": [round(value, 3) for value in clip.mean.flatten().tolist()]}


@pytest.mark.parametrize("on_the_hub", [False, True])
def test_what_transformers_saves_is_read(
    folder: Path, whole: tuple[Path, Any], standin: StandIn, on_the_hub: bool
) -> None:
    """Version 5 saves the pixels in `processor_config.json`, which was not read: OpenAI's were used."""
    theirs = processor()
    theirs.save_pretrained(folder)
    assert not (folder / "preprocessor_config.json").exists()
    standin.files[NAME] = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    clip = load_clip(NAME if on_the_hub else str(folder))
    compare(clip, whole[1])
    picture = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    pixels = theirs.image_processor(images=picture, return_tensors="pt")["pixel_values"]
    ours = (torch.from_numpy(picture).permute(2, 0, 1)[None] / 255 - clip.mean) / clip.std
    torch.testing.assert_close(ours, pixels, rtol=0, atol=1e-6)
    ids = theirs.tokenizer(TEXTS, padding="max_length", max_length=11, truncation=True)["input_ids"]
    after = torch.tensor(ids).eq(49407).cumsum(dim=1) > 1  # ends that pad, in place of 0, to no effect
    assert torch.equal(clip.tokenize(TEXTS), torch.tensor(ids).masked_fill(after, 0))
    # By hand: the start, "a", "photo", "of", "a", "dog", the end.
    assert clip.tokenize(TEXTS)[0, :7].tolist() == [49406, 320, 1125, 539, 320, 1929, 49407]


def test_pixels_of_both_files(folder: Path) -> None:
    """As in transformers the newer file comes first, if it has any."""
    older = with_pixels(folder, "preprocessor_config.json")
    assert older["mean"] == [0.1, 0.2, 0.3]
    newer = with_pixels(folder, "processor_config.json", image_mean=[0.3, 0.3, 0.3])
    assert newer["mean"] == [0.3, 0.3, 0.3]
    assert newer["identity"] != older["identity"]
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": "CLIPProcessor"}))
    assert load_clip(str(folder)).identity == older["identity"]


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("processor_config.json", {"do_normalize": False}),
        ("preprocessor_config.json", {"do_rescale": False}),
        ("preprocessor_config.json", {"rescale_factor": 2 / 255}),
    ],
)
def test_pixels_that_are_made_otherwise_are_refused(folder: Path, file: str, change: dict[str, Any]) -> None:
    usual = {"do_normalize": True, "do_rescale": True, "rescale_factor": 0.00392156862745098}
    assert with_pixels(folder, file, **usual)["mean"] == [0.1, 0.2, 0.3]
    with pytest.raises(DearError, match=rf"{file}.*{next(iter(change))}"):
        with_pixels(folder, file, **change)


def changed(key: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    """CLIP's tokenizer with the value of a key, such as model.vocab, changed."""
    content = clips()
    *outer, last = key.split(".")
    within = content
    for name in outer:
        within = within[int(name)] if isinstance(within, list) else within[name]
    name = int(last) if isinstance(within, list) else last
    within[name] = change(within[name])
    return content


def swapped(vocabulary: dict[str, int]) -> dict[str, int]:
    return vocabulary | {"dog</w>": vocabulary["cat</w>"], "cat</w>": vocabulary["dog</w>"]}


PATTERN = "pre_tokenizer.pretokenizers.0.pattern"
ENDS = "<\\|startoftext\\|>|<\\|endoftext\\|>|"


@pytest.mark.parametrize(
    ("key", "change", "same"),
    [
        ("model.merges", lambda merges: [" ".join(pair) for pair in merges], True),  # merges as texts
        (PATTERN, lambda x: {"Regex": x["Regex"].removeprefix(ENDS)}, True),  # as of transformers 4
        ("model.vocab", swapped, False),
        ("added_tokens", lambda tokens: [*tokens, tokens[0] | {"id": 5, "content": "dog"}], False),
    ],
)
def test_forms_of_clips_tokenizer(key: str, change: Callable[[Any], Any], same: bool, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(changed(key, change)))
    assert is_clip_tokenizer(file) == same


def test_a_tokenizer_of_as_many_words_as_clips(folder: Path) -> None:
    """CLIP's stood in for each, with the same identity. CLIP's in a file is CLIP's."""
    plain = load_clip(str(folder))
    (folder / "tokenizer.json").write_text(json.dumps(clips()))
    assert load_clip(str(folder)).identity == plain.identity
    (folder / "tokenizer.json").write_text(json.dumps(changed("model.vocab", swapped)))
    other = load_clip(str(folder))
    assert other.identity != plain.identity
    assert other.tokenize(["dog"])[0, 1] == plain.tokenize(["cat"])[0, 1]


def test_tokens_that_settings_add_to_clips(folder: Path) -> None:
    """transformers takes "dog" for another id then."""
    (folder / "tokenizer.json").write_text(json.dumps(clips()))
    settings = {"added_tokens_decoder": {"49406": {"content": "<|startoftext|>"}}, "extra_special_tokens": []}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_clip(str(folder)).tokenize(["dog"])[0, 1] == 1929
    settings["additional_special_tokens"] = ["dog"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    refuses(WeightsError, "'dog'", load_clip, str(folder))
