"""What a method may do beside `Method`: classes that it derives from too, as in
``class Mine(Method, StepHooks)``. Training, evaluation and bundles ask for them by ``isinstance``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.backbone.block import Block
from dear.methods.base import Losses, Method, TokenLayout, TrainingImages


class StepHooks:
    """Changes how it is trained in steps. What it does not define is as for every method.

    Attributes:
        views_per_image: Number of random views of each image in a step.
    """

    views_per_image: int = 1

    def batches(
        self, labels: Int[Tensor, "item"], size: int, draw: torch.Generator
    ) -> list[Int[Tensor, "item"]] | None:
        """The batches of an epoch as indices of images; None for random ones of ``size``. Their number and
        sizes must depend on ``labels`` and ``size`` only.
        """
        del labels, size, draw
        return None

    def before_step(self, draw: torch.Generator) -> None:
        """Called before the loss of each step, with a CPU generator for this step."""
        del draw

    def backward(self, losses: Losses, scale: Callable[[Tensor], Tensor]) -> None:
        """Leave a step's gradients in the parameters, which have none yet; ``losses`` is what ``loss`` gave,
        with the terms of all methods added. They are of losses that ``scale`` multiplied, for 16-mixed
        precision: what is computed from gradients must scale with them.
        """
        scale(losses["loss"]).backward()

    def after_step(self, progress: float) -> None:
        """Called after each optimization step with the completed share of training."""
        del progress

    def after_epoch(self, epoch: int, epochs: int) -> None:
        """Called after each of ``epochs`` epochs, counted from 1; its changes are saved with the epoch."""


class UsesAllImages:
    """Computes something from all training images, before steps or in place of them."""

    def before_training(self, images: TrainingImages) -> None:
        """Called when training begins or resumes, with the classes set and before the optimizer takes the
        parameters: computes parameters or saved buffers, the same from the same images.
        """
        raise NotImplementedError


class LeavesOut(UsesAllImages):
    """Leaves images out of what it computes from the others. So it gets each picture once: left out one at a
    time, copies would see each other.

    Attributes:
        keeps_known_scores: Whether classes with images keep their scores when names are added: in bundles,
            where not all classes are scored alike.
    """

    keeps_known_scores: bool = False

    def describe_names(self) -> dict[str, Any]:
        """What a class by name alone costs and finds on left-out images: fields of `NameCost`; nothing if
        unknown.
        """
        return {}


class LearnsUnlabeled:
    """Can learn from images without labels beside its own."""

    def add_unlabeled(self, images: TrainingImages, others: TrainingImages) -> dict[str, float]:
        """Called after ``before_training`` on ``images``: learns from the test views of ``others`` too if
        left-out images gain. Returns fields of `UnlabeledGain`.
        """
        raise NotImplementedError


class HasTeacher:
    """Learns from another method, the ``teacher`` of its declaration."""

    def set_teacher(self, teacher: Method) -> None:
        """Called before the classes are set and training begins. The teacher is trained, and belongs to this
        method alone, which may set its classes but change nothing else.
        """
        raise NotImplementedError


class ComputesTargets:
    """Its loss compares with its own features of whole images or of views: ``target`` says which."""

    def target_features(self, views: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch target"]:
        """What ``loss`` gets as ``frozen``, the same in all of training. Images are in [0, 1] and of the
        backbone's size.
        """
        raise NotImplementedError


class ResizesTensors:
    """Has stored tensors whose sizes depend on the training images."""

    def resize_to(self, tensors: Mapping[str, Tensor]) -> None:
        """Called before the ``stored_tensors`` of a trained method are copied in: take their sizes."""
        raise NotImplementedError


class WeighsFeatures:
    """Learns how much each of its image features counts.

    Attributes:
        without_heads: Names of the features for attributes that no attention head carries.
    """

    without_heads: tuple[str, ...] = ()

    def fusion_weights(self) -> dict[str, float]:
        """The learned weight of each feature in the fused score."""
        raise NotImplementedError


class HasFusion(WeighsFeatures):
    """Its scores are the sum of its features by their weights, which can be changed without training."""

    def with_fusion(self, weights: Sequence[float]) -> Any:
        """The method with other weights of its features, whose sum is 1; it shares everything else."""
        raise NotImplementedError


class PlacesTokens:
    """Its learned tokens in the image tower have names, or are before the patches.

    Attributes:
        layout: Where they are.
    """

    layout: TokenLayout


class TrainsBlocks:
    """Trains blocks of the image tower."""

    def image_block(self, layer: int) -> Block:
        """The image tower's block at a layer, from 1: its own, or the frozen CLIP's."""
        raise NotImplementedError


OPTIONAL = (
    *(StepHooks, UsesAllImages, LeavesOut, LearnsUnlabeled, HasTeacher, ComputesTargets, ResizesTensors),
    *(WeighsFeatures, HasFusion, PlacesTokens, TrainsBlocks),
)


def step_hooks(method: Method) -> StepHooks:
    """What is done around the steps of a method."""
    return method if isinstance(method, StepHooks) else StepHooks()


def keep_known_scores(method: Method, *, keep: bool = True) -> None:
    """Let classes with images keep their scores when names are added, if the method can."""
    if isinstance(method, LeavesOut):
        method.keeps_known_scores = keep


def image_block(method: Method, layer: int) -> Block:
    """The block with which a method computes a layer of the image tower, counted from 1."""
    return method.image_block(layer) if isinstance(method, TrainsBlocks) else method.clip.image.block(layer)


def token_layout(method: Method) -> TokenLayout:
    """Where a method's learned tokens are among the image tokens."""
    return method.layout if isinstance(method, PlacesTokens) else TokenLayout()
