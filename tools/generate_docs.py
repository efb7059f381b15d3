"""Write the generated parts of the docs, in the root of the repository:

python -m tools.generate_docs [--check]   docs/cli.md from the commands' help, the table of docs/limits.md,
                                          docs/api/signatures.md from the source
python -m tools.generate_docs --models    docs/models.md: builds every architecture of open_clip (minutes)
"""

import re
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cyclopts import App

from dear.backbone.names import Access
from dear.cli.main import load_app
from dear.cli.registry import COMMANDS, load_command
from dear.errors import WeightsError
from dear.limits import LIMITS, variable
from dear.methods.registry import methods_on
from tools.signatures import PAGE as SIGNATURES
from tools.signatures import signatures_page

PAGE, LIMITED, MODELS = Path("docs/cli.md"), Path("docs/limits.md"), Path("docs/models.md")
HEADER = """# The command line

This page is written by `make docs` from the help of the commands. Do not edit it.

- A list is typed with commas, as in `--seeds 1,2,3`.
- Options that several commands share are explained at the first of these commands. The other commands
  link there.
- The settings of methods, which all commands that train take, are explained at [`dear fit`](#dear-fit).
  `dear fit --method NAME --help` shows the settings of one method.

"""
SETTINGS = "--[KEYWORD] MAPPING[STR, ANY]"
"""How cyclopts shows the settings of all methods where they are not listed."""
GROUP_OF_OPTIONS = re.compile(r"^(\*\*[^*]+\*\*):\n\n((?:[* ] .*\n)+)", re.M)
LIMITS_TABLE = re.compile(r"(?<=<!-- limits: begin -->\n).*(?=<!-- limits: end -->)", re.S)
MODELS_HEADER = """\
# Which backbones load

Written by `python -m tools.generate_docs --models`; do not edit.

This page lists every architecture of open_clip {version}, and the methods that run on it.
**{works} of {count} can be used, and {refused} are refused.** Only their structure was checked: each was
built on PyTorch's meta device, without weights, and its parts were compared with what `dear` can reproduce.

`dear` can use single layers and attention heads of some towers, and only the features of others. An
architecture has two towers, so there are four lists, each with the methods that run on its architectures, and
a fifth of the architectures that are refused.

"""
SECTIONS: dict[tuple[Access, Access], tuple[str, str]] = {
    ("heads", "layers"): (
        "Both towers by layers",
        "Layers and heads of the image tower, and layers of the text tower, can be used.",
    ),
    ("features", "layers"): (
        "Images as features, texts by layers",
        "The image tower gives only features: it is open_clip's or timm's own, frozen.",
    ),
    ("heads", "features"): (
        "Images by layers, texts as features",
        "The text tower gives only features: it is open_clip's own, frozen.",
    ),
    ("features", "features"): (
        "Features alone",
        "Both towers give only features: they are open_clip's own, frozen.",
    ),
}
"""Title and description by what the image and the text tower give."""

app = App(help=__doc__, version_flags=[])


def write_page() -> str:
    """The page of the command line as Markdown, with each group of options once."""
    documented = load_app(["fit", "--method", "all", "--help"])
    for name in COMMANDS:
        load_command(documented, name.split())
    first_in = dict[str, str]()
    sections = re.split(r"^(?=##+ dear )", documented.generate_docs(), flags=re.M)
    for number, section in enumerate(sections):
        heading = section.partition("\n")[0].lstrip("# ")

        def refer(group: re.Match[str], heading: str = heading) -> str:
            first = first_in.setdefault(group[0], heading)
            link = f"{group[1]}: as [`{first}`](#{first.replace(' ', '-')}).\n"
            return group[0] if first == heading else link

        sections[number] = GROUP_OF_OPTIONS.sub(refer, section).replace(SETTINGS, "--METHOD.SETTING")
    return HEADER + "".join(sections).partition("\n")[2].lstrip()


