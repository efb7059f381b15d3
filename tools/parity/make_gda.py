"""Run the Gaussian discriminant's public code on the small CLIP and store what it computes.

    python -m tools.parity.make_gda CHECKOUT

CHECKOUT is github.com/mrflogs/ICLR24 at 0560fe2 (no license stated). Its two scripts are run as they are, in
float32 on the CPU, but for the dimension of ViT-B/16 (512), which they have written out. They keep only
accuracies, so the scores are taken where these are computed.
"""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tools.parity import small
from tools.parity.make_public import Passes, without_dassl

NEW = ["blue whale", "steam train", "violin"]
VIEWS = 5


def script(checkout: Path, name: str) -> dict[str, Any]:
    """The globals of a script, with our dimension in the place of theirs."""
    source = (checkout / f"{name}.py").read_text().replace("512", str(small.EMBED))
    code: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), code)
    return code


def main(checkout: str) -> None:
    sys.path.insert(0, checkout)
    without_dassl(None, object)
    for name in ("datasets", "datasets.imagenet", "datasets.utils", "clip", "clip.simple_tokenizer"):
        parts = dict.fromkeys(("build_dataset", "build_data_loader", "ImageNet"))
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__dict__.update(parts, _Tokenizer=object, SimpleTokenizer=object)
    ours = small.small_openai_clip()
    model = SimpleNamespace(encode_image=lambda images: ours.image(ours.normalize_pixels(images)))
    text = {names[0]: _text(ours, names) for names in (small.CLASSES, NEW)}
    tested = torch.nn.functional.normalize(model.encode_image(small.images(7).flatten(0, 1)), dim=-1)
    stored: dict[str, Tensor] = {}
    for name, parts in (("main_base2new", ("base", "new")), ("main_few_shots", ("all",))):
        code, scores = script(Path(checkout), name), list[Tensor]()

        def accuracy(logits: Tensor, _labels: Tensor, scores: list[Tensor] = scores) -> float:
            """Best for the fifth of the seven values of alpha that are searched, 1."""
            scores.append(logits)
            return float(len(scores) == 5)

        code["cls_acc"] = accuracy
        labels = small.LABELS.flatten()
        for split in ("val", "test", "test_new"):
            features, _, suffix = split.partition("_")
            code[f"{features}_features{'_' + suffix if suffix else ''}"] = tested
            code[f"{features}_labels{'_' + suffix if suffix else ''}"] = labels
        extra = [text[NEW[0]].T] if len(parts) == 2 else []
        config = {"augment_epoch": VIEWS, "seed": 1}
        code["run"](config, Passes(), text[small.CLASSES[0]].T, *extra, model)
        stored |= {f"{name}/{part}": logits for part, logits in zip(parts, scores[7:], strict=True)}
    save_file(
        {key: one.contiguous().clone() for key, one in stored.items()}, small.FOLDER / "gda.safetensors"
    )


@torch.no_grad()
def _text(clip: Any, names: list[str]) -> Tensor:
    """Unit text features of classes."""
    from dear.methods.registry import frozen_clip

    frozen = frozen_clip(clip)
    frozen.set_classes(names, [small.TEMPLATE])
    return frozen.text_features()


if __name__ == "__main__":
    main(*sys.argv[1:])
