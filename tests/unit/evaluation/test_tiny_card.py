"""The model card tells the facts of the run."""

from dataclasses import asdict

from dear.backbone.clip import Clip
from dear.roles.table import HeadRole, RoleTable
from tools.gathering import Gathering
from tools.pretrain_settings import PretrainSettings
from tools.tiny_card import model_card


def test_the_card_tells_command_accuracy_and_weights(small_clip: Clip) -> None:
    settings = PretrainSettings(images=7919, batch=13, seed=5)
    run = {"settings": asdict(settings), "steps": 610, "loss": 1.2345, "seconds": 420, "parameters": 1234567}
    styles = {"all": {"color": 0.987, "shape": 0.5}, "photo": {"color": 1.0, "shape": 0.25}}
    later = run | {"settings": asdict(PretrainSettings(late=3.0)), "start": {"sha256": "abc", "run": run}}
    heads = tuple(
        HeadRole(layer, head, "core", own, own, share={"color": one, "shape": 1 - one})
        for layer, head, own, one in ((4, 0, "color", 0.7), (4, 1, "shape", 0.25), (5, 0, "color", 0.69))
    )
    roles = RoleTable("by hand", small_clip.identity, ("color", "shape"), heads, {"core": 0.7})
    gathered = [Gathering("noise", 0.25, 0.5, 0.125, 0.375)]
    accuracy = {"held-out": styles, "pretraining": styles}
    card = model_card(small_clip, later, accuracy, "cpu", gathered=gathered, roles=roles)
    lines = card.splitlines()
    assert [line for line in lines if line.startswith("| command ")] == [
        "| command | `python -m tools.pretrain --images 7919 --batch 13 --seed 5` |",
        "| command | `python -m tools.pretrain --start FOLDER --late 3.0` |",
    ]
    assert "| FOLDER | weights of sha256 abc, of the run above |" in lines
    assert "| noise | 25.0 | 50.0 | 12.5 | 37.5 |" in lines
    assert "contributions that the five factors explain): color 1, shape 1." in lines
    assert "layers 4 to 5 replaced" in card
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
