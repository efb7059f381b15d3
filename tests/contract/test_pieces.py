"""Prompts of many classes: whatever the method, few of them are in memory at once, and one long name does not
pad the others.
"""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dear.backbone import text as text_tower
from dear.backbone.clip import Clip
from dear.errors import SettingsError
from dear.methods import base
from dear.methods.cocoop import CoCoOpSettings
from dear.methods.coop import CoOpSettings
from dear.methods.declaration import MethodSettings
from dear.methods.mmrl import MmrlSettings
from dear.methods.mmrlpp import MmrlPlusSettings
from dear.methods.optional import HasTeacher
from dear.methods.registry import METHODS, build_method
from tests.helpers.data import CLASSES
from tests.helpers.methods import OTHERS, SETTINGS, TEMPLATE, MakeClip, images, make, role_table, seeded

WORDS = ("red", "green", "blue", "circle", "tree", "sea")
MANY = ["red circle on the sea", *(f"{one} {other}" for one, other in product(WORDS, WORDS)), *WORDS]
ALIKE = ["red circle on the sea", *(f"red {one} {other}" for one, other in product(WORDS, WORDS))]
"""They begin with the same word, which may be before a learned context."""
SMALL = SETTINGS | {
    "mmrl": MmrlSettings(space=7), "mmrl++": MmrlPlusSettings(space=7),
    "cocoop": CoCoOpSettings(tokens=3, words="", reduction=4),
}  # fmt: skip
CASES: list[tuple[str, MethodSettings | None, list[str]]] = [
    *((name, SMALL.get(name), MANY) for name in METHODS),
    *((name, SMALL.get(name), ALIKE) for name in ("maple", "tcp", "dear")),
    ("coop", CoOpSettings(tokens=3, words="", class_specific=True), MANY),
]


class Largest(TorchDispatchMode):
    """Notes the most values of a tensor that an operator made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = operator(*args, **(kwargs or {}))
        for result in output if isinstance(output, list | tuple) else [output]:
            if isinstance(result, Tensor):
                size = result.untyped_storage().nbytes() // result.element_size()
                self.values = max(self.values, size)
        return output


def few_at_once(monkeypatch: pytest.MonkeyPatch, clip: Clip, prompts: int) -> int:
    """Allow few prompts at once; returns the values of the widest layer for them."""
    values = prompts * clip.text.context_length * clip.text.widest
    monkeypatch.setattr(text_tower, "MAX_HIDDEN_VALUES", values)
    monkeypatch.setattr(base, "MAX_STORED_VALUES", 0)
    return values


@pytest.mark.parametrize(("name", "settings", "names"), CASES)
@torch.no_grad()
def test_few_prompts_are_in_memory(
    name: str, settings: MethodSettings | None, names: list[str], make_small_clip: MakeClip,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    clip = make_small_clip(dtype=torch.float64)
    method = build_method(name, clip, seeded(1), roles=role_table(clip), settings=settings)
    if isinstance(method, HasTeacher):
        method.set_teacher(make(METHODS[name].teacher or "", clip))
    for values in method.parameters():
        values.add_(torch.randn(values.shape, generator=seeded(5), dtype=values.dtype) / 10)
    method.set_classes(names, TEMPLATE)
    image = method.image_features(method.read_out(method.image_trunk(images(torch.float64))))
    frozen, text = method.frozen_text, method.text_features()
    scores = method.logits(image, text)
    allowed = few_at_once(monkeypatch, clip, 2)
    assert allowed < 3 * len(names) * clip.text.width  # that of all prompts would be seen
    with Largest() as largest:
        method.set_classes(names, TEMPLATE)
        in_pieces = method.text_features()
        again = method.logits(image, in_pieces)
    assert largest.values <= allowed
    for got, wanted in ((method.frozen_text, frozen), (in_pieces, text), (again, scores)):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_class_names_that_do_not_fit(name: str, small_clip: Clip) -> None:
    """The small CLIP reads 11 words: the name that is cut is told, and two that become equal are refused."""
    green = " ".join(["green"] * 12)
    with pytest.warns(UserWarning, match=f"class names cut, since .* 11 tokens: '{green} tree'"):
        method = make(name, small_clip, classes=["house", f"{green} tree", "sea"])
    with torch.no_grad():
        assert method.text_features().isfinite().all()
    with pytest.raises(SettingsError, match=f"same for '{green} tree' and '{green} sea'"):
        make(name, small_clip, classes=[f"{green} tree", "house", f"{green} sea"])


@pytest.mark.parametrize(("name", "parameter"), [("gda", "weight"), ("dear+", "means")])
def test_scores_are_of_the_classes_that_are_set(name: str, parameter: str, small_clip: Clip) -> None:
    """These two score with more than text features: that of other classes is refused, and of these need not
    be asked for anew.
    """
    method = make(name, small_clip)
    with torch.no_grad():
        getattr(method, parameter).copy_(torch.randn(getattr(method, parameter).shape, generator=seeded(3)))
        image = method.image_features(
            method.read_out(method.image_trunk(torch.rand(2, 3, 20, 20, generator=seeded(2))))
        )
        text = method.frozen_text
        scores = method.logits(image, text)
        torch.testing.assert_close(method.logits(image, method.text_features()), scores, rtol=0, atol=0)
        method.set_classes(OTHERS[:3], TEMPLATE)
        with pytest.raises(SettingsError, match="these text features are of others"):
            method.logits(image, text)
        others = method.logits(image, method.frozen_text)
        assert (others - method.scale * image[0] @ method.frozen_text.T).abs().max() < 1e-3  # no evidence
        method.set_classes(CLASSES, TEMPLATE)
        torch.testing.assert_close(method.logits(image, method.frozen_text), scores, rtol=0, atol=0)
        assert (scores - method.scale * image[0] @ text.T).abs().max() > 0.01
