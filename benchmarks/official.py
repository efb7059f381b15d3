"""The two sides of `against_official.py`: a training step of the authors' own code, and ours of the same
method, on the same weights, prompts, images and first values.

Their code is run as tests/parity runs it (`make_public.trainer_of`): in float32 on the CPU, without Dassl,
and here on ViT-B/16 of random weights. Nothing of it is in this repository: the user checks it out.
"""

import argparse
import gc
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import measure
import open_clip
import torch
from torch import Tensor

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for tests.parity, wherever this is run

from dear.backbone.clip import Clip  # noqa: E402
from dear.backbone.load import build, build_random  # noqa: E402
from dear.backbone.precision import mixed, precision_for  # noqa: E402
from dear.backbone.preprocess import Preprocess  # noqa: E402
from dear.backbone.whole import image_side  # noqa: E402
from dear.methods.base import Method  # noqa: E402
from dear.methods.registry import METHODS, build_method  # noqa: E402
from dear.training.seeding import generator  # noqa: E402
from dear.training.settings import TrainSettings  # noqa: E402
from dear.training.trunks import ViewCache, ViewFingerprint  # noqa: E402
from tests.parity import small  # noqa: E402
from tests.parity.make_public import edited, loss_of, trainer_of  # noqa: E402

Step = Callable[[], float]

MODEL = "ViT-B-16-quickgelu"
NAMES = ROOT / "src/dear/data/sources/classnames/ImageNet.txt"
DATASET, TEMPLATE = "ImageNet", "a photo of a {}."
EXACT = "32-true"
OFFICIAL = "official"
STAND_INS = {"dear": "mmrl++"}
"""Methods without official code, and the one that theirs is compared with: its losses are others."""
BATCHES = {"dear": 16}
"""Batch sizes that do not follow --batch: DeAR trains with 16."""

# What tests/parity/public/METHOD.json cannot say, since it is of the small CLIP. PromptSRC's teacher of 60
# templates is computed once, before any step: one template is enough here.
OF_SIZE: dict[str, dict[str, Any]] = {
    "mmrl": {"constants": {"REP_LAYERS": [*range(6, 13)]}},
    "mmrl++": {"constants": {"REP_LAYERS": [*range(6, 13)]}},
    "promptsrc": {"settings": {"teacher": "dataset"}, "module": {"IMAGENET_TEMPLATES": [TEMPLATE]}},
}


def case_of(method: str, *, tiny: bool) -> dict[str, Any]:
    """What is run of a method, as in tests/parity: settings and optimizer, here the published ones."""
    if tiny:
        return next(case for case in small.cases() if case["method"] == method)
    more = OF_SIZE.get(method, {})
    settings = METHODS[method].settings(**more.get("settings", {})).for_data(DATASET)
    training = TrainSettings(**settings.training)
    return {
        **more,
        **{"method": method, "settings": asdict(settings), "dataset": DATASET, "template": TEMPLATE},
        **{"optimizer": training.optimizer, "lr": training.lr},
    }


def find(folder: Path, method: str) -> Path:
    """The folder with the method's official code, among the checkouts in ``folder``; SystemExit says what is
    to be checked out.
    """
    reference = small.references()[method]
    name, commit = reference["repository"].rsplit("/", 1)[1], reference["commit"]
    module = reference["trainer"].split(":")[0].replace(".", "/") + ".py"
    place = folder / name
    advice = f"git clone {reference['repository']} {place} && git -C {place} checkout {commit}"
    if not place.is_dir():
        raise SystemExit(f"{folder} has no {name}, the official code of {method}: {advice}")
    if (place / ".git").exists():
        asked = ["git", "-C", str(place), "rev-parse", "HEAD"]
        head = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout
        if not head.startswith(commit):
            raise SystemExit(f"{place} is at {head[:7]}, not at {commit}: git -C {place} checkout {commit}")
    for code in (place, *sorted(place.iterdir())):
        if (code / module).is_file():
            return code
    raise SystemExit(f"{place} has no {module}, the official code of {method}: remove it, then {advice}")


