"""What is recorded of each epoch, for TensorBoard."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dear.errors import SettingsError, installation
from dear.evaluation.runs import RunProgress
from dear.progress import TrainingStep
from dear.writing import make_folder


@contextmanager
def log_epochs(folder: Path, progress: RunProgress) -> Iterator[RunProgress]:
    """A progress that also writes what is recorded of each epoch into a folder for TensorBoard, under the run
    and the method that is trained: the run's own, or its teacher. Raises OutputError for a folder that cannot
    be written to, SettingsError without TensorBoard.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise SettingsError(f"TensorBoard is not installed: {installation('log')}, or omit --log.") from error
    make_folder(folder, "with --log")
    with SummaryWriter(folder) as writer:

        def log(run: str, step: TrainingStep | None) -> None:
            progress(run, step)
            if step is not None:
                for name, value in step.record.items():
                    writer.add_scalar(f"{run}/{step.method}/{name}", value, step.epoch)

        yield log
