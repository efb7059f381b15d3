"""A training step of ours against the authors' own code for the same method, on a CPU.

    python benchmarks/against_official.py FOLDER --out benchmarks/results/against_official.json

FOLDER holds checkouts of their repositories, as `git clone` names them; what is missing is said, with the
commands that bring it. Nothing of them is in this repository. Their code is run as tests/parity runs it
(`make_public.trainer_of`): in float32, without Dassl.

Both sides take whole steps (forward, backward, optimizer) from the same weights (ViT-B/16, random), prompts,
images and first values, theirs without what they do at the end of an epoch. First the losses of two steps are
compared, of which the second depends on the gradients of the first: in float32 they must agree. Then steps
are timed in turn: medians of wall and of CPU seconds. Peak memory is that of a step in a process of its own.
DeAR has no official code: it is set against MMRL++'s, at batch 16, and its losses are not compared.
"""

import argparse
import gc
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import measure
import open_clip
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for tools.parity, wherever this is run

from dear.backbone.clip import Clip  # noqa: E402
from dear.backbone.device import mixed, precision_for  # noqa: E402
from dear.backbone.loading.convert import to_clip  # noqa: E402
from dear.backbone.loading.open_clip_format import build, build_random  # noqa: E402
from dear.backbone.preprocess import Preprocess  # noqa: E402
from dear.evaluation.protocols.base_to_novel import BaseToNovel  # noqa: E402
from dear.evaluation.resolve import MethodSetup, resolve  # noqa: E402
from dear.methods.base import Method  # noqa: E402
from dear.methods.optional import step_hooks  # noqa: E402
from dear.methods.registry import METHODS, build_method  # noqa: E402
from dear.training.seeding import generator  # noqa: E402
from tools.parity import small  # noqa: E402
from tools.parity.make_public import loss_of, trainer_of  # noqa: E402

Step = Callable[[], float]

MODEL = "ViT-B-16-quickgelu"
DATASET, TEMPLATE = "ImageNet", measure.TEMPLATE
EXACT, OFFICIAL = "32-true", "official"
AGREE, COMPARED = 1e-5, 2
METHODS_BY_DEFAULT = ("coop", "maple", "promptsrc", "mmrl", "mmrl++", "dear")
FURTHER = ("cocoop", "prograd", "tcp")
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


def case_of(method: str) -> dict[str, Any]:
    """What is run of a method, as in tests/parity, with the published settings and optimizer."""
    more = OF_SIZE.get(method, {})
    resolved = resolve(BaseToNovel(), MethodSetup(method, more.get("settings", {})), DATASET, 16)
    settings, training = resolved.method, resolved.training
    facts = {"method": method, "settings": asdict(settings), "dataset": DATASET, "template": TEMPLATE}
    return {**more, **facts, "optimizer": training.optimizer, "lr": training.lr}


def find(folder: Path, method: str) -> Path:
    """The folder with the method's official code, among the checkouts in ``folder``; SystemExit says what is
    to be checked out.
    """
    reference = small.references()[method]
    checkout = folder / reference["repository"].rsplit("/", 1)[1]
    module = reference["trainer"].split(":")[0].replace(".", "/") + ".py"
    for code in (checkout, *sorted(checkout.glob("*/"))):
        if (code / module).is_file():
            return code
    raise SystemExit(
        f"{folder} lacks the official code of {method}: git clone {reference['repository']} {checkout} && "
        f"git -C {checkout} checkout {reference['commit']}"
    )


