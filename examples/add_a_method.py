"""A custom method, in every command and from Python: CLIP's image embedding, mixed with the output of a small
network on it (CLIP-Adapter). From this folder:

    dear run few-shot --methods zero-shot,add_a_method:Adapter --adapter.share 0.5 --data street-signs

docs/add-a-method.md explains how to add a method to the package.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import linear, normalize, relu

import dear
from dear.evaluation.protocols import PROTOCOLS
from dear.methods.shared import uniform


@dataclass(frozen=True)
class AdapterSettings(dear.MethodSettings):
    """Settings of the adapter.

    Attributes:
        share: The share of the network's output.
        hidden: The width of its hidden layer.
    """

    share: float = 0.2
    hidden: int = 16


class Adapter(dear.Method):
    """Mixes a share of a two-layer network's output into the image embedding; text features stay frozen."""

    settings: AdapterSettings

    def __init__(self, clip, generator, settings=None):
        super().__init__(clip, generator, settings or AdapterSettings())
        # No layer is changed: both spans begin after the last one, so images are encoded once and cached.
        self.image_from, self.text_from = clip.image.depth + 1, clip.text.depth + 1
        embed, hidden = clip.image.embed_dim, self.settings.hidden
        # Drawn only from the given generator, in the dtype and on the device of the backbone.
        self.down = nn.Parameter(uniform(clip.logit_scale, generator, hidden, embed))
        self.up = nn.Parameter(uniform(clip.logit_scale, generator, embed, hidden))

    def image_features(self, trunk):
        with torch.no_grad():
            embedded = self.clip.image.finish(trunk[:, 0])  # class token, not normalized
        share, adapted = self.settings.share, relu(linear(relu(linear(embedded, self.down)), self.up))
        return normalize(share * adapted + (1 - share) * embedded, dim=-1).unsqueeze(0)

    def text_features(self):
        return self.frozen_text


def main() -> None:
    adapter = dear.register("add_a_method:Adapter").name
    experiment = dear.Experiment(
        protocol=PROTOCOLS["base-to-novel"](),
        methods=(dear.MethodSetup("zero-shot"), dear.MethodSetup(adapter)),
        data=("street-signs",),
        shots=(2,),
        train={"epochs": 5, "lr": 0.01},
    )
    for record in dear.launch([experiment])[0]:
        print(f"{record['method']}: base {record['results']['base']['accuracy']:.3f}")


if __name__ == "__main__":
    main()
