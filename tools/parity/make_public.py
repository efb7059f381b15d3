"""Run a public implementation on the small CLIP and store what it computes.

    python -m tools.parity.make_public METHOD FOLDER [FOLDER ...]

FOLDER is a checkout of the method's repository, which public/METHOD.json names; a repository that is not
whole by itself takes what it imports, `clip` say, from the next FOLDER. Its own trainer is run, in float32 on
the CPU: casts to half precision and moves to a GPU are switched off, and Dassl, which it needs for files and
schedules only, is replaced by empty parts. Nothing of the repository is in this file.
"""

import ast
import re
import shutil
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dear.methods.optional import step_hooks
from dear.methods.registry import METHODS
from tools.parity import small


class Passes:
    """The images of all steps as a loader; each pass over them has other images."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(small.images(self.passes), small.LABELS, strict=True)
        self.passes += 1

    def __len__(self) -> int:
        return small.STEPS


def their_settings(reference: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """The settings of a case by their names in the public code."""
    ours = METHODS[case["method"]].settings(**case["settings"])
    mapped = {theirs: getattr(ours, name) for name, theirs in reference["settings"].items()}
    return mapped | reference["constants"] | case.get("constants", {})


def space(values: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(**{k: space(v) if isinstance(v, dict) else v for k, v in values.items()})


def their_parameters(
    names: dict[str, str | list[str]], model: nn.Module, ours: dict[str, Tensor]
) -> dict[str, list[nn.Parameter]]:
    """Their parameters that make up each of ours, layer by layer where there are layers. Of a tower's layers,
    the first one that we train is the first one that they train.
    """
    theirs = dict(model.named_parameters())
    found = {}
    for name, value in ours.items():
        wanted = names[small.of_any_layer(name)]
        if (layer := re.search(r"\bblocks\.(\d+)", name)) and isinstance(wanted, str):
            each = re.compile(re.escape(wanted).replace(r"\{\}", r"\d+"))
            trained = [n for n, p in theirs.items() if each.fullmatch(n) and p.requires_grad]
            found[name] = [theirs[trained[int(layer[1])]]]
        elif isinstance(wanted, str) and "{}" not in wanted:
            found[name] = [theirs[wanted]]
        else:
            each = [wanted] if isinstance(wanted, str) else wanted
            each = [*each, *each[-1:] * len(value)][: len(value)]
            found[name] = [theirs[one.format(layer)] for layer, one in enumerate(each)]
    return found


def put(parameters: list[nn.Parameter], value: Tensor) -> None:
    """Give their parameters our values. Some have the widths of ViT-B/16 written in: they take ours."""
    layered = len(parameters) > 1 or parameters[0].ndim < value.ndim
    for parameter, one in zip(parameters, value if layered else [value], strict=True):
        if parameter.ndim != one.ndim:
            raise ValueError(f"their parameter is {tuple(parameter.shape)}, ours {tuple(one.shape)}")
        parameter.data = one.clone()


def class_in(file: Path, name: str) -> type:
    """A class of a file that is not run itself: a changed Dassl, say, whose loop has a part of the method."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    found = [one for one in body if isinstance(one, ast.ClassDef) and one.name == name]
    space = {"torch": torch, "OrderedDict": OrderedDict}
    exec(compile(ast.Module(found, []), str(file), "exec"), space)
    kind: type = space[name]
    return kind


