"""Initial values of parameters, drawn from a given generator."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


def normal(like: Tensor, generator: torch.Generator, *shape: int, std: float) -> Float[Tensor, "..."]:
    """Normal values of standard deviation ``std``, in the dtype and on the device of ``like``."""
    return (torch.randn(*shape, generator=generator) * std).to(like)


def uniform(like: Tensor, generator: torch.Generator, *shape: int) -> Float[Tensor, "..."]:
    """Initial values of torch's linear layers: uniform within 1 / sqrt(the last dimension)."""
    return _within(like, generator, *shape, bound=float(shape[-1]) ** -0.5)


def linear(
    like: Tensor, generator: torch.Generator, inputs: int, outputs: int
) -> tuple[Float[Tensor, "output input"], Float[Tensor, "output"]]:
    """Weight and bias with the initial values of torch's linear layer."""
    weight = uniform(like, generator, outputs, inputs)
    return weight, _within(like, generator, outputs, bound=float(inputs) ** -0.5)


def clones(layers: int, *values: Tensor) -> list[nn.Parameter]:
    """Parameters with one copy of each value per layer."""
    return [nn.Parameter(value.repeat(layers, *[1] * value.ndim)) for value in values]


def _within(like: Tensor, generator: torch.Generator, *shape: int, bound: float) -> Tensor:
    return ((2 * torch.rand(*shape, generator=generator) - 1) * bound).to(like)
