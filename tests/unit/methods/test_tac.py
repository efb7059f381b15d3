"""What is particular to TAC: its clusters, what drops out, its descriptions, and where centers come from."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, l1_loss, normalize

from dear.adapters.bundle import Bundle
from dear.adapters.bundle_config import config_hash
from dear.adapters.fit import fit
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.errors import BundleError, DearError, SettingsError
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.protocols.transfer import CrossDataset
from dear.methods.base import TrainingImages
from dear.methods.shared_settings import imagenet_templates
from dear.methods.tac import TacSettings
from dear.methods.tac.method import TAC, draw_starts, kmeans
from tests.helpers.data import CLASSES, noise_dataset
from tests.helpers.methods import check_before_runs, pixels, seeded

OTHERS = ["a tree", "sea", "red house"]
LABELS = torch.tensor([2, 0, 1, 1])
SMALL = {"clusters": 2, "text_tokens": 1, "words": ""}  # the text tower has 13 places


def make(clip: Clip, *, trained: bool = True, seed: int = 1, **options: Any) -> TAC:
    method = TAC(clip, seeded(seed), TacSettings(**SMALL | options))
    method.set_classes(CLASSES, ["a photo of a {}"])
    if trained:
        method.before_training(no_pixels())
    return method


def no_pixels() -> TrainingImages:
    def view(_number: int | None) -> Tensor:
        raise AssertionError("no images are needed")

    return TrainingImages(torch.zeros(0).long(), view)


def described(folder: Path, names: list[str], file: str = "mine.json") -> Path:
    """A file with two sentences for each class."""
    path = folder / file
    path.write_text(json.dumps({name: [f"a red {name}", f"the {name} on the sea"] for name in names}))
    return path


class TestKMeans:
    def points(self) -> Tensor:
        return normalize(torch.randn(40, 6, generator=seeded(4), dtype=torch.float64), dim=-1)

    def test_in_loops(self) -> None:
        points = self.points()
        centers = [points[number] for number in draw_starts(40, 4, seeded(5))]
        shift = 1.0
        while shift**2 >= 1e-4:
            near = [max(range(4), key=lambda k: float(p @ centers[k] / centers[k].norm())) for p in points]
            moved = [points[torch.tensor(near) == k].mean(dim=0) for k in range(4)]
            shift = sum(float((a - b).norm()) for a, b in zip(centers, moved, strict=True))
            centers = moved
        torch.testing.assert_close(kmeans(points, 4, seeded(5)), torch.stack(centers))

    def test_an_empty_cluster_keeps_its_center(self) -> None:
        points = torch.eye(6)[[0, 0, 0, 0, 0, 1]]  # of equal centers the first takes all points
        centers = kmeans(points, 5, seeded(1))
        assert torch.equal(centers, points[draw_starts(6, 5, seeded(1))])


@pytest.mark.parametrize(("clusters", "found"), [(2, 2), (3, 3), (4, 3)])
def test_no_more_clusters_than_classes(clusters: int, found: int, small_clip: Clip) -> None:
    method = TAC(small_clip, seeded(1), TacSettings(**SMALL | {"clusters": clusters}))
    method.set_classes(["house", "sea", "tree"], ["a photo of a {}"])
    method.before_training(no_pixels())
    assert method.centers.shape == (found, 17)
    assert method.mask.shape == (26 + found + 5, 26 + found + 5)
    assert method.text_features().shape == (3, 17)
    if found == 3:  # each class is a cluster
        cosines = method.centers @ method.text_targets().T
        torch.testing.assert_close(cosines.amax(dim=1), torch.ones(3))


def test_the_target_of_a_class(small_clip: Clip, tmp_path: Path) -> None:
    """The mean of features that are not normalized, of the class's sentences or of the templates."""
    method = make(small_clip, descriptions=str(described(tmp_path, CLASSES)))
    plain = make(small_clip)
    with torch.no_grad():
        of_file = small_clip.encode_text(["a red house", "the house on the sea"]).mean(dim=0)
        filled = [template.format("house") for template in imagenet_templates()]
        of_templates = small_clip.encode_text(filled).mean(dim=0)
    torch.testing.assert_close(method.text_targets()[1], normalize(of_file, dim=0))
    torch.testing.assert_close(plain.text_targets()[1], normalize(of_templates, dim=0))
    assert not torch.equal(method.centers, plain.centers)


@pytest.mark.parametrize("teacher", [True, False])
def test_dropout_by_hand(teacher: bool, small_clip: Clip) -> None:
    """Of two images with two views each, with torch's own dropout, before features are normalized: its factor
    makes no difference.
    """
    method = make(small_clip, views=2, teacher_dropout=teacher)
    frozen = method.target_features(pixels(2)).repeat(2, 1)
    method.before_step(seeded(7))
    got = method.loss(method.image_trunk(pixels()), LABELS, frozen)
    first = torch.randint(2**62, (), generator=seeded(7)).item()
    draw = seeded(int(first))
    kept = torch.rand(4, 17, generator=draw) >= 0.3
    image = normalize(method.image_features(method.image_trunk(pixels()))[0] * kept / 0.7, dim=-1)
    target = frozen[:2]
    if teacher:
        target = normalize(target * (torch.rand(2, 17, generator=draw) >= 0.3) / 0.7, dim=-1)
    ce = cross_entropy(small_clip.scale * image @ method.text_features().T, LABELS)
    far = l1_loss(image, torch.cat([target, target]))
    torch.testing.assert_close(got["image"], far)
    torch.testing.assert_close(got["loss"], ce + 20 * got["text"] + 25 * far)


