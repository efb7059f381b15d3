"""Frozen weights in the dtype of autocast, cast once. Autocast casts them at each forward pass; it only
keeps the casts of trained weights.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


def compute_dtype(like: Tensor) -> torch.dtype:
    """The dtype of products with a tensor: autocast's where it is on, else the tensor's own."""
    kind = like.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):  # not on the meta device
        return torch.get_autocast_dtype(kind)
    return like.dtype


class CastOnce:
    """Keeps the casts of a frozen weight and its bias. Copying or pickling it drops them."""

    def __init__(self) -> None:
        self._sources, self._versions, self._casts = list[Tensor](), list[int](), list[Tensor]()

    def __call__(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Both in the dtype of products; unchanged if they are trained, or traced for an export."""
        if torch.compiler.is_compiling():  # its tensors hold no values
            return weight, bias
        tensors = [weight] if bias is None else [weight, bias]
        dtype = compute_dtype(weight)
        if dtype == weight.dtype or any(x.requires_grad or x.is_inference() for x in tensors):
            return weight, bias
        versions = [x._version for x in tensors]
        is_known = len(self._casts) == len(tensors) and self._casts[0].dtype == dtype
        if not (
            is_known and versions == self._versions and all(map(Tensor.is_set_to, tensors, self._sources))
        ):
            with torch.inference_mode(mode=False), torch.no_grad():
                self._casts = [x.to(dtype) for x in tensors]
                self._sources, self._versions = [x.detach() for x in tensors], versions
        return self._casts[0], None if bias is None else self._casts[1]

    def __reduce__(self) -> tuple[type["CastOnce"], tuple[()]]:
        return CastOnce, ()


class CastLinear(nn.Linear):
    """A linear layer whose weights, while they are frozen, are cast once."""

    cast_once: CastOnce

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, *self.cast_once(self.weight, self.bias))

    @classmethod
    def adopt(cls, module: nn.Module) -> None:
        """Turn all plain linear layers in a module into layers of this class, in place."""
        for part in module.modules():
            if isinstance(part, nn.Linear) and type(part).forward is nn.Linear.forward:
                part.__class__ = cls
                setattr(part, "cast_once", CastOnce())  # noqa: B010  # of its new class
