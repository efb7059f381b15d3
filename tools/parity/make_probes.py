"""Run the public code of LP++, CLAP or ProLIP on the small CLIP's features and store what it trains.

    python -m tools.parity.make_probes METHOD CHECKOUT

CHECKOUT is the repository that the method's docstring names, at its commit (CLAP's is under MIT, (c) 2023
Julio Silva-Rodríguez; the others state no license). Their own training is run as it is, in float64 on the
CPU: narrower types are replaced by it, moves to a GPU are switched off, and Dassl, which CLAP needs for its
loop, is replaced by what its loop calls. Nothing of the repositories is in this file.
"""

import math
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dear.methods.registry import frozen_clip
from tools.parity import small
from tools.parity.make_public import without_dassl

CASES: dict[str, dict[str, dict[str, Any]]] = {
    "lp++": {"published": {"iterations": 300}, "few steps": {"iterations": 25}},
    "clap": {
        "published": {"epochs": 40},
        "batches": {"epochs": 30, "batch": 4, "views": 3, "lr": 0.03},
        "unconstrained": {"epochs": 30, "batch": 4, "views": 3, "lr": 0.03, "constraint": "none"},
    },
    "prolip": {
        "published": {"epochs": 30, "views": 30},
        "few views": {"epochs": 40, "views": 7, "lr": 0.003, "reg_weight": 0.1},
    },
}
"""Our settings of what is run; the others are the published ones."""
NAMES = [name.replace("_", " ") for name in small.CLASSES]
SHOTS = small.STEPS * small.BATCH // len(small.CLASSES)
FIRST_BIAS = small.draw("bias", len(small.CLASSES), std=0.1).double()


class ViewNumber(int):
    """The number of a view, which stands for its images on any device."""

    def cuda(self) -> "ViewNumber":
        return self


class Watched(torch.optim.SGD):
    """SGD that remembers the parameters of the last optimizer made."""

    taken: list[nn.Parameter]

    def __init__(self, parameters: Any, *args: Any, **options: Any) -> None:
        Watched.taken = [*parameters]
        if Watched.taken[-1].shape == FIRST_BIAS.shape:
            Watched.taken[-1].data.copy_(FIRST_BIAS)
        super().__init__(Watched.taken, *args, **options)


class WatchedAdam(torch.optim.Adam):
    """The same for Adam."""

    def __init__(self, parameters: Any, *args: Any, **options: Any) -> None:
        Watched.taken = [*parameters]
        super().__init__(Watched.taken, *args, **options)


def package(name: str, folder: Path) -> None:
    """A package of a checkout whose own ``__init__`` is not run."""
    module = ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def in_double() -> SimpleNamespace:
    """Torch for code that names narrower types."""
    optim = SimpleNamespace(**{**vars(torch.optim), "SGD": Watched, "Adam": WatchedAdam})
    narrow = dict.fromkeys(("float16", "float32"), torch.float64)
    return SimpleNamespace(**{**vars(torch), **narrow, "optim": optim})


@torch.no_grad()
def text_weights() -> Tensor:
    """Unit text features of the classes as columns."""
    method = frozen_clip(small.small_openai_clip().double())
    method.set_classes(small.CLASSES, [small.TEMPLATE])
    return method.text_features().T


@torch.no_grad()
def before_projection(view: int) -> Tensor:
    """What the image tower's projection gets, of all images in a random view."""
    clip = small.small_openai_clip().double()
    method = frozen_clip(clip)
    trunk = method.image_trunk(small.images(view).flatten(0, 1).double())
    return clip.image.ln_final(trunk[:, 0])


