"""The sets: what their pictures show, and how they are made of packages or drawn. README.md has licenses."""

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from benchmarks.zoo import packages
from benchmarks.zoo.packages import Packages
from benchmarks.zoo.pictures import (
    Classes,
    Picture,
    as_is,
    as_jpeg,
    as_png,
    draw_some,
    from_values,
    number_name,
    stream,
)

CLIPART_CLASSES = ("animals", "buildings", "food", "people", "plants", "tools", "transportation", "office")
FONTS = (
    "DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "LiberationSans-Regular", "LiberationSerif-Regular",
    "LiberationMono-Regular", "LiberationSans-Bold", "LiberationSerif-Italic",
)  # fmt: skip
YELLOW, WHITE = (240, 230, 40), (250, 250, 250)


@dataclass(frozen=True)
class PictureSet:
    """A set of pictures.

    Attributes:
        make: Its classes. Raises `packages.Missing`.
        to_fit, most: As in `write_set`.
    """

    make: Callable[[Packages], Classes]
    to_fit: Mapping[str, int] | None = None
    most: tuple[int, int] | None = None


def make_textiles(of: Packages) -> Classes:
    folder = of(packages.TEXTILES) / "conformal_clip_data/data/textile_images/simulated"
    return {
        label: [*map(as_is, draw_some([*(folder / label).glob("*.jpg")], 60))]
        for label in ("global", "local", "nominal")
    }


def photograph_coins(of: Packages, name: str, *, scratched: bool) -> Classes:
    """A fixed camera: a photograph in other light and noise, with a scratch in one class if ``scratched``."""
    path = of(packages.COINS) / "usr/lib/python3/dist-packages/skimage/data/coins.png"
    scene = Image.open(path).convert("RGB").resize((320, 252))

    def photograph(number: int, label: str, picture: int) -> Picture:
        image, draws = scene.copy(), stream(number_name(name), number, picture)
        if scratched and label == "scratch":
            x, y = draws.integers(30, 250), draws.integers(30, 200)
            angle = draws.uniform(0, 6.28)
            ends = [x, y, x + 45 * np.cos(angle), y + 45 * np.sin(angle)]
            ImageDraw.Draw(image).line(ends, fill=WHITE, width=3)
        values = np.asarray(image, float) * draws.uniform(0.94, 1.06)
        return as_jpeg(from_values(values + draws.normal(0, 3, values.shape)))

    return {
        label: [photograph(number, label, picture) for picture in range(50)]
        for number, label in enumerate(("good", "scratch"))
    }


