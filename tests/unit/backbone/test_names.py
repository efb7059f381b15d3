"""Which CLIP is used where none is named, and the warning of the tiny one."""

from pathlib import Path

import open_clip
import pytest

from dear.backbone.loading.hub import find_repository
from dear.backbone.names import REAL, BackboneName, backbone_or_default, check_model, hub_name
from dear.errors import UnknownNameError, WeightsError
from dear.roles.table import packaged_tables
from tests.helpers.errors import refuses


@pytest.mark.parametrize(
    ("given", "world", "wanted"),
    [
        ((None, None), True, ("tiny", None)),
        ((None, None), False, ("ViT-B-16", "laion2b_s34b_b88k")),
        ((None, "file.pt"), False, ("ViT-B-16", "file.pt")),
        ((None, "folder"), True, ("tiny", "folder")),
        (("tiny", None), False, ("tiny", None)),
        (("ViT-B-16", None), False, REAL),
        (("ViT-B/16", None), True, ("ViT-B/16", REAL.pretrained)),
        (("ViT-B-32", None), False, ("ViT-B-32", None)),
        (("ViT-B-32", "openai"), True, ("ViT-B-32", "openai")),
        ((None, "LAION2B-S34B-B88K"), False, ("ViT-B-16", "laion2b_s34b_b88k")),
        (("ViT-B/32", "OpenAI"), False, ("ViT-B/32", "openai")),
        (("ViT-B-16", "My-File.pt"), False, ("ViT-B-16", "My-File.pt")),
        (("tiny", "OpenAI"), False, ("tiny", "OpenAI")),
    ],
)
def test_the_backbone_of_data(
    given: tuple[str | None, str | None], world: bool, wanted: BackboneName
) -> None:
    assert backbone_or_default(*given, world=world) == wanted


def test_the_usual_clip_can_be_had_and_has_a_role_table() -> None:
    assert open_clip.get_pretrained_cfg(*REAL)["hf_hub"]
    assert REAL in [(one.weights.model, one.weights.pretrained) for _, one in packaged_tables()]


def test_a_name_that_no_backbone_has_is_refused(tmp_path: Path) -> None:
    for known in (None, "tiny", "ViT-B-16", "ViT-B/16", "hf-hub:owner/name", str(tmp_path)):
        check_model(known)
    refuses(UnknownNameError, "Did you mean 'ViT-B-16'", check_model, "ViT-B-61")
    for path in (str(tmp_path / "gone"), "./gone", "one/two/gone"):
        with pytest.raises(WeightsError, match=f"no folder {path} here"):
            check_model(path)
    with pytest.raises(UnknownNameError, match=r"Known backbones: .*No folder here has that name"):
        check_model("hfclip")


def test_a_repository_may_be_named_as_on_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("openai/clip-vit-base-patch16", "laion/CLIP-ViT-B-16-laion2B-s34B-b88K"):
        check_model(name)
        assert hub_name(name) == hub_name(f"hf-hub:{name}") == f"hf-hub:{name}"
        source = find_repository(name, "the bundle b")
        assert source is not None
        assert (source.name, source.id, source.named_by) == (f"hf-hub:{name}", name, "the bundle b")
    for name in ("ViT-B/32", "vit-b/32", "a/b/c", "../b", "a/..", "~/b", "a/", "/b", "a /b"):
        assert hub_name(name) is None
    # A folder of that name comes first.
    (tmp_path / "openai" / "clip").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    source = find_repository("openai/clip")
    assert source is not None
    assert source.folder == Path("openai/clip")
