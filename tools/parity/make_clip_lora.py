"""Run CLIP-LoRA's public code on the small CLIP and store what it computes.

    python -m tools.parity.make_clip_lora CHECKOUT

CHECKOUT is github.com/MaxZanella/CLIP-LoRA at 358f0d7 (no license stated). Its training (`run_lora`) is run
as it is, with its own optimizer, schedule and test, in float32 on the CPU, from drawn values and with drawn
masks in the place of its dropout. Nothing of the repository is in this file.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tools.parity import small
from tools.parity.make_public import without_dassl

PARTS = ("q", "k", "v")
TOWERS = {
    "image": (small.LAYERS, small.BATCH, (small.IMAGE // small.PATCH) ** 2 + 1, small.WIDTH),
    "text": (small.TEXT_LAYERS, len(small.CLASSES), small.CONTEXT, small.TEXT_WIDTH),
}
"""Layers, batch, tokens and width."""
BATCHES, RATE, DROPOUT = 3, 0.01, 0.25
"""Batches of an epoch, so that the second epoch of the five steps is cut short; first rate."""
CASES: dict[str, dict[str, Any]] = {
    "published": {"rank": 2, "alpha": 1, "dropout": DROPOUT},
    "nothing-dropped": {"rank": 4, "alpha": 3, "dropout": 0.0},
}


def start(rank: int) -> dict[str, Tensor]:
    """The values of our parameters that training starts from."""
    shapes = {
        f"{tower}_{name}": (layers, 3, *((rank, width) if name == "down" else (width, rank)))
        for tower, (layers, _, _, width) in TOWERS.items()
        for name in ("down", "up")
    }
    return {name: small.draw(name, *shape, std=0.1) for name, shape in shapes.items()}


def keeps(tower: str, layer: int, part: int, step: int) -> Tensor:
    """Which values dropout keeps in a step, a share of about 3/4: (batch, token, width)."""
    _, *shape = TOWERS[tower]
    return small.draw(f"mask {tower} {layer} {part} {step}", *shape, std=1.0) > -0.6745


class Masks(nn.Module):
    """Dropout by drawn masks, a new one at each call; with a rate of 0 by none. Tokens come first."""

    def __init__(self, rate: float, tower: str, layer: int, part: int) -> None:
        super().__init__()
        self.p, self.rate, self.which, self.step = DROPOUT, rate, (tower, layer, part), 0

    def forward(self, tokens: Tensor) -> Tensor:
        mask = keeps(*self.which, self.step).transpose(0, 1)
        self.step += 1
        return tokens * mask / (1 - self.rate) if self.rate else tokens


def weights(layers: Sequence[nn.Module], name: str) -> Tensor:
    """The values of all layers in the form of ours: (layer, part, ..)."""
    theirs = {"down": "w_lora_A", "up": "w_lora_B"}[name]
    return torch.stack(
        [
            torch.stack([getattr(layer.get_submodule(f"{part}_proj"), theirs).detach() for part in PARTS])
            for layer in layers
        ]
    ).clone()


def run(code: Any, model: nn.Module, case: dict[str, Any]) -> dict[str, Tensor]:
    """Scores and losses of the steps, their rates, the parameters after them, and the scores of a test."""
    towers: dict[str, list[nn.Module]] = {}
    apply, rank = code.apply_lora, case["rank"]

    def drawn(args: Any, clip: nn.Module) -> list[nn.Module]:
        layers = apply(args, clip)
        towers["text"], towers["image"] = layers[: small.TEXT_LAYERS], layers[small.TEXT_LAYERS :]
        for name, value in start(rank).items():
            tower, kind = name.split("_")
            for number, layer in enumerate(towers[tower]):
                for part, letter in enumerate(PARTS):
                    projection = layer.get_submodule(f"{letter}_proj")
                    parameter = projection.get_parameter({"down": "w_lora_A", "up": "w_lora_B"}[kind])
                    assert parameter.shape == value[number, part].shape
                    parameter.data.copy_(value[number, part])
                    projection.dropout = Masks(case["dropout"], tower, number, part)
        return list(layers)

    scores, losses, rates = list[Tensor](), list[Tensor](), list[float]()

    def accuracy(logits: Tensor, _labels: Tensor) -> float:
        scores.append(logits.detach().clone())
        return 0.0

    def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
        losses.append(nn.functional.cross_entropy(logits, labels))
        return losses[-1]

    class Watched(torch.optim.AdamW):
        def step(self, *args: Any, **options: Any) -> Any:
            rates.append(float(self.param_groups[0]["lr"]))
            return super().step(*args, **options)

    code.apply_lora, code.cls_acc, code.F = drawn, accuracy, SimpleNamespace(cross_entropy=cross_entropy)
    original, torch.optim.AdamW = torch.optim.AdamW, Watched  # type: ignore[misc]
    args = SimpleNamespace(
        encoder="both", position="all", backbone="ViT-B/16", params=[*PARTS], r=rank, alpha=case["alpha"],
        dropout_rate=DROPOUT, lr=RATE, n_iters=small.STEPS, shots=1, eval_only=False, save_path=None,
    )  # fmt: skip
    dataset = SimpleNamespace(template=["a photo of a {}."], classnames=small.CLASSES)
    batches = [*zip(small.images(), small.LABELS, strict=True)]
    code.run_lora(args, model, 100, dataset, batches[:BATCHES], batches[:1], batches[:1])
    code.apply_lora, torch.optim.AdamW = apply, original  # type: ignore[misc]
    _, *steps, tested = scores
    stored = {
        "scores": torch.stack(steps),
        "losses": torch.stack(losses).detach(),
        "rates": torch.tensor(rates, dtype=torch.float64),
        "tested": tested,
    }
    names = [(tower, name) for tower in TOWERS for name in ("down", "up")]
    return stored | {f"after.{tower}_{name}": weights(towers[tower], name) for tower, name in names}


def main(checkout: str) -> None:
    sys.path.insert(0, checkout)
    without_dassl(None, object)
    code, found = import_module("lora"), dict[str, Tensor]()
    for name, case in CASES.items():
        model = import_module("clip.model").build_model(small.openai_state()).eval()
        found |= {f"{name}/{key}": value.contiguous() for key, value in run(code, model, case).items()}
    save_file(found, small.FOLDER / "clip-lora.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
