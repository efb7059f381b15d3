"""Make page.png and report.png: what `dear serve` (lite) and `dear demo` (tiny CLIP) show.

    make screenshots PHOTOS=FOLDER

The folder has a folder of photographs for each class. The page is of a classifier fitted to them, and offers
the first photograph of each class, which the fit does not see. README's are of Caltech-101 (CC BY 4.0). Needs
chromium and the extra lite, nothing from the network, and some minutes.
"""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from PIL import Image

HERE = Path(__file__).resolve().parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TASKS = "street-signs,postcard-scenes,turned-tools"
SIZE = {"width": 1100, "height": 825}  # of a tab, in CSS pixels
COLORS = 256  # of the palette, which makes the files small
LARGEST = 300_000  # bytes
PATIENCE = 60.0  # seconds


def dear(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "dear.cli.main", *map(str, arguments)]


@contextmanager
def serving(bundle: Path, examples: Path) -> Iterator[str]:
    """The address of `dear serve`, while it runs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/"
    server = subprocess.Popen(dear("serve", bundle, "--examples", examples, "--port", str(port)))
    try:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                urlopen(address, timeout=5).close()
                break
            except (URLError, TimeoutError):  # not there yet, or slow to answer
                if server.poll() is not None or time.monotonic() > until:
                    raise SystemExit("`dear serve` did not start; it says why above.") from None
                time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait()


def divide(photos: Path, place: Path) -> tuple[Path, Path]:
    """Folders of the photographs to fit to, by class, and of the first of each class, named after it."""
    fitted, examples = place / "photos", place / "examples"
    examples.mkdir()
    for folder in sorted(path for path in photos.iterdir() if path.is_dir()):
        first, *others = sorted(folder.iterdir())
        shutil.copy(first, examples / f"{folder.name}{first.suffix}")
        (fitted / folder.name).mkdir(parents=True)
        for path in others:
            shutil.copy(path, fitted / folder.name)
    return fitted, examples


def take(tab: Any, name: str) -> None:
    """Write what the tab shows as a small PNG."""
    shown = Image.open(BytesIO(tab.screenshot())).convert("RGB")
    path = HERE / name
    shown.quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path}: {size / 1000:.0f} kB")
    if size > LARGEST:
        raise SystemExit(f"{path} is larger than {LARGEST / 1000:.0f} kB.")


def main() -> None:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        raise SystemExit("Name a folder with a folder of photographs for each class.")
    from playwright.sync_api import sync_playwright

    chromium = next((found for one in BROWSERS if (found := shutil.which(one))), None)
    if chromium is None:
        raise SystemExit(f"There is no chromium on the path ({', '.join(BROWSERS)}): install one.")
    with TemporaryDirectory() as place, sync_playwright() as playwright:
        bundle, demo = Path(place, "my-classifier"), Path(place, "demo")
        fitted, examples = divide(Path(sys.argv[1]), Path(place))
        options = ("--model", "lite", "--method", "dear+", "--out", bundle)
        subprocess.run(dear("fit", fitted, *options), check=True)
        subprocess.run(dear("demo", "--tasks", TASKS, "--out", demo), check=True)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport=SIZE, color_scheme="light")
        with serving(bundle, examples) as address:
            tab.goto(address)
            tab.locator("#examples button").first.click()
            tab.wait_for_selector("#result details[open] .why")
            tab.wait_for_load_state("networkidle")
            take(tab, "page.png")
        tab.goto((demo / "report.html").as_uri())
        take(tab, "report.png")
        browser.close()


if __name__ == "__main__":
    main()
