"""The embedded tiny CLIP: an open_clip architecture, its vocabulary and its weights, in the package."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dear.backbone import openclip as open_clip
from dear.backbone.clip import Clip
from dear.backbone.plain import PlainClip
from dear.backbone.tokenizer import WordTokenizer
from dear.errors import WeightsError
from dear.reading.files import ReadingError
from dear.reading.tensors import map_tensors

NAME = "tiny"
MEAN = STD = (0.5, 0.5, 0.5)
WEIGHTS, VOCABULARY, CONFIG = "model.safetensors", "vocabulary.json", "config.json"
FOLDER = Path(str(files("dear.backbone").joinpath("tiny")))


def config() -> dict[str, Any]:
    """open_clip's configuration of the architecture; the vocabulary size comes from the tokenizer."""
    return dict(json.loads((FOLDER / CONFIG).read_text(encoding="utf-8")))


def build(tokenizer: WordTokenizer, seed: int = 0) -> nn.Module:
    """The architecture in open_clip's own class, trainable, its initial weights drawn from ``seed``."""
    with drawn_from(seed):
        model: nn.Module = open_clip.CLIP(**_sized(tokenizer))
    return model


def _sized(tokenizer: WordTokenizer) -> dict[str, Any]:
    cfg = config()
    cfg["text_cfg"] |= {"vocab_size": tokenizer.vocab_size, "context_length": tokenizer.context_length}
    return cfg


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Context in which open_clip draws initial weights from ``seed``; restores the global generator that it
    draws from.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def load(folder: Path = FOLDER) -> Clip:
    """The tiny CLIP from a folder written by ``tools/pretrain.py``; the embedded one by default."""
    tokenizer = WordTokenizer.load(folder / VOCABULARY)
    model = PlainClip(**_sized(tokenizer))
    fill_weights(model, read_tensors(folder / WEIGHTS), folder / WEIGHTS)
    return Clip(
        model,
        tokenizer,
        name=NAME,
        pretrained="world" if folder == FOLDER else folder.name,
        mean=MEAN,
        std=STD,
    )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file in float32. Raises WeightsError for a missing or invalid file."""
    if not path.is_file():
        raise WeightsError(
            f"no weights at {path}: `python -m tools.pretrain --out FOLDER` writes them, in a checkout."
        )
    try:
        return {name: tensor.float() for name, tensor in map_tensors(path).items()}
    except ReadingError as error:
        raise WeightsError(f"{path}: {error.reason}: copy or write it again.") from error


def fill_weights(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Load a copy of ``state`` into ``model``. Raises WeightsError naming the tensors that do not fit.

    A copy, because a safetensors file's tensors start where its header ends, and matrix products of unaligned
    tensors round differently (measured: 7e-7 in text features).
    """
    wanted = model.state_dict()
    missing, foreign = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
    shapes = [n for n in wanted.keys() & state.keys() if wanted[n].shape != state[n].shape]
    if missing or foreign or shapes:
        kinds = {"missing": missing, "unknown": foreign, "of a different shape": shapes}
        what = [f"{len(names)} {kind} (first: {min(names)})" for kind, names in kinds.items() if names]
        raise WeightsError(f"{path} holds weights of another architecture: tensors {', '.join(what)}.")
    model.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, assign=True)
