"""Each method computes what its authors' code computes: scores, losses, and parameters after five steps.

The references were made by `tools/parity/make_public.py` from the repository that public/METHOD.json names.
"""

from functools import partial
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dear.backbone.clip import Clip
from dear.methods.optional import step_hooks
from tools.parity import small


@pytest.fixture(scope="module")
def clip() -> Clip:
    return small.small_openai_clip()


@pytest.mark.parametrize("case", small.cases(), ids=lambda case: case["name"])
def test_same_scores_losses_and_parameters_as_the_public_code(case: dict[str, Any], clip: Clip) -> None:
    stored, of_case = load_file(small.FOLDER / f"{case['method']}.safetensors"), f"{case['name']}/"
    want = {key.removeprefix(of_case): value for key, value in stored.items() if key.startswith(of_case)}
    fresh = dict(small.method_of(case, clip, drawn=False).named_parameters())
    for key in (key.removeprefix("start.") for key in want if key.startswith("start.")):
        torch.testing.assert_close(fresh[key].detach(), want[f"start.{key}"], rtol=0, atol=1e-5)
    method, images = small.method_of(case, clip), small.images()
    for key in (key for key in want if key.startswith("drawn.")):
        setattr(method, key.removeprefix("drawn."), want[key])
    part = partial(small.compared, small.references()[case["method"]])
    start = {key: part(value.detach()).clone() for key, value in method.named_parameters()}
    with torch.no_grad():
        features, text = method.image_features(method.image_trunk(images[0])), method.text_features()
        got = method.logits(features, text)
        decoupled = method.logits(features, text, decoupled=True)
    torch.testing.assert_close(got, want["logits"], rtol=0, atol=1e-4 * float(got.abs().max()))
    if "decoupled" in want:
        torch.testing.assert_close(decoupled, want["decoupled"], rtol=0, atol=1e-4 * float(got.abs().max()))

    optimizer, losses, hooks = small.optimizer_of(case, method.trainable), [], step_hooks(method)
    method.train()
    for step, (image, label) in enumerate(zip(images, small.LABELS, strict=True), start=1):
        parts = small.loss(method, image, label)
        optimizer.zero_grad()
        hooks.backward(parts, small.unscaled)
        optimizer.step()
        hooks.after_step(step / small.STEPS)
        hooks.after_epoch(step, small.STEPS)
        losses.append(float(parts["loss"].detach()))
    torch.testing.assert_close(torch.tensor(losses), want["losses"], rtol=1e-4, atol=1e-4)
    if "tested" in want:  # after the steps, by statistics of the images in them
        with torch.no_grad():
            tested = method.eval().logits(method.image_features(method.image_trunk(images[0])), text)
        torch.testing.assert_close(tested, want["tested"], rtol=0, atol=1e-3 * float(tested.abs().max()))
    after = {key.removeprefix("after."): value for key, value in want.items() if key.startswith("after.")}
    assert set(after) == set(start)
    for key, parameter in method.named_parameters():
        moved = (after[key] - start[key]).abs().max()
        assert moved > 1e-3, f"{key} hardly moved: the comparison would show nothing"
        gap = (part(parameter.detach()) - after[key]).abs().max()
        assert gap < 1e-3, key
        assert gap < 1e-2 * moved, key
