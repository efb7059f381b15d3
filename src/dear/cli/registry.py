"""The commands, one line each, and how a command is written.

To add one, write two functions in a module of this package and a line in GROUPS:

    def command(data: Path, *, tasks: list[str] | None = None, out: Path | None = None) -> Summary:
        '''Run something over tasks.

        Args:
            data: The data set's folder.
            tasks: The tasks to run, all of them if not given.
            out: Where the run records are written. By default runs in the current folder.
        '''

    def render(result: Summary, console: Console) -> None:
        '''Show the result to a person.'''

- Options are as cyclopts makes them of a signature and its docstring; `dear.cli.parsing` says what we add.
- `command` computes and returns; it writes nothing to stdout. With `--json` the result goes to stdout as one
  JSON object (`dear.cli.output.to_jsonable` says what it may contain), else to `render`: `render_check` for
  `command_check`, or the module's `render`. Progress goes to stderr (`dear.cli.output.progress_console`).
- A result whose `partly` is true means that some of the work could not be done: exit code 1.
- Errors that the user can fix are raised as a DearError: one line, exit code 2.
- Heavy modules (torch, and what imports it) are imported inside the functions, so that help stays fast.

After any change: `make docs`.
"""

import re
from collections.abc import Mapping, Sequence
from inspect import cleandoc

from cyclopts import App, Group
from cyclopts.help import DefaultFormatter, HelpPanel
from rich.console import Console, ConsoleOptions
from rich.text import Text

from dear import __version__
from dear.cli.output import stdout_console
from dear.cli.parsing import OPTIONS
from dear.evaluation.protocols import PROTOCOLS

WIDTH = 100
"""Columns of help where stdout is no terminal."""

GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "use: adapt a CLIP to your images and use the result": {
        "fit": ("fit:command", "Fit a classifier to your images."),
        "refit": ("refit:command", "Fit a classifier again, and replace it if the new one is not worse."),
        "eval": ("eval:command", "Measure a classifier on a data set."),
        "compare": ("eval:command_compare", "Compare two classifiers on the same images."),
        "review": ("labels:command_review", "Find labels that look wrong."),
        "predict": ("predict:command", "Classify images, with evidence."),
        "labels apply": (
            "labels:command_apply",
            "Put corrected labels beside the data, where all commands read them.",
        ),
        "drift": ("drift:command", "See whether new images look like those of the fit."),
        "suggest": ("labels:command_suggest", "Suggest which images to label next."),
        "report-card": ("report_card:command", "Write a page of a classifier that a person can sign."),
        "export": ("export:command", "Export a classifier to ONNX."),
        "serve": ("serve:command", "Serve a classifier: a web page and an HTTP API."),
        "index build": ("index:command_build", "Index a folder of images by class and attributes."),
        "index export": ("index:command_export", "Write an index as a Parquet file."),
        "index query": ("index:command_query", "Search an index by image or by text."),
    },
    "research: run methods and report on them": {
        "methods": ("methods:command", "List the methods: paper, needs, protocols, settings."),
        **{
            f"run {name}": (f"run:{name.replace('-', '_')}", protocol.summary)
            for name, protocol in PROTOCOLS.items()
        },
        "run ablation": ("run:command_ablation", "Run DeAR's ablations in base-to-novel."),
        "run recipe": ("run:command_recipe", "Run a recipe, or all recipes of a folder."),
        "report": ("report:command", "Write tables and figures of the records in a folder."),
    },
    "roles: what the attention heads of a CLIP do": {
        "roles discover": ("roles_discover:command_discover", "Find the role of every attention head."),
        "roles assign": ("roles_discover:command_assign", "Assign roles from a TEXTSPAN result."),
        "roles show": ("roles:command_show", "Show a role table; make shuffled and random ones."),
        "roles compare": ("roles:command_compare", "Measure the agreement of two role tables."),
        "roles ablate": ("roles:command_ablate", "Measure accuracy with heads replaced by their means."),
    },
    "data: data sets": {
        "data list": ("data:command_list", "List the data sets that are known by name."),
        "data check": ("data:command_check", "Check a data set for missing parts and errors."),
        "data get": ("data:command_get", "Fetch a benchmark, or say what to do by hand."),
    },
    "world: the Attribute World, which needs no download": {
        "demo": ("world:command_demo", "Adapt the tiny CLIP offline and write a report."),
    },
    "this machine": {
        "info": ("info:command", "Show versions and devices, or how a classifier was made."),
    },
}
"""The commands by the headings of the overview: where each is and what it does."""
COMMANDS: Mapping[str, tuple[str, str]] = {
    name: command for commands in GROUPS.values() for name, command in commands.items()
}


OF_EVERY_COMMAND = Group("Options of every command", sort_key=999)


class HelpFormatter(DefaultFormatter):
    """Tables of options whose descriptions are broken where there is no room, not as in the code."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        for entry in panel.entries:
            text = getattr(entry.description, "primary_renderable", None)
            if isinstance(text, Text):
                text.plain = " ".join(text.plain.split())
        super().__call__(console, options, panel)


def build_app() -> App:
    """The application, which loads the module of a command once its name is on the command line."""
    app = App(
        name=__name__.partition(".")[0],
        help="Make an image classifier from CLIP and a few labeled images, and compare methods that do so.",
        help_epilogue=(
            "`dear COMMAND --help` shows a command's options; with --method NAME (or --methods) also those of"
            " the method. Lists have commas: --seeds 1,2,3."
        ),
        version=__version__,
        help_format="plaintext",
        help_formatter=HelpFormatter(),
        console=stdout_console(WIDTH),
        default_parameter=OPTIONS,
        print_error=False,
        exit_on_error=False,
    )
    app["--help"].group = app["--version"].group = OF_EVERY_COMMAND
    for number, (heading, commands) in enumerate(GROUPS.items()):
        group = Group(heading, sort_key=number)
        for place, (name, (path, summary)) in enumerate(commands.items()):
            parent, _, last = name.rpartition(" ")
            if parent and parent not in app:
                names = [name.split()[1] for name in commands if name.startswith(f"{parent} ")]
                text = ", ".join(names) if len(names) > 1 else f"{last}: {summary}"
                app.command(
                    App(name=parent, help=text, group=group, sort_key=place, default_parameter=OPTIONS)
                )
            (app[parent] if parent else app).command(
                f"dear.cli.{path}", name=last, help=summary, group=None if parent else group, sort_key=place
            )
    return app


def load_command(app: App, words: Sequence[str]) -> App:
    """The command that the words name, or the group of commands, with its docstring as its help."""
    _, apps, _ = app.parse_commands([word for word in words if word not in app.help_flags])
    if (command := apps[-1].default_command) is not None:
        text = cleandoc(command.__doc__ or "").partition("\n\nArgs:")[0]
        apps[-1].help = re.sub(r"(?<=\S)\n(?=\S)", " ", text)  # the overview has a shorter one
    return apps[-1]
