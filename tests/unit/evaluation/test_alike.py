"""Data sets that records cannot tell apart, as their images have the same names and sizes."""

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from dear.data.dataset import Dataset
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from dear.evaluation.experiment import Experiment
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.protocols.transfer import CrossDataset
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.runs import check_data


def frames(folder: Path, level: int) -> Dataset:
    for name in ("ant", "bee"):
        for part in ("train", "test"):
            (folder / part / name).mkdir(parents=True)
            Image.new("RGB", (8, 8), (level, level, level)).save(folder / part / name / "1.bmp")
    return load_dataset(str(folder), DataSettings(cache=folder.parent / "cache"))


def test_the_record_of_one_is_not_that_of_the_other(tmp_path: Path) -> None:
    """The second was taken for run already."""
    data = {name: frames(tmp_path / name / "frames", level) for name, level in (("a", 10), ("b", 200))}
    assert data["a"].identity == data["b"].identity
    experiment = Experiment(protocol=FewShot(), methods=(MethodSetup("zero-shot"),), data=("a", "b"))
    with pytest.raises(DataError, match=r"^a and b have the same paths, labels, sizes of files and class"):
        check_data(experiment, data)
    check_data(experiment, {"a": data["a"], "b": data["a"]})


def test_two_data_sets_of_one_name(tmp_path: Path) -> None:
    """All was run, and then no report could be made of it."""
    data = {name: frames(tmp_path / name / "photos", 10) for name in ("a", "b")}
    data["b"] = replace(data["b"], identity="another")
    for protocol in (FewShot(), CrossDataset("a")):
        targets = ("a", "b") if protocol.trained_on is None else ("b",)
        experiment = Experiment(protocol=protocol, methods=(MethodSetup("zero-shot"),), data=targets)
        with pytest.raises(DataError, match=r"^a and b are both called photos, by which reports"):
            check_data(experiment, data)
