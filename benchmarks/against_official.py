"""A training step of ours against the authors' own code for the same method, on a CPU.

    python benchmarks/against_official.py FOLDER --out benchmarks/results/against_official.json

FOLDER holds checkouts of their repositories, as `git clone` names them; what is missing is said, with the
commands that bring it. Nothing of them is in this repository.

Both sides take whole steps (forward, backward, optimizer) from the same weights (ViT-B/16, random), prompts,
images and first values, theirs without what they do at the end of an epoch. First the losses of two steps are
compared, of which the second depends on the gradients of the first: in float32 they must agree. Then steps
are timed in turn: medians of wall and of CPU seconds. Peak memory is that of a step in a process of its own.
DeAR has no official code: it is set against MMRL++'s, at batch 16, and its losses are not compared.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import measure
from official import EXACT, MODEL, OFFICIAL, STAND_INS, Sides, find, write_weights

METHODS = ("coop", "maple", "promptsrc", "mmrl", "mmrl++", "dear")
FURTHER = ("cocoop", "prograd", "tcp")
AGREE = 1e-5
COMPARED = 2


def losses(steps: dict[str, Any]) -> dict[str, list[float]]:
    """Of the first steps of each kind, which also warm it up."""
    return {kind: [step() for _ in range(COMPARED)] for kind, step in steps.items()}


def gap(wanted: list[float], got: list[float]) -> float:
    """The largest difference, relative to the official loss."""
    return max(abs(one - other) / abs(one) for one, other in zip(wanted, got, strict=True))


def measured(sides: Sides, scratch: Path, repeats: int) -> list[dict[str, Any]]:
    """A row for each kind, without memory. SystemExit if the losses in float32 differ."""
    steps = sides.steps(scratch)
    told = losses(steps)
    gaps = {kind: gap(told[OFFICIAL], own) for kind, own in told.items()}
    if sides.method == sides.theirs and gaps[f"ours, {EXACT}"] > AGREE:
        raise SystemExit(f"{sides.method}: losses differ from the official code's: {json.dumps(told)}")
    wall, cpu = measure.both_clocks(steps, repeats)
    seconds, busy = measure.medians(wall), measure.medians(cpu)
    return [
        {
            "method": sides.method,
            "batch": len(sides.pixels),
            "code": f"{sides.theirs}'s own" if kind == OFFICIAL else kind,
            "seconds": seconds[kind],
            "CPU s": busy[kind],
            "times official": seconds[OFFICIAL] / seconds[kind],
            "loss differs by": gaps[kind] if kind != OFFICIAL and sides.method == sides.theirs else None,
            "all seconds": [round(one, 4) for one in wall[kind]],
            "kind": kind,
        }
        for kind in steps
    ]


def child(options: argparse.Namespace, weights: Path, method: str, *more: str) -> Any:
    print(" ".join(("against_official:", method, *more[1:])), file=sys.stderr, flush=True)
    given = [str(options.folder), "--only", method, "--weights", str(weights), *more]
    for name in ("batch", "classes", "repeats", "threads", "precision"):
        given += [f"--{name}", str(getattr(options, name))]
    return measure.in_child([*given, *(["--tiny"] if options.tiny else [])])


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of all methods, each in a process of its own, as their codes share names of modules."""
    for method in options.methods:
        find(options.folder, STAND_INS.get(method, method))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        weights = Path(scratch) / "weights.pt"
        write_weights(weights, tiny=options.tiny)
        for method in options.methods:
            for row in child(options, weights, method):
                kind = row.pop("kind")
                memory = {} if options.no_memory else child(options, weights, method, "--kind", kind)
                rows.append(row | {"step MiB": memory.get("step"), "peak MiB": memory.get("peak")})
    return rows


def main() -> None:
    made = measure.parser(__doc__)
    made.add_argument("folder", type=Path, metavar="FOLDER", help="where the official repositories are")
    made.add_argument("--methods", nargs="+", choices=(*METHODS, *FURTHER), default=[*METHODS])
    made.add_argument("--batch", type=int, default=4, help="images a step, but DeAR's 16")
    made.add_argument("--classes", type=int, default=50)
    made.add_argument("--precision", default="auto", help="of ours, beside 32-true; see --train.precision")
    made.add_argument("--no-memory", action="store_true", help="time only")
    for hidden in ("--only", "--kind"):
        made.add_argument(hidden, help=argparse.SUPPRESS)
    made.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    options = measure.parsed(made)
    if options.device != "cpu":
        raise SystemExit("--device: the official codes are run on the CPU.")
    if options.only:
        sides = Sides(options, options.only, options.weights)
        with tempfile.TemporaryDirectory() as scratch:
            if options.kind:
                step = sides.steps(Path(scratch), options.kind)[options.kind]
                print(json.dumps(measure.step_memory(step, "cpu")))
            else:
                print(json.dumps(measured(sides, Path(scratch), options.repeats)))
        return
    facts = {name: getattr(options, name) for name in ("tiny", "classes", "repeats")}
    result = {
        "benchmark": "against_official",
        "machine": measure.machine(),
        "settings": {"model": MODEL} | facts,
        "rows": run(options),
    }
    measure.show(result, options)


if __name__ == "__main__":
    main()
