"""The Gaussian discriminant (Wang et al., ICLR 2024): class means and one covariance, in closed form."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dear.backbone.clip import Clip
from dear.data.fewshot import items_by_class
from dear.errors import SettingsError
from dear.methods.base import ImageFeatures, Logits, Method, TextFeatures, TrainingImages
from dear.methods.covariances import NEGLIGIBLE, invert_positive, pseudo_invert
from dear.methods.gda import METHOD, GdaSettings
from dear.methods.optional import ResizesTensors, UsesAllImages
from dear.methods.shared import name_hashes, require_current_text, require_distinct, rows_by_name

REPEATS = 16
"""How often the text feature of a class without images counts in its mean, as in the code."""


class GDA(Method, ResizesTensors, UsesAllImages):
    """Gaussian discriminant analysis of the frozen image features, added to zero-shot scores:

        scale * f w_c + alpha * (f W_c + b_c),   W_c = P mu_c,   b_c = -log C - mu_c P mu_c / 2

    with mu_c the mean feature of a class's training images, P the precision that all classes share, C the
    number of such classes. A class without images (the authors' rule for new classes) takes the k training
    features that are nearest to its text feature w: mu is the mean of these and of w, which counts 16 times;
    P is the mean over such classes of the inverse of their shrunk second moments about w.

    Where classes with and without images are scored together, each keeps its own rule [ours].

    Source: arXiv 2402.04087; github.com/mrflogs/ICLR24 at 0560fe2, main_base2new.py and main_few_shots.py.
    Differs from the code: alpha is a setting; the code searches it on validation images. With fewer than k
    training features, all of them are neighbors [ours]; the code fails.
    """

    declaration = METHOD
    settings: GdaSettings
    trained: Int[Tensor, "trained"]
    weight: nn.Parameter
    bias: nn.Parameter
    vectors: Float[Tensor, "item embed"]

    def __init__(self, clip: Clip, generator: torch.Generator, settings: GdaSettings | None = None) -> None:
        super().__init__(clip, generator, s := settings or GdaSettings(), scale=s.scale)
        self._resize(0, 0)

    def _resize(self, trained: int, vectors: int) -> None:
        self._prepared_for: Tensor | None = None
        like, embed = self.clip.image.projection, self.clip.image.embed_dim
        self.register_buffer("trained", torch.zeros(trained, dtype=torch.long, device=like.device))
        self.weight = nn.Parameter(like.new_zeros(trained, embed))
        self.bias = nn.Parameter(like.new_zeros(trained))
        self.register_buffer("vectors", like.new_zeros(vectors, embed))

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes; the first ones set are those that it is trained on."""
        super().set_classes(classnames, templates)
        if not len(self.trained):
            self._resize(len(classnames), 0)
            self.trained.copy_(name_hashes(classnames))

    @torch.no_grad()
    def before_training(self, images: TrainingImages) -> None:
        """Compute means and precision of the training images. Raises SettingsError for too few views."""
        views = [self.frozen_image(images.view(view)) for view in range(self.settings.views)]
        vectors, labels = torch.cat(views), images.labels.repeat(self.settings.views)
        items, hashes = items_by_class(labels, len(self.classnames)), name_hashes(self.classnames)
        with_images = [label for label, members in enumerate(items) if len(members)]
        self._resize(len(with_images), len(vectors))
        self.trained.copy_(hashes[with_images])
        self.vectors.copy_(vectors)
        groups = [vectors[items[label]].double() for label in with_images]
        means = torch.stack([group.mean(dim=0) for group in groups])
        if self.settings.covariance == "mean":
            if min(map(len, groups)) < 2:
                raise SettingsError(
                    "gda.covariance is mean: it needs two views or images of each class. Give more images, "
                    "gda.views 10, or gda.covariance shrunk."
                )
            precision = pseudo_invert(torch.stack([group.T.cov() for group in groups]).mean(dim=0))
        else:
            centered = torch.cat([group - mean for group, mean in zip(groups, means, strict=True)])
            covariance = centered.T @ centered / max(1, len(centered) - 1)
            precision = shrunk_precision(covariance, len(centered))
        weight, bias = discriminant(means, precision)
        self.weight.copy_(weight)
        self.bias.copy_(bias)

    def text_features(self) -> TextFeatures:
        """The frozen text features."""
        self._prepare()
        return self.frozen_text

    def _prepare(self) -> None:
        """Compute the discriminant of the current classes."""
        self._prepared_for = text = self.frozen_text
        rows = rows_by_name(self.trained, self.classnames)
        has_images = rows >= 0
        weight, bias = torch.zeros_like(text), text.new_zeros(len(text))
        rows = rows[has_images]
        weight[has_images], bias[has_images] = self.weight[rows], self.bias[rows]
        if len(self.vectors) and not has_images.all():
            weight[~has_images], bias[~has_images] = self._fit_without_images(text[~has_images])
        self.discriminant = weight, bias

    @torch.no_grad()
    def _fit_without_images(
        self, text: TextFeatures
    ) -> tuple[Float[Tensor, "class embed"], Float[Tensor, "class"]]:
        """W and b of classes without images, from their text features."""
        words, vectors = text.double(), self.vectors.double()
        count = min(self.settings.neighbors, len(vectors))
        means, precision = [], words.new_zeros(words.shape[1], words.shape[1])
        for word in words:
            nearest = vectors[(vectors @ word).topk(count).indices]
            means.append((nearest.sum(dim=0) + REPEATS * word) / (count + REPEATS))
            precision += moment_precision(nearest - word)
        weight, bias = discriminant(torch.stack(means), precision / len(words))
        return weight.to(text), bias.to(text)

    def logits(self, image: ImageFeatures, text: TextFeatures, *, decoupled: bool = False) -> Logits:
        """Zero-shot scores plus ``alpha`` times those of the discriminant. Raises SettingsError for the text
        features of classes other than those set.
        """
        del decoupled
        require_current_text(self, text)
        if self._prepared_for is not self.frozen_text:
            self._prepare()
        weight, bias = self.discriminant
        return self.scale * image[0] @ text.T + self.settings.alpha * (image[0] @ weight.T + bias)

    def stored_tensors(self) -> dict[str, Tensor]:
        """The discriminant of the trained classes, and the features that describe the others."""
        return {name: getattr(self, name) for name in ("trained", "weight", "bias", "vectors")}

    def resize_to(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the sizes of a trained method. Raises SettingsError if a class occurs twice."""
        require_distinct(tensors.get("trained", self.trained))
        sizes = {name: len(tensors[name]) if name in tensors else 0 for name in ("weight", "vectors")}
        self._resize(sizes["weight"], sizes["vectors"])


def shrunk_precision(covariance: Float[Tensor, "embed embed"], items: int) -> Float[Tensor, "embed embed"]:
    """The shrunk inverse d ((n - 1) S + tr(S) I)^-1 of a covariance S of n features of d numbers; zeros if
    they do not vary. Source: equation 6 of the paper, the estimator of Kubokawa and Srivastava.

    The largest eigenvalue of what is inverted is at most n times the least.
    """
    embed, trace = len(covariance), covariance.trace()
    if not trace > NEGLIGIBLE:
        return torch.zeros_like(covariance)
    identity = torch.eye(embed, dtype=covariance.dtype, device=covariance.device)
    return embed * invert_positive((items - 1) * covariance + trace * identity)


def moment_precision(vectors: Float[Tensor, "item embed"]) -> Float[Tensor, "embed embed"]:
    """`shrunk_precision` of the second moment X^T X / (n - 1) of the rows of X, without an inverse of its
    size: (X^T X + t I)^-1 = (I - X^T (X X^T + t I)^-1 X) / t, with t its trace (Woodbury). As there, one row
    gives I d / t, and rows of nothing but zeros give zeros.
    """
    count, embed = vectors.shape
    trace = vectors.square().sum() / max(1, count - 1)
    identity = torch.eye(embed, dtype=vectors.dtype, device=vectors.device)
    if not trace > NEGLIGIBLE:
        return torch.zeros_like(identity)
    if count == 1:
        return identity * (embed / trace)
    inner = vectors @ vectors.T
    inner.diagonal().add_(trace)
    solved = torch.cholesky_solve(vectors, torch.linalg.cholesky(inner))
    return (identity - vectors.T @ solved) * (embed / trace)


def discriminant(
    means: Float[Tensor, "class embed"], precision: Float[Tensor, "embed embed"]
) -> tuple[Float[Tensor, "class embed"], Float[Tensor, "class"]]:
    """W = P mu and b = -log C - mu P mu / 2 of each class, with equal priors."""
    weight = means @ precision
    return weight, -torch.log(means.new_tensor(len(means))) - (weight * means).sum(dim=1) / 2
