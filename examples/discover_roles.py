"""Find what each attention head of a CLIP does, and adapt with those roles.

The CLIP here is the tiny one with random weights, so its heads mean nothing; any architecture that
`dear models` lists, with any weights, works the same way:

    python examples/discover_roles.py ViT-B-16 laion2b_s34b_b88k path/to/images
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

import dear
from dear.data.fewshot import Subset
from dear.roles.phrases import load_pool


def main(model: str, pretrained: str, data: str, out: Path, images: int) -> None:
    clip = dear.load_clip(model, pretrained)
    train = dear.load_dataset(data).train
    some = torch.linspace(0, len(train) - 1, min(images, len(train))).long()
    pool = load_pool("world" if model == "tiny" else "general")

    roles = dear.discover(clip, Subset(train, some), pool)
    roles.save(out)
    print(f"{len(roles.heads)} heads; core attributes: {', '.join(roles.attributes)}")
    print(Counter(head.role for head in roles.heads))
    for head in roles.heads[:3]:
        print(
            f"layer {head.layer} head {head.head}: {head.role}, {head.concept}; {', '.join(head.phrases[:3])}"
        )

    # The table carries the identity of the weights it was computed from: it is refused with any others.
    bundle = dear.fit(
        data,
        model=model,
        pretrained=pretrained,
        roles=out,
        shots=1,
        train=dear.TrainOptions(epochs=1, warmup_epochs=0),
    )
    print(f"adapted with {bundle.roles.source}: accuracy {bundle.metrics['accuracy']:.3f}")


if __name__ == "__main__":
    model, pretrained, data = sys.argv[1:] or ("tiny", "random:0", "street-signs")
    with tempfile.TemporaryDirectory() as folder:
        main(model, pretrained, data, Path(folder) / "roles.json", images=10_000 if sys.argv[1:] else 400)