class TestOtherClasses:
    def test_centers_of_their_own(self, small_clip: Clip) -> None:
        method = make(small_clip, centers="own")
        centers, text = method.centers.clone(), method.text_features()
        method.set_classes(OTHERS, ["a photo of a {}"])
        assert not torch.equal(method.centers, centers)
        method.set_classes(OTHERS[:1], ["a photo of a {}"])
        assert method.centers.shape == (1, 17)
        assert method.text_features().shape == (1, 17)
        method.set_classes(CLASSES, ["a photo of a {}"])
        assert torch.equal(method.centers, centers)
        assert torch.equal(method.text_features(), text)

    def test_own_centers_of_a_bundle_start_where_they_did(self, small_clip: Clip) -> None:
        """A bundle's method is drawn with another seed than the one that was trained."""
        trained, loaded = make(small_clip, centers="own"), make(small_clip, trained=False, seed=2)
        loaded.settings = trained.settings
        loaded.resize_to(trained.stored_tensors())
        loaded.load_state_dict(trained.state_dict())
        for method in (trained, loaded):
            method.set_classes(OTHERS, ["a photo of a {}"])
        assert torch.equal(trained.centers, loaded.centers)


class TestDescriptions:
    def settings(self, path: Path, **options: Any) -> TacSettings:
        return TacSettings(**SMALL | {"descriptions": str(path)} | options)

    def test_of_the_training_classes_alone(self, small_clip: Clip, tmp_path: Path) -> None:
        """The base classes are the first two of the data set's four."""
        check_before_runs(
            small_clip, "tac", self.settings(described(tmp_path, ["red circle on the sea", "house"]))
        )
        with pytest.raises(SettingsError, match=r"mine\.json has no descriptions of the class 'house'"):
            check_before_runs(
                small_clip, "tac", self.settings(described(tmp_path, ["red circle on the sea"]))
            )

    @pytest.mark.parametrize("protocol", [BaseToNovel(), CrossDataset()])
    def test_own_centers_need_those_of_all(
        self, protocol: Protocol, small_clip: Clip, tmp_path: Path
    ) -> None:
        names = [*noise_dataset().classnames]
        room = {"text_tokens": 2, "words": "the"}  # the 10 tokens of a transfer do not fit
        check_before_runs(
            small_clip, "tac", self.settings(described(tmp_path, names), centers="own", **room), protocol
        )
        given = self.settings(described(tmp_path, names[:3]), centers="own", **room)
        with pytest.raises(SettingsError, match="no descriptions of the class 'blue square'"):
            check_before_runs(small_clip, "tac", given, protocol)

    def test_a_folder_has_a_file_for_each_data_set(self, small_clip: Clip, tmp_path: Path) -> None:
        described(tmp_path, CLASSES, "first.json")
        second = described(tmp_path, CLASSES, "second.json")
        given = self.settings(tmp_path)
        found = given.with_files("second")
        assert found.descriptions == str(second)
        assert found.with_files("second") == found
        check_before_runs(small_clip, "tac", given)
        second.unlink()
        with pytest.raises(DearError, match=r"^tac\.descriptions .*second\.json: No such file"):
            check_before_runs(small_clip, "tac", given)

    def test_a_changed_file_is_another_run_and_refused_in_the_middle_of_one(self, tmp_path: Path) -> None:
        path = described(tmp_path, ["house"])
        found = self.settings(path).with_files("mine")
        assert found.descriptions_sha256 == sha256(path.read_bytes()).hexdigest()
        described(tmp_path, ["house", "sea"])
        assert self.settings(path).with_files("mine") != found
        with pytest.raises(SettingsError, match="it was changed"):
            found.described(["house"])
        with pytest.raises(SettingsError, match="it was changed"):
            found.with_files("mine")


@pytest.mark.usefixtures("only_clip")
def test_a_bundle_needs_no_descriptions(tmp_path: Path) -> None:
    data = noise_dataset()
    file = described(tmp_path, [*data.classnames])
    settings = TacSettings(**SMALL | {"descriptions": str(file)})
    train = {"epochs": 2}
    bundle = fit(data, tmp_path / "bundle", method="tac", settings=vars(settings), train=train)
    assert bundle.tensors["centers"].shape == (2, 17)
    assert bundle.settings == replace(
        settings, descriptions="templates", descriptions_sha256=sha256(file.read_bytes()).hexdigest()
    )
    file.unlink()
    predictor = Predictor(Bundle.from_pretrained(tmp_path / "bundle"))
    assert torch.equal(predictor.bundle.tensors["centers"], bundle.tensors["centers"])
    assert predictor.logits(pixels()).shape == (4, 4)
    assert predictor.vocabulary(OTHERS).text.shape == (3, 17)


@pytest.mark.usefixtures("only_clip")
def test_a_bundle_reads_no_file(tmp_path: Path) -> None:
    """A stranger's bundle could print what a file of the user's has, whose keys a message lists."""
    data, file = noise_dataset(), tmp_path / "mine.json"
    own = TacSettings(**SMALL | {"centers": "own", "text_tokens": 2, "words": "the"})
    train = {"epochs": 2}
    fit(data, tmp_path / "bundle", method="tac", settings=vars(own), train=train)
    described(tmp_path, [*data.classnames])
    config = tmp_path / "bundle" / "config.json"
    content = json.loads(config.read_text())
    for centers in ("own", "training"):
        content["settings"] |= {"centers": centers, "descriptions": str(file)}
        config.write_text(json.dumps(content | {"sha256": config_hash(content)}))
        with pytest.raises(BundleError, match=r"tac\.centers|descriptions"):
            Bundle.from_pretrained(tmp_path / "bundle")
    with pytest.raises(SettingsError, match="which a bundle does not hold"):
        fit(data, tmp_path / "b", method="tac", settings=vars(own) | {"descriptions": file}, train=train)
    assert not (tmp_path / "b").exists()