def copy_small_digits(_of: Packages) -> Classes:
    """Digits of 8 x 8 pixels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return {
        str(digit): [
            as_png(from_values(image / 16 * 255)) for image in digits.images[digits.target == digit][:25]
        ]
        for digit in range(10)
    }


def copy_mnist(of: Packages) -> Classes:
    folder = of(packages.DIGITS) / "package/src/digits"

    def read(digit: int) -> np.ndarray:
        numbers = json.loads((folder / f"{digit}.json").read_text())["data"]
        return np.array(numbers).reshape(-1, 28, 28)[:25]

    return {str(digit): [as_png(from_values(image * 255)) for image in read(digit)] for digit in range(10)}


def copy_clipart(of: Packages) -> Classes:
    folder = of(packages.CLIPART) / "usr/share/openclipart/png"

    def choose(label: str) -> list[Path]:
        return draw_some([path for path in (folder / label).rglob("*.png") if size(path) < 400_000], 32)

    return {label: [*map(as_is, choose(label))] for label in CLIPART_CLASSES}


def copy_uneven_clipart(of: Packages) -> Classes:
    """A hundred stars, and three pictures of either of two other classes."""
    folder = of(packages.CLIPART) / "usr/share/openclipart/png"
    stars = [path for path in (folder / "shapes/stars").glob("*.png") if size(path) < 200_000]
    others = {"fruit": folder / "food/fruit", "arrows": folder / "shapes/arrows"}
    return {"stars": [*map(as_is, draw_some(stars, 130))]} | {
        label: [*map(as_is, draw_some([*place.glob("*.png")], 23))] for label, place in others.items()
    }


def size(path: Path) -> int:
    return path.stat().st_size


def find_font(of: Packages, name: str) -> Path:
    """The file of a font."""
    package = packages.DEJAVU if name.startswith("DejaVu") else packages.LIBERATION
    (path,) = of(package).rglob(f"{name}.ttf")
    return path


def read_license(of: Packages, name: str) -> str:
    return (of(packages.LICENSES) / "usr/share/common-licenses" / name).read_text()


def render_words(of: Packages) -> Classes:
    """A class a font."""
    words = read_license(of, "GPL-3").split()
    words = sorted({word for word in words if word.isalpha() and 4 <= len(word) <= 9})

    def render(font: str, draws: np.random.Generator) -> Picture:
        image = Image.new("L", (160, 64), 255)
        face = ImageFont.truetype(find_font(of, font), int(draws.integers(22, 30)))
        text = str(draws.choice(words))
        ImageDraw.Draw(image).text((6, 12), text, fill=int(draws.integers(0, 60)), font=face)
        return as_png(image)

    streams = {font: stream(5, number) for number, font in enumerate(FONTS)}
    return {font: [render(font, draws) for _ in range(20)] for font, draws in streams.items()}


def render_pages(of: Packages) -> Classes:
    """A class a document, as if scanned: a little turned, with noise."""
    texts = {
        "gpl": read_license(of, "GPL-3"),
        "gfdl": read_license(of, "GFDL-1.3"),
        "python_code": "".join(read_modules(of)),
        "table": "",
        "artistic": read_license(of, "Artistic") * 4,
    }

    def render(label: str, text: str, draws: np.random.Generator) -> Picture:
        image = Image.new("L", (620, 877), int(draws.integers(235, 256)))
        pen, mono = ImageDraw.Draw(image), label == "python_code"
        font = ImageFont.truetype(find_font(of, f"Liberation{'Mono' if mono else 'Serif'}-Regular"), 13)
        if label == "table":
            for row in range(40):
                numbers = (f"{draws.integers(0, 10**5):>6}" for _ in range(8))
                pen.text((60, 60 + 18 * row), "   ".join(numbers), font=font, fill=20)
                pen.line([50, 58 + 18 * row, 580, 58 + 18 * row], fill=150)
        else:
            start = int(draws.integers(0, max(1, len(text) - 4000)))
            part = text[start : start + 3600]
            pen.multiline_text(
                (50, 50), textwrap.fill(part, 80) if label == "artistic" else part, font=font, fill=20
            )
        image = image.rotate(draws.uniform(-1.5, 1.5), fillcolor=240, resample=Image.Resampling.BICUBIC)
        return as_jpeg(from_values(np.asarray(image, float) + draws.normal(0, 6, (877, 620))), quality=75)

    streams = {label: stream(6, number) for number, label in enumerate(texts)}
    return {
        label: [render(label, texts[label], draws) for _ in range(18)] for label, draws in streams.items()
    }


def read_modules(of: Packages) -> Iterator[str]:
    """The first modules of Python's library by name."""
    folders = [of(package) / "usr/lib/python3.11" for package in (packages.SMALLEST_PYTHON, packages.PYTHON)]
    paths = (path for folder in folders for path in folder.glob("a*.py"))
    yield from (path.read_text() for path in sorted(paths, key=lambda path: path.name)[:8])


Draw = Callable[[ImageDraw.ImageDraw, str, np.random.Generator], None]


def draw_shapes(_of: Packages, name: str, labels: Sequence[str], draw: Draw) -> Classes:
    """Discs on a gray ground with noise."""

    def picture(*numbers: int, label: str) -> Picture:
        draws = stream(number_name(name), *numbers)
        ground = draws.integers(150, 230, 3)
        image = from_values(ground + draws.normal(0, 12, (160, 160, 3))).filter(ImageFilter.GaussianBlur(1))
        draw(ImageDraw.Draw(image), label, draws)
        return as_png(image)

    return {
        label: [picture(number, item, label=label) for item in range(30)]
        for number, label in enumerate(labels)
    }


def draw_disc(
    pen: ImageDraw.ImageDraw, x: float, y: float, radius: float, color: Sequence[int] | np.ndarray
) -> None:
    fill = tuple(int(value) for value in color)
    pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=fill)


def draw_beside(pen: ImageDraw.ImageDraw, label: str, draws: np.random.Generator) -> None:
    """A disc on the left or the right."""
    x = draws.integers(20, 65) if label == "left" else draws.integers(95, 140)
    draw_disc(pen, x, draws.integers(30, 130), draws.integers(14, 20), draws.integers(0, 120, 3))


