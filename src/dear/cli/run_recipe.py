"""`dear run recipe`: run a recipe, or all recipes of a folder."""

from dataclasses import replace
from pathlib import Path

from dear.cli.parsing import Flat
from dear.cli.running import Summary, render, run
from dear.evaluation.launch.machines import Machines
from dear.evaluation.recipe import load_recipes, restricted

__all__ = ["command", "render"]


def command(
    path: Path,
    *,
    data: list[str] | None = None,
    methods: list[str] | None = None,
    seeds: list[int] | None = None,
    out: Path | None = None,
    dry_run: bool = False,
    start_over: bool = False,
    machines: Flat[Machines],
) -> Summary:
    """Run a recipe (YAML), or all recipes of a folder; what they share is computed once.

    docs/reference/recipes.md describes the keys of a recipe. A run whose record already exists is not
    repeated, and an interrupted one resumes where it stopped.

    Args:
        path: A recipe, or a folder of recipes.
        data: Only these of the recipe's data sets.
        methods: Only these of the recipe's methods.
        seeds: Seeds to use instead of the recipe's.
        out: Another output folder: each recipe writes to a subfolder with the name of its own folder.
        dry_run: List the runs without making them.
        start_over: Set a damaged checkpoint aside and start its run over; without it that is an error.
    """
    chosen = restricted(load_recipes(path), data=data, methods=methods, seeds=seeds, out=out)
    experiments = [replace(one, start_over=start_over) for one in chosen]
    return run(experiments, machines, dry_run=dry_run)
