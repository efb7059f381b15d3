"""A frozen CLIP: two towers, temperature, tokenizer, pixel statistics, and the identity of its weights."""

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from dear.backbone.names import may_be_folder
from dear.backbone.preprocess import Preprocess
from dear.backbone.prompts import describe_cut_prompts
from dear.backbone.text import TextTower
from dear.backbone.vision import VisionTower
from dear.errors import warn

VALUES_AT_ONCE = 2**20
"""Values that are hashed at a time."""

Tokenizer = Callable[[Sequence[str]], Int[Tensor, "text token"]]


@dataclass(frozen=True, eq=False)
class Identity:
    """The identity of a set of weights, stored with everything computed from them (roles, adapters, records).
    Two are equal if their models and hashes are. For models in folders the hash alone decides, so that a
    folder may move: it covers everything in the folder that matters.

    Attributes:
        model: Name of the architecture or the repository, or path of the folder as it was given.
        pretrained: Source of the weights, for display: a tag or a file name. Not compared: the same tensors
            may be in files of any name and format.
        sha256: Hash of the tensors and the configuration (`weights_hash`); empty if it was not published.
    """

    model: str
    pretrained: str
    sha256: str

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity) or self.sha256 != other.sha256:
            return False
        in_folders = bool(self.sha256) and may_be_folder(self.model) and may_be_folder(other.model)
        return self.model == other.model or in_folders

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __str__(self) -> str:
        return f"{self.model}/{self.pretrained} [{self.sha256[:12] or 'hash not published'}]"


class FirstWords(dict[str, str]):
    """A tokenizer's cache of words and their parts, bounded to the first 10,000 of up to 50 characters."""

    def __setitem__(self, word: str, parts: str) -> None:
        if len(self) < 10_000 and len(word) <= 50:
            super().__setitem__(word, parts)


