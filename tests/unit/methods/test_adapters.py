"""The methods that leave both towers alone and work on features: what their equations say, by hand."""

import math
import re

import pytest
import torch
from torch.nn.functional import normalize

from dear.adapters.fit import fit
from dear.backbone.clip import Clip
from dear.errors import SettingsError
from dear.evaluation.experiment import Experiment
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.resolve import MethodSetup
from dear.methods.registry import METHODS
from dear.training.batches import training_images
from dear.training.cache import Cache
from dear.training.loop import train
from dear.training.settings import TrainSettings
from tests.helpers.clips import eval_views
from tests.helpers.data import few, noise_dataset
from tests.helpers.methods import build

CLOSED = [name for name, declared in METHODS.items() if not declared.open_vocabulary]


class TestClipAdapter:
    @pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
    @torch.no_grad()
    def test_the_mix_is_of_features_before_they_are_normalized(self, ratio: float, small_clip: Clip) -> None:
        method = build("clip-adapter", small_clip, ratio=ratio)
        trunk = method.image_trunk(torch.rand(2, 3, 20, 20))
        own = small_clip.image.finish(trunk[:, 0])
        # A bottleneck of 4 (17 / 4), of which the first two read one number each, and the last is dead.
        method.get_parameter("down").zero_()[[0, 1, 3], [0, 1, 2]] = torch.tensor([2.0, -1.0, 0.0])
        method.get_parameter("up").zero_()[[5, 6], [0, 1]] = torch.tensor([3.0, 4.0])
        adapted = torch.zeros(2, 17)
        adapted[:, 5] = 3 * (2 * own[:, 0]).clamp(min=0)
        adapted[:, 6] = 4 * (-own[:, 1]).clamp(min=0)
        want = normalize(ratio * adapted + (1 - ratio) * own, dim=-1)
        torch.testing.assert_close(method.image_features(trunk)[0], want)


class TestTipAdapter:
    @torch.no_grad()
    def test_training_images_vote_for_their_classes(self, small_clip: Clip) -> None:
        method = build("tip-adapter", small_clip, alpha=2.0, beta=3.0, scale=10.0)
        image, text = torch.eye(17)[None, :1], torch.eye(17)[[0, 1, 2]]
        assert method.logits(image, text).tolist() == [[10, 0, 0]]  # an empty cache
        keys = torch.zeros(3, 17)
        keys[0, 0], keys[1, 0], keys[1, 5], keys[2, 3] = 1.0, 0.6, 0.8, 1.0  # cosines 1, 0.6 and 0
        method.resize_to({"labels": torch.zeros(3)})
        for name, one in {"keys": keys, "labels": torch.tensor([2, 2, 1])}.items():
            method.stored_tensors()[name].copy_(one)
        want = torch.tensor([[10.0, 2 * math.exp(-3), 2 * (1 + math.exp(-1.2))]])
        torch.testing.assert_close(method.logits(image, text), want)

    def test_a_key_is_the_mean_of_views_normalized_afterwards(self, small_clip: Clip) -> None:
        method, data = build("tip-adapter", small_clip, views=3), few()
        settings = TrainSettings()
        assert train(method, data, settings, seed=4) == []
        assert method.trainable == []
        images = training_images(method, data, settings, 4, Cache(0))
        trunks = [images.view(number) for number in range(3)]
        assert not torch.equal(trunks[0], trunks[1])
        own = [small_clip.image.finish(trunk[:, 0]) for trunk in trunks]
        torch.testing.assert_close(
            method.stored_tensors()["keys"], normalize(own[0] + own[1] + own[2], dim=-1)
        )
        assert torch.equal(method.stored_tensors()["labels"], data.labels)
        center = method.image_trunk(eval_views(data.pictures, 20))
        torch.testing.assert_close(images.view(None), center)

    @pytest.mark.usefixtures("only_clip")
    def test_a_tuned_bundle_is_what_was_trained(self) -> None:
        settings = {"tuned": True, "views": 2}
        options = {"epochs": 2, "lr": 0.1}
        made = fit(noise_dataset(), method="tip-adapter", settings=settings, train=options, select="last")
        assert made.tensors["keys"].shape == (12, 17)
        assert made.training.epoch == 2
        plain = fit(noise_dataset(), method="tip-adapter", settings={"views": 2}, shots=2)
        assert plain.tensors["keys"].shape == (8, 17)
        assert plain.training.epoch is None


class TestLinearProbe:
    def test_it_is_solved_before_the_steps_that_it_does_not_take(self, small_clip: Clip) -> None:
        method, data = build("linear-probe", small_clip, c=1e4), few()
        assert train(method, data, TrainSettings(), seed=4) == []
        images = training_images(method, data, TrainSettings(), 4, Cache(0))
        with torch.no_grad():
            features = method.image_features(images.view(None))
            found = method.logits(features, method.text_features())
        assert torch.equal(found.argmax(dim=1), data.labels)  # seven images in 17 dimensions


class TestMethodsBoundToTheirClasses:
    @pytest.mark.parametrize("name", CLOSED)
    def test_protocols_with_other_classes_refuse_them_before_anything_is_loaded(self, name: str) -> None:
        for protocol in (kind() for kind in PROTOCOLS.values()):
            assert (name in protocol.methods()) == (protocol.name == "few-shot")
        with pytest.raises(
            SettingsError, match=rf"{re.escape(name)} is bound to its training classes.*run it with few-shot"
        ):
            Experiment(protocol=BaseToNovel(), data=("nowhere",), methods=(MethodSetup(name),))
