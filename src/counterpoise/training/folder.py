"""A run's folder: complete in itself, and refusing to go on under conditions that would change the result."""

import atexit
import csv
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import counterpoise
from counterpoise._addresses import as_path, read_text
from counterpoise._digests import SUMS, inside, require_within
from counterpoise._documents import from_document, to_document
from counterpoise._extras import installed_version
from counterpoise._files import FilePath, replacing, write_text
from counterpoise._locks import acquired, lock_of
from counterpoise.recipes.config import Allowance, Recipe, ValidationMetric
from counterpoise.recipes.methods import METHODS, method_named

SCHEMA, SCHEMA_VERSION = "counterpoise.environment", 1
PACKAGES = ("torch", "torchvision", "lightning", "numpy", "datasets", "pyarrow", "timm", "safetensors")

STEP_COLUMNS = ("step", "epoch", "loss", "loss_hex", "lr")
EPOCH_COLUMNS = (
    "epoch",
    "step",
    "training_loss",
    *(f"validation_{name}" for name in get_args(ValidationMetric)),
    "lr",
    "images_per_second",
    "seconds",
)

LOCK_PATIENCE = 2.0
"""Seconds in which processes that a killed run has left may end."""


Kernels = Literal["native", "float32"]
"""What computed bfloat16; the float32 kernels, for CPUs without instructions for it, are no longer there."""


@dataclass(frozen=True)
class Conditions:
    """What a result depends on besides the recipe, and what is good to know about it.

    Of `models` and `data`, `given` names those that were made in Python instead of by the recipe. `data` has a
    digest of the content of each split and each OOD set.
    """

    config_digest: str
    versions: dict[str, str]
    revision: str
    platform: str
    device: str
    threads: int
    world_size: int
    command: str
    kernels: Kernels = "native"
    step: int = 0
    allowed: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    data: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Environment:
    """The conditions under which a run was started, and each time it was resumed."""

    started: Conditions
    resumed: list[Conditions] = field(default_factory=list)


@dataclass(frozen=True)
class RunFolder:
    """Where everything of a run is."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def environment(self) -> Path:
        """Versions, revision, threads, ranks."""
        return self.path / "environment.json"

    @property
    def split(self) -> Path:
        """Row numbers of the held-out images."""
        return self.path / "split.json"

    @property
    def steps(self) -> Path:
        return self.path / "steps.csv"

    @property
    def epochs(self) -> Path:
        """Training loss and validation metrics of every epoch."""
        return self.path / "epochs.csv"

    @property
    def checkpoints(self) -> Path:
        """Complete states."""
        return self.path / "checkpoints"

    @property
    def primary(self) -> Path:
        """What ships: the primary's weights."""
        return self.path / "primary.safetensors"

    @property
    def predictions(self) -> Path:
        """What the primary says about validation, test and OOD images."""
        return self.path / "predictions"

    @property
    def scores(self) -> Path:
        """What the predictions are worth."""
        return self.path / "scores.json"

    @property
    def report(self) -> Path:
        """The same as a page."""
        return self.path / "report.html"

    def member(self, index: int) -> "RunFolder":
        """The folder of one member of an ensemble."""
        return RunFolder(self.path / "members" / str(index))

    def recipe(self) -> Recipe:
        if not self.config.is_file():
            raise ValueError(f"{self.path} is no run: it has no {self.config.name}")
        try:
            return Recipe.from_json(self.config.read_text())
        except ValueError as error:
            raise ValueError(f"{self.config}: {error}") from None


