"""`counterpoise resume`: go on with an interrupted run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from counterpoise.cli.train import DataRoot, print_outcome, resume_command, resume_hint
from counterpoise.recipes.config import Allowance


@dataclass(frozen=True)
class Resume:
    """Continue an interrupted run from its newest intact checkpoint, or finish what is missing after training.

    It ends as it would have ended without the interruption, bit for bit. Conditions that would change the result are
    refused unless they are allowed by name, and then recorded.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    allow: tuple[Allowance, ...] = ()
    """Changed conditions to accept: an edited config.json, another release, other threads, processes, device
    or data."""
    data_root: DataRoot = None
    """Folder of data sets as Parquet, used without the network; by default COUNTERPOISE_DATA."""

    def run(self) -> None:
        from counterpoise.training.folder import RunFolder
        from counterpoise.training.preflight import require_possible

        # What is no run is refused at once, before the engine is imported.
        require_possible(RunFolder(self.folder).recipe(), root=self.data_root)
        from counterpoise.training import resume

        command = resume_command(self.folder, allow=self.allow, data_root=self.data_root)
        with resume_hint(command, run=self.folder):
            evaluation = resume(self.folder, allow=self.allow, root=self.data_root)
        print_outcome(evaluation, self.folder)
