"""The page in headless Chromium: it loads from this server alone, classifies, retrieves and refuses."""

import csv
import io
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dear.adapters.evaluation_page import core_heads
from dear.adapters.predictor import Predictor
from dear.report.render import write_html
from dear.report.roles_page import roles_page
from dear.roles.inspection import Inspection
from dear.serving.limits import Refused
from dear.serving.service import Service
from tests.e2e.page import Open, pytestmark, serving  # noqa: F401
from tests.helpers.records import PLACES, curve, material, noise_pictures, report_html, table
from tests.helpers.server import bomb, picture, png

pytest_plugins = ["tests.e2e.page"]


def test_the_page(service: Service, browse: Open, tmp_path: Path) -> None:
    good = tmp_path / "photo.png"
    good.write_bytes(png(picture(3)))
    assert service.predictor.bundle.roles is not None
    heads = core_heads(service.predictor.bundle.roles)
    with serving(service) as address:
        page = browse(address)
        page.wait_for_selector("h1:has-text('shades')")
        assert page.locator("#about").inner_text() == "dear on small (random), 3 classes"
        for hidden in ("#result details", "#look", "#near", "#roles button"):  # nothing to control yet
            assert not page.locator(hidden).first.is_visible()
        page.set_input_files("#file", str(good))
        page.wait_for_selector("#result details[open] .why")
        assert page.locator("#result .class").count() == 3
        best = page.locator("#result .class[open]")
        wanted, second = service.predictor.predict(picture(3), top=2).top
        assert best.locator(".why").inner_text().startswith(f"Rather “{wanted.name}” than “{second.name}”")
        assert not best.locator("tbody").is_visible()  # numbers are folded away
        assert best.locator("tbody th").all_text_contents() == ["class", "color", "object"]
        assert "“color”: how well its color fits the name of the class." in page.locator("#said").inner_text()
        told = [text.replace("−", "-") for text in best.locator("tbody td:nth-child(4)").all_text_contents()]
        assert told == [f"{value:+.2f}" for value in wanted.evidence.values()]
        gaps = [value - second.evidence[name] for name, value in wanted.evidence.items()]
        told = [text.replace("−", "-") for text in best.locator("tbody td:nth-child(3)").all_text_contents()]
        assert told == [f"{gap:+.2f}" for gap in gaps]
        assert best.locator(".against").count() == sum(gap < 0 for gap in gaps)
        page.wait_for_selector("#neighbors img")
        assert "3.png" not in page.locator("#neighbors").inner_text()  # the query itself is left out
        assert not page.locator("#layer").is_visible()  # folded away until somebody looks
        assert not [url for url in page.asked if "api/attention" in url]
        page.click("#look summary")
        page.wait_for_selector("#attention img")
        page.wait_for_selector("#attribute-maps .attribute:last-child figure:last-child img")
        assert page.locator("#attribute-maps img").count() == 4
        assert page.locator("#attribute-maps h3").all_inner_texts() == [
            f"{head.attribute} layer {head.layer}, head {head.head}" for head in heads
        ]
        tokens = page.locator("#attribute-maps figcaption").all_inner_texts()
        assert tokens == ["class token", "color token", "class token", "object token"]
        assert best.locator("tfoot td").nth(2).text_content() == f"{wanted.logit:+.2f}".replace("-", "−")
        # It fits the width of a phone, and everything came from this server.
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert [url for url in page.asked if not url.startswith((address, "data:", "blob:"))] == []
        assert page.said == []  # nothing was against its own policy

        page.click("summary:has-text('Other classes')")
        page.fill("#others", "red house, blue tree")
        page.press("#others", "Enter")
        page.wait_for_selector("#result .name:has-text('blue tree')")
        assert page.locator("#result .class").count() == 2
        assert "red house, blue tree" in page.locator("#classes .among").inner_text()
        page.fill("#others", "red house,red house")
        page.press("#others", "Enter")
        page.wait_for_selector("#result [role=alert]:has-text('listed twice')")
        page.fill("#others", "")
        page.click("#head-roles summary")
        page.click("#roles button[data-layer='4'][data-head='1']")
        page.wait_for_selector("#attention figcaption:has-text('Layer 4, head 1:')")
        page.check("#tokens input[value=color]")
        page.wait_for_selector("#attention figcaption:has-text('color token')")
        page.select_option("#layer", "1")
        page.wait_for_selector("#attention [role=alert]:has-text('has no token')")

        (tmp_path / "words.jpg").write_text("this is a text")
        (tmp_path / "bomb.png").write_bytes(bomb())
        (tmp_path / "large.png").write_bytes(b"\0" * (2 * 2**20))
        for file, words in (
            ("words.jpg", "not an image"),
            ("bomb.png", "60.0 megapixels"),
            ("large.png", "larger than 1 MiB"),
        ):
            page.set_input_files("#file", str(tmp_path / file))
            page.wait_for_selector(f"#result [role=alert]:has-text('{words}')")
        page.set_input_files("#file", str(good))  # it goes on
        page.wait_for_selector("#result details[open]")


