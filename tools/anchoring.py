"""How far anchored attribute tokens are the raw ones: `python -m tools.anchoring --task mixed-paints`.

DeAR is trained with its defaults, but for the tokens' initial scale, and applied to training images of the
task. For each later layer: the cosine of its anchored attribute tokens with the raw ones, mean over images
and tokens. Then the root mean squares of the raw tokens, and of the class token and patches entering layer J.
"""

import argparse
from dataclasses import replace

import torch
from torch.nn.functional import cosine_similarity

from dear.backbone.injection import Injection
from dear.backbone.load import load_clip
from dear.data.images.transforms import eval_views
from dear.data.loading import load_dataset
from dear.evaluation.plan import Plan
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.run_context import RunContext
from dear.evaluation.trial import Trial
from dear.methods.dear import DearSettings
from dear.methods.dear.method import Dear
from dear.roles.packaged import role_table
from tools import end_with


def measure(task: str, token_std: float) -> tuple[list[float], float, float]:
    """The cosine for each layer after J, the RMS of the raw tokens, and that of the original tokens."""
    clip = load_clip("tiny")
    context = RunContext(clip, role_table(clip))
    plan = Plan("dear", settings=replace(DearSettings(), token_std=token_std))
    dataset = load_dataset(task)
    trial = Trial(context, context.resolve(BaseToNovel(), [dataset], plan, seed=1))
    trial.train(BaseToNovel().training_classes(len(dataset.classnames)))
    method = trial.method
    assert isinstance(method, Dear)
    raw, cosines = method.attribute_tokens.detach(), list[float]()
    images = dataset.train.load(torch.arange(0, len(dataset.train), 16))
    with torch.no_grad():
        trunk = method.image_trunk(eval_views(images, clip.preprocess))
        x = trunk
        injection = Injection(method.attribute_tokens, method.beta)
        for step, layer in enumerate(range(method.image_from, clip.image.depth + 1)):
            x = injection.enter(x) if step == 0 else injection.anchor(x, step)
            if step:
                cosines.append(float(cosine_similarity(x[:, -len(raw) :], raw, dim=-1).mean()))
            x = clip.image.layers(x, layer, layer, bias=method.mask[step])
    return cosines, float(raw.square().mean().sqrt()), float(trunk.square().mean().sqrt())


def main() -> None:
    """Print a line for each initial scale."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="mixed-paints")
    parser.add_argument("--token-std", type=float, nargs="+", default=[0.02, 0.2])
    options = parser.parse_args()
    for token_std in options.token_std:
        cosines, raw, original = measure(options.task, token_std)
        shown = ", ".join(f"{cosine:.2f}" for cosine in cosines)
        print(
            f"token_std {token_std}: cosines {shown}; RMS {raw:.3f} of raw tokens, {original:.2f} of others"
        )


if __name__ == "__main__":
    end_with(main)