@cache
def local_run(location: str | FilePath) -> Path:
    """The folder of a run; of one in an object store a copy without checkpoints, which lasts as long as this process.

    A run is trained in a local folder: it needs locks, and files that are renamed.
    """
    path = as_path(location)
    if isinstance(path, Path):
        return path
    copy = Path(tempfile.mkdtemp(prefix="counterpoise-run-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    waiting = [(path, copy)]
    while waiting:
        folder, target = waiting.pop()
        target.mkdir(exist_ok=True)
        for each, size in folder.listed():
            require_within(each.name, where=str(folder))
            if size is not None:
                (target / each.name).write_bytes(each.read_bytes())
            elif each.name != RunFolder(copy).checkpoints.name:
                waiting.append((each, target / each.name))
    if not RunFolder(copy).config.is_file():
        raise ValueError(f"{path} is no run: it has no {RunFolder(copy).config.name}")
    return copy


def member_folders(recipe: Recipe, run: RunFolder) -> list[RunFolder]:
    """Where the trainings of a run are: in its own folder, or one for each member of an ensemble."""
    members = METHODS[recipe.method].members
    return [run] if members == 1 else [run.member(index) for index in range(members)]


def trained_folders(run: RunFolder, *, member: int | None = None) -> list[RunFolder]:
    """The folders that the weights of a run are in, or that of one member; refuses what is not trained to its end."""
    recipe = run.recipe()
    method_named(recipe.method)
    folders = member_folders(recipe, run)
    if member is not None:
        if not 0 <= member < len(folders):
            raise ValueError(f"{run.path} has the members 0 to {len(folders) - 1}, not {member}")
        folders = [folders[member]]
    for part in folders:
        if not part.primary.exists():
            raise ValueError(f"{part.primary} is not there yet: `counterpoise resume {run.path}` trains on")
    return folders


class RowLog:
    """A CSV file with one row a step, or one an epoch: complete up to each checkpoint, and never with a row twice."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, tuple(columns)

    def append(self, rows: Sequence[Sequence[Any]]) -> None:
        """Write rows, and have them on disk before anything that refers to them."""
        with self.path.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> list[dict[str, str]]:
        """All complete rows; a line that was cut off by a crash is none."""
        try:
            text = read_text(self.path) if self.path.exists() else ""
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path} is damaged: {error}; restore the file, or remove it") from None
        complete = text[: text.rfind("\n") + 1]
        return list(csv.DictReader(complete.splitlines()))

    def begin_after(self, step: int) -> None:
        """Make the file, or remove its rows of later steps: training goes back to this one, and writes them again."""
        rows = self.rows() if step else []
        for number, row in enumerate(rows):
            if tuple(row) != self.columns or not (row["step"] or "").isdecimal():
                raise ValueError(
                    f"{self.path}: row {number} is not as it was written, with the columns {', '.join(self.columns)}; "
                    "restore the file, or remove it"
                )
        self._write([list(row.values()) for row in rows if int(row["step"]) <= step])

    def _write(self, rows: Sequence[Sequence[Any]]) -> None:
        with replacing(self.path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(rows)


def conditions_now(recipe: Recipe, *, device: str, world_size: int) -> Conditions:
    """The conditions of this process."""
    from torch import get_num_threads

    return Conditions(
        config_digest=recipe.digest,
        versions=installed_versions(),
        revision=_revision(Path(counterpoise.__file__).parent),
        platform=f"{platform.system()} {platform.machine()}",
        device=device,
        threads=get_num_threads(),
        world_size=world_size,
        command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    )


def installed_versions() -> dict[str, str]:
    """Versions of what a result may depend on."""
    versions = {name: version for name in PACKAGES if (version := installed_version(name))}
    return {"counterpoise": counterpoise.__version__, "python": platform.python_version()} | versions


@contextmanager
def in_use(folder: RunFolder) -> Iterator[None]:
    """Keep other processes out of a run; the lock ends with the process, however that ends."""
    folder.path.mkdir(parents=True, exist_ok=True)
    lock = lock_of(folder.path / ".lock")
    if not acquired(lock, timeout=LOCK_PATIENCE):
        raise ValueError(f"{folder.path} is in use by another process; wait until it ends, or end it")
    try:
        yield
    finally:
        lock.release()


def require_new(folder: RunFolder) -> None:
    """Refuse a folder that holds a run already, or what is left of one, which would be taken for this one's."""
    if folder.config.exists():
        raise ValueError(
            f"{folder.path} holds a run already; `counterpoise resume {folder.path}` continues it, "
            "or choose another --out"
        )
    if folder.path.is_dir():
        require_no_links(folder)
    left = [folder.primary, folder.predictions, folder.path / SUMS, folder.member(0).path.parent]
    left += folder.checkpoints.glob("*.ckpt")
    if found := [str(path.relative_to(folder.path)) for path in left if path.exists()]:
        raise ValueError(
            f"{folder.path} holds {', '.join(found[:3])} of another run, and no {folder.config.name}; remove the "
            "folder, or choose another --out"
        )


def require_no_links(run: RunFolder) -> None:
    """Refuse a run in which a link leads elsewhere: what is written to it would be written there."""
    folders = (run, *map(RunFolder, run.path.glob("members/*")))
    own = (path for folder in folders for path in (folder.path, *folder.path.iterdir()) if path != run.path)
    for path in own:
        inside(run.path, path.relative_to(run.path).as_posix())


def start(folder: RunFolder, recipe: Recipe, conditions: Conditions) -> None:
    """Make the folder; one that holds a run already is refused."""
    require_new(folder)
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    write_text(folder.environment, to_document(Environment(conditions), schema=SCHEMA, version=SCHEMA_VERSION))
    # Last, because this file makes the folder a run.
    write_text(folder.config, recipe.to_json())


def record_resumption(
    folder: RunFolder, conditions: Conditions, *, step: int, allowed: Collection[Allowance], trained: bool
) -> None:
    """Record that the run is resumed; refuse conditions that it was not started under and that are not allowed.

    Of a run that is `trained`, or a member of which is, the configuration cannot change any more.
    """
    environment = read_environment(folder)
    if (classes := environment.started.classes) and classes != conditions.classes:
        raise ValueError(
            f"{folder.path} was started with the classes {', '.join(classes)}, and the data have "
            f"{', '.join(conditions.classes)} now; restore them, or start another run"
        )
    changes = differences(environment.started, conditions)
    before = [environment.started, *environment.resumed][-1].config_digest
    if trained and before != conditions.config_digest:
        raise ValueError(
            f"{folder.path}: {folder.config.name} has changed since it was trained; start another run with it. More "
            "predictions of this one are made by `counterpoise predict`"
        )
    if refused := {name: change for name, change in changes.items() if name not in allowed}:
        reasons = "; ".join(refused.values())
        flags = " ".join(refused)
        raise ValueError(
            f"{folder.path} would not give the result it was started for: {reasons}. Restore these, or accept the "
            f"change with --allow {flags}, which is recorded"
        )
    resumed = [*environment.resumed, replace(conditions, step=step, allowed=sorted(changes))]
    text = to_document(replace(environment, resumed=resumed), schema=SCHEMA, version=SCHEMA_VERSION)
    write_text(folder.environment, text)


def read_environment(folder: RunFolder) -> Environment:
    """The conditions of a run so far."""
    try:
        text = read_text(folder.environment)
        return from_document(Environment, text, schema=SCHEMA, version=SCHEMA_VERSION)
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder.environment}: {error}") from None


def recipes_of(folder: RunFolder) -> list[str]:
    """Digests of the recipes that a run was started and resumed with."""
    environment = read_environment(folder)
    return [each.config_digest for each in (environment.started, *environment.resumed)]


def differences(before: Conditions, now: Conditions) -> dict[Allowance, str]:
    """What has changed that changes results, by the name of its allowance."""
    pairs: dict[Allowance, tuple[str, object, object]] = {
        "config": ("the configuration (SHA-256)", before.config_digest[:12], now.config_digest[:12]),
        "counterpoise": ("counterpoise", before.versions.get("counterpoise"), now.versions.get("counterpoise")),
        "torch": ("torch", before.versions.get("torch"), now.versions.get("torch")),
        "threads": ("threads", before.threads, now.threads),
        "world-size": ("processes", before.world_size, now.world_size),
        "device": ("device", _arithmetic(before), _arithmetic(now)),
        "data": ("the content of the data", *_of_both(before.data, now.data)),
    }
    return {name: f"{title} was {old}, is {new}" for name, (title, old, new) in pairs.items() if old != new}


def _of_both(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The digests of what both have read: a run may be begun without the test images."""
    names = sorted({*before} & {*now})
    return {name: before[name] for name in names}, {name: now[name] for name in names}


def _arithmetic(conditions: Conditions) -> str:
    return conditions.device + (" by float32 kernels" if conditions.kernels == "float32" else "")


def _revision(source: Path) -> str:
    """The git revision of the source, with a plus where it is changed; empty where there is none."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(source), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()  # noqa: S603

    try:
        # An installed copy may lie within somebody else's repository, which does not hold it.
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return ""