def test_sliders_steer_the_features(service: Service, browse: Open, tmp_path: Path) -> None:
    """The result stands beside that of the weights as learned, which come back with a button."""
    good = tmp_path / "photo.png"
    good.write_bytes(png(picture(3)))
    steered = Predictor(service.predictor.bundle, clip=service.predictor.clip, fusion={"color": 0})
    [wanted] = steered.predict([picture(3)])
    with serving(service) as address:
        page = browse(address)
        page.wait_for_selector("h1:has-text('shades')")
        page.set_input_files("#file", str(good))
        page.wait_for_selector("#result .class[open] .why")
        assert not page.locator("#result .unchanged").count()
        page.click("#steer summary")
        assert page.locator("#weights input").count() == 3
        page.fill("#weights input[name=color]", "0")
        page.wait_for_selector("#result .unchanged")
        assert wanted.unchanged[0].name in page.locator("#result .unchanged").inner_text()
        best = page.locator("#result .class[open]")
        assert best.locator(".name").inner_text().startswith(wanted.best.name)
        learned = next(one for one in wanted.unchanged if one.name == wanted.best.name)
        sums = [text.replace("−", "-") for text in best.locator("tfoot td").all_inner_texts()[2:]]
        assert sums == [f"{wanted.best.logit:+.2f}", f"{learned.logit:+.2f}"]
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.click("#alone")
        page.wait_for_selector("#weights label:has-text('class 1.00')")
        assert page.locator("#weights output").all_inner_texts() == ["1.00", "0.00", "0.00"]
        page.click("#reset")
        page.wait_for_selector("#result .unchanged", state="detached")
        assert page.said == []


NAMES = ['=HYPERLINK("x").png', "<img src=x onerror=alert(1)>.png", ' -2+3,"a".png', "plain.png"]
NAMES += ["photo \u202egnp.exe"]


def be_busy(service: Service, monkeypatch: pytest.MonkeyPatch, *, after: int, times: int) -> None:
    """After some pictures, ask so many times to wait, as when too many others send pictures."""
    predict, asked = service.predict, count()

    async def answer(*given: Any) -> dict[str, Any]:
        if after <= next(asked) < after + times:
            raise Refused(503, "busy", "try again in 1 s.", 1)
        return await predict(*given)

    monkeypatch.setattr(service, "predict", answer)


