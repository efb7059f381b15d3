"""Runs of a method outside the package depend on its source."""

import sys
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest

from dear.data.dataset import Dataset
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.session import Session
from dear.methods import registry
from dear.methods.registry import register
from dear.methods.source import source_hash
from tests.conftest import small_clip_of
from tests.helpers.data import noise_dataset
from tests.helpers.runs import resolve_run

FILES = {
    "mine/__init__.py": "",
    "mine/method.py": "import torch, besides\nfrom mine import losses\nfrom .parts.shared import two\n",
    "mine/losses.py": "def late():\n    from mine.parts import lazy\n",
    "mine/parts/__init__.py": "one = 1\n",
    "mine/parts/shared.py": "two = 2\n",
    "mine/parts/lazy.py": "three = (\n",  # a fault that shows where it is imported
    "mine/unused.py": "four = 4\n",
    "besides.py": "from mine import losses\n",
    "notes.txt": "five",
}
USED = {*FILES} - {"mine/unused.py", "notes.txt"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    forget()


def forget() -> None:
    """As in another process."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("mine", "besides", "stranger")]:
        del sys.modules[name]
    registry._methods.pop("stranger:Mine", None)
    invalidate_caches()


def test_tables_call_a_method_as_its_class_does(folder: Path) -> None:
    """By the title in its declaration; packaged methods have none that it could inherit."""
    base = "import dear\nfrom dear.methods.coop.method import CoOp\nclass Mine(CoOp):\n    "
    for line, title in (("declaration = dear.Declaration(title='Gated CoOp')", "Gated CoOp"), ("pass", "")):
        (folder / "stranger.py").write_text(base + line)
        forget()
        assert register("stranger:Mine").title == title
    forget()


@pytest.mark.parametrize("name", FILES)
def test_the_hash_changes_with_each_file_that_is_imported(name: str, folder: Path) -> None:
    module = import_module("mine.method")
    before = source_hash(module)
    (folder / name).write_text(FILES[name] + "# changed\n")
    assert (source_hash(module) != before) == (name in USED)
    (folder / name).write_text(FILES[name])
    assert source_hash(module) == before


def test_of_what_is_installed_only_the_package_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = folder / "site-packages"
    site.mkdir()
    for name in ("mine", "besides.py"):
        (folder / name).rename(site / name)
    monkeypatch.syspath_prepend(site)
    module = import_module("mine.method")
    before = source_hash(module)
    (site / "besides.py").write_text("changed = 1\n")
    assert source_hash(module) == before
    (site / "mine" / "losses.py").write_text("changed = 1\n")
    assert source_hash(module) != before


def test_an_edited_method_is_run_again(folder: Path) -> None:
    """The key of its runs is another one."""
    code = "from besides import losses\nfrom dear.methods.base import Method\nclass Mine(Method): pass\n"

    def key(name: str) -> str:
        dataset: Dataset = noise_dataset()
        return resolve_run(Session(), small_clip_of(), FewShot(), [dataset], MethodSetup(name), seed=1).key

    keys = []
    for edit in ("", "# edited\n"):
        (folder / "stranger.py").write_text(code + edit)
        forget()
        register("stranger:Mine")
        keys.append(key("stranger:Mine"))
    assert keys[0] != keys[1]
