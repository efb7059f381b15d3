"""Loading by name: names, seeds, paths and files that are refused, and what the message says."""

import pickle
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from open_clip.factory import _MODEL_CONFIGS
from safetensors.torch import save_file
from torch import Tensor

from dear.backbone.load import load_clip
from dear.backbone.weights import read_weights
from dear.errors import UnknownNameError, WeightsError
from dear.limits import LimitError
from tests.unit.backbone.prime import CONFIG, NAME

pytestmark = pytest.mark.usefixtures("prime_architecture")


def test_unknown_architecture_lists_the_nearest_few() -> None:
    with pytest.raises(UnknownNameError, match=r"'vit-b-61'.* ViT-B-16.* \.\.\. and \d+ more") as caught:
        load_clip("vit-b-61")
    assert str(caught.value).count(", ") == 11
    assert "tiny" in caught.value.known
    assert caught.value.known[0].startswith("ViT-B-")


def test_no_weights_lists_the_tags_and_random() -> None:
    with pytest.raises(WeightsError, match=r"ViT-B-32 needs weights: a tag \(.*and \d+ more\).*random:0"):
        load_clip("ViT-B-32")
    with pytest.raises(WeightsError, match=r"a tag \(by_url, plain, quick\), a local file, or random:0"):
        load_clip(NAME)


def test_unknown_tag_lists_the_nearest_first() -> None:
    with pytest.raises(WeightsError, match=r"has no weights 'quik'. It takes a tag \(quick, "):
        load_clip(NAME, "quik")


