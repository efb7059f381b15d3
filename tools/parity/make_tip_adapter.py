"""Run Tip-Adapter's public code on the small CLIP and store what it computes.

    python -m tools.parity.make_tip_adapter FOLDER

FOLDER is a checkout of the repository that public/tip-adapter.json names. It has a script of its own in place
of a trainer of Dassl's, so this calls the script's functions: they make the cache, and tune it on batches. In
float32 on the CPU; its data sets are replaced by empty parts, and its schedule of rates by none.
"""

import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dear.methods.registry import METHODS
from tools.parity import small
from tools.parity.make_public import Passes, without_dassl

NAME = "tip-adapter"


def run(code: Any, case: dict[str, Any], weights: Path) -> dict[str, Tensor]:
    """Keys, scores of the first step, losses, and the keys after the steps."""
    ours = METHODS[NAME].settings(**case["settings"])
    clip = code.clip.model.build_model(torch.load(weights)).float()
    with tempfile.TemporaryDirectory() as folder:
        cfg = {"load_cache": False, "cache_dir": folder, "augment_epoch": ours.views, "train_epoch": 1}
        cfg |= {"shots": small.STEPS * small.BATCH // len(small.CLASSES), "lr": case["lr"], "search_hp": True}
        cfg |= {"init_alpha": ours.alpha, "search_scale": [1, 1]}
        cfg |= {"init_beta": ours.beta, "search_step": [1, 1]}
        keys, values = code.build_cache_model(cfg, clip, Passes())
        text = code.clip_classifier(small.CLASSES, [small.TEMPLATE], clip)
        drawn = small.draw("keys", *keys.t().shape, std=0.1)
        with torch.no_grad():
            tested = nn.functional.normalize(clip.encode_image(small.images().flatten(0, 1)), dim=-1)
        taken: list[nn.Parameter] = []
        seen: list[tuple[Tensor, Tensor]] = []
        entropy = nn.functional.cross_entropy

        def optimizer(parameters: Any, **_options: Any) -> torch.optim.Optimizer:
            taken.extend(parameters)
            return small.optimizer_of(case, taken)

        def watched(scores: Tensor, labels: Tensor) -> Tensor:
            seen.append((scores.detach().clone(), entropy(scores, labels).detach()))
            return entropy(scores, labels)

        code.torch = SimpleNamespace(**{**vars(torch), "optim": _optim(optimizer)})
        code.F = SimpleNamespace(cross_entropy=watched)
        some = (tested, small.LABELS.flatten())
        code.run_tip_adapter_F(cfg, drawn.t(), values, *some, *some, text, clip, Passes())
        code.torch = torch
    return {
        "start.keys": keys.t(),
        "logits": seen[0][0],
        "losses": torch.stack([loss for _, loss in seen]),
        "after.keys": taken[0].detach(),
    }


def _optim(optimizer: Any) -> SimpleNamespace:
    """Our optimizer, and a schedule that leaves its rate as it is."""
    constant = SimpleNamespace(step=lambda: None, get_last_lr=lambda: [0.0])
    return SimpleNamespace(
        AdamW=optimizer, lr_scheduler=SimpleNamespace(CosineAnnealingLR=lambda *_: constant)
    )


def main(checkout: str) -> None:
    sys.path.insert(0, checkout)
    without_dassl(None, object)
    torch.Tensor.half = torch.Tensor.float  # type: ignore[method-assign]
    for name in ("datasets", "datasets.utils"):
        module = ModuleType(name)
        module.__dict__.update(build_dataset=None, build_data_loader=None)
        sys.modules[name] = module
    code: Any = import_module("main")
    for name in ("main", "utils"):  # theirs fails with today's numpy; its keys are what it chooses by test
        vars(sys.modules[name])["cls_acc"] = lambda scores, labels: float((scores.argmax(1) == labels).sum())
    found: dict[str, Tensor] = {}
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "small.pt"
        torch.save(small.openai_state(), weights)
        for case in small.cases():
            if case["method"] == NAME:
                tensors = run(code, case, weights)
                found |= {f"{case['name']}/{key}": one.contiguous().clone() for key, one in tensors.items()}
    save_file(found, small.FOLDER / f"{NAME}.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
