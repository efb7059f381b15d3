"""Zero-shot CLIP: the frozen model with hand-written prompts, without training."""

from dear.methods.base import Labels, Losses, Method, Target, Trunk
from dear.methods.zero_shot import METHOD


class ZeroShot(Method):
    """Classification by the cosine of CLIP's image feature and its text features."""

    declaration = METHOD

    def loss(self, trunk: Trunk, labels: Labels, frozen: Target = None) -> Losses:
        raise NotImplementedError("zero-shot CLIP is not trained")