def without_dassl(build_optimizer: Any, base: type) -> None:
    """Put empty parts in the place of Dassl's but for ``base``, and switch casts and moves off."""
    parts: dict[str, dict[str, Any]] = {
        "dassl": {},
        "dassl.data": {},
        "dassl.data.data_manager": {"build_data_loader": None, "build_transform": None},
        "dassl.engine": {
            "TRAINER_REGISTRY": SimpleNamespace(register=lambda: lambda kind: kind),
            "TrainerX": base,
        },
        "dassl.metrics": {"compute_accuracy": lambda *_: [torch.zeros(())]},
        "dassl.utils": dict.fromkeys(
            ["load_pretrained_weights", "load_checkpoint", "AverageMeter", "MetricMeter"]
        ),
        "dassl.optim": {"build_optimizer": build_optimizer, "build_lr_scheduler": lambda *_: None},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        sys.modules[name] = module
    for kind in (torch.Tensor, nn.Module):
        for cast in ("half", "cuda"):
            setattr(kind, cast, lambda self: self)
        kind.to = staying(kind.to)


def staying(move: Callable[..., Any]) -> Callable[..., Any]:
    """``to`` that moves nothing to a GPU."""

    def to(self: Any, *where: Any, **more: Any) -> Any:
        names = [str(one) for one in (*where, *more.values()) if isinstance(one, str | torch.device)]
        return self if any(name.startswith("cuda") for name in names) else move(self, *where, **more)

    return to


def loss_of(told: dict[str, float], name: str) -> float:
    """The loss that a trainer reports of a step by its name, or the sum of "..._loss" and "loss_..." where it
    reports parts only.
    """
    if name in told:
        return float(told[name])
    return sum(told[part] for part in told if "loss" in part.split("_"))


def trainer_of(
    reference: dict[str, Any],
    case: dict[str, Any],
    weights: Path,
    ours: dict[str, Tensor],
    *,
    classes: Sequence[str],
    size: int = small.IMAGE,
) -> tuple[Any, dict[str, list[nn.Parameter]]]:
    """Their trainer, built, on the weights in a file of OpenAI's format for images of ``size`` pixels, with
    our values in its parameters; and these by our names.
    """
    taken: dict[str, list[nn.Parameter]] = {}

    def build_optimizer(model: Any, _settings: Any) -> torch.optim.Optimizer:
        model = trainer.model  # some give their learner only
        names = reference["parameters"] | case.get("parameters", {})
        taken.update(their_parameters(names, model, ours))
        for name, parameters in taken.items():
            put(parameters, ours[name])
        return small.optimizer_of(case, [p for p in model.parameters() if p.requires_grad])

    base: type = object
    if "base" in reference:
        file, name = reference["base"].split(":")
        base = class_in(Path(sys.path[0]) / file, name)
    without_dassl(build_optimizer, base)
    module, kind = case.get("trainer", reference["trainer"]).split(":")
    for name in [n for n in sys.modules if n.split(".")[0] in (module.split(".")[0], "clip")]:
        del sys.modules[name]
    code: Any = import_module(module)
    code.clip._download = lambda *_args, **_options: str(weights)
    vars(code).update(case.get("module", {}))
    theirs = getattr(code, kind)
    trainer = object.__new__(theirs) if base is object else theirs()  # a constructor of its own loads data
    settings = their_settings(reference, case)
    elsewhere = {name: settings.pop(name) for name in [*settings] if "." in name}
    sections: dict[str, dict[str, Any]] = {
        "MODEL": {"BACKBONE": {"NAME": "ViT-B/16"}, "INIT_WEIGHTS": ""},
        "INPUT": {"SIZE": (size, size)},
        "DATASET": {"NAME": case.get("dataset", "OxfordPets")},
        "OPTIM": {"MAX_EPOCH": small.STEPS},
        **dict.fromkeys(reference.get("root_sections", []), settings),
        "TRAINER": dict.fromkeys(reference.get("sections", [kind, kind.upper()]), settings),
    }
    for name, value in elsewhere.items():
        section, key = name.split(".")
        sections.setdefault(section, {})[key] = value
    trainer.cfg = space(sections)
    trainer.dm = space({"dataset": {"classnames": [*classes]}})
    trainer.device = "cpu"
    if base is object:
        trainer.register_model = lambda *_args, **_options: None
    trainer.update_lr = lambda: None
    trainer.batch_idx, trainer.num_batches = 0, 1

    def update(loss: Tensor) -> None:
        trainer.optim.zero_grad()
        loss.backward()
        trainer.optim.step()

    trainer.model_backward_and_update = update
    trainer.build_model()
    return trainer, taken


def run(reference: dict[str, Any], case: dict[str, Any], weights: Path) -> dict[str, Tensor]:
    """Scores and losses of the public code, and its parameters after the steps, by our names."""
    method = small.method_of(case, small.small_openai_clip())
    ours = {name: value.detach().clone() for name, value in method.named_parameters()}
    names = reference.get("classnames", small.CLASSES)
    trainer, taken = trainer_of(reference, case, weights, ours, classes=names)

    def batch(image: Tensor, label: Tensor) -> dict[str, Any]:
        seen = small.views(image, step_hooks(method).views_per_image)
        return {"img": seen if len(seen) > 1 else image, "label": label, "img0": small.whole(image)}

    images = small.images()
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        if "scores" in reference:
            trainer.model.train()
            scores = zip(reference["scores"], trainer.model(images[0]), strict=False)
            found |= {name: score for name, score in scores if name}
        else:
            trainer.model.eval()
            found["logits"] = trainer.model(images[0])
    trainer.model.train()
    torch.manual_seed(0)  # for what they draw
    losses = [
        loss_of(trainer.forward_backward(batch(image, label)), reference.get("loss", "loss"))
        for image, label in zip(images, small.LABELS, strict=True)
    ]
    found["losses"] = torch.tensor(losses)
    for name, parameters in taken.items():
        value = torch.stack([p.detach() for p in parameters])
        found[f"after.{name}"] = small.compared(reference, value.view(ours[name].shape))
    for name, theirs in reference.get("drawn", {}).items():
        if (drawn := getattr(trainer.model, theirs)) is not None:
            found[f"drawn.{name}"] = drawn
    return {name: value.contiguous().clone() for name, value in found.items()}


def edited(repository: str, edits: dict[str, dict[str, str]], folder: Path) -> str:
    """A copy of a checkout in the folder, in which pieces of its files stand as others: what is written in
    for ViT-B/16, say. Raises ValueError for a piece that is not there once.
    """
    copied = shutil.copytree(repository, folder / "edited", ignore=shutil.ignore_patterns(".git"))
    for name, pieces in edits.items():
        text = (copied / name).read_text(encoding="utf-8")
        for old, new in pieces.items():
            if text.count(old) != 1:
                raise ValueError(f"{name} has {old!r} {text.count(old)} times")
            text = text.replace(old, new)
        (copied / name).write_text(text, encoding="utf-8")
    return str(copied)


def main(method: str, *repositories: str) -> None:
    reference, found = small.references()[method], {}
    with tempfile.TemporaryDirectory() as folder:
        first, *others = repositories
        if "edits" in reference:
            first = edited(first, reference["edits"], Path(folder))
        sys.path[:0] = [first, *others]
        weights = Path(folder) / "small.pt"
        torch.save(small.openai_state(), weights)
        for case in small.cases():
            if case["method"] == method:
                tensors = run(reference, case, weights)
                found |= {f"{case['name']}/{name}": value for name, value in tensors.items()}
    save_file(found, small.FOLDER / f"{method}.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
