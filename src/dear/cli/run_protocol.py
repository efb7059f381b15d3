"""`dear run PROTOCOL`: a command for every protocol, built from its class: the docstring becomes the help,
the fields become options.
"""

from collections.abc import Callable
from inspect import cleandoc

from dear.cli.parsing import Flat
from dear.cli.run_options import MethodOptions, RunOptions
from dear.cli.running import Summary, plans_of, render, run
from dear.evaluation.launch.machines import Machines
from dear.evaluation.protocols.registry import protocol_class
from dear.methods.declaration import MethodSettings

__all__ = ["command_of", "render"]

AFTER = """
Each run leaves one record in the output folder; a run whose record already exists is not repeated, and
an interrupted one resumes where it stopped.

Args:
    settings: Settings of the methods, such as --dear.beta or --coop.tokens.
"""


def command_of(name: str) -> Callable[..., Summary]:
    """The command of the protocol with that name."""
    kind = protocol_class(name)

    def command(
        *,
        protocol: Flat[kind],  # type: ignore[valid-type]
        chosen: Flat[MethodOptions],
        options: Flat[RunOptions],
        machines: Flat[Machines],
        **settings: MethodSettings,
    ) -> Summary:
        every = protocol.methods()  # type: ignore[attr-defined]
        plans = plans_of(chosen.methods, settings, chosen.role_variant, every)
        if chosen.methods is None:
            plans = tuple(filter(protocol.fits, plans))  # type: ignore[attr-defined]
        return run([options.experiment(name, protocol, plans)], machines, dry_run=options.dry_run)

    about = cleandoc(kind.__doc__ or "").partition("\n\nAttributes:")[0]
    command.__doc__ = f"{about}\n{AFTER}"
    return command
