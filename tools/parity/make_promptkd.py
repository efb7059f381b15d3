"""Run PromptKD's public code on small CLIPs and store what it computes.

    python -m tools.parity.make_promptkd FOLDER

FOLDER is a checkout of the repository that public/promptkd.json names. Its trainer reads the weights of two
CLIPs and a trained teacher from files: these are a small CLIP, another one of a narrower joint space, and the
drawn parameters of our teacher. Its model gives image features, which are compared as scores with the
teacher's text features. In float32 on the CPU.

The projector's first layer has a bias there, which ours has not: it starts at zero, and stays there.
"""

import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dear.methods.registry import METHODS
from tools.parity import small
from tools.parity.make_public import edited, space, their_parameters, their_settings, without_dassl

NAME = "promptkd"
WITHOUT_OURS = "VPT_image_trans.conv1.0.bias"


def teacher_state(case: dict[str, Any]) -> dict[str, Tensor]:
    """The trained teacher as their trainer saves it: our parameters by their names."""
    names = small.references()[str(METHODS[NAME].teacher)]["parameters"]
    state = {}
    for name, value in small.teacher_of(case).named_parameters():
        first, rest = names[name]
        each = [first, *(rest.format(layer) for layer in range(1, len(value)))]
        state |= dict(zip(each, value.detach(), strict=True))
    return state


def scores(trainer: Any, image: Tensor) -> Tensor:
    """The student's scores of images, as its trainer's test computes them."""
    trainer.model.eval()
    with torch.no_grad():
        features, scale = trainer.model(image)
        _, text, _ = trainer.model_teacher(image)
        found: Tensor = scale * features @ text.t()
    return found


def run(reference: dict[str, Any], case: dict[str, Any]) -> dict[str, Tensor]:
    """Scores before and after the steps, losses, and parameters after them, by our names."""
    ours = dict(small.method_of(case, small.small_openai_clip()).named_parameters())
    taken: dict[str, list[nn.Parameter]] = {}

    def build_optimizer(_model: Any, _settings: Any) -> torch.optim.Optimizer:
        model = trainer.model
        taken.update(their_parameters(reference["parameters"], model, ours))
        for name, parameters in taken.items():
            values = ours[name].detach() if len(parameters) > 1 else [ours[name].detach()]
            for parameter, value in zip(parameters, values, strict=True):
                parameter.data = value.clone().reshape(parameter.shape)
        nn.init.zeros_(model.get_parameter(WITHOUT_OURS))
        return small.optimizer_of(case, [p for p in model.parameters() if p.requires_grad])

    without_dassl(build_optimizer, object)
    sys.modules["dassl.utils"].__dict__["load_checkpoint"] = lambda _: {"state_dict": teacher_state(case)}
    for name in [n for n in sys.modules if n.split(".")[0] in ("trainers", "clip")]:
        del sys.modules[name]
    trainer = import_module("trainers.promptkd").PromptKD()
    trainer.cfg = space(
        {
            "MODEL": {"BACKBONE": {"NAME": "ViT-B/16"}, "INIT_WEIGHTS": ""},
            "INPUT": {"SIZE": (small.IMAGE, small.IMAGE)},
            "DATASET": {"NAME": "OxfordPets"},
            "OPTIM": {"MAX_EPOCH": small.STEPS},
            "TRAINER": {"NAME": "PromptKD", "MODAL": "base2novel"}
            | {"PROMPTKD": their_settings(reference, case)},
        }
    )
    trainer.dm = space({"dataset": {"classnames": small.CLASSES}})
    trainer.device = "cpu"
    trainer.register_model = lambda *_args, **_options: None
    trainer.batch_idx, trainer.num_batches = 0, 0
    trainer.build_model()
    images = small.images()
    found = {"logits": scores(trainer, images[0])}
    trainer.model.train()
    told = [
        trainer.forward_backward({"img": image, "label": label})["loss"]
        for image, label in zip(images, small.LABELS, strict=True)
    ]
    found |= {"losses": torch.tensor(told), "tested": scores(trainer, images[0])}
    largest = float(trainer.model.get_parameter(WITHOUT_OURS).detach().abs().max())
    assert largest < 1e-5, f"a bias without a gradient has moved to {largest}"
    for name, parameters in taken.items():
        value = torch.stack([parameter.detach() for parameter in parameters])
        found[f"after.{name}"] = value.view(ours[name].shape)
    return found


def main(checkout: str) -> None:
    reference, found = small.references()[NAME], dict[str, Tensor]()
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, edited(checkout, reference["edits"], Path(folder)))
        (Path(folder) / "clip").mkdir()
        torch.save(small.openai_state(), Path(folder) / "clip" / "ViT-B-16.pt")
        torch.save(small.openai_state(1, small.TEACHER_EMBED), Path(folder) / "clip" / "ViT-L-14.pt")
        here = os.getcwd()
        os.chdir(folder)
        try:
            for case in small.cases():
                if case["method"] == NAME:
                    found |= {f"{case['name']}/{k}": v.contiguous() for k, v in run(reference, case).items()}
        finally:
            os.chdir(here)
    save_file(found, small.FOLDER / f"{NAME}.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