def limits_table() -> str:
    """The table of limits as Markdown."""
    rows = [
        f"| `{variable(name)}` | {bound.default:,} | {bound.what} | {bound.without} |"
        for name, bound in LIMITS.items()
    ]
    head = ["| variable | limit | what it limits | without it |", "| --- | ---: | --- | --- |"]
    return "\n".join(["", *head, *rows, "\n"])


@dataclass(frozen=True)
class Verdict:
    """The result of checking an open_clip architecture.

    Attributes:
        works: True if it can be used; if not, `reason` says why.
        parameters: parameters of both towers, in millions.
        image, text: what each tower gives access to.
        kind: the class of the image tower, if it gives features only.
        layers, heads: numbers of the image tower, if it gives them.
        image_size: side length in pixels.
    """

    name: str
    works: bool
    reason: str | None = None
    parameters: float | None = None
    layers: int | None = None
    heads: int | None = None
    image_size: int | None = None
    image: Access | None = None
    text: Access | None = None
    kind: str | None = None


def try_architecture(name: str) -> Verdict:
    """Build an architecture and report whether it fits."""
    import torch

    from dear.backbone.features_only import image_kind
    from dear.backbone.loading.convert import to_towers
    from dear.backbone.loading.open_clip_format import build

    try:
        with torch.device("meta"):
            network: Any = build(name)
            image, text = to_towers(network)
    except WeightsError as error:  # "NAME does not fit: REASON. What dear needs."
        return Verdict(name, False, str(error).split(" does not fit: ")[-1].split(". ")[0].rstrip("."))
    has_layers = image.access != "features"
    return Verdict(
        name,
        True,
        parameters=sum(parameter.numel() for parameter in network.parameters()) / 1e6,
        layers=image.depth if has_layers else None,
        heads=image.heads if has_layers else None,
        image_size=image.image_size,
        image=image.access,
        text=text.access,
        kind=None if has_layers else image_kind(network.visual),
    )


def models_page() -> str:
    """The page of open_clip's architectures as Markdown."""
    from dear.backbone.names import architectures

    verdicts = [try_architecture(name) for name in architectures()]
    works = [verdict for verdict in verdicts if verdict.works]
    refused = [verdict for verdict in verdicts if not verdict.works]
    counts = {"works": len(works), "count": len(verdicts), "refused": len(refused)}
    page = MODELS_HEADER.format(version=version("open_clip_torch"), **counts)
    for access, (title, about) in SECTIONS.items():
        of_section = [verdict for verdict in works if (verdict.image, verdict.text) == access]
        if of_section:
            columns = "layers x heads, pixels" if access[0] == "heads" else "class, pixels"
            methods = ", ".join(methods_on(*access))
            page += (
                f"## {title}\n\n{about}\nNumber of architectures: {len(of_section)}. Methods: {methods}.\n\n"
            )
            page += f"| architecture | image tower: {columns} | M parameters |\n| --- | --- | ---: |\n"
            for model in of_section:
                tower = f"{model.kind or f'{model.layers} x {model.heads}'}, {model.image_size}"
                page += f"| {model.name} | {tower} | {model.parameters or 0:.1f} |\n"
            page += "\n"
    rows = "".join(f"| {verdict.name} | {verdict.reason} |\n" for verdict in refused)
    head = "`load_clip` gives these reasons.\n\n| architecture | reason |\n| --- | --- |\n"
    return f"{page}## Refused\n\n{head}{rows}"


@app.default
def main(*, check: bool = False, models: bool = False) -> int:
    """Write the generated docs; with --check only report whether they are up to date."""
    if models:
        MODELS.write_text(models_page(), encoding="utf-8")
        return 0
    limited = LIMITS_TABLE.sub(lambda _: limits_table(), LIMITED.read_text(encoding="utf-8"))
    for path, page in ((PAGE, write_page()), (LIMITED, limited), (SIGNATURES, signatures_page())):
        if not check:
            path.write_text(page, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != page:
            print(f"{path} is out of date: run `make docs` and commit it", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(app())
