"""Progress of one command's steps, on stderr: a bar on a terminal, otherwise one line per finished step."""

from rich.progress import TaskID

from dear.cli.progress import Bar


class StepProgress(Bar):
    """Called with (step, done, of) whenever something is done."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = dict[str, TaskID]()

    def __call__(self, step: str, done: int, of: int) -> None:
        if step not in self.tasks:
            self.tasks[step] = self.bar.add_task(step, total=of)
        self.bar.update(self.tasks[step], completed=done, total=of)
        if done == of and not self.console.is_terminal:
            self.console.print(f"{step}: {done} of {of}")

    def note(self, text: str) -> None:
        """Print a line of its own."""
        if text:
            self.console.print(text, markup=False, soft_wrap=True)
