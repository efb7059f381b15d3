"""The report: parses, stands alone, escapes, is the same each time, and is written whole or not at all."""

import re
from html.parser import HTMLParser

import pytest

from tests.helpers.records import material, neighbors, record, records, report_html, retrieval

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Collects tags, and complains about a tag closed out of turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def full() -> str:
    return report_html(**material())


def test_full_report_parses_and_is_accessible(full: str) -> None:
    page = Page(full)
    assert [len(page.all(tag)) for tag in ("h1", "svg")] == [1, 4]
    assert all(image.get("alt") for image in page.all("img"))
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.all("svg"))
    assert all(header.get("scope") for header in page.all("th"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for words in ("66.7%", "42.8%", "+23.9 points", "ground-truth factors", "ab" * 32, "A small world."):
        assert words in page.text


def test_only_itself_is_needed(full: str) -> None:
    page = Page(full)
    assert not [*page.all("script"), *page.all("link")]
    for _, attributes in page.tags:
        for key in ("src", "href", "xlink:href", "data", "srcset", "poster"):
            value = attributes.get(key)
            assert value is None or value.startswith(("data:image/png;base64,", "#"))
    assert not re.search(r"@import|url\((?!#)|https?://(?!www\.w3\.org)", full)


def test_shared_attributes_are_marked_by_more_than_color(full: str) -> None:
    # Of two neighbors one has the query's color and one its shape; cls stands for no attribute.
    assert full.count('<li class="match">') == 2
    assert full.count("✓") == full.count(" (shared)") == 2
    assert full.count("1 of 2") == 4
    assert "<strong>90.00</strong>" in full


def test_a_page_of_retrievals_alone() -> None:
    results = neighbors()
    page = Page(report_html(title="A", records=[retrieval(results)]))
    assert "dear: the images nearest to some images by each feature." in page.text
    assert len(page.all("img")) == 1 + 3 * 2  # a query, and two neighbors by three features
    assert page.text.count("How often neighbors share a factor") == 1


def test_the_page_shows_deviations_over_seeds() -> None:
    runs = [record("tools", "dear", base, 0.5, seed=seed) for seed, base in ((1, 0.70), (2, 0.72), (3, 0.74))]
    # HM: 2 * 72 * 50 / 122; by seed 58.33, 59.02, 59.68, whose deviation is 0.67.
    assert "72.00 ± 2.00 50.00 ± 0.00 59.02 ± 0.67" in Page(report_html(title="A", records=runs)).text


def test_names_are_escaped() -> None:
    bad, content = "<script>alert('x')</script>\" onload=\"y", material()
    for run in content["records"]:
        run["dataset"] = run["dataset"] | {"classes": [bad], "title": f"{run['dataset']['name']} {bad}"}
        run["environment"] = {bad: bad}
    content["records"][-1]["results"]["queries"][0]["title"] = bad
    page = Page(report_html(**content | {"title": bad, "notes": [bad]}))
    assert not page.all("script")
    assert not any("onload" in attributes for _, attributes in page.tags)
    assert bad.split('"')[0] in page.text


def test_missing_runs_and_a_better_method_are_said() -> None:
    runs = records()
    assert "Some runs of dear are missing" in Page(report_html(title="t", records=runs[:3])).text
    for run in runs[::2]:
        run["results"] = {half: {"accuracy": 0.99} for half in ("base", "novel")}
    text = Page(report_html(title="t", records=runs)).text
    assert "the highest here is zero-shot, 99.0%." in text
    assert "−39.0 points" in text


def test_the_page_begins_with_the_verdict() -> None:
    """HMs of 66.67 and 42.79 by hand: 2 * 60 * 75 / 135 and 2 * 35 * 55 / 90."""
    runs = records()
    text = Page(report_html(title="t", records=runs)).text
    assert "t dear: harmonic mean (HM) 66.7%, 23.9 points above zero-shot (42.8%). Train on half" in text
    assert "2 data sets, 16 training images per class, 1 seed." in text
    assert "a toy that knows drawings alone" in text
    same = [run | {"results": runs[0]["results"]} for run in runs]
    assert "44.4%, the same as zero-shot (44.4%)." in Page(report_html(title="t", records=same)).text
    for run in runs:
        run["weights"] = run["weights"] | {"model": "ViT-B-16"}
    assert "a toy" not in report_html(title="t", records=runs)
