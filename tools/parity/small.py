"""A small CLIP in OpenAI's format, its inputs and a method's parameters, drawn alike on every machine.

numpy promises that RandomState never changes, so nothing of this has to be stored.
"""

import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy
import open_clip
import torch
from open_clip.model import CLIP
from torch import Tensor

from dear.backbone.clip import Clip
from dear.backbone.loading.convert import to_clip
from dear.backbone.preprocess import Preprocess
from dear.methods.base import Method, TrainingImages
from dear.methods.declaration import published_values
from dear.methods.optional import ComputesTargets, HasTeacher, UsesAllImages, step_hooks
from dear.methods.registry import METHODS, build_method

FOLDER = Path(__file__).parents[2] / "tests/parity/public"
STEPS, BATCH = 5, 3
IMAGE, PATCH, WIDTH, LAYERS, TEXT_WIDTH, TEXT_LAYERS, EMBED = 24, 8, 128, 4, 64, 3, 47
TEACHER_EMBED = 31
CONTEXT, WORDS = 77, 49408
CLASSES = ["golden retriever", "sea_lion", "cat", "old traffic light", "Xylophone"]
TEMPLATE = "a photo of a {}, a type of pet."  # of the data set that cases name if they say no other
LABELS = torch.tensor([[0, 3, 4], [2, 2, 1], [4, 0, 1], [3, 1, 0], [2, 4, 3]])


def draw(name: str, *shape: int, std: float, seed: int = 0) -> Tensor:
    """Normal values that depend on the name, the seed and the shape only."""
    numbers = numpy.random.RandomState(zlib.crc32(f"{seed} {name}".encode()))
    return torch.from_numpy(numbers.standard_normal(shape) * std).float()