def run_lpp(checkout: Path, settings: dict[str, Any]) -> dict[str, Tensor]:
    package("methods", checkout / "methods")
    code, utils = import_module("methods.linear_probe_p2"), import_module("methods.utils")
    vars(code)["torch"] = vars(utils)["torch"] = in_double()
    alphas = list[Tensor]()

    def variable(value: Tensor, **options: Any) -> Tensor:
        alphas.append(value.detach().clone().requires_grad_(**options))
        return alphas[-1]

    vars(code)["Variable"] = variable
    projection = small.small_openai_clip().double().image.projection
    model = SimpleNamespace(
        dtype=torch.float64, encode_image=lambda view: before_projection(view) @ projection
    )
    labels, never = small.LABELS.flatten(), torch.full((15,), -1)
    args = {"train_epoch": settings["iterations"], "shots": SHOTS, "dataset": "", "output_dir": ""}
    with torch.no_grad():
        tested = nn.functional.normalize(model.encode_image(0), dim=-1)
    code.LinearProbe_P2(args).forward(
        [(ViewNumber(0), labels)],
        [(ViewNumber(0), never)],
        tested,
        never,
        text_weights(),
        model,
        small.CLASSES,
    )
    weight, bias = (value.detach() for value in Watched.taken)
    return {"weight": weight, "bias": bias, "text_weights": alphas[0].detach()[0]}


def run_prolip(checkout: Path, settings: dict[str, Any]) -> dict[str, Tensor]:
    package("methods", checkout / "methods")
    code = import_module("methods.ProLIP")
    vars(code).update(torch=in_double(), cls_acc=lambda *_: 0.0)
    projection = small.small_openai_clip().double().image.projection.detach().clone()
    with tempfile.TemporaryDirectory() as folder:
        features = Path(folder) / "features_ViTB16_oxford_pets" / f"{SHOTS}_shot" / "seed1"
        features.mkdir(parents=True)
        torch.save(small.LABELS.flatten(), features / "label.pth")
        for view in range(settings["views"]):
            torch.save(before_projection(view), features / f"f{view}.pth")
        cfg = {
            "train_epoch": settings["epochs"], "aug_views": settings["views"], "backbone": "ViT-B/16",
            "dataset": "oxford_pets", "root_path": folder,
            "search_lr": False, "lr_v": settings.get("lr", 1e-5),
            "lambda_funct_1_N": "reg_weight" not in settings, "lambda_funct_1_N2": False,
            "lambda_v": settings.get("reg_weight"), "save_checkpoints": False,
        }  # fmt: skip
        model = nn.Identity()
        model.encode_image = lambda view: before_projection(view)
        labels = small.LABELS.flatten()
        extra = dict.fromkeys(
            ("test_loader_v2", "test_loader_sketch", "test_loader_a", "test_loader_r", "text_weights_a",
             "text_weights_r", "text_weights_before", "test_config_path", "val_loader", "train_loader")
        )  # fmt: skip
        code.ProLIP(cfg).forward(
            test_loader=[(ViewNumber(0), labels)], text_weights=text_weights(), model=model,
            state_dict={"visual.proj": projection}, classnames=small.CLASSES, task=1, shots=SHOTS,
            config_file="", **extra,
        )  # fmt: skip
    return {"projection": Watched.taken[0].detach()}


