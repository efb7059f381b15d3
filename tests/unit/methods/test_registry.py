"""The table of methods: read from their folders, in the order of their papers, without torch."""

import math
import subprocess
import sys
from typing import Any, get_type_hints

import pytest

from dear.errors import SettingsError, UnknownNameError
from dear.methods import registry
from dear.methods.declaration import Declaration, MethodSettings
from dear.methods.registry import METHODS, known_method, method_class


@pytest.mark.parametrize("name", METHODS)
def test_a_folder_of_its_own(name: str) -> None:
    declared = METHODS[name]
    assert method_class(name).declaration is declared
    assert declared.name == name
    assert declared.settings.folder() in ({""} if declared.settings is MethodSettings else {declared.folder})


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
    assert known_method("dear.methods.coop.method:CoOp") == "coop"
    outside = Declaration("mine", "", "Mine", module="my_package.method")
    monkeypatch.setitem(registry._methods, "mine", outside)
    assert known_method("my_package.method:Mine") == "mine"
    for path in ("my_package.method:Other", "os:system", "dear.methods.coop.method:import_module"):
        with pytest.raises(SettingsError, match=rf"the method {path} is a class outside this package"):
            known_method(path)


LAYERS, POSITIVE, NOT_NEGATIVE, UNIT, COUNT = [0, 13], [0.0, -1.0], [-1.0], [1.1, -0.1], [0]
OUT_OF_BOUNDS: dict[str, dict[str, list[Any]]] = {
    "dear": {
        "alpha_cls": [0.0, 1.0, math.nan], "beta": UNIT, "tokens": COUNT, "text_tokens": [-1],
        "first": LAYERS, "token_std": NOT_NEGATIVE, "fusion_loss": ["square"], "beta_last": [*UNIT, math.nan],
    },
    "clip-adapter": {"ratio": [1.5], "reduction": COUNT},
    "tip-adapter": {"views": COUNT, "scale": POSITIVE, "alpha": NOT_NEGATIVE},
    "linear-probe": {"c": POSITIVE, "iterations": COUNT},
    "taskres": {"alpha": NOT_NEGATIVE},
    "lp++": {"iterations": COUNT},
    "clap": {"constraint": ["l1"], "epochs": COUNT, "batch": COUNT, "lr": POSITIVE, "views": COUNT},
    "prolip": {
        "epochs": COUNT, "lr": POSITIVE, "reg_weight": NOT_NEGATIVE, "views": COUNT, "scale": POSITIVE,
    },
    "vpt": {"depth": LAYERS, "tokens": COUNT, "template": ["mine"], "token_std": NOT_NEGATIVE},
    "atprompt": {
        "attributes": ["sea,", ""], "tokens": COUNT, "depth": [13], "attribute_std": NOT_NEGATIVE,
        "base": ["cocoop"],
    },
    "coop": {"tokens": COUNT},
    "cocoop": {"reduction": COUNT},
    "maple": {"depth": [13]},
    "promptsrc": {"average_std": POSITIVE},
    "promptkd": {"kd_weight": [1e30]},
    "mmrl": {"alpha": UNIT, "scale": NOT_NEGATIVE},
    "mmrl++": {"tokens": COUNT, "beta": UNIT},
    "prograd": {"strength": NOT_NEGATIVE, "temperature": POSITIVE, "template": ["Pets", "{} {}"]},
    "provp": {
        "tokens": COUNT, "beta": UNIT, "ref_weight": NOT_NEGATIVE, "template": ["mine"], "start_patch": COUNT,
    },
    "skip": {
        "first": LAYERS, "top": [0.0, 1.5], "most": COUNT, "decay": POSITIVE, "image_rate": NOT_NEGATIVE,
        "template": ["Pets", "{} {}"],
    },
    "tac": {
        "descriptions": [""], "descriptions_sha256": ["abc"], "clusters": COUNT, "views": COUNT,
        "dropout": [1.0], "centers": ["novel"], "image_depth": LAYERS, "text_weight": NOT_NEGATIVE,
    },
    "tcp": {"layer": [1, 13], "reduction": COUNT, "text_weight": NOT_NEGATIVE, "template": ["Pets", "{} {}"]},
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_settings_out_of_bounds_are_named(name: str) -> None:
    """Numbers are within float32, too: the square of a temperature of 1e308 was a traceback."""
    settings = METHODS[name].settings
    large = {
        setting: [1e308, math.nan] if kind in (float, float | None) else [10**12]
        for setting, kind in get_type_hints(settings).items()
        if kind in (float, float | None, int, int | None)
    }
    for values in (OUT_OF_BOUNDS.get(name, {}), large):
        for key, value in ((key, value) for key, bad in values.items() for value in bad):
            with pytest.raises(SettingsError, match=rf"{METHODS[name].folder}\.{key} is "):
                settings(**{key: value})
