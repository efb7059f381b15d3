"""Methods of other packages by entry points: joined to the table, or left out with the reason."""

from types import SimpleNamespace
from typing import Any

import pytest

from dear.methods import registry
from dear.methods.declaration import Declaration

GOOD = Declaration("mine", "", "Mine", module="my_package.method")


def declared(monkeypatch: pytest.MonkeyPatch, found: Any) -> dict[str, Declaration]:
    def load() -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    def entries(group: str) -> list[Any]:
        assert group == "dear.methods"
        return [SimpleNamespace(name="mine", value="my_package.settings:METHOD", load=load)]

    monkeypatch.setattr(registry, "entry_points", entries)
    return registry._declared()


def test_a_method_of_another_package_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    found = declared(monkeypatch, GOOD)
    assert [*found][-1] == "mine"
    assert found["mine"].home == "my_package.method"
    assert [*found][:-1] == [name for name in registry.METHODS if ":" not in name]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (ImportError("no torch here"), "mine .my_package.settings:METHOD. is left out: no torch here"),
        (object(), "it is not a dear.methods.declaration.Declaration"),
        (Declaration("mine", "", "Mine"), "its declaration lacks the module"),
        (Declaration("coop", "", "Mine", module="m"), "its name or options are those of the method coop"),
        (Declaration("mmrlpp", "", "Mine", module="m"), "its name or options are those of the method mmrl"),
    ],
)
def test_what_cannot_join_is_left_out(monkeypatch: pytest.MonkeyPatch, found: Any, message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        assert "mine" not in declared(monkeypatch, found)
