"""LP++, CLAP and ProLIP: what they train is what their authors' code trains, in float64."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dear.methods.base import Method, TrainingImages
from dear.methods.registry import METHODS, build_method
from tools.parity import small
from tools.parity.make_probes import CASES, FIRST_BIAS

RUNS = [(method, case) for method, cases in CASES.items() for case in cases]


def untrained(name: str, settings: dict[str, Any]) -> Method:
    clip = small.small_openai_clip().double()
    given = METHODS[name].settings(**settings)
    method = build_method(name, clip, torch.Generator().manual_seed(0), settings=given)
    method.set_classes(small.CLASSES, [small.TEMPLATE])
    if name == "lp++":
        method.first_bias = FIRST_BIAS.clone()  # type: ignore[assignment]
    return method


def views_of(method: Method) -> TrainingImages:
    def view(number: int | None) -> torch.Tensor:
        return method.image_trunk(small.images(number or 0).flatten(0, 1).double())

    return TrainingImages(small.LABELS.flatten(), view)


@pytest.mark.parametrize(("name", "case"), RUNS)
def test_same_parameters_as_the_public_code(name: str, case: str) -> None:
    stored = load_file(small.FOLDER / f"{name}.safetensors")
    method = untrained(name, CASES[name][case])
    start = {key: value.detach().clone() for key, value in method.named_parameters()}
    method.before_training(views_of(method))
    for key, value in method.named_parameters():
        expected = stored[f"{case}/{key}"]
        moved = float((expected - start[key]).abs().max())
        assert moved > 1e-5, f"{key} hardly moved: the comparison would show nothing"
        torch.testing.assert_close(value.detach(), expected, rtol=0, atol=1e-7 * moved)


@pytest.mark.parametrize("name", CASES)
def test_training_again_gives_the_same(name: str) -> None:
    method = untrained(name, [*CASES[name].values()][-1])
    method.before_training(views_of(method))
    first = {key: value.detach().clone() for key, value in method.named_parameters()}
    method.before_training(views_of(method))
    assert all(torch.equal(value, first[key]) for key, value in method.named_parameters())
