"""All training images at once, for methods that compute something from them before training."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.backbone.precision import mixed
from dear.data.dataset import Images, Pictures
from dear.data.images.transforms import eval_views, train_views, view_numbers
from dear.methods.base import Method, TrainingImages
from dear.training.batches import trunk_facts
from dear.training.seeding import generator
from dear.training.settings import TrainSettings
from dear.training.trunks import TrunkCache

AT_ONCE = 250


def training_images(
    method: Method, images: Images, settings: TrainSettings, seed: int, cache: TrunkCache
) -> TrainingImages:
    """The argument of `Method.before_training`; its contents are computed on demand.

    Random views are drawn from the view seed if there is one, else from the seed, and differ from those of
    every epoch. If there are several processes, each computes all views.
    """
    size, like = method.clip.image_size, method.clip.image.projection
    stream = seed if settings.view_seed is None else settings.view_seed

    def trunks(
        view: tuple[object, ...], make: Callable[[Pictures, Int[Tensor, "item"]], Tensor]
    ) -> Float[Tensor, "item token width"]:
        @torch.no_grad()
        def compute() -> Tensor:
            found = []
            for chosen in torch.arange(len(images)).split(AT_ONCE):
                with mixed(like.device, settings.precision):
                    found.append(method.image_trunk(make(images.load(chosen), chosen).to(like.device)))
            return torch.cat(found).to(like)  # methods compute in full precision from here on

        return cache.get((images.identity, *trunk_facts(method, settings.precision), *view), compute)

    def centre() -> Float[Tensor, "item token width"]:
        return trunks(("centre",), lambda pictures, _: eval_views(pictures, size))

    def random(number: int) -> Float[Tensor, "item token width"]:
        drawn = generator(stream, "views before training", number)
        numbers, scale = view_numbers(len(images), drawn), (settings.crop, 1.0)
        view = ("random", stream, number, settings.crop)
        return trunks(view, lambda pictures, chosen: train_views(pictures, size, numbers[chosen], scale))

    return TrainingImages(images.labels.to(like.device), centre, random)
