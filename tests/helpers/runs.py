"""Runs on data and a CLIP in memory."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from dear.backbone.clip import Clip
from dear.data.dataset import Dataset
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.resolve import MethodSetup, ResolvedRun
from dear.evaluation.runs import run_one
from dear.evaluation.session import Session
from dear.progress import OnRunStep, silent


def resolve_run(
    session: Session,
    clip: Clip,
    protocol: Protocol,
    datasets: Sequence[Dataset],
    setup: MethodSetup,
    **conditions: Any,
) -> ResolvedRun:
    run = ResolvedRun(protocol=protocol, clip=clip, datasets=tuple(datasets), setup=setup, **conditions)
    return session.complete(run)


def run_all(
    clip: Clip,
    datasets: Sequence[Dataset],
    methods: Sequence[MethodSetup],
    *,
    protocol: Protocol | None = None,
    seeds: Sequence[int] = (1,),
    roles: Any = None,
    out: Path | None = None,
    keep_weights: bool = False,
    progress: OnRunStep = silent,
    **conditions: Any,
) -> list[dict[str, Any]]:
    """The records of all runs in one session."""
    session, records = Session(), []
    for dataset, seed, setup in product(datasets, seeds, methods):
        conditions["roles"] = session.roles(clip, setup, None) if setup.roles else roles
        run = resolve_run(session, clip, protocol or BaseToNovel(), [dataset], setup, seed=seed, **conditions)
        told = partial(progress, run.name)
        records.append(run_one(session, run, out=out, keep_weights=keep_weights, on_step=told))
        progress(run.name, None)
    return records