class Sides:
    """One method's inputs, and its step by each kind.

    Attributes:
        method: The method's name; ``theirs`` is that of the official code, another one for DeAR.
    """

    def __init__(self, options: argparse.Namespace, method: str, weights: Path) -> None:
        self.options, self.method, self.theirs = options, method, STAND_INS.get(method, method)
        self.weights, self.tiny = weights, options.tiny
        batch = BATCHES.get(method, options.batch)
        size = small.IMAGE if self.tiny else 224
        draw = torch.Generator().manual_seed(0)
        self.pixels = torch.randn(batch, 3, size, size, generator=draw)
        names = NAMES.read_text(encoding="utf-8").splitlines()[: options.classes]
        self.names: list[str] = small.CLASSES if self.tiny else names
        self.labels = torch.arange(batch) % len(self.names)

    def clip(self) -> Clip:
        """Ours, of the weights in the file; images are taken as they are."""
        if self.tiny:
            return small.small_openai_clip()
        with torch.device("meta"):
            network = build(MODEL)
        network.load_state_dict(torch.load(self.weights), assign=True)
        zero, one = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        tokenizer = open_clip.get_tokenizer(MODEL)
        return Clip(
            network.eval(),
            tokenizer,
            name=MODEL,
            pretrained="random:0",
            preprocess=Preprocess(image_side(network.visual), zero, one),
        )

    def ours(self, clip: Clip, name: str) -> Method:
        """Our method with its first values."""
        if name in STAND_INS:
            return measure.dear_on(clip, self.names, TEMPLATE)
        case = case_of(name, tiny=self.tiny)
        if self.tiny:
            return small.method_of(case, clip)
        settings = METHODS[name].settings(**case["settings"])
        method = build_method(name, clip, torch.Generator().manual_seed(0), settings=settings)
        method.set_classes(self.names, [TEMPLATE])
        return method

    def official(self, scratch: Path) -> Step:
        """A step of the authors' code, from our first values."""
        case = case_of(self.theirs, tiny=self.tiny)
        reference = small.references()[self.theirs]
        start = dict(self.ours(self.clip(), self.theirs).named_parameters())
        start = {name: value.detach().clone() for name, value in start.items()}
        gc.collect()
        code = find(self.options.folder, self.theirs)
        if self.tiny and "edits" in reference:
            code = Path(edited(str(code), reference["edits"], scratch))
        sys.path.insert(0, str(code))
        with redirect_stdout(sys.stderr):
            trainer, _ = trainer_of(
                reference, case, self.weights, start, classes=self.names, size=self.pixels.shape[-1]
            )
        trainer.model.train()
        trainer.num_batches = 10**9  # what they do at the end of an epoch is no part of a step
        batch = {"img": self.pixels, "label": self.labels}
        loss = reference.get("loss", "loss")

        def step() -> float:
            return loss_of(trainer.forward_backward(batch), loss)

        return step

    def our_step(self, clip: Clip, precision: str, views: ViewCache | None = None) -> Step | None:
        """A step of ours as the training loop makes it; with ``views`` from what is cached there, and None
        for a method whose images enter at the first layer and have no teacher: it gains nothing.
        """
        method = self.ours(clip, self.method)
        if views is not None and method.image_from == 1 and not method.uses_frozen_image:
            return None
        like, items = clip.image.projection, [*range(len(self.pixels))]
        optimizer = small.optimizer_of(case_of(self.theirs, tiny=self.tiny), method.trainable)
        if views is not None:
            views.begin(ViewFingerprint("", "", 0, clip.image_size, precision, ""), method.image_from)
            with torch.no_grad(), mixed(like.device, precision):
                kept = views.put(0, items, method.image_trunk(self.pixels))
                views.put_frozen(0, items, method.frozen_image(kept))
        method.train()

        def images() -> tuple[Tensor, Tensor | None]:
            if views is None:
                return method.image_trunk(self.pixels), None
            found, frozen = views.get(0, items), views.frozen(0, items)
            assert found is not None
            return found[1].to(like), frozen

        def run(loss: Tensor) -> None:
            loss.backward(retain_graph=method.several_backwards)

        def step() -> float:
            with mixed(like.device, precision):
                trunk, frozen = images()
                method.before_step(generator(1, "step", 0, 0))
                parts = method.loss(trunk, self.labels, frozen if method.uses_frozen_image else None)
            value = float(parts["loss"].detach())
            optimizer.zero_grad()
            method.backward(parts, run)
            optimizer.step()
            method.after_step(0.5)
            return value

        return step

    def steps(self, scratch: Path, kind: str | None = None) -> dict[str, Step]:
        """A step of each kind, or of one: theirs; ours in float32; in the precision asked for, if that is
        another; and in it from cached views.
        """
        found: dict[str, Step | None] = {}
        if kind in (None, OFFICIAL):
            found[OFFICIAL] = self.official(scratch)
        if kind != OFFICIAL:
            clip = self.clip()
            asked = precision_for(clip, self.options.precision)
            for precision in dict.fromkeys((EXACT, asked)):
                name = f"ours, {precision}"
                if kind in (None, name):
                    found[name] = self.our_step(clip, precision)
            name = f"ours, {asked}, cached views"
            if kind in (None, name):
                found[name] = self.our_step(clip, asked, ViewCache(scratch, 2**34))
        return {name: step for name, step in found.items() if step is not None}


def write_weights(path: Path, *, tiny: bool) -> None:
    """The weights that both sides load, in OpenAI's format."""
    torch.save(small.openai_state() if tiny else build_random(MODEL, 0).state_dict(), path)
