"""The table of methods: read from their folders, in the order of their papers, without torch."""

import subprocess
import sys
from dataclasses import fields

import pytest

from dear.errors import SettingsError, UnknownNameError
from dear.methods import registry
from dear.methods.declaration import Declaration, MethodSettings
from dear.methods.registry import (
    METHODS,
    USUAL,
    known_method,
    method_class,
    methods_with_roles,
    option_groups,
)


def test_the_order_is_that_of_the_papers() -> None:
    names = ["zero-shot", "coop", "cocoop", "maple", "promptsrc", "mmrl", "mmrl++", "dear"]
    assert [name for name in METHODS if name in names] == names
    assert [one.arxiv for one in METHODS.values()] == sorted(one.arxiv for one in METHODS.values())


@pytest.mark.parametrize("name", METHODS)
def test_a_folder_of_its_own(name: str) -> None:
    declared = METHODS[name]
    assert method_class(name).name == declared.name == name
    assert declared.settings.folder() in ({""} if declared.settings is MethodSettings else {declared.folder})


def test_groups_of_options() -> None:
    assert option_groups()["mmrlpp"] == "mmrl++"
    assert "zero_shot" not in option_groups()
    assert {*USUAL} <= {*METHODS}
    assert "dear" in methods_with_roles()
    assert "coop" not in methods_with_roles()


def test_names_that_are_not_there() -> None:
    with pytest.raises(UnknownNameError, match="unknown method 'cop'"):
        known_method("cop")
    with pytest.raises(SettingsError, match=r"mmrlpp is the prefix of options of the method mmrl\+\+"):
        known_method("mmrlpp")


def test_the_table_and_settings_import_no_torch() -> None:
    """The registry imports the settings of every method."""
    code = (
        "import sys, dear.methods.registry; heavy = {'torch', 'jaxtyping', 'open_clip'} & set(sys.modules);"
        "sys.exit(f'imports {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_class_path_of_a_declared_method_is_that_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an entry point of an installed package declares it: the folders' methods are declared alike."""
    assert known_method("dear.methods.coop.method:CoOp") == "coop"
    outside = Declaration("mine", "", "Mine", module="my_package.method")
    monkeypatch.setitem(registry._methods, "mine", outside)
    assert known_method("my_package.method:Mine") == "mine"
    for path in ("my_package.method:Other", "os:system", "dear.methods.coop.method:import_module"):
        with pytest.raises(SettingsError, match=rf"the method {path} is a class outside this package"):
            known_method(path)


@pytest.mark.parametrize("method", [name for name, declaration in METHODS.items() if declaration.settings])
def test_numbers_of_settings_are_within_float32(method: str) -> None:
    """Some were a traceback: the square of a temperature of 1e308, and a rate that an optimiser casts."""
    settings = METHODS[method].settings
    for setting in fields(settings):
        if "float" in str(setting.type):
            with pytest.raises(SettingsError, match=rf"{setting.name} is 1e\+308: it must be"):
                settings(**{setting.name: 1e308})