class Clip(nn.Module):
    """A frozen CLIP. Layers are counted from 1, heads from 0; features are not normalized unless stated."""

    mean: Tensor
    std: Tensor
    logit_scale: Tensor
    logit_bias: Tensor | None

    def __init__(
        self,
        image: VisionTower,
        text: TextTower,
        logit_scale: Tensor,
        logit_bias: Tensor | None,
        tokenizer: Tokenizer,
        preprocess: Preprocess,
        identity: Identity,
    ) -> None:
        """``preprocess`` makes the pixels that the image tower was trained on. ``logit_bias`` is SigLIP's. It
        is the same for all classes, so that no softmax over classes and no ranking depends on it.
        """
        super().__init__()
        self.image, self.text = image, text
        self.logit_scale, self.logit_bias = logit_scale, logit_bias
        self.tokenizer = tokenizer
        if isinstance(words := getattr(tokenizer, "cache", None), dict):  # open_clip's has no bound
            tokenizer.cache = FirstWords(words)  # type: ignore[attr-defined]
        self.requires_grad_(False)
        self.eval()
        self.identity, self.preprocess = identity, preprocess
        self.register_buffer("mean", torch.tensor(preprocess.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(preprocess.std).view(3, 1, 1), persistent=False)

    def outline(self) -> "Clip":
        """A copy with the same shapes but no values, on the meta device: what is built on it takes no memory.
        The temperature keeps its value, and the tokenizer is shared. Create parameters on it with
        ``new_empty`` and the like, without computing: what torch computes on this device is written in
        Python, which takes seconds to import.
        """
        copies: dict[int, object] = {id(self.tokenizer): self.tokenizer}
        for tensor in (*self.parameters(), *self.buffers()):
            copies[id(tensor)] = tensor if tensor.numel() == 1 else _without_values(tensor)
        return copy.deepcopy(self, copies)

    @property
    def image_size(self) -> int:
        return self.image.image_size

    @property
    def scale(self) -> Float[Tensor, ""]:
        """1 / tau, the factor on cosines in the logits."""
        return self.logit_scale.exp().squeeze()

    def normalize_pixels(
        self, images: Float[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch 3 height width"]:
        """Convert images in [0, 1] to the towers' input, in the type of their weights."""
        return ((images - self.mean) / self.std).to(self.image.projection.dtype)

    def encode_image(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch embed"]:
        """Image embeddings of normalized pixels."""
        features: Tensor = self.image(images)
        return features

    def encode_text(self, texts: Sequence[str]) -> Float[Tensor, "text embed"]:
        """Text embeddings."""
        features: Tensor = self.text(self.tokenize(texts))
        return features

    def tokenize(self, texts: Sequence[str]) -> Int[Tensor, "text token"]:
        return self.tokenizer(list(texts)).to(self.logit_scale.device)

    @cached_property
    def first_word(self) -> int:
        """The position of a prompt's first word: 1 after a start token, 0 without one (SigLIP)."""
        empty, word = self.tokenizer(["", "a"])
        return int(empty[0] == word[0])

    def words_in(self, texts: Sequence[str]) -> Int[Tensor, "text"]:
        """The number of tokens of each text, without the start, the end and the padding."""
        ids = self.tokenize(texts)
        if self.text.pool != "last":
            return self.text.ends(ids) - self.first_word
        empty = self.tokenize([""])[0]
        return (ids != empty[-1]).sum(dim=-1) - (empty != empty[-1]).sum()

    @cached_property
    def max_words(self) -> int:
        """The most tokens of a text that are read, without the start and the end."""
        return int(self.words_in(["a " * self.text.context_length])[0])

    def check_prompts(self, classnames: Sequence[str], prompts: Sequence[Sequence[str]]) -> None:
        """Warn about prompts that are cut. Raises SettingsError as `describe_cut_prompts` does."""
        if warning := describe_cut_prompts(self, classnames, prompts):
            warn(warning)

    def class_features(
        self, classnames: Sequence[str], templates: Sequence[str]
    ) -> Float[Tensor, "class embed"]:
        """Unit text features of classes: the normalized mean of the templates' normalized features."""
        features = [normalize(self.encode_text(fill(template, classnames)), dim=-1) for template in templates]
        return normalize(torch.stack(features).mean(dim=0), dim=-1)


def _without_values(tensor: Tensor) -> Tensor:
    empty = tensor.detach().to("meta")
    return nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty


def fill(template: str, classnames: Sequence[str]) -> list[str]:
    """A prompt for each class. Underscores in class names become spaces, as in CoOp."""
    return [template.format(name.replace("_", " ")) for name in classnames]


def span_start(depth: int, first: int = 9, of: int = 12) -> int:
    """The layer at which a span begins in a tower of ``depth`` layers, if in one of ``of`` it is ``first``.

    The span keeps its share of the tower: J = 9 of 12 is the last third, so it becomes 17 of 24 and 5 of 6.
    The paper only has towers of 12 layers; this mapping is ours.
    """
    return depth - layer_share(depth, of - first + 1, of) + 1


def layer_share(depth: int, layers: int, of: int = 12) -> int:
    """The number of layers in a tower of ``depth`` that corresponds to ``layers`` of ``of``; at least one."""
    return max(1, round(layers / of * depth))


def weights_hash(state: dict[str, Tensor], configuration: Mapping[str, Any]) -> str:
    """SHA-256 of the tensors and the configuration; of the tensors alone if the configuration is empty."""
    tensors = tensors_hash(state)
    if not configuration:
        return tensors
    return hashlib.sha256(json.dumps([tensors, configuration], sort_keys=True).encode()).hexdigest()


def tensors_hash(state: dict[str, Tensor]) -> str:
    """SHA-256 over names, shapes and float32 values, sorted by name; independent of the file format."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach()
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        for values in tensor.reshape(-1).split(VALUES_AT_ONCE):  # bytes take four times the memory as float32
            digest.update(values.to("cpu", torch.float32).numpy())
    return digest.hexdigest()
