"""The numbers of docs/scale.md are those of the files that it names."""

import json
from pathlib import Path

from dear.cluster.jobs import MOST

ROOT = Path(__file__).parents[2]
DAY, IMAGES = 86_400, 10**9


def test_a_billion_images() -> None:
    page = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
    rows = json.loads((ROOT / "benchmarks/results/predict.json").read_text())["rows"]
    found = {row["kind"]: row for row in rows}
    kinds = [found["dear, 32-true"], found["dear, bf16-mixed"]]
    seconds, rates = ([kind[name] for kind in kinds] for name in ("CPU s an image", "images/s"))
    expected = {
        "core hours": [IMAGES * second / 3600 for second in seconds],
        "days of one machine (2 cores)": [IMAGES / (rate * DAY) for rate in rates],
        "images in a day, one machine": [rate * DAY for rate in rates],
        "ten machines": [10 * rate * DAY for rate in rates],
        "a thousand machines": [1000 * rate * DAY for rate in rates],
        f"a lost file of {MOST:,} images, in core seconds": [MOST * second for second in seconds],
    }
    for name, values in expected.items():
        assert f"| {name} | {values[0]:,.0f} | {values[1]:,.0f} |" in page
    assert f"| files of predictions | {-(-IMAGES // MOST):,} |" in page
    assert f"{1000 * rates[1]:,.0f} images/s × 2,048 bytes" in page
    assert f"{1000 * rates[1] * 2048 / 1e6:.1f} MB/s" in page
    assert f"a factor of {seconds[0] / seconds[1]:.1f}" in page
    for cell in (
        f"{seconds[0]:.3f} s",
        f"{seconds[1]:.4f} s",
        f"{rates[0]:.2f} images/s",
        f"{rates[1]:.1f} images/s",
    ):
        assert f"| {cell} |" in page
    index = json.loads((ROOT / "benchmarks/results/index.json").read_text())
    million = next(row for row in index["rows"] if row["images"] == 10**6)
    assert f"{million['one feature: best ms']} ms for a million images" in page
    assert index["settings"]["embed"] == 512