def test_several_pictures_become_a_table(
    service: Service, browse: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its row, errors too, while the server asks to wait; names are text there and in the CSV."""
    service.limits = replace(service.limits, images=3)
    be_busy(service, monkeypatch, after=14, times=2)
    names = [*NAMES, *(f"{number}.png" for number in range(19))]
    predictions = service.predictor.predict(map(picture, range(24)), top=2)
    wanted = [prediction.best for prediction in predictions]
    files = [
        {"name": name, "mimeType": "image/png", "buffer": png(picture(seed))}
        for seed, name in enumerate(names)
    ]
    files[2:2] = [
        {"name": "words.jpg", "mimeType": "image/jpeg", "buffer": b"this is a text"},
        {"name": "large.png", "mimeType": "image/png", "buffer": b"\0" * (2 * 2**20)},
    ]
    files[-1]["name"] = files[-2]["name"]
    with serving(service) as address:
        page = browse(address, accept_downloads=True)
        page.wait_for_selector("h1:has-text('shades')")
        page.set_input_files("#file", files)
        page.wait_for_selector("#many .note:has-text('asks to wait')")
        page.wait_for_selector("#many .halt", state="hidden")
        assert page.locator("#many .count").inner_text() == "26 of 26 images, 2 of them not classified."
        titles = [*(file["name"] for file in files[:-1]), "17.png (2)"]
        failures_first = [titles[3], titles[2], *titles[:2], *titles[4:]]  # the large one is not sent
        assert page.locator("#many tbody bdi").all_text_contents() == failures_first
        shown = [row.locator("td").all_text_contents() for row in page.locator("#many tbody tr").all()]
        assert "larger than 1 MiB" in shown[0][0]
        assert "not an image" in shown[1][0]
        assert shown[2:] == [[best.name, f"{best.probability:.1%}"] for best in wanted]
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

        with page.expect_download() as download:
            page.click("#many .csv")
        assert download.value.suggested_filename == "predictions.csv"
        text = Path(download.value.path()).read_text(encoding="utf-8-sig")
        rows = [*csv.reader(io.StringIO(text, newline=""))]
        columns = "file class probability class_2 probability_2 none_of_these predicted checked error"
        assert rows[0] == columns.split()
        files_in_csv = [row[0] for row in rows[1:]]
        assert files_in_csv[:2] == ["'" + NAMES[0], NAMES[1]]
        assert files_in_csv[4:7] == ["'" + NAMES[2], "plain.png", "photo  gnp.exe"]
        assert [row[1] for row in rows[1:] if not row[8]] == [best.name for best in wanted]
        assert [row[3] for row in rows[1:] if not row[8]] == [other.top[1].name for other in predictions]
        assert (rows[3][:5], rows[-1][0]) == (["words.jpg", "", "", "", ""], "17.png (2)")
        assert float(rows[1][2]) == pytest.approx(wanted[0].probability, abs=1e-6)
        assert float(rows[1][4]) == pytest.approx(predictions[0].top[1].probability, abs=1e-6)

        page.click("#many tbody tr:nth-child(3) button")  # one of them by itself
        page.wait_for_selector("#result details[open]")
        assert page.locator("#result details[open] .name").inner_text().startswith(wanted[0].name)
        assert page.locator("#many").is_visible()
        assert page.said == []  # no script ran, and nothing was against the policy


def test_a_dropped_folder_is_a_table_of_its_pictures_by_path(
    service: Service, browse: Open, tmp_path: Path
) -> None:
    for path in ("rocks/10/a.png", "rocks/9/a.png", "rocks/top.png"):
        tmp_path.joinpath("in", path).parent.mkdir(parents=True, exist_ok=True)
        tmp_path.joinpath("in", path).write_bytes(png(picture(len(path))))
    (tmp_path / "in" / "rocks" / "notes.txt").write_text("no picture")
    with serving(service) as address:
        page = browse(address)
        page.wait_for_selector("h1:has-text('shades')")
        session = page.context.new_cdp_session(page)
        data = {"items": [], "files": [str(tmp_path / "in" / "rocks")], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            session.send("Input.dispatchDragEvent", {"type": kind, "x": 100, "y": 300, "data": data})
        page.wait_for_selector("#many .count:has-text('3 of 3 images.')")
        titles = page.locator("#many tbody bdi").all_text_contents()
        assert titles == ["rocks/top.png", "rocks/9/a.png", "rocks/10/a.png"]
        assert page.said == []


def test_a_table_that_was_stopped_continues(
    service: Service, browse: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.limits = replace(service.limits, images=2)
    be_busy(service, monkeypatch, after=3, times=1000)
    files = [
        {"name": f"{seed}.png", "mimeType": "image/png", "buffer": png(picture(seed))} for seed in range(9)
    ]
    with serving(service) as address:
        page = browse(address)
        page.wait_for_selector("h1:has-text('shades')")
        page.set_input_files("#file", files)
        page.wait_for_selector("#many .note:has-text('asks to wait')")
        page.click("#many .halt:has-text('Stop')")
        done = page.locator("#many tbody td.n:not(:empty)").count()
        assert 0 < done < 9
        page.click("#many .halt:has-text('Continue')")
        page.wait_for_selector("#many .note:has-text('asks to wait')")
        assert page.locator("#many .count").inner_text() == f"{done} of 9 images."
        page.set_input_files("#file", files[0])  # one file closes the table
        page.wait_for_selector("#many", state="hidden")


def test_other_classes_are_set_before_any_picture(service: Service, browse: Open, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(png(picture(3)))
    with serving(service) as address:
        page = browse(address)
        page.wait_for_selector("h1:has-text('shades')")
        page.click("summary:has-text('Other classes')")
        page.fill("#others", "red house, blue tree")
        page.press("#others", "Enter")
        page.wait_for_selector("#classes .among:has-text('red house, blue tree')")
        page.set_input_files("#file", str(tmp_path / "photo.png"))
        page.wait_for_selector("#result .name:has-text('blue tree')")
        assert page.locator("#result .class").count() == 2
        assert page.said == []


FOCUSED = """(e => e.closest('#roles') ? '#roles ' + e.tagName.toLowerCase()
    : e.id ? '#' + e.id : e.tagName + ' ' + e.name)(document.activeElement)"""


def test_everything_is_reached_by_the_keyboard(service: Service, browse: Open, tmp_path: Path) -> None:
    good = tmp_path / "photo.png"
    good.write_bytes(png(picture(3)))
    with serving(service) as address:
        page = browse(address)
        page.wait_for_selector("h1:has-text('shades')")
        page.set_input_files("#file", str(good))
        page.wait_for_selector("#result details[open]")
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        seen = list[str]()
        while len(seen) < 80 and "#roles button" not in seen:
            page.keyboard.press("Tab")
            seen.append(page.evaluate(FOCUSED))
    wanted = [
        "#file",
        "INPUT color",
        "#others",
        "#top",
        "INPUT color",
        "#count",
        "#layer",
        "#head",
        "INPUT token",
    ]
    wanted += ["#roles div"]
    assert [one for one in seen if one in wanted] == wanted
    assert seen[-1] == "#roles button"


class Foreign(BaseHTTPRequestHandler):
    """A web page of somebody else."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>foreign</title>")

    def log_message(self, *_: object) -> None:
        pass