def draw_several(pen: ImageDraw.ImageDraw, label: str, draws: np.random.Generator) -> None:
    """Two, three or five discs, as the class says."""
    color = draws.integers(0, 120, 3)
    for cell in draws.permutation(9)[: int(label[0])]:
        x = 35 + 45 * (cell % 3) + draws.integers(-6, 7)
        y = 35 + 45 * (cell // 3) + draws.integers(-6, 7)
        draw_disc(pen, x, y, draws.integers(9, 17), color)


def draw_strips(_of: Packages) -> Classes:
    """Line scans, one pixel high, of 2, 5 or 9 periods."""

    def scan(periods: int, draws: np.random.Generator) -> Picture:
        phases = np.arange(64) / 64 * 6.28 * periods + draws.uniform(0, 6.28)
        return as_png(from_values(127 + 100 * np.sin(phases) + draws.normal(0, 8, 64)[None]))

    streams = {periods: stream(9, number) for number, periods in enumerate((2, 5, 9))}
    return {f"p{periods}": [scan(periods, draws) for _ in range(25)] for periods, draws in streams.items()}


def draw_frames(_of: Packages) -> Classes:
    """Frames of clips in which something moves; a clip is kept aside as a whole."""

    def clip(label: str, *numbers: int) -> Iterator[Picture]:
        draws = stream(11, *numbers)
        ground = from_values(draws.integers(60, 220, (6, 6, 3)))
        scene = np.asarray(ground.resize((200, 150), Image.Resampling.BICUBIC), float)
        speed, start = draws.uniform(-4, 4, 2), draws.uniform(60, 140, 2) * (1, 0.7)
        for time in range(10):
            image = from_values(scene + draws.normal(0, 3, scene.shape))
            pen, (x, y) = ImageDraw.Draw(image), start + speed * time
            if label == "ball":
                draw_disc(pen, x, y, 18, YELLOW)
            if label == "bar":
                pen.rectangle([x - 30, y - 6, x + 30, y + 6], fill=YELLOW)
            if label == "cross":
                pen.rectangle([x - 22, y - 5, x + 22, y + 5], fill=YELLOW)
                pen.rectangle([x - 5, y - 22, x + 5, y + 22], fill=YELLOW)
            yield as_jpeg(image, f"clip{numbers[1]}")

    return {
        label: [frame for number in range(5) for frame in clip(label, of_class, number)]
        for of_class, label in enumerate(("ball", "bar", "cross"))
    }


def draw_x_rays(_of: Packages) -> Classes:
    """Balls in 16-bit gray, with a dark void in one class."""
    y, x = np.mgrid[:128, :128]

    def gap(center: Sequence[float], width: float) -> np.ndarray:
        return ((x - center[0]) ** 2 + (y - center[1]) ** 2) / width

    def picture(label: str, *numbers: int) -> Picture:
        draws = stream(12, *numbers)
        center = 64 + draws.normal(0, 5, 2)
        values = 9000 + 30000 * np.sqrt(np.clip(1 - gap(center, 45**2), 0, 1))
        if label == "void":
            place = center[0] + draws.uniform(-20, 20), center[1] + draws.uniform(-20, 20)
            values -= 9000 * np.exp(-gap(place, 2) / draws.uniform(3, 6) ** 2)
        values += draws.normal(0, 900, values.shape)
        return as_png(Image.fromarray(values.clip(0, 65535).astype("uint16")))

    return {
        label: [picture(label, number, item) for item in range(30)]
        for number, label in enumerate(("sound", "void"))
    }


SETS: Mapping[str, PictureSet] = {
    "textile": PictureSet(make_textiles),
    "cam_scratch": PictureSet(partial(photograph_coins, name="cam_scratch", scratched=True)),
    "cam_nodiff": PictureSet(partial(photograph_coins, name="cam_nodiff", scratched=False)),
    "digits8": PictureSet(copy_small_digits, most=(9, 6)),
    "mnist28": PictureSet(copy_mnist, most=(9, 6)),
    "clipart": PictureSet(copy_clipart, most=(12, 8)),
    "fonts": PictureSet(render_words, most=(12, 8)),
    "pages": PictureSet(render_pages),
    "only_position": PictureSet(
        partial(draw_shapes, name="only_position", labels=("left", "right"), draw=draw_beside)
    ),
    "only_count": PictureSet(
        partial(draw_shapes, name="only_count", labels=("2_discs", "3_discs", "5_discs"), draw=draw_several)
    ),
    "imbalanced": PictureSet(copy_uneven_clipart, to_fit={"stars": 100, "fruit": 3, "arrows": 3}),
    "strips": PictureSet(draw_strips),
    "frames": PictureSet(draw_frames, most=(20, 20)),
    "gray16": PictureSet(draw_x_rays),
}
