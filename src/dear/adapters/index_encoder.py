"""The encoder of an image index by the features of a bundle."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from dear.adapters.predictor import Predictor
from dear.backbone.clip import tensors_hash
from dear.data.dataset import fingerprint
from dear.data.images.transforms import to_unit
from dear.errors import SettingsError


class BundleEncoder:
    """The encoder of an image index: features of an adapted model. Texts are put into its templates.

    Attributes:
        identity: Hash of what image features depend on: the backbone's weights, the method, its parameters,
            settings and roles. Classes, templates and temperature are left out.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.left_out: tuple[str, ...] = predictor.without_heads
        self.features = tuple(name for name in predictor.features if name not in self.left_out)
        self.embed: int = predictor.encode_classes(predictor.classes).shape[1]
        self.preprocess = predictor.clip.preprocess
        self.facts: Mapping[str, Any] = {}  # the index names the bundle
        bundle, roles = predictor.bundle, predictor.bundle.roles
        heads = roles.heads if roles else ()
        self.identity = fingerprint(
            bundle.weights.sha256,
            bundle.method,
            repr(sorted(asdict(bundle.settings).items())),
            tensors_hash(dict(bundle.tensors)),
            *(roles.attributes if roles else ()),
            *(repr((head.layer, head.head, head.role, head.attribute)) for head in heads),
        )

    @torch.no_grad()
    def images(self, views: UInt8[Tensor, "batch 3 size size"]) -> Float[Tensor, "batch feature embed"]:
        owned = [self.predictor.features.index(name) for name in self.features]
        return self.predictor.encode(to_unit(views))[:, owned].cpu()

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "text feature embed"]:
        """Text features, the same for every image feature. Raises SettingsError if the method scores only the
        classes that it was trained on.
        """
        if not self.predictor.method.open_vocabulary:
            raise SettingsError(
                f"this bundle's {self.predictor.method.name} has text features for its classes only: "
                "search by an image."
            )
        return self.predictor.encode_classes(texts).cpu()[:, None].expand(-1, len(self.features), -1)
