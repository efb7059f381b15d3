"""`dear index query`: what is told before a backbone is loaded."""

from pathlib import Path

import pytest

from dear.cli.main import main
from dear.retrieval.build import build_index
from tests.unit.retrieval.solid import Plain, gallery


@pytest.mark.parametrize(
    ("model", "words"), [("/gone/bundle", "is no longer at /gone/bundle"), ("", "is not named")]
)
def test_a_bundle_that_has_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, words: str
) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out, model=model)
    assert main(["index", "query", str(out), str(folder / "red.png")]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert "--bundle" in told
