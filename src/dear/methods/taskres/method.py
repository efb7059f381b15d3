"""TaskRes (Yu et al., CVPR 2023): each class's text feature gets a learned residual of its own."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from dear.methods.base import Method, TextFeatures
from dear.methods.taskres import METHOD, TaskResSettings


class TaskRes(Method):
    """Task residual tuning: t + alpha * x for each class, with x learned from zero and t the text feature as
    the tower gives it. Both towers are unchanged. A residual belongs to its class, so no other can be scored.

    Source: arXiv 2211.10277; github.com/geekyutao/TaskRes at 5195359, trainers/taskres.py. As in the code:
    t is not normalized, nor are the features of several templates before their mean.

    Differs from the code: only the regular base is here; the "enhanced" one needs weights that the authors
    trained beforehand. Class names have spaces, where the code keeps the underscores of its data sets.
    """

    declaration = METHOD
    settings: TaskResSettings
    base: Float[Tensor, "class embed"]
    residual: nn.Parameter

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes; each gets a residual. Raises SettingsError for other classes afterwards."""
        first = not self.classnames
        super().set_classes(classnames, templates)
        features = [self.clip.text.features(prompts, self.text_from) for prompts in self.prompts]
        self.base = torch.stack(features).mean(dim=0)
        if first:
            self.residual = nn.Parameter(torch.zeros_like(self.base))

    def text_features(self) -> TextFeatures:
        return normalize(self.base + self.settings.alpha * self.residual, dim=-1)
