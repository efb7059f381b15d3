"""`dear run recipe`: what a recipe, or all recipes of a folder, say."""

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

    A recipe's keys are told in docs/reference/recipes.md. A run whose record is there already is not
    repeated, and one that was cut off goes on where it stopped.

    Args:
        path: A recipe, or a folder of recipes.
        data: Only these of the recipe's data sets.
        methods: Only these of the recipe's methods.
        seeds: Other seeds than the recipe's.
        out: Another place: each recipe writes to the folder in it that has the name of its own.
        dry_run: List the runs with an estimate of time and memory; make none.
        start_over: Set a damaged checkpoint aside and start its run over; without it that is an error.
    """
    chosen = restricted(load_recipes(path), data=data, methods=methods, seeds=seeds, out=out)
    experiments = [replace(one, start_over=start_over) for one in chosen]
    return run(experiments, machines, dry_run=dry_run)
