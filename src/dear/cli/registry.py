"""The commands, one line each, and the interface of a command's module.

Every protocol has a command, built from its class (`dear.cli.run`). To add another command, write
its two functions and its line in GROUPS:

    def command(data: Path, *, tasks: list[str] | None = None, out: Path | None = None) -> Summary:
        '''Run something over tasks.

        Args:
            data: The data set's folder.
            tasks: The tasks to run, all of them if not given.
            out: Where the run records are written. By default runs in the current folder.
        '''

    def render(result: Summary, console: Console) -> None:
        '''Show the result to a person.'''

- Parameters after `*` become options: `--seed 2`; `--dry-run` and `--no-dry-run` for a bool; `--tasks a,b`
  for a list; `--train.epochs 5` for a field of a dataclass; `**settings: MethodSettings` for the settings of
  every method, `--coop.tokens 4`; `machines: Flat[Machines]` for all fields of a dataclass as options of
  their own, shared by several commands. A parameter before `*` without a default is positional; a list
  takes all following words. The docstring, in Google style, becomes the help. `--config FILE` reads
  options from YAML.
- `command` computes and returns; it writes nothing to stdout. The frame adds `--json`: with it the result
  goes to stdout as one JSON object (`dear.cli.output.to_jsonable` says what it may contain), else to
  `render`.
- Progress goes to stderr: `dear.cli.output.progress_console`.
- A result whose `partly` is true means that some of the work could not be done: exit code 1.
- Errors that the user can fix are raised as a DearError; the frame prints it and exits with code 2.
- Heavy modules (torch, and what imports it) are imported inside the functions, so that help stays fast.

A name of two words ("run base-to-novel") makes a nested command. After any change: `make docs`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from rich.console import Console

from dear.evaluation.protocols import PROTOCOLS


@dataclass(frozen=True)
class Command:
    """A command: its module and its line in the overview.

    Attributes:
        group: The heading that the overview shows it under.
        function: The end of the names of its functions, in a module of several commands: "check" for
            `command_check` and `render_check` (or `render`, if all share it).
        protocol: The protocol, for the commands that `protocol_command` makes.
    """

    module: str
    summary: str
    function: str = ""
    protocol: str = ""
    group: str = ""

    def load(self) -> tuple[Callable[..., Any], Callable[[Any, Console], None]]:
        """Import the module; return its `command` and its `render`."""
        module = import_module(self.module)
        if self.protocol:
            return module.protocol_command(self.protocol), module.render
        end = f"_{self.function}" if self.function else ""
        return getattr(module, f"command{end}"), getattr(module, f"render{end}", None) or module.render


GROUPS: Mapping[str, Mapping[str, Command]] = {
    "use: adapt a CLIP to your images and use the result": {
        "fit": Command("dear.cli.fit", "Adapt a backbone to your images and keep the adapter."),
        "eval": Command("dear.cli.eval", "Measure an adapter on a data set."),
        "predict": Command("dear.cli.predict", "Classify images, with evidence."),
        "export": Command("dear.cli.export", "Export an adapted model to ONNX or torch.export."),
        "serve": Command("dear.cli.serve", "Serve a bundle: a web page and an HTTP API."),
        "index build": Command(
            "dear.cli.index", "Index a folder of images by class and attributes.", "build"
        ),
        "index query": Command("dear.cli.index", "Search an index by image or by text.", "query"),
        "index export": Command("dear.cli.index", "Write an index as Parquet, for databases.", "export"),
    },
    "compare: run methods against each other": {
        "methods": Command("dear.cli.methods", "List the methods: paper, needs, protocols, settings."),
        **{
            f"run {name}": Command("dear.cli.run", protocol.summary, protocol=name)
            for name, protocol in PROTOCOLS.items()
        },
        "run ablation": Command("dear.cli.run", "Run DeAR's ablations in base-to-novel.", "ablation"),
        "run recipe": Command("dear.cli.run", "Run a recipe, or all recipes of a folder.", "recipe"),
        "report": Command("dear.cli.report", "Write tables and figures of the records in a folder."),
    },
    "roles: what the attention heads of a CLIP do": {
        "roles discover": Command(
            "dear.cli.roles_discover", "Find the role of every attention head of a CLIP.", "discover"
        ),
        "roles assign": Command("dear.cli.roles_discover", "Assign roles from a TEXTSPAN result.", "assign"),
        "roles show": Command("dear.cli.roles", "Show a role table; make shuffled and random ones.", "show"),
        "roles compare": Command("dear.cli.roles", "Measure the agreement of two role tables.", "compare"),
        "roles ablate": Command(
            "dear.cli.roles", "Measure accuracy with heads replaced by their means.", "ablate"
        ),
    },
    "data: data sets and few-shot picks": {
        "data list": Command("dear.cli.data", "List the data sets that are known by name.", "list"),
        "data check": Command("dear.cli.data", "Check a data set for missing parts and errors.", "check"),
        "data get": Command("dear.cli.data", "Fetch a benchmark, or say what to do by hand.", "get"),
        "data pick": Command("dear.cli.data", "Show which images a few-shot run trains on.", "pick"),
    },
    "world: the Attribute World, which needs no download": {
        "demo": Command("dear.cli.world", "Adapt the tiny CLIP offline and write a report.", "demo"),
        "tasks": Command("dear.cli.world", "List the tasks of the Attribute World.", "tasks"),
    },
    "model: backbones and this machine": {
        "models": Command(
            "dear.cli.models", "Show which open_clip architectures work, or why not.", "models"
        ),
        "info": Command("dear.cli.models", "Show versions, devices and threads.", "info"),
    },
}
"""The commands by the headings of the overview."""

COMMANDS: Mapping[str, Command] = {
    name: replace(command, group=group)
    for group, commands in GROUPS.items()
    for name, command in commands.items()
}
