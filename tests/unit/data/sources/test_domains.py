"""Folders of domains: what counts as one, and what their images become."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.data.sources.folder import domains_of
from dear.errors import DataError
from dear.evaluation.protocols.transfer import CrossDataset, DomainGeneralization
from tests.unit.data.photos import class_folders, load, picture, refused


def domains(root: Path, held: dict[str, dict[str, int]]) -> Path:
    for name, counts in held.items():
        class_folders(root / name, counts)
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A painted dog and two houses; three of each in photographs."""
    return domains(tmp_path / "pacs", {"art": {"dog": 1, "house": 2}, "photo": {"dog": 3, "house": 3}})


class TestDomainsOf:
    def test_the_same_folders_in_each(self, folder: Path) -> None:
        assert domains_of(folder) == ("art", "photo")
        (folder / "art/sketchbook").mkdir()  # 2 of 3 are shared
        assert domains_of(folder) == ("art", "photo")

    @pytest.mark.parametrize(
        "held",
        [
            {"dog": {"": 2}, "house": {"": 2}},  # classes
            {"dog": {"train": 1, "test": 1}, "house": {"train": 1, "test": 1}},  # classes with splits
            {"train": {"dog": 1, "house": 1}, "test": {"dog": 1, "house": 1}},
            {"a": {"abbey": 1, "alley": 1}, "b": {"bar": 1, "beach": 1}},  # initials, as in SUN397
            {"photo": {"dog": 1, "house": 1}},  # a single one
            {"dog": {"images": 1}, "house": {"images": 1}},
        ],
    )
    def test_what_is_none(self, held: dict[str, dict[str, int]], tmp_path: Path) -> None:
        assert domains_of(domains(tmp_path / "folder", held)) == ()

    def test_images_beside_the_folders_are_those_of_a_class(self, folder: Path) -> None:
        picture(folder / "photo/0.jpg")
        assert domains_of(folder) == ()


class TestRead:
    def test_the_images_of_a_class_come_from_all_domains(self, folder: Path, settings: DataSettings) -> None:
        with pytest.warns(UserWarning, match=r"domains of the same classes: art \(3 images\), photo \(6 im"):
            data = load_dataset(str(folder), settings)
        assert data.classnames == ("dog", "house")
        together = {*zip(data.train.paths, data.train.labels.tolist(), strict=True)} | {  # type: ignore[attr-defined]
            *zip(data.test.paths, data.test.labels.tolist(), strict=True)  # type: ignore[attr-defined]
        }
        assert ("art/dog/0.png", 0) in together
        assert Counter(label for _, label in together) == {0: 4, 1: 5}

    def test_as_the_user_says(self, folder: Path, settings: DataSettings) -> None:
        assert load(folder, replace(settings, layout="classes")).classnames == ("art", "photo")
        domains(folder, {"clip": {"car": 2}})  # no longer alike
        assert load(folder, settings).classnames == ("art", "clip", "photo")
        told = load(folder, replace(settings, layout="domains"))
        assert told.classnames == ("car", "dog", "house")
        refused(folder / "photo/dog", replace(settings, layout="domains"), "has no folders of classes")


class TestArranged:
    def test_one_domain_is_the_source_and_the_others_are_targets(self, folder: Path) -> None:
        (folder / "sketch").mkdir()
        for source in ("art", str(folder / "art")):
            protocol, data = DomainGeneralization(source).arranged([str(folder)])
            assert protocol == DomainGeneralization(str(folder / "art"))
            assert data == (str(folder / "photo"), str(folder / "sketch"))

    def test_relative_paths_stay_paths(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A bare "photo" could be the name of a task."""
        monkeypatch.chdir(folder)
        assert DomainGeneralization("art").arranged(["."]) == (DomainGeneralization("./art"), ("./photo",))

    def test_what_is_not_a_domain(self, folder: Path) -> None:
        with pytest.raises(DataError, match=r"holds the domains art, photo: name the one .* --source art"):
            DomainGeneralization().arranged([str(folder)])
        elsewhere, data = DomainGeneralization("badges").arranged([str(folder)])
        assert (elsewhere.trained_on, data) == ("badges", (str(folder / "art"), str(folder / "photo")))
        for names in (["source-sketch"], [str(folder), "tools"], [""], [str(folder / "none")]):
            assert DomainGeneralization("art").arranged(names) == (DomainGeneralization("art"), tuple(names))
        assert CrossDataset("art").arranged([str(folder)]) == (CrossDataset("art"), (str(folder),))