def test_a_web_page_of_another_server_gets_nothing(
    service: Service, browse: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = list[bytes]()
    monkeypatch.setattr(service, "decode", decoded.append)
    post = """async (address) => {
        const form = new FormData();
        form.append("image", new Blob(["x"]));
        await fetch(address + "api/predict", {method: "POST", body: form, mode: "no-cors"}).catch(() => {});
    }"""
    with serving(service) as address, ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as foreign:
        threading.Thread(target=foreign.serve_forever, daemon=True).start()
        page = browse(f"http://127.0.0.1:{foreign.server_port}/")
        page.evaluate(post, address)
        foreign.shutdown()
    assert [*page.asked][-1] == f"{address}api/predict"
    assert decoded == []


def test_the_door_asks_for_the_token(service: Service, browse: Open) -> None:
    with serving(service, token="s3cret") as address:
        page = browse(address, color_scheme="dark")
        for given, shown in (
            ("wrong", "[role=alert]:has-text('Wrong token')"),
            ("s3cret", "h1:has-text('shades')"),
        ):
            page.fill("input[type=password]", given)
            page.click("button")
            page.wait_for_selector(shown)
        assert page.url == address  # the token is not in it
        # Chromium's notes: on the field, and on a test that types before the page has set the focus.
        notes = ("401", "[DOM]", "Autofocus")
        assert [text for text in page.said if not any(note in text for note in notes)] == []


def test_the_page_of_roles_is_sorted_and_a_report_prints_whole(browse: Open, tmp_path: Path) -> None:
    known, pictures = table(), noise_pictures(PLACES, 2, 5)
    heads = (replace(head, entropy=None) if at == 3 else head for at, head in enumerate(known.heads))
    content = replace(known, heads=tuple(heads))
    path = write_html(
        tmp_path / "roles.html", roles_page(content, inspection=Inspection(curve(0.9), None, pictures))
    )
    tab = browse(path.as_uri(), viewport={"width": 1280, "height": 720})
    tab.locator("details:has(table.sortable) > summary").first.click()

    def column(number: int) -> list[str]:
        cells = tab.locator(f"table.sortable tbody tr > :nth-child({number})")
        return [text.strip() for text in cells.all_inner_texts()]

    assert column(6) == ["0.20", "0.90", "1.30", "–", "0.80", "0.15"]
    entropy = tab.locator("table.sortable thead button", has_text="Entropy")
    entropy.click()
    assert column(6) == ["0.15", "0.20", "0.80", "0.90", "1.30", "–"]
    entropy.focus()
    tab.keyboard.press("Enter")
    assert column(6) == ["1.30", "0.90", "0.80", "0.20", "0.15", "–"]
    assert tab.locator("th[aria-sort]").all_inner_texts() == ["Entropy"]
    assert tab.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    tab.locator("table.sortable thead button", has_text="Concept").click()
    assert column(4) == sorted(column(4))
    tab.locator("#layer-9-head-0 > summary").click()
    box = tab.locator("#layer-9-head-0 .rows .i").first.bounding_box()
    assert box["width"] == pytest.approx(56)
    assert (tab.said, [url for url in tab.asked if not url.startswith(("file:", "data:"))]) == ([], [])
    tab.emulate_media(media="print")  # on A4 nothing scrolls, and nobody opens what is folded away
    tab.set_viewport_size({"width": 680, "height": 900})
    tab.set_content(report_html(**material()).replace("<details open", "<details"))
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert tab.locator("details table").first.bounding_box()["height"] > 20
