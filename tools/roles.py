"""What is made of the public TEXTSPAN result of ViT-B/16, in the root of the repository:

python -m tools.roles package FILE   the packaged table `textspan`, from the public file
python -m tools.roles readings       the table of docs/roles.md on readings of the paper (a minute)
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cyclopts import App

from dear.backbone.clip import Identity
from dear.errors import DearError
from dear.roles.assign import build_table
from dear.roles.compare import Agreement, compare
from dear.roles.settings import PRESETS, RoleSettings
from dear.roles.table import FOLDER, RoleTable, named_table
from dear.roles.textspan_format import in_layers, read_textspan

PACKAGED, PAGE = FOLDER / "textspan.ViT-B-16.json", Path("docs/roles.md")
PLACE = re.compile(r"(?<=<!-- tools.roles -->\n).*(?=<!-- tools.roles end -->)", re.S)
ATTRIBUTES = ("color", "shape", "texture", "object", "location")
WEIGHTS = Identity("ViT-B-16", "laion2b_s34b_b88k", "")
SOURCE = "textspan (roles of ViT-B/16 by discovery from public phrases)"
FACTS = {
    "spans": "github.com/jnzhao3/clip_text_span, commit 86f8c5b, MIT (textspan_license.txt), output_dir/"
    "CIFAR100_completeness_image_descriptions_general_top_10_heads_ViT-B-16.txt: 10 phrases a head",
    "layers": [9, 10, 11, 12],
}
DEFAULT, PAPER = PRESETS["default"], PRESETS["paper"]
READINGS = {
    "`default`": DEFAULT,
    "`--settings.entropy-over attributes`": replace(DEFAULT, entropy_over="attributes"),
    "`--settings.space embeddings`": replace(DEFAULT, space="embeddings"),
    "`--settings.clustered heads`": replace(DEFAULT, clustered="heads"),
    "`--preset paper`": PAPER,
    "`--preset paper --settings.min-samples 5`": replace(PAPER, min_samples=5),
    "`--preset paper --settings.min-samples 1 --settings.min-sizes 3`": replace(
        PAPER, min_sizes=(3,), min_samples=1
    ),
}

app = App(help=__doc__, version_flags=[])


@app.command
def package(file: Path) -> None:
    """Write the packaged table: the default settings with the paper's five attributes."""
    heads = in_layers(read_textspan(file), FACTS["layers"])  # type: ignore[arg-type]
    settings = RoleSettings(attributes=ATTRIBUTES)
    build_table(heads, WEIGHTS, source=SOURCE, settings=settings, facts=FACTS).save(PACKAGED)


@app.command
def readings() -> None:
    """Write the table of the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(PLACE.sub("\n".join([*rows(named_table("textspan")), ""]), text), encoding="utf-8")


def rows(textspan: RoleTable) -> Iterator[str]:
    """The lines of the table, in Markdown, over the phrases of a table."""
    heads = {(head.layer, head.head): head.phrases for head in textspan.heads}
    columns = "same concept, of 43 heads", "same role by `quantile`, of 48", "same role by `concept`, of 48"
    yield f"| settings | clusters | concepts | {' | '.join(columns)} |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for name, settings in READINGS.items():
        try:
            by_rule = [
                build_table(heads, WEIGHTS, source=name, settings=s)
                for s in (
                    replace(settings, attributes=ATTRIBUTES),
                    replace(settings, attributes=ATTRIBUTES, rule="concept"),
                )
            ]
        except DearError as error:
            yield f"| {name} | {error} | | | | |"
            continue
        clusters = [cluster["concept"] for cluster in by_rule[0].evidence["clusters"]]
        compared = [compare(table, named_table("published")) for table in by_rule]
        cells = [compared[0].concepts, *(of.roles for of in compared)]
        yield f"| {name} | {len(clusters)} | {len({*clusters})} | {' | '.join(map(_cell, cells))} |"


def _cell(of: Agreement) -> str:
    return f"{of.agree} (kappa {of.kappa:.2f})"


if __name__ == "__main__":
    app()