@pytest.mark.parametrize("name", ["roberta-ViT-B-32", "xlm-roberta-base-ViT-B-32"])
def test_architectures_that_do_not_fit_are_refused_before_any_download(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dear.backbone.hub.fetch", lambda *_, **__: pytest.fail("downloaded"))
    with pytest.raises(WeightsError, match=f"{name} does not fit: its "):
        load_clip(name, open_clip.list_pretrained_tags_by_model(name)[0])


@pytest.mark.parametrize("seed", ["", "x", "-1", "1.5", "²", str(2**63)])
def test_a_seed_that_is_none(seed: str) -> None:
    with pytest.raises(WeightsError, match="has no valid seed"):
        load_clip(NAME, f"random:{seed}")


def test_paths_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no weights file at .*absent\.pt"):
        load_clip(NAME, str(tmp_path / "absent.pt"))
    with pytest.raises(WeightsError, match=r"no weights file at here\.bin"):
        load_clip(NAME, "here.bin")
    with pytest.raises(WeightsError, match="is a folder: name the weights file"):
        load_clip(NAME, str(tmp_path))


@pytest.mark.parametrize("form", ["pt", "safetensors"])
@pytest.mark.parametrize("keep", [0, 5, 1000, -100])
def test_cut_files(tmp_path: Path, state: dict[str, Tensor], form: str, keep: int) -> None:
    path = tmp_path / f"cut.{form}"
    if form == "pt":
        torch.save(state, path)
    else:
        save_file(state, path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(WeightsError, match=rf"cut\.{form}"):
        load_clip(NAME, str(path))


@pytest.mark.parametrize("content", [bytes(range(256)) * 9, b"hello world"])
@pytest.mark.parametrize("name", ["image.pt", "image.safetensors", "image.jpg"])
def test_a_file_of_another_kind(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match=name):
        load_clip(NAME, str(tmp_path / name))


@pytest.mark.parametrize(
    "saved", [torch.zeros(3), [torch.zeros(3)], {"a": 3}, {}, {"state_dict": {"a": 3}}, {"state_dict": 3}]
)
def test_a_checkpoint_without_a_state_dict(tmp_path: Path, saved: object) -> None:
    torch.save(saved, tmp_path / "odd.pt")
    with pytest.raises(WeightsError, match=r"odd\.pt"):
        load_clip(NAME, str(tmp_path / "odd.pt"))


class Exploit:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("code of the file ran",)


@pytest.mark.parametrize("writer", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_code_in_a_checkpoint_is_not_run(
    tmp_path: Path, writer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    writer({"a": Exploit()}, tmp_path / "evil.pt")
    with pytest.raises(WeightsError, match=r"evil\.pt is damaged, or no file of weights"):
        load_clip(NAME, str(tmp_path / "evil.pt"))
    assert "ran" not in capsys.readouterr().out


def test_weights_that_promise_more_than_their_file_has(
    tmp_path: Path, state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor that repeats one number; a header of terabytes; a file above the limit."""
    path = tmp_path / "large.pt"
    torch.save(state | {"visual.proj": torch.zeros(1).expand(10**7, 10**7)}, path)
    with pytest.raises(WeightsError, match=r"1 of a different shape \(first: visual.proj\)"):
        load_clip(NAME, str(path))
    header = b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'
    forged = tmp_path / "forged.safetensors"
    for length in (len(header), 2**40):
        forged.write_bytes(length.to_bytes(8, "little") + header)
        with pytest.raises(WeightsError, match=r"forged\.safetensors is damaged"):
            load_clip(NAME, str(forged))
    monkeypatch.setenv("DEAR_LIMIT_TENSOR_BYTES", "1000")
    with pytest.raises(LimitError, match=r"large\.pt: .* bytes of a file of tensors"):
        read_weights(path)


def test_tensors_that_share_their_values_are_read(tmp_path: Path) -> None:
    """As those of models whose two embeddings are the same do."""
    words = torch.arange(1000.0)
    torch.save({"a": words, "b": words}, tmp_path / "tied.pt")
    read = read_weights(tmp_path / "tied.pt")
    assert torch.equal(read["b"], words)
    if (maps := Path("/proc/self/maps")).exists():
        assert str(tmp_path / "tied.pt") in maps.read_text()  # its values are not in memory


def test_a_file_of_an_old_torch_is_read(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(1000.0)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert torch.equal(read_weights(tmp_path / "old.pt")["a"], torch.arange(1000.0))


def test_weights_of_another_architecture_say_what_does_not_fit(
    tmp_path: Path, state: dict[str, Tensor]
) -> None:
    path = tmp_path / "other.pt"
    del state["visual.proj"]
    state["vision_model.projection"] = torch.zeros(3)
    state["positional_embedding"] = torch.zeros(77, 22)
    torch.save(state, path)
    wanted = (
        r"other\.pt holds weights of another architecture, .* tensors 1 missing \(first: visual\.proj\), "
        r"1 unknown \(first: vision_model\.projection\), "
        r"1 of a different shape \(first: positional_embedding\)"
    )
    with pytest.raises(WeightsError, match=wanted):
        load_clip(NAME, str(path))


def test_names_and_shapes_are_compared_before_a_value_is_read(
    tmp_path: Path, state: dict[str, Tensor]
) -> None:
    path, bad = tmp_path / "nan.safetensors", torch.full((1, 23), float("nan"))
    save_file(state | {"foreign": bad}, path)
    with pytest.raises(WeightsError, match=r"tensors 1 unknown \(first: foreign\)"):
        load_clip(NAME, str(path))
    save_file(state | {"visual.proj": bad}, path)
    with pytest.raises(WeightsError, match=r"tensors 1 of a different shape \(first: visual\.proj\)"):
        load_clip(NAME, str(path))
    for value in (float("nan"), 1j):
        save_file(state | {"visual.proj": torch.full((21, 17), value)}, path)
        with pytest.raises(WeightsError, match=r"values of visual\.proj"):
            load_clip(NAME, str(path))


def test_types_of_8_bits_are_read_as_they_are(tmp_path: Path, state: dict[str, Tensor]) -> None:
    save_file(
        {name: value.to(torch.float8_e4m3fn) for name, value in state.items()}, tmp_path / "8.safetensors"
    )
    clip = load_clip(NAME, str(tmp_path / "8.safetensors"))
    weight = state["visual.conv1.weight"].to(torch.float8_e4m3fn).float()
    assert any(torch.equal(value, weight) for value in clip.state_dict().values())


def test_a_tokenizer_that_cannot_be_had_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = CONFIG["text_cfg"] | {"hf_tokenizer_name": "someone/tokenizer"}  # type: ignore[operator]
    monkeypatch.setitem(_MODEL_CONFIGS, NAME, CONFIG | {"text_cfg": text})

    with pytest.raises(WeightsError, match=r"'someone/tokenizer'\) cannot be loaded: .*offline"):
        load_clip(NAME, "random:0")
