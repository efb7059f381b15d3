"""PromptKD (Li et al., CVPR 2024): prompts of an image tower, distilled on unlabeled images."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import batch_norm, interpolate, kl_div, linear, log_softmax, normalize, relu

from dear.backbone.clip import Clip, tensors_hash
from dear.backbone.towers import outside_autocast
from dear.methods.base import ImageFeatures, Labels, Losses, Method, Target, TextFeatures, Trunk
from dear.methods.optional import ComputesTargets, HasTeacher, ResizesTensors
from dear.methods.promptkd import METHOD, PromptKdSettings
from dear.methods.shared import deep_prompts, image_injection, linear_values

MOMENTUM = 0.1
"""Weight of a batch in the running statistics of BatchNorm: torch's default."""


class PromptKD(Method, ComputesTargets, HasTeacher, ResizesTensors):
    """A student of an image tower only: it has deep prompts, and a projector from its embedding into the
    teacher's joint space, where the teacher's class features are. It learns the teacher's scores of images,
    whose labels are not used.

    Source: arXiv 2403.02781; github.com/zhengli97/PromptKD at ec244f7, trainers/promptkd.py and
    clip/model.py. As in the code, the divergence is summed and divided by the number of scores, so that its
    weight is large; the student's scores have the student's temperature, the teacher's have the teacher's.

    Differs from the code: the projector's first layer has no bias, as BatchNorm takes it out again (its
    gradient is zero there). A batch of a single image is normalized by the running statistics [ours]. Views
    are resized for a teacher of another image size [ours]. Nothing is cast to half precision. The authors
    test the epoch that is best on the base classes' test images: not followed.

    Without a teacher (in a bundle) it scores the classes whose features it holds and no others.
    """

    declaration = METHOD
    settings: PromptKdSettings
    target = "view"
    teacher: Method | None
    running_mean: Tensor
    running_var: Tensor
    class_features: Tensor

    def __init__(
        self, clip: Clip, generator: torch.Generator, settings: PromptKdSettings | None = None
    ) -> None:
        super().__init__(clip, generator, s := settings or PromptKdSettings())
        self.image_from = 1
        self.__dict__["teacher"] = None  # frozen: not a submodule, so neither trained nor saved
        drawn = deep_prompts(clip.image, s.depth, s.tokens, s.token_std, generator, share=s.share)
        self.image_prompts = nn.Parameter(drawn)
        self._seed = int(torch.randint(2**62, (1,), generator=generator))
        self._project_into(clip.image.embed_dim)

    def _project_into(self, width: int) -> None:
        """Make a new projector into a joint space, with the same initial values at each call."""
        like, generator = self.clip.image.projection, torch.Generator().manual_seed(self._seed)
        first, _ = linear_values(like, generator, self.clip.image.embed_dim, width)
        second, bias = linear_values(like, generator, width, width)
        self.first, self.second, self.bias = nn.Parameter(first), nn.Parameter(second), nn.Parameter(bias)
        self.norm_weight = nn.Parameter(bias.new_ones(width))
        self.norm_bias = nn.Parameter(bias.new_zeros(width))
        self.register_buffer("running_mean", bias.new_zeros(width))
        self.register_buffer("running_var", bias.new_ones(width))
        self.register_buffer("class_features", like.new_zeros(0, width))

    def set_teacher(self, teacher: Method) -> None:
        """Learn from a trained method with text features of any classes."""
        self.__dict__["teacher"] = teacher
        self._project_into(teacher.clip.image.embed_dim)

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes, and those of the teacher, whose features of them are stored. Without a teacher the
        features are NaN until a bundle fills them.
        """
        super().set_classes(classnames, templates)
        if self.teacher is not None:
            self.teacher.set_classes(classnames, templates)
            self.class_features = self.teacher.text_features().to(self.first)
        elif len(self.class_features) != len(classnames):
            self.class_features = self.first.new_full((len(classnames), len(self.first)), torch.nan)

    @torch.no_grad()
    def target_features(self, views: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch target"]:
        """The teacher's unit image features."""
        assert self.teacher is not None, "there is no training without a teacher"
        size = self.teacher.clip.image_size
        if views.shape[-1] != size:
            views = interpolate(views, (size, size), mode="bicubic", antialias=True).clamp(0, 1)
        return self.teacher.image_features(self.teacher.read_out(self.teacher.image_trunk(views)))[0]

    def image_features(self, trunk: Trunk) -> ImageFeatures:
        change = image_injection(self.clip.image, self.image_prompts)
        return normalize(self._projected(self.class_feature(trunk, change, unit=False)), dim=-1).unsqueeze(0)

    def _projected(self, embedding: Float[Tensor, "batch embed"]) -> Float[Tensor, "batch target"]:
        hidden = batch_norm(
            linear(embedding, self.first),
            self.running_mean,
            self.running_var,
            self.norm_weight,
            self.norm_bias,
            training=self.training and len(embedding) > 1,
            momentum=MOMENTUM,
        )
        return linear(relu(hidden), self.second, self.bias)

    def text_features(self) -> TextFeatures:
        """The teacher's text features."""
        return self.class_features

    def loss(self, trunk: Trunk, labels: Labels, frozen: Target = None) -> Losses:
        """The weighted divergence of the student's scores from the teacher's. Labels are not used."""
        del labels
        assert frozen is not None, "the training loop always gives targets of views"
        assert self.teacher is not None, "there is no training without a teacher"
        s, text = self.settings, self.text_features()
        with outside_autocast(text.device):
            teacher_scores = self.teacher.clip.scale * frozen.to(text) @ text.T
        scores = self.training_logits(self.image_features(trunk), text)
        student, teacher = (log_softmax(logits / s.temperature, dim=1) for logits in (scores, teacher_scores))
        divergence = kl_div(student, teacher, reduction="sum", log_target=True)
        divergence = divergence * s.temperature**2 / scores.numel()
        return {"loss": s.kd_weight * divergence}

    def fingerprint_fields(self) -> dict[str, Any]:
        fields = super().fingerprint_fields()
        if self.teacher is not None:
            teacher_hash = tensors_hash(dict(self.teacher.state_dict()))
            fields["teacher"] = [self.teacher.clip.identity.sha256, teacher_hash]
        return fields

    def stored_tensors(self) -> dict[str, Tensor]:
        return super().stored_tensors() | dict(self.named_buffers())

    def resize_to(self, tensors: Mapping[str, Tensor]) -> None:
        """Without a teacher: take the width of the stored joint space, and no classes but the stored ones."""
        if self.teacher is not None:
            return
        features = tensors.get("class_features")
        if features is not None and features.ndim == 2:
            if features.shape[1] != len(self.first):
                self._project_into(features.shape[1])
            self.class_features = self.first.new_full((len(self.classnames), len(self.first)), torch.nan)
        self.open_vocabulary = False
