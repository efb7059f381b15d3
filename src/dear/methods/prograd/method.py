"""ProGrad (Zhu et al., ICCV 2023): CoOp whose steps never go against the frozen CLIP's scores."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from dear.backbone.clip import Clip
from dear.backbone.text import TextTrunk
from dear.errors import SettingsError
from dear.methods.base import Labels, Losses, Method, Target, TextFeatures, Trunk
from dear.methods.context import PLACEHOLDER, context_ids
from dear.methods.optional import StepHooks
from dear.methods.prograd import METHOD, ProGradSettings
from dear.methods.shared import text_injection
from dear.methods.shared_settings import templates_or


class ProGrad(Method, StepHooks):
    """Prompt-aligned gradient: the gradient of the cross-entropy loses the part that goes against the
    gradient of the divergence from the frozen CLIP's scores; the divergence itself is not minimized. The
    image tower is unchanged.

    Source: arXiv 2205.14865; github.com/BeierZhu/Prompt-align at 1b76203, ProGrad.public/trainers/prograd.py
    and TrainerBase.prograd_backward_and_update in Dassl.ProGrad.pytorch/dassl/engine/trainer.py. As in the
    code: the context ends with the words of the data set's template and is zero before them; one token is
    counted for each word, so that with a comma in the template ("a type of pet, a photo of a") the last word
    keeps its own embedding; momentum and weight decay come after the projection.

    Differs from the code: no part is cast to half precision. The class name is only at the end of the prompt
    (the code's other positions cannot run or were not published), and the context only starts from the
    template's words. In a template other than the authors', which all end with a full stop, what follows the
    class name stays [ours].
    """

    declaration = METHOD
    settings: ProGradSettings
    context: nn.Parameter
    placed: TextTrunk

    def __init__(
        self, clip: Clip, generator: torch.Generator, settings: ProGradSettings | None = None
    ) -> None:
        super().__init__(clip, generator, settings or ProGradSettings())
        self.text_from = 1

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes; the template of the first ones set initializes the context. ``frozen_text`` is
        made with ``frozen_template``, if the settings have one. Raises SettingsError if a template has more
        words than there are tokens.
        """
        first = not self.classnames
        frozen = templates_or(self.settings.frozen_template, templates)
        prompt = self.settings.template or templates[0]
        words, name, after = prompt.partition("{}")
        padded = self._padded(words.split())
        ids = context_ids(self.clip, classnames, padded, self.settings.tokens, f"{name}{after}")
        super().set_classes(classnames, frozen)
        self.placed = self.clip.text.trunk(ids, 1)
        if first:
            context = self.clip.text.token_embedding(self.clip.tokenize([padded]))[0]
            context = context[self.clip.first_word :][: self.settings.tokens].clone()
            context[: self.settings.tokens - len(words.split())] = 0
            self.context = nn.Parameter(context)

    def _padded(self, words: list[str]) -> str:
        """The words after as many placeholders as it takes to have one for each token."""
        free = self.settings.tokens - len(words)
        if free < 0:
            raise SettingsError(
                f"prograd.tokens is {self.settings.tokens}, and the template has {len(words)} words before "
                f"the class name ({' '.join(words)!r}): give at least as many tokens."
            )
        return " ".join([*[PLACEHOLDER] * free, *words])

    def text_features(self) -> TextFeatures:
        change = text_injection(self.clip.text, self.context[None], self.clip.first_word)
        return normalize(self.clip.text.features(self.placed, 1, change, self.text_chunk), dim=-1)

    def loss(self, trunk: Trunk, labels: Labels, frozen: Target = None) -> Losses:
        """Cross-entropy; and, only for ``backward``, the cross-entropy with the frozen CLIP's scores as soft
        labels, whose gradient is that of the divergence.
        """
        del frozen  # the image features are frozen themselves
        s, image = self.settings, self.image_features(trunk)
        scores = self.training_logits(image, self.text_features())
        teacher = self.training_logits(image, self.frozen_text).div(s.temperature).softmax(dim=-1)
        general = s.temperature**2 * cross_entropy(scores / s.temperature, teacher)
        return {"loss": self.label_loss(scores, labels), "general": general}

    def backward(self, losses: Losses, scale: Callable[[Tensor], Tensor]) -> None:
        """Leave the gradient of the loss without its part against the frozen CLIP."""
        (general,) = torch.autograd.grad(scale(losses["general"]), self.context, retain_graph=True)
        scale(losses["loss"]).backward()
        assert self.context.grad is not None
        self.context.grad = projected(self.context.grad, general, self.settings.strength)


def projected(
    gradient: Float[Tensor, "*any"], general: Float[Tensor, "*any"], strength: float
) -> Float[Tensor, "*any"]:
    """A gradient without ``strength`` times its part against another gradient, if it has such a part;
    unchanged if the other is zero. Scaling both scales the result.
    """
    direction = general / general.norm().clamp(min=torch.finfo(general.dtype).tiny)
    against = (gradient * direction).sum().clamp(max=0)
    result: Tensor = gradient - strength * against * direction
    return result
