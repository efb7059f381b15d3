"""Plain values against types: what is wrong is named by its key, with what it should be."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from dear.errors import SettingsError
from dear.reading.files import ReadingError
from dear.reading.typed import Form, NonNegativeInt, Range, Share, check_fields, typed


@dataclass(frozen=True)
class Head:
    layer: Annotated[int, Range(1, 12)]
    role: Literal["core", "mixed"] = "mixed"
    share: Mapping[str, Share] = field(default_factory=dict)
    phrases: tuple[str, ...] = ()


class Told(TypedDict):
    heads: list[Head]
    place: NotRequired[tuple[float, str]]
    name: NotRequired[str | None]
    shots: NotRequired[NonNegativeInt]
    more: NotRequired[dict[str, Any]]


def test_what_fits_comes_in_its_types() -> None:
    heads = [{"layer": 12, "role": "core", "share": {"a": 1}, "phrases": ["x"]}, {"layer": 1}]
    value = {"heads": heads, "place": [3, "x"], "name": None, "shots": 0, "unheard of": [1]}
    told = typed(value, Told, "file")
    assert told["heads"] == [Head(12, "core", {"a": 1.0}, ("x",)), Head(1)]
    assert told["place"] == (3.0, "x")
    assert isinstance(told["place"][0], float)
    assert told["unheard of"] == [1]  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "it is 3: it must be keys and values"),
        ({}, "it lacks the key 'heads'"),
        ({"heads": {}}, "its heads is {}: it must be a list"),
        ({"heads": [{"layer": 0}]}, r"its heads\[0\]\.layer is 0: it must be a whole number from 1 to 12"),
        ({"heads": [{"layer": True}]}, r"its heads\[0\]\.layer is True: it must be a whole number"),
        ({"heads": [{}]}, r"its heads\[0\] lacks the key 'layer'"),
        ({"heads": [{"layer": 1, "rule": 2}]}, r"its heads\[0\] has the unknown key 'rule' .*'role'"),
        ({"heads": [{"layer": 1, "role": "x"}]}, r"its heads\[0\]\.role is 'x': .* core, mixed"),
        ({"heads": [{"layer": 1, "share": {"a": 2}}]}, r"its heads\[0\]\.share\.a is 2.*from 0 to 1"),
        ({"heads": [{"layer": 1, "phrases": "abc"}]}, r"its heads\[0\]\.phrases is 'abc': it must be a list"),
        ({"heads": [], "place": [1]}, "its place has 1 values: it must have 2"),
        ({"heads": [], "name": 5}, "its name is 5: it must be text or null"),
        ({"heads": [], "shots": -1}, "its shots is -1: it must be a whole number from 0 to 1,000,000,000"),
        ({"heads": [], "more": {1: 2}}, "its more is {1: 2}: it must be keys and values"),
    ],
)
def test_what_does_not_fit_is_named(value: Any, words: str) -> None:
    with pytest.raises(ReadingError, match=f"^file: {words}") as told:
        typed(value, Told, "file")
    assert told.value.reason == str(told.value).removeprefix("file: ").removesuffix(".")


@dataclass(frozen=True)
class Learning:
    rate: Annotated[float, Range(0, 0.5, above=True)] = 0.1
    momentum: Annotated[float, Range(0, 1, below=True)] = 0.9
    width: Annotated[int, Range(2)] | None = None
    sizes: tuple[Annotated[int, Range(2, 10_000)], ...] = (2,)
    prompt: Annotated[str, Form("with a {}", lambda text: "{}" in text)] = "{}"
    folder: Path | None = None

    def __post_init__(self) -> None:
        check_fields(self, "learning")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rate": 0.0}, r"rate is 0\.0: it must be a number above 0 and at most 0\.5"),
        ({"rate": 0.51}, "rate is 0.51"),
        ({"rate": math.nan}, "rate is nan"),
        ({"momentum": 1.0}, "momentum is 1.0: it must be a number of at least 0 and below 1"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"width": 1}, "width is 1: it must be a whole number of at least 2 or null"),
        ({"width": 2.5}, "width is 2.5"),
        ({"sizes": (2, 1)}, r"sizes\[1\] is 1: it must be a whole number from 2 to 10,000"),
        ({"prompt": "a"}, "prompt is 'a': it must be text with a {}"),
    ],
)
def test_a_field_that_its_annotation_does_not_allow_is_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=rf"^learning\.{words}"):
        Learning(**values)


def test_the_ends_of_ranges_are_allowed() -> None:
    Learning(rate=0.5, momentum=0.0, width=2, sizes=(2, 10_000), folder=Path("x"))
    Learning(rate=math.nextafter(0, 1), momentum=math.nextafter(1, 0))
