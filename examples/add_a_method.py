"""A method of one's own: CLIP's image embedding, mixed with what a small network makes of it (CLIP-Adapter).

To try an idea a class is enough; docs/how-to/add-a-method.md says what a method in the package is.
"""

import torch
from torch import nn
from torch.nn.functional import linear, normalize, relu

import dear
from dear.data.fewshot import draw_few
from dear.evaluation.metrics import evaluate
from dear.methods.base import Method
from dear.methods.initial import uniform
from dear.methods.registry import frozen_clip
from dear.training.loop import train
from dear.training.seeding import generator
from dear.training.settings import TrainSettings


class Adapter(Method):
    """A share of two layers' output in the image embedding; text features are the frozen ones."""

    name = "adapter"

    def __init__(self, clip, generator, share=0.2, hidden=16):
        super().__init__(clip)
        # No layer is changed: both spans begin after the last one, so images are encoded once and kept.
        self.image_from, self.text_from = clip.image.depth + 1, clip.text.depth + 1
        self.share, embed = share, clip.image.embed_dim
        # Drawn from the given generator alone, in the dtype and on the device of the backbone.
        self.down = nn.Parameter(uniform(clip.logit_scale, generator, hidden, embed))
        self.up = nn.Parameter(uniform(clip.logit_scale, generator, embed, hidden))

    def image_features(self, trunk):
        with torch.no_grad():
            embedded = self.clip.image.finish(trunk[:, 0])  # of the class token, not normalised
        adapted = relu(linear(relu(linear(embedded, self.down)), self.up))
        return normalize(self.share * adapted + (1 - self.share) * embedded, dim=-1).unsqueeze(0)

    def text_features(self):
        return self.frozen_text


def main() -> None:
    clip, data = dear.load_clip("tiny"), dear.load_dataset("fine-shades")
    _, few = draw_few(data, shots=2, seed=1)
    adapter = Adapter(clip, generator(1, "parameters"))
    zero_shot = frozen_clip(clip)
    for method in (adapter, zero_shot):
        method.set_classes(data.classnames, data.templates)
    history = train(adapter, few, TrainSettings(epochs=5, lr=0.01, warmup_epochs=0), seed=1)
    print(f"loss {history[0]['loss']:.3f} -> {history[-1]['loss']:.3f}")
    for method in (zero_shot, adapter):
        print(f"{method.name}: {evaluate(method, data.test).accuracy:.3f}")


if __name__ == "__main__":
    main()
