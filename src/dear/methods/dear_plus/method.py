"""DeAR+ [ours]: the frozen image embedding, read by roles of heads where they are known, with closed-form
evidence by attribute for classes that have images, and a small correction of the class feature for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import compress
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dear.backbone.clip import Clip, span_start
from dear.backbone.head_contributions import grouped_contributions
from dear.errors import RoleTableError
from dear.methods.base import ImageFeatures, Logits, Method, Readout, TextFeatures, TrainingImages, Trunk
from dear.methods.dear_plus import METHOD, DearPlusSettings
from dear.methods.dear_plus.correction import corrected
from dear.methods.dear_plus.fitting import Examples, Fit, by_attribute, fit
from dear.methods.dear_plus.gaussian import Evidence
from dear.methods.dear_plus.strengths import weigh
from dear.methods.dear_plus.unlabeled import fit_with_others
from dear.methods.optional import LearnsUnlabeled, LeavesOut, ResizesTensors, WeighsFeatures
from dear.methods.shared import (
    name_hashes,
    order_by_name,
    require_current_text,
    require_distinct,
    rows_by_name,
)
from dear.roles.table import HeadRole, RoleTable

WHOLE = "image"
"""The attribute in place of those of a role table: the whole embedding."""

COMPUTED = ("remainder", "center", "whitening", "freedom", "parts", "threshold")
"""Buffers that are computed from the training images."""


class DearPlus(Method, LeavesOut, LearnsUnlabeled, ResizesTensors, WeighsFeatures):
    """Nothing is injected and no gradient passes through CLIP: an image is encoded as by the frozen CLIP. e
    is its embedding, u(v) = v / |v|, t_k CLIP's text feature of class k. All of this is [ours].

    Readouts. c_h are the exact contributions of heads to e (Gandelsman et al., 2024), share_h(a) the share
    of a head's concepts that the role table gives to attribute a (1 or 0 by core attribute in a table
    without shares), m_a the mean of (e - z_a) / |e| over the training images:

        z_a = sum over heads h of layers J to L of share_h(a) c_h        f_a = u(z_a / |e| + m_a)

    f_a is the image's feature with everything but attribute a held at its mean. Without a role table the
    whole embedding is the only attribute, "image": z = e, m = 0, f = u(e).

    Evidence. For a class k with at least two training images, mu_ka is the mean of f_a over all views of
    them, C_a the covariance within classes, shrunk, of d_a effective degrees of freedom, mu_a the mean of
    the mu_ka. Means of classes vary rho times as much as images within a class, so an image of a class that
    nothing is known about is N(mu_a, (1 + rho) C_a), and the log Bayes factor for k against such a class is

        E_ka = log N(f_a; mu_ka, C_a) - log N(f_a; mu_a, (1 + rho) C_a)
             = w_ka f~ - |w_ka|^2 / 2 - rho / (2 (1 + rho)) |f~|^2 + d_a / 2 log(1 + rho)

    in the d_a dimensions that vary, with f~ = W_a' (f_a - mu_a), w_ka = W_a' (mu_ka - mu_a) and
    W_a W_a' = C_a^-1. It is 0 for a class without images: others have an advantage only where the image
    looks like theirs. C is shrunk so that left-out images are likeliest (`LabeledGaussians`).

    Class feature, for all classes. M minimizes the cross-entropy of f_0 = u(e) plus a penalty:

        f_cls = u(f_0 + M' f_0)      M = argmin mean CE(t (f_0 + M' f_0) / tau, y) + penalty / 2 |M|^2

    Scores, their exact sum, with weights that are at least 0:

        s_k = beta f_cls t_k / tau + sum over a of alpha_a E_ka

    Strengths. beta and alpha minimize the cross-entropy of the training images in their test views, each
    scored as if it were new: mu and C without the image (all its views, in closed form), M from the other
    half of the images. Evidence that does not help gets alpha_a = 0. There are two sets of strengths:

    - The first is fitted with the images of all classes. It scores classes that all have evidence.
    - The second is fitted twice over, with one half of the classes taken for ones without images and with the
      other. It scores classes of which some have no evidence, in the benchmark's protocols all of them.

    In a bundle (`keeps_known_scores`) a class by name alone costs the others nothing but what it takes: these
    keep the first strengths. With s' the scores by the second ones, and sums over the classes with evidence,

        s_n = s'_n + log sum exp s_k - log sum exp s'_k - threshold

    so that n has the odds against all of them that it has by the second strengths, less a threshold: the
    least with which classes, each half of them taken for ones by name in turn, get at most `NAME_COST` of the
    left-out images of the other half where they do not set it themselves (`measure_names`).

    Where most classes have one image, every class with an image gets evidence, C_a is the covariance of all
    images over 1 + rho, and alpha, which few left-out images could tell, is beta / (2 sqrt(sum of d_a)) in
    the first set and 0 in the second: without its only image, a class is one by name alone.

    A class of n images loses by one that is left out: half of what E then lacks on average is made up for in
    the first fit of strengths, and in no left-out score. Images of a group, such as the frames of a clip,
    count as one here: they are left out together, in `FOLDS` parts of the images. Where all are one group,
    nothing would be left without it, and each image counts on its own. m_a, the strengths and the shrinkage
    are those of all images: a few numbers, and m_a knows no labels. Halves are drawn by content, so that
    neither the order of classes nor that of images matters: classes by the hashes of their names, the images
    of a class by the first number of f_0.
    """

    declaration = METHOD
    settings: DearPlusSettings
    shares: Float[Tensor, "layer head attribute"]
    remainder: Float[Tensor, "attribute embed"]  # m
    trained: Int[Tensor, "trained"]  # identities of the classes with evidence
    center: Float[Tensor, "attribute embed"]  # mu
    whitening: Float[Tensor, "attribute embed embed"]  # W
    freedom: Float[Tensor, "attribute"]  # d
    parts: Float[Tensor, "feature"]
    threshold: Float[Tensor, ""]  # of a class by name alone, in a bundle
    correction: nn.Parameter  # M, embed embed
    means: nn.Parameter  # w, trained attribute embed
    strengths: nn.Parameter  # both sets of beta and alpha, set feature

    def __init__(
        self,
        clip: Clip,
        generator: torch.Generator,
        settings: DearPlusSettings | None = None,
        *,
        roles: RoleTable | None = None,
    ) -> None:
        super().__init__(clip, generator, s := settings or DearPlusSettings())
        self.roles, like, embed = roles, clip.image.projection, clip.image.embed_dim
        attributes: tuple[str, ...] = (WHOLE,)
        if roles is not None:
            option = "--dear-plus.roles-from-other-weights"
            roles.check(clip.identity, allow_other=s.roles_from_other_weights, option=option)
            if not roles.attributes:
                raise RoleTableError(
                    f"the role table {roles.source!r} has no core attribute: DeAR+ needs at least one."
                )
            attributes = roles.attributes
            self.image_from = span_start(clip.image.depth, s.first)
            shares = role_shares(roles, range(self.image_from, clip.image.depth + 1), clip.image.heads)
            self.without_heads = tuple(compress(attributes, (shares.sum(dim=(0, 1)) == 0).tolist()))
            self.register_buffer("shares", shares.to(like), persistent=False)
            self.readout_key = f"readouts from {self.image_from} by {shares.tolist()}"
        self.features, count = ("cls", *attributes), len(attributes)
        exact = like.to(torch.promote_types(like.dtype, torch.float32))  # whitening needs more than float16
        self.register_buffer("remainder", exact.new_full((count, embed), embed**-0.5))
        self.register_buffer("center", exact.new_zeros(count, embed))
        self.register_buffer("whitening", exact.new_empty(count, embed, embed).copy_(torch.eye(embed)))
        self.register_buffer("freedom", exact.new_zeros(count))
        self.register_buffer("parts", exact.new_tensor([1.0, *[0.0] * count]))
        self.register_buffer("threshold", exact.new_zeros(()))
        self.correction = nn.Parameter(like.new_zeros(embed, embed))
        self.strengths = nn.Parameter(like.new_ones(2, 1 + count))
        self._resize(0)

    def _resize(self, trained: int) -> None:
        self._prepared_for: Tensor | None = None
        like = self.correction
        self.register_buffer("trained", torch.zeros(trained, dtype=torch.long, device=like.device))
        self.means = nn.Parameter(like.new_zeros(trained, *self.remainder.shape))

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes; the first ones are those that it is trained on."""
        is_first = not self.classnames
        super().set_classes(classnames, templates)
        if is_first:
            self._resize(len(classnames))
            self.trained.copy_(name_hashes(classnames))

    @torch.no_grad()
    def read_out(self, trunk: Trunk) -> Float[Tensor, "batch part embed"]:
        """f_0, and z_a / |e| of each attribute, which is not of unit length; without a role table the trunk
        outputs.
        """
        if self.roles is None:
            return trunk
        embedding, groups = grouped_contributions(self.clip.image, trunk, self.image_from, self.shares)
        length = embedding.norm(dim=-1, keepdim=True)
        return torch.cat([(embedding / length).unsqueeze(1), groups / length.unsqueeze(-1)], dim=1)

    def _parts(
        self, readout: Readout
    ) -> tuple[Float[Tensor, "batch embed"], Float[Tensor, "batch attribute embed"]]:
        """f_0, and z_a / |e| of each attribute."""
        if self.roles is not None:
            return readout[:, 0], readout[:, 1:]
        frozen = super().frozen_image(readout)
        return frozen, frozen.unsqueeze(1)

    def frozen_image(self, readout: Readout) -> Float[Tensor, "batch embed"]:
        """f_0."""
        return self._parts(readout)[0]

    def image_features(self, readout: Readout) -> ImageFeatures:
        """f_cls and the f_a."""
        frozen, groups = self._parts(readout)
        f_cls = corrected(frozen, self.correction)
        return torch.cat([f_cls[None], by_attribute(groups, self.remainder).to(f_cls)])

    def text_features(self) -> TextFeatures:
        """The frozen text features."""
        self._prepare()
        return self.frozen_text

    def _prepare(self) -> None:
        """Find which of the current classes have evidence, and so the strengths."""
        rows = rows_by_name(self.trained, self.classnames)
        self.has_evidence, self.row = rows >= 0, rows.clamp(min=0)
        self.use = int(not self.has_evidence.all())
        self.is_mixed = bool(self.use and self.has_evidence.any())
        self._prepared_for = self.frozen_text

    def evidence(
        self, image: ImageFeatures, text: TextFeatures, *, decoupled: bool = False
    ) -> Float[Tensor, "feature batch class"]:
        """The terms of the scores: beta f_cls t_k / tau, with what is added for a class by name alone, then
        alpha_a E_ka of each attribute, which is 0 if ``decoupled``. Raises SettingsError for the text of
        other classes than those set.
        """
        require_current_text(self, text)
        if self._prepared_for is not self.frozen_text:
            self._prepare()
        of_class = self.clip.scale * image[0] @ text.T
        factors = of_class.new_zeros(len(image) - 1, *of_class.shape)
        if len(self.trained) and not decoupled:
            pairs = zip(self._attributes(), image[1:], strict=True)
            parts = [evidence.factors(features, self.settings.spread) for evidence, features in pairs]
            factors = torch.stack(parts).to(of_class) * self.has_evidence
        terms = torch.cat([of_class.unsqueeze(0), factors])
        if self.is_mixed and self.keeps_known_scores and not decoupled:
            return weigh(terms, self.strengths, self.has_evidence, self.threshold.to(terms))
        return self.strengths[self.use].view(-1, 1, 1) * terms

    def _attributes(self) -> list[Evidence]:
        """The evidence of each attribute for the current classes."""
        means = self.means.to(self.whitening)[self.row].unbind(dim=1)
        return [*map(Evidence, means, self.center, self.whitening, self.freedom)]

    def logits(self, image: ImageFeatures, text: TextFeatures, *, decoupled: bool = False) -> Logits:
        """The sum of the terms."""
        return self.evidence(image, text, decoupled=decoupled).sum(dim=0)

    @torch.no_grad()
    def before_training(self, images: TrainingImages) -> None:
        """Compute everything from the test view and some random views of each image."""
        self._take(fit(self._examples(images), self.settings))

    @torch.no_grad()
    def add_unlabeled(self, images: TrainingImages, others: TrainingImages) -> dict[str, float]:
        """Let the test view of ``others`` take part in means, covariances and strengths. Nothing without two
        labeled images, or groups, of each class, one of which can be left out.
        """
        examples = self._examples(images)
        if not examples.keeps_classes or not self.fitted.has_evidence.all():
            return {}  # a single class has no evidence
        frozen, groups = (part.double() for part in self._parts(others.view(None)))
        result, gain = fit_with_others(self.fitted, examples, (frozen, groups), self.settings)
        self._take(result)
        return asdict(gain)

    def _examples(self, images: TrainingImages) -> Examples:
        views = [self._parts(images.view(number)) for number in (None, *range(self.settings.views))]
        frozen, readouts = (torch.stack(parts, dim=1).double() for parts in zip(*views, strict=True))
        text, order = float(self.clip.scale) * self.frozen_text.double(), order_by_name(self.classnames)
        groups = images.groups
        if groups is not None and bool((groups == groups[0]).all()):
            groups = None
        return Examples(frozen, readouts, images.labels, text, order.to(frozen.device), groups)

    def _take(self, result: Fit) -> None:
        self.fitted = result
        self._resize(int(result.has_evidence.sum()))
        self.trained.copy_(name_hashes(self.classnames)[result.has_evidence.cpu()])
        self.means.copy_(torch.stack([attribute.means for attribute in result.evidence], dim=1))
        for name in ("center", "whitening", "freedom"):
            getattr(self, name).copy_(
                torch.stack([getattr(attribute, name) for attribute in result.evidence])
            )
        for name in ("remainder", "parts", "correction", "strengths"):
            getattr(self, name).copy_(getattr(result, name))
        self.threshold.fill_(result.name_cost.threshold)

    def describe_names(self) -> dict[str, Any]:
        return asdict(self.fitted.name_cost)

    def fusion_weights(self) -> dict[str, float]:
        """The share of each term in the scores of training images as if they were new: of the standard
        deviation over classes.
        """
        return dict(zip(self.features, self.parts.tolist(), strict=True))

    def fingerprint_fields(self) -> dict[str, Any]:
        return super().fingerprint_fields() | {"roles": self.roles and self.roles.to_json()}

    def stored_tensors(self) -> dict[str, Tensor]:
        """The trained parameters, what whitens the features, and the identities of the classes."""
        return super().stored_tensors() | {name: getattr(self, name) for name in ("trained", *COMPUTED)}

    def resize_to(self, tensors: Mapping[str, Tensor]) -> None:
        """As many classes as a trained method has evidence for. Raises SettingsError for a class twice."""
        require_distinct(tensors.get("trained", self.trained))
        self._resize(len(tensors["means"]) if "means" in tensors else 0)


def role_shares(roles: RoleTable, layers: range, heads: int) -> Float[Tensor, "layer head attribute"]:
    """The share of each head's concepts that is an attribute of the table; in a table without shares, 1 for
    the attribute of a core head. Raises RoleTableError for a table that does not fit the layers.
    """
    rows = [roles.layer(layer, heads) for layer in layers]
    with_shares = any(role.share for row in rows for role in row)

    def of(role: HeadRole) -> list[float]:
        if with_shares:
            return [role.share.get(name, 0.0) for name in roles.attributes]
        return [float(role.attribute == name) for name in roles.attributes]

    return torch.tensor([[of(role) for role in row] for row in rows])
