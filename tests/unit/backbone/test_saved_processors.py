"""Pixels and tokenizers as transformers saves them are the model's own, or refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dear.backbone import tiny
from dear.backbone.load import load_clip
from dear.backbone.tokenizer_file import is_clip_tokenizer
from dear.errors import DearError, WeightsError
from tests.standin_hub import StandIn
from tests.unit.backbone.test_from_transformers import compare, saved
from tests.unit.backbone.tokenizer_files import clips

transformers = pytest.importorskip("transformers")
NAME = "someone/clip"
PIXELS = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.8, 0.7]}
TEXTS = ["a photo of a dog", "Two  cats, and a Café", "it's 3 o'clock", ""]


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
def test_what_transformers_saves_is_read(tmp_path: Path, standin: StandIn, on_the_hub: bool) -> None:
    """Version 5 saves the pixels in `processor_config.json`, which was not read: OpenAI's were used."""
    model = saved(tmp_path, "CLIP", image={"image_size": 20})
    theirs = processor()
    theirs.save_pretrained(tmp_path)
    assert not (tmp_path / "preprocessor_config.json").exists()
    standin.files[NAME] = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    clip = load_clip(NAME if on_the_hub else str(tmp_path))
    compare(clip, model)
    picture = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    pixels = theirs.image_processor(images=picture, return_tensors="pt")["pixel_values"]
    ours = (torch.from_numpy(picture).permute(2, 0, 1)[None] / 255 - clip.mean) / clip.std
    torch.testing.assert_close(ours, pixels, rtol=0, atol=1e-6)
    ids = theirs.tokenizer(TEXTS, padding="max_length", max_length=11, truncation=True)["input_ids"]
    after = torch.tensor(ids).eq(49407).cumsum(dim=1) > 1  # ends that pad, in place of 0, to no effect
    assert torch.equal(clip.tokenize(TEXTS), torch.tensor(ids).masked_fill(after, 0))
    # By hand: the start, "a", "photo", "of", "a", "dog", the end.
    assert clip.tokenize(TEXTS)[0, :7].tolist() == [49406, 320, 1125, 539, 320, 1929, 49407]


def test_pixels_of_both_files(tmp_path: Path) -> None:
    """As in transformers the newer file comes first, if it has any."""
    saved(tmp_path, "CLIP")
    older = with_pixels(tmp_path, "preprocessor_config.json")
    assert older["mean"] == [0.1, 0.2, 0.3]
    newer = with_pixels(tmp_path, "processor_config.json", image_mean=[0.3, 0.3, 0.3])
    assert newer["mean"] == [0.3, 0.3, 0.3]
    assert newer["identity"] != older["identity"]
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "CLIPProcessor"}))
    assert load_clip(str(tmp_path)).identity == older["identity"]


@pytest.mark.parametrize("file", ["processor_config.json", "preprocessor_config.json"])
@pytest.mark.parametrize(
    "change",
    [{"do_normalize": False}, {"do_rescale": False}, {"rescale_factor": 2 / 255}, {"do_rescale": "no"}],
)
def test_pixels_that_are_made_otherwise_are_refused(
    tmp_path: Path, file: str, change: dict[str, Any]
) -> None:
    saved(tmp_path, "CLIP")
    usual = {"do_normalize": True, "do_rescale": True, "rescale_factor": 0.00392156862745098}
    assert with_pixels(tmp_path, file, **usual)["mean"] == [0.1, 0.2, 0.3]
    with pytest.raises(DearError, match=rf"{file}.* its {next(iter(change))} is"):
        with_pixels(tmp_path, file, **change)


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


USUAL: dict[str, dict[str, Any]] = {
    "transformers 5": clips(),
    "merges as texts": changed("model.merges", lambda merges: [" ".join(pair) for pair in merges]),
    "transformers 4": changed(
        "pre_tokenizer.pretokenizers.0.pattern",
        lambda pattern: {"Regex": pattern["Regex"].removeprefix("<\\|startoftext\\|>|<\\|endoftext\\|>|")},
    ),
}
OTHER: dict[str, dict[str, Any]] = {
    "words": changed("model.vocab", swapped),
    "merges": changed("model.merges", lambda merges: [*reversed(merges)]),
    "ending": changed("model.end_of_word_suffix", lambda _: "</v>"),
    "added": changed("added_tokens", lambda tokens: [*tokens, tokens[0] | {"id": 5, "content": "dog"}]),
    "split": changed("pre_tokenizer.pretokenizers.0.behavior", lambda _: "Isolated"),
    "start": changed("post_processor.cls.1", lambda _: 49405),
}


@pytest.mark.parametrize("form", [*USUAL, *OTHER])
def test_forms_of_clips_tokenizer(form: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps((USUAL | OTHER)[form]))
    assert is_clip_tokenizer(file) == (form in USUAL)


def test_a_tokenizer_of_as_many_words_as_clips(tmp_path: Path) -> None:
    """CLIP's stood in for each, with the same identity. CLIP's in a file is CLIP's."""
    saved(tmp_path, "CLIP")
    plain = load_clip(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text(json.dumps(clips()))
    assert load_clip(str(tmp_path)).identity == plain.identity
    (tmp_path / "tokenizer.json").write_text(json.dumps(OTHER["words"]))  # which pads with the end
    other = load_clip(str(tmp_path))
    assert other.identity != plain.identity
    assert other.tokenize(["dog"])[0, 1] == plain.tokenize(["cat"])[0, 1]


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json"])
@pytest.mark.parametrize(
    "change",
    [
        {"additional_special_tokens": ["dog"]},
        {"extra_special_tokens": {"x": "dog"}},
        {"added_tokens_decoder": {"320": {"content": "dog"}}},
    ],
)
def test_tokens_that_settings_add_to_clips(name: str, tmp_path: Path, change: dict[str, Any]) -> None:
    """transformers takes "dog" for another id then."""
    saved(tmp_path, "CLIP")
    words = clips() if name == "tokenizer.json" else clips()["model"]["vocab"]
    (tmp_path / name).write_text(json.dumps(words))
    settings = {"added_tokens_decoder": {"49406": {"content": "<|startoftext|>"}}, "extra_special_tokens": []}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_clip(str(tmp_path)).tokenize(["dog"])[0, 1] == 1929
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | change))
    with pytest.raises(WeightsError, match="'dog'" if name == "tokenizer.json" else r"tokenizer\.json"):
        load_clip(str(tmp_path))


def test_older_words_without_a_tokenizer(tmp_path: Path) -> None:
    saved(tmp_path, "CLIP")
    plain, words = load_clip(str(tmp_path)), clips()["model"]["vocab"]
    (tmp_path / "vocab.json").write_text(json.dumps(words))
    assert load_clip(str(tmp_path)).identity == plain.identity
    (tmp_path / "vocab.json").write_text(json.dumps(swapped(words)))
    with pytest.raises(WeightsError, match=r"has no tokenizer\.json"):
        load_clip(str(tmp_path))


@pytest.mark.parametrize("name", ["logit_scale", "visual.class_embedding"])
def test_numbers_that_float32_cannot_hold(tmp_path: Path, name: str) -> None:
    state = {key: tensor.to(torch.float64) for key, tensor in load_file(tiny.FOLDER / tiny.WEIGHTS).items()}
    state[name] = torch.full_like(state[name], 1e300)
    save_file(state, tmp_path / tiny.WEIGHTS)
    (tmp_path / tiny.VOCABULARY).write_bytes((tiny.FOLDER / tiny.VOCABULARY).read_bytes())
    with pytest.raises(WeightsError, match=f"{name} are not finite"):
        load_clip("tiny", str(tmp_path))
