"""`dear run ablation`: DeAR's ablations, in base-to-novel."""

from dear.cli.parsing import Flat
from dear.cli.run_options import RunOptions
from dear.cli.running import Summary, render, run
from dear.evaluation.ablations import METHOD, ablation_plans, ablations
from dear.evaluation.launch.machines import Machines
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.methods.declaration import MethodSettings

__all__ = ["command", "render"]


def command(
    *,
    of: list[str] | None = None,
    without: list[str] | None = None,
    options: Flat[RunOptions],
    machines: Flat[Machines],
    **settings: MethodSettings,
) -> Summary:
    """Run DeAR's ablations in base-to-novel: each changes one of the given settings.

    Each run leaves one record in the output folder; a run whose record already exists is not repeated, and an
    interrupted one resumes where it stopped.

    Args:
        of: Ablations: mask, loss, inference, quantile, attributes, beta, first. All if not given.
        without: Rows to leave out, by label, for example 'K = 7', which needs seven known concepts.
        settings: Settings of DeAR, such as --dear.tokens; not those that a chosen ablation varies.
    """
    plans = ablation_plans(ablations() if of is None else of, settings[METHOD], without=without or ())
    return run([options.experiment("ablation", BaseToNovel(), plans)], machines, dry_run=options.dry_run)
