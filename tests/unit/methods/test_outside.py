"""Classes outside the package: their declarations, settings and authors' rows, and what is refused."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from dear.backbone.clip import Clip
from dear.cli.main import main
from dear.errors import CodeError, SettingsError
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.resolve import MethodSetup, ResolvedSettings, resolve
from dear.methods import registry
from dear.methods.coop import CoOpSettings
from dear.methods.registry import METHODS, build_method, register
from dear.report.records import deviations_of
from tests.helpers.records import record


def settled(protocol: Protocol, setup: MethodSetup, shots: int = 16) -> ResolvedSettings:
    return resolve(protocol, setup, "stamped-tiles", shots)


OUTSIDE = """
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import nn

from dear.evaluation.session import Session
from dear.methods import registry
from dear.methods.coop import CoOpSettings
from dear.methods.coop.method import CoOp
from dear.methods.base import Method
from dear.methods.declaration import Declaration, MethodSettings, PublishedRow
from dear.methods.dear.method import Dear
from dear.methods.promptkd.method import PromptKD


@dataclass(frozen=True)
class MineSettings(CoOpSettings):
    strength: float = 1.0


class Mine(CoOp):
    settings: MineSettings


@dataclass(frozen=True)
class ShortSettings(CoOpSettings):
    training = MappingProxyType({"epochs": 3})
    tokens: int = 2


class Short(Mine):
    settings: ShortSettings


class Roles(Dear):
    pass


class Taught(PromptKD):
    pass


class Hiding(Method):
    def __init__(self, clip, generator, settings=None):
        super().__init__(clip, generator, settings)
        self.prompts = nn.ParameterList([torch.zeros(2)])


class Nameless(Method):
    pass


class Averaging(Nameless):
    def after_epoch(self, epoch, epochs):
        pass


class Misplaced(Nameless):
    cheap = True


class Rows(MethodSettings):
    published = (PublishedRow("few", "my paper", ("few-shot",), settings={"known": 0.9}),)


class Unknown(Nameless):
    settings: Rows


class Elsewhere(MethodSettings):
    published = (PublishedRow("few", "my paper", ("fewshot",)),)


class Lost(Nameless):
    settings: Elsewhere


class Closed(Nameless):
    declaration = Declaration(open_vocabulary=False, cheap=True, text="features")
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Registers a class of a module outside the package that derives from a packaged method."""
    (tmp_path / "outside_methods.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = {*METHODS}
    yield lambda name: register(f"outside_methods:{name}").name
    for name in {*METHODS} - before:
        del registry._methods[name]
    del sys.modules["outside_methods"]


def test_a_class_that_derives_from_a_packaged_one_has_its_authors_rows(
    outside: Callable[[str], str],
) -> None:
    """But for what it defines itself; CoOp's rows are 16 random tokens, and epochs by shots."""
    for shots, epochs in ((16, 200), (1, 50)):
        mine = settled(FewShot(), MethodSetup(outside("Mine")), shots=shots)
        assert asdict(mine.method) == asdict(CoOpSettings(tokens=16, words="")) | {"strength": 1.0}
        assert (mine.training.epochs, mine.training.lr) == (epochs, 0.002)
    own = settled(FewShot(), MethodSetup(outside("Short")))
    assert asdict(own.method) == asdict(CoOpSettings(tokens=2, words=""))
    assert own.training.epochs == 3
    assert settled(BaseToNovel(), MethodSetup(outside("Mine"))).authors.rows == ()


def test_a_class_that_derives_from_a_packaged_one_needs_what_that_declares(
    outside: Callable[[str], str],
) -> None:
    roles, taught = METHODS[outside("Roles")], METHODS[outside("Taught")]
    assert (roles.roles, roles.image, taught.roles) == ("required", "heads", None)
    assert (taught.teacher, taught.unlabeled) == ("promptsrc", True)
    assert MethodSetup(roles.name, role_variant="shuffled").variant == "shuffled"


def test_a_class_outside_the_package_has_no_other_authors(outside: Callable[[str], str]) -> None:
    """Neither where it runs, registered, nor where its records are reported, unknown."""
    run = record("toys", "outside_methods:Mine", 0.5, 0.5, overrides={"train": {"epochs": 5}})
    assert deviations_of(run | {"method": "coop"}) == {"epochs": 5}
    assert deviations_of(run) == {}
    outside("Mine")
    assert deviations_of(run) == {}


def test_a_class_without_a_name_has_its_path(outside: Callable[[str], str], small_clip: Clip) -> None:
    path = outside("Nameless")
    assert build_method(path, small_clip, torch.Generator()).name == path


def test_a_parameter_that_hides_an_attribute_of_all_methods_is_named(
    outside: Callable[[str], str], small_clip: Clip
) -> None:
    with pytest.raises(CodeError, match="outside_methods:Hiding sets self"):
        build_method(outside("Hiding"), small_clip, torch.Generator())


def test_a_hook_that_would_never_be_called_is_named(outside: Callable[[str], str], small_clip: Clip) -> None:
    with pytest.raises(CodeError, match=r"Averaging has after_epoch, .*dear\.methods\.optional\.StepHooks"):
        build_method(outside("Averaging"), small_clip, torch.Generator())


def test_a_class_outside_the_package_has_a_declaration(
    outside: Callable[[str], str], small_clip: Clip
) -> None:
    declared = METHODS[outside("Closed")]
    assert (declared.name, declared.implementation) == ("outside_methods:Closed", "Closed")
    assert (declared.cheap, declared.open_vocabulary, declared.image, declared.text) == (
        True, False, None, "features"
    )  # fmt: skip
    assert not build_method(declared.name, small_clip, torch.Generator()).open_vocabulary
    with pytest.raises(SettingsError, match=r"Misplaced sets cheap on the class: .* in its declaration"):
        outside("Misplaced")


def test_rows_of_a_class_outside_name_settings_and_protocols_that_are_there(
    outside: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SettingsError, match=r"row 'few' of .*Unknown sets known, but"):
        outside("Unknown")
    assert main(["run", "few-shot", "--methods", outside("Lost"), "--dry-run"]) == 2
    assert "unknown protocol 'fewshot'" in capsys.readouterr().err
