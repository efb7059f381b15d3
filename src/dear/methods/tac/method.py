"""TAC (Hao et al., CVPR 2025): tokens made of clusters of the training classes' descriptions, beside deep
prompts in both towers, which are held near the frozen CLIP and averaged over epochs.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import l1_loss, linear, normalize

from dear.backbone.attention import ComputedBiases
from dear.backbone.clip import Clip
from dear.backbone.text import TextTrunk
from dear.errors import SettingsError
from dear.methods.base import (
    ImageFeatures,
    Labels,
    Losses,
    Method,
    Target,
    TextFeatures,
    TrainingImages,
    Trunk,
)
from dear.methods.context import PLACEHOLDER, lengths, prompt_ids
from dear.methods.optional import ComputesTargets, ResizesTensors, StepHooks, UsesAllImages
from dear.methods.shared import add_epoch, deep_prompts, image_injection, linear_values, text_injection
from dear.methods.tac import METHOD, TacSettings

SENTENCES = 256
"""Descriptions that are encoded at a time."""

ROUNDS = 1000
"""Most rounds of k-means; tens of classes take a few."""


class TAC(Method, ComputesTargets, ResizesTensors, StepHooks, UsesAllImages):
    """Task-aware clusters. The descriptions of a class give its target d_c, the frozen CLIP's mean feature;
    k-means finds the centers M of the targets of the training classes. Two linear maps make cluster tokens of
    M, the same for all layers, which enter each of the first layers of a tower anew, with its own prompts:

        text     [start ; map_t(M) ; prompts ; "a photo of a NAME." ; end]
        image    [class ; patches ; map_v(M) ; prompts]

    In the image tower patches do not attend to cluster tokens; all other tokens do. In training some values
    of an image's feature are dropped before it is normalized, and the loss, of ``views`` views of each image,
    is

        CE(scores, y) + text_weight mean|w_c - d_c| + image_weight mean|z - z0|

    with w the class features, z the image features, z0 the frozen CLIP's of the whole image; all are of unit
    norm, means are over all elements. The final parameters are the mean over the ends of epochs. M is saved:
    other classes are scored with the centers of the training classes, unless ``centers`` is "own".

    Source: CVPR 2025, pages 14745-14755 (not on arXiv); github.com/FushengHao/TAC at 914c306, trainers/tac.py
    and clip/model.py. As in the code: values of the frozen image feature are dropped too, because the frozen
    copy is in training mode (``teacher_dropout``); the first text prompt starts as the embeddings of "a photo
    of a" and of the end token and the padding after it; the target of a class is the mean of features that
    are not normalized; novel classes are scored with the centers that were saved, though the code first makes
    centers of their own.

    Differs from the code: nothing is cast to half precision, and only the trained parameters are averaged.
    The start of k-means is drawn from the run's generator, an empty cluster keeps its center (NaN in the
    code), and fewer classes than clusters make as many clusters as classes (the code fails). The map to the
    text tower has the tower's width, where the code needs that to be the features'. Descriptions are not
    included.
    """

    declaration = METHOD
    settings: TacSettings
    target = "whole"
    centers: Float[Tensor, "cluster embed"]
    kmeans_seed: Int[Tensor, "1"]
    mask: Float[Tensor, "query key"]
    placed: TextTrunk

    def __init__(self, clip: Clip, generator: torch.Generator, settings: TacSettings | None = None) -> None:
        super().__init__(clip, generator, s := settings or TacSettings())
        self.image_from = self.text_from = 1
        self.views_per_image = s.views
        self._text_targets: Tensor | None = None
        self._step_seed: int | None = None
        like, embed = clip.image.projection, clip.image.embed_dim
        towers = ((clip.image, s.image_depth, s.image_tokens), (clip.text, s.text_depth, s.text_tokens))
        prompts = [
            deep_prompts(tower, depth, tokens, s.token_std, generator, share=s.share)
            for tower, depth, tokens in towers
        ]
        if s.words and not like.is_meta:
            prompts[1][0] = self._first_prompt()
        self.image_prompts, self.text_prompts = map(nn.Parameter, prompts)
        maps = [linear_values(like, generator, embed, tower.width) for tower, _, _ in towers]
        (self.image_map_weight, self.image_map_bias), (self.text_map_weight, self.text_map_bias) = (
            (nn.Parameter(weight), nn.Parameter(bias)) for weight, bias in maps
        )
        for name, parameter in [*self.named_parameters()]:
            self.register_buffer(f"{name}_average", parameter.new_zeros(parameter.shape))
        first = torch.randint(2**62, (1,), generator=generator)
        self.register_buffer("kmeans_seed", first.to(like.device))
        self._set_centers(like.new_zeros(0, embed))

    def _first_prompt(self) -> Float[Tensor, "token width"]:
        """The embeddings of the words, and of the end token and the padding if there are fewer words."""
        tokens, ids = (
            self.settings.text_tokens,
            self.clip.tokenize([self.settings.words])[0, self.clip.first_word :],
        )
        padded = torch.cat([ids, ids.new_zeros(max(0, tokens - len(ids)))])
        embedded: Tensor = self.clip.text.token_embedding(padded[:tokens])
        return embedded.clone()

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes; with ``centers`` "own", clusters that exist are made again for these classes. Also
        raises SettingsError for prompts that do not fit, and with "own" for classes without descriptions.
        """
        super().set_classes(classnames, templates)
        self._text_targets = None
        self._check_room()
        clusters_again = self.settings.centers == "own" and len(self.centers)
        self._set_centers(self._cluster() if clusters_again else self.centers)

    def _check_room(self) -> None:
        """Raise SettingsError unless the prompts have room for all clusters, learned tokens and words."""
        s, capacity = self.settings, self.clip.text.context_length
        learned = s.text_tokens * (1 if s.words else 2)  # without words, placeholders stand for them
        words = lengths(self.clip, [s.words])[0] if s.words else 0
        if s.clusters + learned + words >= self.clip.max_words:
            raise SettingsError(
                f"{s.clusters} tokens by tac.clusters and {learned} by tac.text_tokens leave no room for "
                f"class names, since the text tower takes {capacity}: choose fewer."
            )

    def _prompts(self, clusters: int) -> Int[Tensor, "class token"]:
        """Ids of prompts with placeholders for cluster tokens and learned tokens."""
        s = self.settings
        words = s.words or " ".join([PLACEHOLDER] * s.text_tokens)
        lead = " ".join([*[PLACEHOLDER] * (clusters + s.text_tokens), words])
        return prompt_ids(self.clip, self.classnames, lead)

    def _set_centers(self, centers: Float[Tensor, "cluster embed"]) -> None:
        """Take cluster centers, and make what depends on their number."""
        self.register_buffer("centers", centers)
        tower, clusters = self.clip.image, len(centers)
        original = tower.side**2 + 1
        tokens = original + clusters + self.settings.image_tokens
        mask = tower.projection.new_zeros(tokens, tokens)
        if tower.pool is None:  # where patches are pooled, nothing else would read the clusters [ours]
            mask[1:original, original : original + clusters] = float("-inf")
        self.register_buffer("mask", mask, persistent=False)
        self.biases = ComputedBiases()
        if self.classnames:
            self.placed = self.clip.text.trunk(self._prompts(clusters), 1)

    @torch.no_grad()
    def before_training(self, images: TrainingImages) -> None:
        """Cluster the training classes. Raises SettingsError for a class without descriptions."""
        del images
        self._set_centers(self._cluster())

    def _cluster(self) -> Float[Tensor, "cluster embed"]:
        """Cluster the current classes; returns the unit centers."""
        targets, draw = self.text_targets(), torch.Generator().manual_seed(int(self.kmeans_seed))
        centers = kmeans(targets.cpu().double(), min(self.settings.clusters, len(targets)), draw)
        return normalize(centers, dim=-1).to(targets)

    @torch.no_grad()
    def text_targets(self) -> Float[Tensor, "class embed"]:
        """Unit targets of the text features, computed on first use: the mean feature of each class's
        descriptions. Raises SettingsError for a class without any.
        """
        if self._text_targets is None:
            described = self.settings.described(self.classnames)
            means = torch.stack([self._mean(sentences) for sentences in described])
            self._text_targets = normalize(means, dim=-1)
        return self._text_targets

    def _mean(self, sentences: Sequence[str]) -> Float[Tensor, "embed"]:
        parts = [sentences[at : at + SENTENCES] for at in range(0, len(sentences), SENTENCES)]
        return torch.cat([self.clip.encode_text(part) for part in parts]).mean(dim=0)

    def image_features(self, trunk: Trunk) -> ImageFeatures:
        tower = self.clip.image
        clusters = linear(self.centers, self.image_map_weight, self.image_map_bias)
        change = image_injection(tower, _joined(clusters, self.image_prompts))
        read = torch.zeros(1, dtype=torch.long, device=trunk.device)
        out = tower.span(trunk, 1, change, bias=self.biases([self.mask])[0], read=read)
        return normalize(tower.finish(out[:, 0]), dim=-1).unsqueeze(0)

    def text_features(self) -> TextFeatures:
        clusters = linear(self.centers, self.text_map_weight, self.text_map_bias)
        tokens = _joined(clusters, self.text_prompts)
        change = text_injection(self.clip.text, tokens, self.clip.first_word)
        return normalize(self.clip.text.features(self.placed, 1, change, self.text_chunk), dim=-1)

    @torch.no_grad()
    def target_features(self, views: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch embed"]:
        """The frozen CLIP's unit features."""
        return normalize(self.clip.encode_image(self.clip.normalize_pixels(views)), dim=-1)

    def loss(self, trunk: Trunk, labels: Labels, frozen: Target = None) -> Losses:
        """Cross-entropy plus distances of features from their targets; during a step, with values dropped.
        Without ``frozen``, the target of an image is the frozen feature of the view.
        """
        s, targets = self.settings, self.text_targets()
        frozen = self.frozen_image(trunk) if frozen is None else frozen
        image, text = self.image_features(trunk)[0], self.text_features()
        if self._step_seed is not None:
            image, frozen = self._drop_values(image, frozen, self._step_seed)
        ce = self.label_loss(self.training_logits(image.unsqueeze(0), text), labels)
        text_distance, image_distance = l1_loss(text, targets), l1_loss(image, frozen)
        loss = ce + s.text_weight * text_distance + s.image_weight * image_distance
        return {"loss": loss, "ce": ce, "text": text_distance, "image": image_distance}

    def _drop_values(
        self, image: Float[Tensor, "batch embed"], frozen: Float[Tensor, "batch embed"], seed: int
    ) -> tuple[Float[Tensor, "batch embed"], Float[Tensor, "batch embed"]]:
        """Both features with some values set to zero, of unit norm; in the frozen feature the same values for
        all views of an image. The factor that dropout usually has on other values does not matter at unit
        norm.
        """
        s, draw = self.settings, torch.Generator().manual_seed(seed)
        mask = torch.rand(image.shape, generator=draw) >= s.dropout
        image = normalize(image * mask.to(image), dim=-1)
        if s.teacher_dropout:
            mask = torch.rand(len(frozen) // s.views, frozen.shape[1], generator=draw) >= s.dropout
            frozen = normalize(frozen * mask.repeat(s.views, 1).to(frozen), dim=-1)
        return image, frozen

    def before_step(self, draw: torch.Generator) -> None:
        """Draw the seed of the step's dropout."""
        self._step_seed = int(torch.randint(2**62, (), generator=draw)) if self.settings.dropout else None

    def after_step(self, progress: float) -> None:
        """End the step's dropout."""
        del progress
        self._step_seed = None

    def after_epoch(self, epoch: int, epochs: int) -> None:
        """Add the epoch's parameters to their mean, which replaces them after the last epoch."""
        pairs = [(values, self.get_buffer(f"{name}_average")) for name, values in self.named_parameters()]
        add_epoch(pairs, 1 / epochs, epoch, epochs)

    def stored_tensors(self) -> dict[str, Tensor]:
        """The trained parameters, the cluster centers, and what k-means starts from."""
        return super().stored_tensors() | {"centers": self.centers, "kmeans_seed": self.kmeans_seed}

    def resize_to(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the number of stored cluster centers."""
        clusters = min(len(tensors["centers"]), self.settings.clusters) if "centers" in tensors else 0
        self._set_centers(self.centers.new_zeros(clusters, self.centers.shape[1]))


def _joined(
    clusters: Float[Tensor, "cluster width"], prompts: Float[Tensor, "layer token width"]
) -> Float[Tensor, "layer both width"]:
    """Each layer's tokens: the clusters, which all layers share, and the layer's prompts."""
    return torch.cat([clusters.expand(len(prompts), -1, -1), prompts], dim=1)


def kmeans(
    points: Float[Tensor, "point embed"], clusters: int, draw: torch.Generator, tolerance: float = 1e-4
) -> Float[Tensor, "cluster embed"]:
    """Centers of clusters of unit vectors, not normalized: each is the mean of the points to which it has the
    highest cosine. They start at ``clusters`` distinct points; rounds end when the square of their summed
    shift is below the tolerance. A cluster that loses all its points keeps its center [ours].

    Source: kmeans-pytorch 0.3, with the distance "cosine"; there an empty cluster has a center of NaN.
    """
    centers = points[draw_starts(len(points), clusters, draw)]
    for _ in range(ROUNDS):
        nearest = (normalize(points, dim=-1) @ normalize(centers, dim=-1).T).argmax(dim=1)
        before, centers = centers, centers.clone()
        for number in nearest.unique().tolist():
            centers[number] = points[nearest == number].mean(dim=0)
        if (centers - before).norm(dim=1).sum() ** 2 < tolerance:
            break
    return centers


def draw_starts(points: int, clusters: int, draw: torch.Generator) -> list[int]:
    """Indices of the points that the centers start at."""
    indices: list[int] = torch.randperm(points, generator=draw)[:clusters].tolist()
    return indices
