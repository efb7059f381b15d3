"""A predictor as the encoder of an image index."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from dear.adapters.bundle import Bundle
from dear.adapters.predictor import Predictor
from dear.backbone.clip import tensors_hash
from dear.data.dataset import fingerprint
from dear.data.images.transforms import eval_views
from dear.errors import SettingsError


class BundleEncoder:
    """Image and text features of an adapted model, tied to its bundle. Texts are put into its templates."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.features: tuple[str, ...] = predictor.features
        self.unowned: tuple[str, ...] = predictor.unowned
        self.embed: int = predictor.encode_classes(predictor.classes).shape[1]
        self.short_side: int = predictor.bundle.short_side

    @property
    def facts(self) -> Mapping[str, Any]:
        """Nothing: the index names the bundle."""
        return {}

    @cached_property
    def identity(self) -> str:
        return bundle_identity(self.predictor.bundle)

    @torch.no_grad()
    def images(
        self, pictures: Sequence[UInt8[Tensor, "3 _height _width"]]
    ) -> Float[Tensor, "batch feature embed"]:
        return self.predictor.encode(eval_views(pictures, self.predictor.clip.image_size)).cpu()

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "text feature embed"]:
        """The same for every feature. Raises SettingsError if the method has prompts for its own classes
        only.
        """
        if not self.predictor.method.open_vocabulary:
            raise SettingsError(
                f"this bundle's {self.predictor.method.name} has text features for its own classes only: "
                "search by an image."
            )
        return self.predictor.encode_classes(texts).cpu()[:, None].expand(-1, len(self.features), -1)


def bundle_identity(bundle: Bundle) -> str:
    """Hash of what image features depend on: the backbone's weights, the method, its parameters, settings and
    roles, and how pictures are resized. Classes, templates and temperature are left out.
    """
    heads = () if bundle.roles is None else bundle.roles.heads
    roles = [repr((head.layer, head.head, head.role, head.attribute)) for head in heads]
    return fingerprint(
        bundle.weights.sha256,
        bundle.method,
        repr(sorted(asdict(bundle.settings).items())),
        tensors_hash(dict(bundle.tensors)),
        str(bundle.short_side),
        *(() if bundle.roles is None else bundle.roles.attributes),
        *roles,
    )
