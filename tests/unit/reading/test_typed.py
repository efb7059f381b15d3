"""Plain values against types: what is wrong is named by its key, with what it should be."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from dear.reading.files import ReadingError
from dear.reading.typed import Count, Range, Share, typed


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
    shots: NotRequired[Count]
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
        ({"heads": [], "shots": -1}, "its shots is -1: it must be a whole number of at least 0"),
        ({"heads": [], "more": {1: 2}}, "its more is {1: 2}: it must be keys and values"),
    ],
)
def test_what_does_not_fit_is_named(value: Any, words: str) -> None:
    with pytest.raises(ReadingError, match=f"^file: {words}") as told:
        typed(value, Told, "file")
    assert told.value.reason == str(told.value).removeprefix("file: ").removesuffix(".")
