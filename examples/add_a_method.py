"""A method of one's own: CLIP's image feature, shifted by a small network (as CLIP-Adapter does).

A method in the package takes four files (docs/how-to/add-a-method.md); to try an idea, a class is enough.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

import dear
from dear.data.fewshot import draw_few
from dear.evaluation.metrics import evaluate
from dear.methods.contract import Method
from dear.methods.registry import build_method
from dear.training.loop import train
from dear.training.seeding import generator
from dear.training.settings import TrainSettings


class Adapter(Method):
    """The class feature plus a share of its image under two layers; text features are the frozen ones."""

    name = "adapter"

    def __init__(self, clip, share=0.2, hidden=16):
        super().__init__(clip)
        # No layer is changed: both spans begin after the last one, so images are encoded once and kept.
        self.image_from, self.text_from = clip.image.depth + 1, clip.text.depth + 1
        self.share, embed = share, clip.image.embed_dim
        self.layers = nn.Sequential(nn.Linear(embed, hidden), nn.ReLU(), nn.Linear(hidden, embed))

    def image_features(self, trunk):
        frozen = self.frozen_image(trunk)
        return normalize(frozen + self.share * self.layers(frozen), dim=-1).unsqueeze(0)

    def text_features(self):
        return self.frozen_text

    def loss(self, trunk, labels):
        return {"loss": cross_entropy(self.logits(self.image_features(trunk), self.text_features()), labels)}


def main() -> None:
    clip, data = dear.load_clip("tiny"), dear.load_dataset("fine-shades")
    _, few = draw_few(data, shots=2, seed=1)
    torch.manual_seed(1)  # nn.Linear draws from the global generator
    adapter, zero_shot = Adapter(clip), build_method("zero-shot", clip, generator(1, "parameters"))
    for method in (adapter, zero_shot):
        method.set_classes(data.classnames, data.templates)
    history = train(adapter, few, TrainSettings(epochs=5, warmup_epochs=0), seed=1)
    print(f"loss {history[0]['loss']:.3f} -> {history[-1]['loss']:.3f}")
    for method in (zero_shot, adapter):
        print(f"{method.name}: {evaluate(method, data.test).accuracy:.3f}")


if __name__ == "__main__":
    main()