class Sides:
    """One method's inputs, and its step by each kind; ``theirs`` names the official code, another method's
    for DeAR.
    """

    def __init__(self, options: argparse.Namespace, method: str, weights: Path) -> None:
        self.options, self.method, self.theirs = options, method, STAND_INS.get(method, method)
        self.weights, batch = weights, BATCHES.get(method, options.batch)
        self.pixels = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        self.names = measure.class_names(options.classes)
        self.labels = torch.arange(batch) % len(self.names)

    def clip(self) -> Clip:
        """Ours, of the weights in the file; images are taken as they are."""
        with torch.device("meta"):
            network = build(MODEL)
        network.load_state_dict(torch.load(self.weights), assign=True)
        facts = {"pretrained": "random:0", "preprocess": Preprocess(224, (0.0,) * 3, (1.0,) * 3)}
        return to_clip(network.eval(), open_clip.get_tokenizer(MODEL), name=MODEL, **facts)

    def ours(self, clip: Clip, name: str) -> Method:
        """Our method with its first values."""
        if name in STAND_INS:
            return measure.dear_on(clip, self.names)
        settings = METHODS[name].settings(**case_of(name)["settings"])
        method = build_method(name, clip, torch.Generator().manual_seed(0), settings=settings)
        method.set_classes(self.names, [TEMPLATE])
        return method

    def official(self) -> Step:
        """A step of the authors' code, from our first values."""
        reference = small.references()[self.theirs]
        ours = self.ours(self.clip(), self.theirs)
        start = {name: value.detach().clone() for name, value in ours.named_parameters()}
        del ours
        gc.collect()
        sys.path.insert(0, str(find(self.options.folder, self.theirs)))
        case = case_of(self.theirs)
        with redirect_stdout(sys.stderr):
            trainer, _ = trainer_of(reference, case, self.weights, start, classes=self.names, size=224)
        trainer.model.train()
        trainer.num_batches = 10**9  # what they do at the end of an epoch is no part of a step
        batch = {"img": self.pixels, "label": self.labels}
        return lambda: loss_of(trainer.forward_backward(batch), reference.get("loss", "loss"))

    def our_step(self, clip: Clip, precision: str) -> Step:
        """A step of ours as the training loop makes it."""
        method = self.ours(clip, self.method)
        optimizer = small.optimizer_of(case_of(self.theirs), method.trainable)
        hooks = step_hooks(method)
        method.train()

        def step() -> float:
            with mixed(clip.image.projection.device, precision):
                trunk = method.image_trunk(self.pixels)
                hooks.before_step(generator(1, "step", 0, 0))
                parts = method.loss(trunk, self.labels)
            value = float(parts["loss"].detach())
            optimizer.zero_grad()
            hooks.backward(parts, lambda loss: loss)
            optimizer.step()
            hooks.after_step(0.5)
            return value

        return step

    def steps(self, kind: str | None = None) -> dict[str, Step]:
        """A step of each kind, or of one: theirs; ours in float32; in the precision asked for, if that is
        another.
        """
        if kind == OFFICIAL:
            return {OFFICIAL: self.official()}
        found: dict[str, Step] = {} if kind else {OFFICIAL: self.official()}
        clip = self.clip()
        asked = precision_for(clip, self.options.precision)
        for precision in dict.fromkeys((EXACT, asked)):
            if kind in (None, name := f"ours, {precision}"):
                found[name] = self.our_step(clip, precision)
        return found


def measure_steps(sides: Sides, repeats: int) -> list[dict[str, Any]]:
    """A row for each kind, without memory. SystemExit if the losses in float32 differ."""
    steps = sides.steps()
    losses = {kind: [step() for _ in range(COMPARED)] for kind, step in steps.items()}  # warms them up, too
    theirs = torch.tensor(losses[OFFICIAL], dtype=torch.float64)
    gaps = {kind: float((theirs.new_tensor(ours) / theirs - 1).abs().max()) for kind, ours in losses.items()}
    if sides.method == sides.theirs and gaps[f"ours, {EXACT}"] > AGREE:
        raise SystemExit(f"{sides.method}: losses differ from the official code's: {json.dumps(losses)}")
    timings = measure.time_in_turn(steps, repeats)
    return [
        {
            "method": sides.method,
            "batch": len(sides.pixels),
            "code": f"{sides.theirs}'s own" if kind == OFFICIAL else kind,
            "seconds": timing.seconds,
            "CPU s": timing.cpu_seconds,
            "times official": timings[OFFICIAL].seconds / timing.seconds,
            "loss differs by": gaps[kind] if kind != OFFICIAL and sides.method == sides.theirs else None,
            "all seconds": timing.all_seconds,
            "kind": kind,
        }
        for kind, timing in timings.items()
    ]


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of all methods, each in a process of its own, as their codes share names of modules."""
    for method in options.methods:
        find(options.folder, STAND_INS.get(method, method))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        weights = Path(scratch) / "weights.pt"  # in OpenAI's format
        torch.save(build_random(MODEL, 0).state_dict(), weights)

        def in_child(method: str, *more: str) -> Any:
            print("against_official:", method, *more[1:], file=sys.stderr, flush=True)
            words = [options.folder, "--only", method, "--weights", weights, *more]
            for name in ("batch", "classes", "repeats", "threads", "precision"):
                words += [f"--{name}", getattr(options, name)]
            return measure.in_child(words)

        for method in options.methods:
            for row in in_child(method):
                rows.append(row | in_child(method, "--kind", row.pop("kind")))
    return rows


def main() -> None:
    parser = measure.make_parser(__doc__)
    parser.set_defaults(model=MODEL)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the official repositories are")
    choices = (*METHODS_BY_DEFAULT, *FURTHER)
    parser.add_argument("--methods", nargs="+", choices=choices, default=[*METHODS_BY_DEFAULT])
    parser.add_argument("--batch", type=int, default=4, help="images a step, but DeAR's 16")
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--precision", default="auto", help="of ours, beside 32-true; see --train.precision")
    for hidden in ("--only", "--kind", "--weights"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = measure.parse(parser)
    if not options.only:
        measure.show(options, run(options), ["model", "classes", "repeats"])
        return
    sides = Sides(options, options.only, Path(options.weights))
    if options.kind:
        print(json.dumps(measure.step_memory(sides.steps(options.kind)[options.kind], "cpu")))
    else:
        print(json.dumps(measure_steps(sides, options.repeats)))


if __name__ == "__main__":
    main()
