"""The model card tells the facts of the run."""

from dataclasses import asdict

from dear.backbone.clip import Clip
from dear.evaluation.card import model_card
from dear.training.settings import PretrainSettings


def test_the_card_tells_command_accuracy_and_weights(small_clip: Clip) -> None:
    settings = PretrainSettings(images=7919, batch=13, seed=5)
    run = {"settings": asdict(settings), "steps": 610, "loss": 1.2345, "seconds": 420, "parameters": 1234567}
    styles = {"all": {"color": 0.987, "shape": 0.5}, "photo": {"color": 1.0, "shape": 0.25}}
    card = model_card(small_clip, run, {"held-out": styles, "pretraining": styles}, "cpu")
    lines = card.splitlines()
    assert any(
        "dear pretrain --settings.images 7919 --settings.batch 13 --settings.seed 5" in line for line in lines
    )
    assert "| combinations | style | color | shape |" in lines
    assert "| held-out | all | 98.7 | 50.0 |" in lines
    assert "| pretraining | photo | 100.0 | 25.0 |" in lines
    for fact in (
        "1,234,567",
        "7,930 in 610 steps",
        "1.2345",
        "7 minutes",
        small_clip.identity.sha256,
        "5 vision layers of 3 heads",
    ):
        assert fact in card
