"""Models of open_clip: its named architectures, and files that it writes."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from dear.backbone import openclip as open_clip
from dear.backbone.loading import hub
from dear.backbone.loading.format import Format
from dear.backbone.loading.model_config import read_model_config
from dear.backbone.loading.repository import Repository
from dear.backbone.loading.skeleton import Skeleton, fits_skeleton
from dear.backbone.loading.tokenizer_file import tokenizer_beside
from dear.backbone.loading.weights import open_clip_names
from dear.backbone.preprocess import Preprocess
from dear.errors import WeightsError
from dear.reading.plain import read_json


class OpenClipFormat(Format):
    """A model by open_clip's configuration."""

    LIBRARY = "open_clip's"
    CONFIG, FILES = hub.CONFIG, hub.FILES

    def __init__(
        self, name: str, config: dict[str, Any], pixels: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> None:
        """``pixels`` is the preprocessing: a ``preprocess_cfg``, or the configuration of a tag."""
        self.name, self.config, self.pixels, self.facts = name, config, pixels, facts

    @classmethod
    def read(cls, source: Repository, path: Path) -> Self:
        config = read_model_config(read_json(path), path)
        model = config["model_cfg"]
        form = cls(source.name, model, config["preprocess_cfg"], {"model": model})
        if source.folder is not None:
            form.folder = tokenizer_beside(path)
        elif model["text_cfg"].get("hf_tokenizer_name") == source.id:
            form.commit = source.commit
        return form

    @classmethod
    def named(cls, name: str, tag: Mapping[str, Any] | None = None) -> Self:
        """An architecture by its name. The configuration of a tag determines the activation and the pixels;
        without a tag (a local file, random weights) the pixels are those of the architecture's tags if all
        agree, else OpenAI's.
        """
        config = open_clip.get_model_config(name)
        if tag:
            config["quick_gelu"] = tag.get("quick_gelu", False)
        labels = open_clip.list_pretrained_tags_by_model(name)
        tags = [tag] if tag else [open_clip.get_pretrained_cfg(name, label) for label in labels]
        agree = len({Preprocess.from_open_clip(1, pixels) for pixels in tags}) == 1
        # Architectures may differ only in image size or activation, such as convnext_base_w and _base_w_320.
        facts = {
            "image_size": config["vision_cfg"].get("image_size", 224),
            "quick_gelu": bool(config.get("quick_gelu")),
        }
        form = cls(name, config, tags[0] if agree else {}, facts)
        form.is_bounded = False
        return form

    def build(self) -> nn.Module:
        return build_from(self.name, self.config)

    def outline(self) -> nn.Module:
        """Without open_clip, which takes seconds to import, where `Skeleton` has the same tensors."""
        return Skeleton(**self.config) if fits_skeleton(self.config) else self.build()

    def rename(self, network: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return open_clip_names(network, state)

    @property
    def text(self) -> Mapping[str, Any]:
        text: Mapping[str, Any] = self.config["text_cfg"]
        return text

    def preprocess(self, size: int) -> Preprocess:
        return Preprocess.from_open_clip(size, self.pixels)


def build(name: str, tag: Mapping[str, Any] | None = None) -> nn.Module:
    """An open_clip architecture with its initial weights; ``tag`` is a tag's configuration, which determines
    the activation. Raises WeightsError for a text tower from transformers.
    """
    return OpenClipFormat.named(name, tag).build()


def build_from(name: str, config: dict[str, Any]) -> nn.Module:
    """The same from open_clip's configuration of a model, in the class that open_clip's factory gives it."""
    config = copy.deepcopy(config)
    if config["text_cfg"].get("hf_model_name"):
        raise WeightsError(
            f"{name} does not fit: its text tower is a Hugging Face model, not open_clip's own."
        )
    if config["vision_cfg"].get("timm_model_name"):
        config["vision_cfg"] |= {"timm_model_pretrained": False}  # its weights come from elsewhere
    kind: Any = open_clip.CLIP
    if config.pop("custom_text", False):
        kind = open_clip.CoCa if "multimodal_cfg" in config else open_clip.CustomTextCLIP
    network: nn.Module = kind(**config)
    decoder: Any = getattr(network, "text_decoder", None)
    if decoder is not None:  # open_clip leaves it uninitialized: no two identities would be equal
        nn.init.zeros_(decoder.text_projection)
    return network


def build_random(name: str, seed: int) -> nn.Module:
    """An open_clip architecture with weights drawn from ``seed``. The global generator is left unchanged."""
    with initial_weights_from(seed):
        return build(name)


@contextmanager
def initial_weights_from(seed: int) -> Iterator[None]:
    """Context in which open_clip draws initial weights from ``seed``. The global generator, which it uses,
    is restored.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