class Views(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The images of all steps; each pass over them gives another random view."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return small.STEPS * small.BATCH

    def __getitem__(self, item: int) -> dict[str, Tensor]:
        view, self.read = self.read // len(self), self.read + 1
        image = small.images(view).flatten(0, 1)[item]
        return {"img": image.double(), "label": small.LABELS.flatten()[item]}


class Loader:
    """What their trainer asks of Dassl's loader, which drops an incomplete batch but an only one."""

    num_workers, pin_memory = 0, False

    def __init__(self, batch: int) -> None:
        self.batch_size, self.dataset = batch, Views()
        self.sampler = torch.utils.data.SequentialSampler(self.dataset)

    def __len__(self) -> int:
        return max(1, len(self.dataset) // self.batch_size)


class Trainer:
    """The part of Dassl's trainer that theirs calls."""

    start_epoch, time_start = 0, 0.0

    def nothing(self, *_: Any, **__: Any) -> float:
        return 0.0

    set_model_mode = before_train = before_epoch = after_epoch = close_writer = write_scalar = nothing
    register_model = get_current_lr = nothing

    def parse_batch_test(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return batch["img"], batch["label"]

    def model_backward_and_update(self, loss: Tensor) -> None:
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()

    def update_lr(self) -> None:
        """Dassl's cosine, which stands still in the first epoch."""
        optim = self.cfg.OPTIM
        rate = 0.5 * optim.LR * (1 + math.cos(math.pi * self.epoch / optim.MAX_EPOCH))
        self.optim.param_groups[0]["lr"] = rate


def run_clap(checkout: Path, settings: dict[str, Any]) -> dict[str, Tensor]:
    package("datasets", checkout / "datasets")
    without_dassl(lambda model, _: Watched(model.parameters(), lr=1e-5, momentum=0.9), object)
    vars(sys.modules["dassl.engine"])["SimpleTrainer"] = Trainer
    meter = type("Meter", (), {"update": lambda *_: None, "avg": 0.0, "meters": {}})
    vars(sys.modules["dassl.utils"]).update(MetricMeter=meter, AverageMeter=meter)
    nn.Module.float = nn.Module.double  # type: ignore[method-assign]
    code = import_module("trainers.adapters")
    vars(sys.modules["clip.model"])["torch"] = in_double()
    draw = torch.Generator().manual_seed(0)

    def rand(count: int) -> numpy.ndarray:
        """Numbers whose order is that of our next draw."""
        values = numpy.empty(count)
        values[torch.randperm(count, generator=draw).numpy()] = numpy.arange(count)
        return values

    rest = {**vars(numpy), "random": SimpleNamespace(rand=rand)}
    vars(code).update(torch=in_double(), np=SimpleNamespace(**rest))
    trainer, epochs = code.ADAPTER(), settings["epochs"]
    batch, rate = settings.get("batch", 256), settings.get("lr", 0.1)
    constraint = settings.get("constraint", "l2")
    adapter = {"INIT": "ZS", "CONSTRAINT": constraint, "ENHANCED_BASE": "none", "PREC": "fp32"}
    trainer.cfg = SimpleNamespace(
        MODEL=SimpleNamespace(BACKBONE=SimpleNamespace(NAME="ViT-B/16"), INIT_WEIGHTS=""),
        DATASET=SimpleNamespace(NAME="OxfordPets"),
        OPTIM=SimpleNamespace(LR=rate, MAX_EPOCH=epochs),
        TRAINER=SimpleNamespace(ADAPTER=SimpleNamespace(**adapter)),
        TRAIN=SimpleNamespace(PRINT_FREQ=1000),
    )
    trainer.dm = SimpleNamespace(dataset=SimpleNamespace(classnames=NAMES))
    trainer.device, trainer.max_epoch = "cpu", epochs
    trainer.train_loader_x = Loader(batch)
    trainer.test_loader = [{"img": small.images()[0].double(), "label": small.LABELS[0]}]
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "small.pt"
        torch.save(small.openai_state(), weights)
        code.clip._download = lambda *_: str(weights)
        trainer.build_model()
    trainer.model.adapter.epochs_aumentation = settings.get("views", 20)
    trainer.train()
    stored = {"class_vectors": trainer.model.adapter.prototypes.detach()}
    return stored | {"multipliers": trainer.model.adapter.alpha_constraint}


RUNS = {"lp++": run_lpp, "clap": run_clap, "prolip": run_prolip}


def main(method: str, checkout: str) -> None:
    sys.path.insert(0, checkout)
    for kind in (torch.Tensor, nn.Module):
        kind.cuda = lambda self: self  # type: ignore[method-assign, assignment]
    stored = {
        f"{name}/{key}": value.contiguous().clone()
        for name, case in CASES[method].items()
        for key, value in RUNS[method](Path(checkout), case).items()
    }
    save_file(stored, small.FOLDER / f"{method}.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
