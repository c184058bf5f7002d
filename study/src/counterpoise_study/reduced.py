"""The reduced-scale study: `python -m counterpoise_study.reduced STORE [--list]`.

Runs its parts one after another by `counterpoise-study run`, each from what the store holds already. Two such commands
at a time, with `OMP_NUM_THREADS=1`, keep two cores busy, but for the end of a part, where one waits for the other. Then
`counterpoise-study keep STORE study/results`, `counterpoise-study report study/results --markdown --latex` and
`python -m tools.documentation` write what the repository holds of it.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from counterpoise_study.cells import Task, tasks, undecided
from counterpoise_study.requests import Request
from counterpoise_study.scales import ScaleName
from counterpoise_study.store import Store
from counterpoise_study.studies import STUDIES, request_of

SCALE: ScaleName = "reduced"
SETTING_A, SETTING_B = "cifar10-resnet34", "cifar10-resnet50"
IN_A = (
    "cifar10", "deep-ensemble", "misclassification", "ood", "corruptions", "dml", "scatter", "reliability",
)  # fmt: skip
MAIN = ("ce", "fl", "mte1", "mte2")
OTHERS = ("ls", "er", "dca", "mmce", "flsd53", "fl-mdca", "fl-dtdp", "dml")


@dataclass(frozen=True)
class Part:
    """What one command runs.

    Attributes:
        title: of it.
        studies: that its cells are for.
        seeds: how many.
        only: methods; empty for all of the studies.
        settings: empty for all of the studies.
    """

    title: str
    studies: tuple[str, ...]
    seeds: int
    only: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    def command(self, store: str) -> list[str]:
        """As it would be typed."""
        words = ["counterpoise-study", "run", *self.studies, "--scale", SCALE, "--seeds", str(self.seeds)]
        words += ["--settings", *self.settings] if self.settings else []
        words += ["--only", *self.only] if self.only else []
        return [*words, "--store", store]

    def requests(self, store: Store) -> list[Request]:
        """What it asks a store for, as data."""
        return store.as_begun(
            [
                request_of(study, SCALE, seeds=range(self.seeds), only=self.only, places=self.settings)
                for study in self.studies
                if not self.only or set(self.only) & set(STUDIES[study].methods)
            ]
        )

    def progress(self, store: Store) -> tuple[int, int]:
        """Runs whose results are shown: those that are done, and all of them."""
        known, wanted = store.progress(), self.shown(store)
        return sum(map(known.is_done, wanted)), len(wanted) + undecided(self.requests(store), known)

    def shown(self, store: Store) -> list[Task]:
        """The runs whose results are shown, as far as they can be named now."""
        return [task for task in self.tasks(store) if task.stage == "complete"]

    def tasks(self, store: Store) -> list[Task]:
        """What can be named of it now."""
        return tasks(self.requests(store), store.progress())


PARTS = (
    Part("Setting A: cross-entropy, focal loss, MTE-1, MTE-2", IN_A, 5, MAIN, (SETTING_A,)),
    Part("Setting A: deep ensembles of three", IN_A, 3, ("de3",), (SETTING_A,)),
    Part("Setting A: the other eight methods", IN_A, 3, OTHERS, (SETTING_A,)),
    Part("Setting B", ("cifar10",), 3, (*MAIN, "de3"), (SETTING_B,)),
    Part("Alpha", ("alpha",), 1),
    Part("Other auxiliaries", ("auxiliary-backbone",), 1),
    Part("Faster auxiliaries", ("auxiliary-rate",), 3),
    Part("Setting C: short schedules", ("short-schedules",), 1),
    Part("PACS, each domain left out", ("pacs",), 1, (*MAIN, "de3")),
)
"""In the order in which they are run."""


def main() -> None:
    """Run what is left of every part, in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, help="folder of the runs; not the one that is kept in a repository")
    parser.add_argument("--list", action="store_true", help="print the commands, and run nothing")
    options = parser.parse_args()
    failed = False
    for part in PARTS:
        command = part.command(str(options.store))
        print(shlex.join(command), flush=True)
        if not options.list:
            failed |= run(command) != 0
    sys.exit(failed)


def run(command: Sequence[str]) -> int:
    """Exit code of a command, by the program of this environment, whatever the path says.

    A part of which a cell was given up has failed; the others do not need it.
    """
    program, *words = command
    return subprocess.run([Path(sys.executable).with_name(program), *words], check=False).returncode


if __name__ == "__main__":
    main()
