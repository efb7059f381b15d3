"""`dear roles assign`: roles from a TEXTSPAN result in the public text format."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from dear.cli import roles_output
from dear.roles.settings import RoleSettings


def command(
    spans: Path,
    *,
    layers: str | None = None,
    model: str = "unknown",
    pretrained: str = "unknown",
    attributes: list[str] | None = None,
    settings: RoleSettings = RoleSettings(),  # noqa: B008 (frozen, and its fields become options)
    sentence_model: str | None = None,
    out: Path = Path("roles.json"),
    html: Path | None = None,
) -> roles_output.Written:
    """Assign every head a role from a TEXTSPAN result in the public text format.

    Args:
        spans: The text file: "Layer 8, Head 0" (counted from 0) above each head's phrases.
        layers: Layers to analyse, counted from 1, so 9-12 is the file's 8 to 11; all if not given.
        model: The architecture that the phrases were found in; recorded in the table, which fits no other.
        pretrained: Its weights.
        attributes: Core attributes by name, such as color,shape,texture,object,location; if not given
            --settings.k of them are chosen.
        settings: Settings of the step from phrases to roles.
        sentence_model: Folder or hub name of the sentence-transformers model, all-MiniLM-L6-v2 if not given.
        out: Where the role table is written.
        html: Where its page is written; beside the table if not given.
    """
    from dear.cli.progress import StepProgress
    from dear.roles.textspan_format import in_layers, layer_range, read_textspan

    heads = read_textspan(spans)
    from dear.backbone.clip import Identity  # loads torch: what can be refused without it is
    from dear.roles.build import build_table
    from dear.roles.table import make_place

    page = html or out.with_suffix(".html")
    make_place(out)
    make_place(page)
    chosen = layer_range(layers) if layers else tuple(sorted({layer for layer, _ in heads}))
    kept = in_layers(heads, chosen)
    with StepProgress() as progress:
        progress("concepts", 0, 1)
        table = build_table(
            kept,
            Identity(model, pretrained, ""),
            source=f"assigned from {spans.name}",
            settings=replace(settings, attributes=tuple(attributes or settings.attributes)),
            sentence_model=sentence_model,
            facts={"spans": spans.name, "layers": list(chosen)},
        )
        progress("concepts", 1, 1)
    return roles_output.write(table, out, page)


def render(result: roles_output.Written, console: Console) -> None:
    """Show the table and where it is."""
    roles_output.render(result, console)
