"""Run a public implementation on the small CLIP and store what it computes.

    python -m tests.parity.make_public METHOD FOLDER

FOLDER is a checkout of the method's repository (public/cases.json names it and the commit). Its own trainer
is run, in float32 on the CPU: casts to half precision and moves to a GPU are switched off, and Dassl, which
it needs for files and schedules only, is replaced by empty parts. Nothing of the repository is in this file.
"""

import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from tests.parity import small
from torch import Tensor, nn

# Our parameter -> theirs. {} counts layers; a pair is the first layer's and the others'.
LEARNER, REP = "prompt_learner.", "representation_learner."
VISION, TEXT = "image_encoder.", "text_encoder."
NAMES: dict[str, dict[str, str | tuple[str, str]]] = {
    "coop": {"context": LEARNER + "ctx"},
    "cocoop": {
        "context": LEARNER + "ctx",
        "meta_net.0.weight": LEARNER + "meta_net.linear1.weight",
        "meta_net.0.bias": LEARNER + "meta_net.linear1.bias",
        "meta_net.2.weight": LEARNER + "meta_net.linear2.weight",
        "meta_net.2.bias": LEARNER + "meta_net.linear2.bias",
    },
    "maple": {
        "context": LEARNER + "ctx",
        "prompts_deep": LEARNER + "compound_prompts_text.{}",
        "coupling_weight": LEARNER + "proj.weight",
        "coupling_bias": LEARNER + "proj.bias",
        "coupling_deep_weight": LEARNER + "compound_prompt_projections.{}.weight",
        "coupling_deep_bias": LEARNER + "compound_prompt_projections.{}.bias",
    },
    "promptsrc": {
        "image_prompts": (VISION + "VPT", VISION + "transformer.resblocks.{}.VPT_shallow"),
        "text_prompts": (LEARNER + "ctx", TEXT + "transformer.resblocks.{}.VPT_shallow"),
    },
    "mmrl": {
        "tokens": REP + "compound_rep_tokens",
        "image_weight": REP + "compound_rep_tokens_r2vproj.{}.weight",
        "image_bias": REP + "compound_rep_tokens_r2vproj.{}.bias",
        "text_weight": REP + "compound_rep_tokens_r2tproj.{}.weight",
        "text_bias": REP + "compound_rep_tokens_r2tproj.{}.bias",
        "projection": VISION + "proj_rep",
    },
    "mmrl++": {
        "tokens": REP + "compound_rep_tokens",
        "image_weight": REP + "srra_r2vproj.weight",
        "image_a": REP + "srra_r2vproj.srra.{}.A",
        "image_b": REP + "srra_r2vproj.srra.{}.B",
        "image_bias": REP + "srra_r2vproj.srra.{}.bias",
        "text_weight": REP + "srra_r2tproj.weight",
        "text_a": REP + "srra_r2tproj.srra.{}.A",
        "text_b": REP + "srra_r2tproj.srra.{}.B",
        "text_bias": REP + "srra_r2tproj.srra.{}.bias",
        "projection_a": VISION + "A",
        "projection_b": VISION + "B",
    },
}
TRAINERS = {
    "coop": ("coop", "CoOp"),
    "cocoop": ("cocoop", "CoCoOp"),
    "maple": ("maple", "MaPLe"),
    "promptsrc": ("promptsrc", "PromptSRC"),
    "mmrl": ("mmrl", "MMRL"),
    "mmrl++": ("mmrlpp", "MMRLpp"),
}


def their_settings(case: dict[str, Any]) -> dict[str, Any]:
    """The settings of a case by their names in the public code."""
    method, s = case["method"], case["settings"]
    words = "" if s.get("tokens", 0) > 4 else "a photo of a"
    common = {"PREC": "fp32", "CTX_INIT": words}
    if method == "coop":
        return common | {
            "N_CTX": s.get("tokens", 4),
            "CSC": s.get("class_specific", False),
            "CLASS_TOKEN_POSITION": s.get("position", "end"),
        }
    if method == "cocoop":
        return common | {"N_CTX": s.get("tokens", 4)}
    if method == "maple":
        return common | {"N_CTX": s.get("tokens", 2), "PROMPT_DEPTH": s["depth"]}
    if method == "promptsrc":
        return common | {
            "PROMPT_DEPTH_VISION": s["image_depth"],
            "PROMPT_DEPTH_TEXT": s["text_depth"],
            "N_CTX_VISION": s["image_tokens"],
            "N_CTX_TEXT": s["text_tokens"],
            "TEXT_LOSS_WEIGHT": s.get("text_weight", 25),
            "IMAGE_LOSS_WEIGHT": s.get("image_weight", 10),
            "GPA_MEAN": s["average_mean"],
            "GPA_STD": s["average_std"],
        }
    rep = {
        "PREC": "fp32",
        "ALPHA": s.get("alpha", 0.7),
        "REG_WEIGHT": s["reg_weight"],
        "N_REP_TOKENS": s["tokens"],
        "REP_DIM": s["space"],
        "REP_LAYERS": list(range(s["first"], small.LAYERS + 1)),
    }
    if method == "mmrl":
        return rep
    return rep | {
        "BETA": s["beta"],
        "RES_LORA_DIM": s["residual_rank"],
        "PROJ_LORA_DIM": s["projection_rank"],
    }