def openai_state(seed: int = 0, embed: int = EMBED) -> dict[str, Tensor]:
    """A state dict as OpenAI publishes them; no value is at its default. The temperature is not CLIP's."""
    patches = (IMAGE // PATCH) ** 2
    state = {
        "visual.class_embedding": draw("class", WIDTH, std=0.5, seed=seed),
        "visual.positional_embedding": draw("places", patches + 1, WIDTH, std=0.5, seed=seed),
        "visual.proj": draw("proj", WIDTH, embed, std=WIDTH**-0.5, seed=seed),
        "visual.conv1.weight": draw("conv1", WIDTH, 3, PATCH, PATCH, std=0.1, seed=seed),
        "positional_embedding": draw("text places", CONTEXT, TEXT_WIDTH, std=0.3, seed=seed),
        "text_projection": draw("text proj", TEXT_WIDTH, embed, std=TEXT_WIDTH**-0.5, seed=seed),
        "logit_scale": torch.tensor(2.9 + 0.2 * seed),
        "token_embedding.weight": draw("words", WORDS, TEXT_WIDTH, std=0.5, seed=seed),
    }
    norms = {"visual.ln_pre": WIDTH, "visual.ln_post": WIDTH, "ln_final": TEXT_WIDTH}
    for prefix, width, layers in (("visual.", WIDTH, LAYERS), ("", TEXT_WIDTH, TEXT_LAYERS)):
        for layer in range(layers):
            block = f"{prefix}transformer.resblocks.{layer}."
            for name, outputs, inputs in (
                ("attn.in_proj_", 3 * width, width),
                ("attn.out_proj.", width, width),
                ("mlp.c_fc.", 4 * width, width),
                ("mlp.c_proj.", width, 4 * width),
            ):
                std = 1.5 * inputs**-0.5
                state[f"{block}{name}weight"] = draw(block + name, outputs, inputs, std=std, seed=seed)
                state[f"{block}{name}bias"] = draw(block + name + "bias", outputs, std=0.1, seed=seed)
            norms |= {f"{block}ln_1": width, f"{block}ln_2": width}
    for name, width in norms.items():
        state[f"{name}.weight"] = 1 + draw(name, width, std=0.2, seed=seed)
        state[f"{name}.bias"] = draw(name + " bias", width, std=0.1, seed=seed)
    return state


def small_openai_clip(seed: int = 0, embed: int = EMBED) -> Clip:
    """The same weights as dear takes them. Images are taken as they are: mean 0 and deviation 1."""
    vision = {"image_size": IMAGE, "patch_size": PATCH, "width": WIDTH, "head_width": 64, "layers": LAYERS}
    text = {"context_length": CONTEXT, "vocab_size": WORDS, "width": TEXT_WIDTH, "heads": TEXT_WIDTH // 64}
    model = CLIP(embed, vision, text | {"layers": TEXT_LAYERS}, quick_gelu=True).eval()
    model.load_state_dict(openai_state(seed, embed))
    tokenizer = open_clip.get_tokenizer("ViT-B-32")
    zero, one = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return to_clip(
        model, tokenizer, name="small", pretrained="drawn", preprocess=Preprocess(IMAGE, zero, one)
    )


def images(seed: int = 0) -> Tensor:
    """Inputs of the towers: (step, batch, 3, height, width)."""
    return draw("images", STEPS, BATCH, 3, IMAGE, IMAGE, std=1.0, seed=seed)


def views(image: Tensor, number: int) -> list[Tensor]:
    """Stand-ins for random views of a batch's images: each is shifted by so many pixels."""
    return [image.roll(shift, dims=-1) for shift in range(number)]


def whole(image: Tensor) -> Tensor:
    """A stand-in for the whole images that a batch's views are of."""
    return image.flip(-2)


def loss(method: Method, image: Tensor, label: Tensor) -> dict[str, Tensor]:
    """The loss of a step as the training loop asks for it."""
    number = step_hooks(method).views_per_image
    seen = torch.cat(views(image, number))
    frozen = None
    if method.target in ("view", "whole"):
        of = seen if method.target == "view" else whole(image)
        assert isinstance(method, ComputesTargets)
        frozen = method.target_features(of)
        frozen = frozen if method.target == "view" else frozen.repeat(number, 1)
    return method.loss(method.image_trunk(seen), label.repeat(number), frozen)


def all_images(method: Method) -> TrainingImages:
    """The images of all steps as those that are trained on; a random view is that of another seed."""

    def view(seed: int | None) -> Tensor:
        return method.read_out(method.image_trunk(images(seed or 0).flatten(0, 1)))

    return TrainingImages(LABELS.flatten(), view)


def references() -> dict[str, dict[str, Any]]:
    """What public/METHOD.json says of each method's public code, by the method's name."""
    files = sorted(FOLDER.glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def cases() -> list[dict[str, Any]]:
    """What was run with the public code: settings, optimizer and rate, under a method and a name."""
    return [
        {"method": method, "name": name, **case}
        for method, reference in references().items()
        for name, case in reference["cases"].items()
    ]


def method_of(case: dict[str, Any], clip: Clip, seed: int = 0, *, drawn: bool = True) -> Method:
    """The method of a case on our side, with drawn parameters (added to its own, where those are CLIP's), or
    its own.
    """
    name: str = case["method"]
    kind, given = METHODS[name].settings, case["settings"]
    published = published_values(kind, given, "base-to-novel", case.get("dataset", ""), 16)
    settings = kind(**{**published.settings, **given})
    method = build_method(name, clip, torch.Generator().manual_seed(0), settings=settings)
    if isinstance(method, HasTeacher):
        method.set_teacher(teacher_of(case))
    method.set_classes(CLASSES, [case.get("template", TEMPLATE)])
    if isinstance(method, UsesAllImages):
        method.before_training(all_images(method))
    kept = 1.0 if references()[name].get("shifted") else 0.0
    with torch.no_grad():
        for key, parameter in method.named_parameters() if drawn else ():
            parameter.mul_(kept).add_(draw(key, *parameter.shape, std=0.1, seed=seed))
    return method


def of_any_layer(name: str) -> str:
    """A parameter's name as public/METHOD.json has it: {} for the number of a tower's layer."""
    return re.sub(r"\bblocks\.\d+", "blocks.{}", name)


def compared(reference: dict[str, Any], value: Tensor) -> Tensor:
    """What is stored and compared of a parameter: all of it, or every n-th value of a matrix."""
    return value.flatten()[:: reference["every"]] if "every" in reference and value.ndim > 1 else value


def teacher_of(case: dict[str, Any]) -> Method:
    """The teacher of a case on our side, with drawn parameters, on a small CLIP of its own."""
    taught = METHODS[case["method"]].teacher
    above = {"method": taught, "settings": case["teacher"]}
    return method_of(above, small_openai_clip(1, TEACHER_EMBED), 1)


def unscaled(loss: Tensor) -> Tensor:
    """What a method's ``backward`` is given, but in 16-mixed."""
    return loss


def optimizer_of(case: dict[str, Any], parameters: Any) -> torch.optim.Optimizer:
    """As Dassl builds it, with the published kind and a rate that moves parameters in five steps."""
    if case["optimizer"] == "sgd":
        return torch.optim.SGD(parameters, lr=case["lr"], momentum=0.9, weight_decay=5e-4)
    kind = torch.optim.Adam if case["optimizer"] == "adam" else torch.optim.AdamW
    return kind(parameters, lr=case["lr"], weight_decay=5e-4)