def space(values: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(**{k: space(v) if isinstance(v, dict) else v for k, v in values.items()})


def their_parameters(method: str, model: nn.Module, ours: dict[str, Tensor]) -> dict[str, list[nn.Parameter]]:
    """Their parameters that make up each of ours, layer by layer where there are layers."""
    theirs = dict(model.named_parameters())
    found = {}
    for name, value in ours.items():
        wanted = NAMES[method][name]
        if isinstance(wanted, tuple):
            names = [wanted[0], *(wanted[1].format(layer) for layer in range(1, len(value)))]
        else:
            layers = len(value) if "{}" in wanted else 1
            names = [wanted.format(layer) for layer in range(layers)]
        found[name] = [theirs[one] for one in names]
    return found


def resize_maple(learner: Any, depth: int, tokens: int) -> None:
    """MaPLe's code has the widths of ViT-B/16 written in: replace its layers by some of the small CLIP's."""
    learner.proj = nn.Linear(small.TEXT_WIDTH, small.WIDTH)
    prompts = [nn.Parameter(torch.empty(tokens, small.TEXT_WIDTH)) for _ in range(depth - 1)]
    learner.compound_prompts_text = nn.ParameterList(prompts)
    layers = [nn.Linear(small.TEXT_WIDTH, small.WIDTH) for _ in range(depth - 1)]
    learner.compound_prompt_projections = nn.ModuleList(layers)


def without_dassl(build_optimizer: Any) -> None:
    """Put empty parts in the place of Dassl's, and switch casts and moves off."""
    parts: dict[str, dict[str, Any]] = {
        "dassl": {},
        "dassl.engine": {
            "TRAINER_REGISTRY": SimpleNamespace(register=lambda: lambda kind: kind),
            "TrainerX": object,
        },
        "dassl.metrics": {"compute_accuracy": lambda *_: [torch.zeros(())]},
        "dassl.utils": {"load_pretrained_weights": None, "load_checkpoint": None},
        "dassl.optim": {"build_optimizer": build_optimizer, "build_lr_scheduler": lambda *_: None},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        sys.modules[name] = module
    for kind in (torch.Tensor, nn.Module):
        for cast in ("half", "cuda"):
            setattr(kind, cast, lambda self: self)


def run(case: dict[str, Any], weights: Path) -> dict[str, Tensor]:
    """Scores and losses of the public code, and its parameters after the steps, by our names."""
    method: str = case["method"]
    ours = {
        name: value.detach().clone()
        for name, value in small.method_of(case, small.small_openai_clip()).named_parameters()
    }
    taken: dict[str, list[nn.Parameter]] = {}

    def build_optimizer(model: Any, _settings: Any) -> torch.optim.Optimizer:
        model = trainer.model  # some give their learner only
        if method == "maple":
            resize_maple(model.prompt_learner, case["settings"]["depth"], len(ours["context"]))
        taken.update(their_parameters(method, model, ours))
        with torch.no_grad():
            for name, parameters in taken.items():
                layered = len(parameters) > 1 or parameters[0].ndim < ours[name].ndim
                values = ours[name] if layered else [ours[name]]
                for parameter, value in zip(parameters, values, strict=True):
                    parameter.copy_(value)
        return small.optimizer_of(case, [p for p in model.parameters() if p.requires_grad])

    without_dassl(build_optimizer)
    module, kind = TRAINERS[method]
    for name in [n for n in sys.modules if n.split(".")[0] in ("trainers", "clip")]:
        del sys.modules[name]
    trainers: Any = __import__(f"trainers.{module}", fromlist=[kind])
    trainers.clip._download = lambda *_args, **_options: str(weights)
    trainer = getattr(trainers, kind)()
    section = "MMRLpp" if method == "mmrl++" else method.upper()
    trainer.cfg = space(
        {
            "MODEL": {"BACKBONE": {"NAME": "ViT-B/16"}, "INIT_WEIGHTS": ""},
            "INPUT": {"SIZE": (small.IMAGE, small.IMAGE)},
            "DATASET": {"NAME": "OxfordPets"},
            "OPTIM": {"MAX_EPOCH": small.STEPS},
            "TRAINER": {section: their_settings(case)},
        }
    )
    trainer.dm = space({"dataset": {"classnames": small.CLASSES}})
    trainer.device = "cpu"
    trainer.register_model = lambda *_args, **_options: None
    trainer.update_lr = lambda: None
    trainer.batch_idx, trainer.num_batches = 0, 1

    def update(loss: Tensor) -> None:
        trainer.optim.zero_grad()
        loss.backward()
        trainer.optim.step()

    trainer.model_backward_and_update = update
    trainer.build_model()
    images = small.images()
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        if method.startswith("mmrl"):
            trainer.model.train()
            found["decoupled"], _, found["logits"], *_ = trainer.model(images[0])
        else:
            trainer.model.eval()
            found["logits"] = trainer.model(images[0])
    trainer.model.train()
    losses = [
        trainer.forward_backward({"img": image, "label": label})["loss"]
        for image, label in zip(images, small.LABELS, strict=True)
    ]
    found["losses"] = torch.tensor(losses)
    for name, parameters in taken.items():
        value = torch.stack([p.detach() for p in parameters])
        found[f"after.{name}"] = value.view(ours[name].shape)
    return {name: value.contiguous().clone() for name, value in found.items()}


def main(method: str, repository: str) -> None:
    sys.path.insert(0, repository)
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "small.pt"
        torch.save(small.openai_state(), weights)
        for name, case in small.cases().items():
            if case["method"] == method:
                save_file(run(case, weights), small.FOLDER / f"{name}.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
