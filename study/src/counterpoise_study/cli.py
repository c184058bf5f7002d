"""`counterpoise-study`: the tables and figures of the paper, as a grid of runs."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from counterpoise.cli.program import run_program, usage_errors
from counterpoise.cli.train import DataRoot, say_interrupted
from counterpoise.recipes.config import Allowance, ValidationMetric
from counterpoise_study import __version__
from counterpoise_study.scales import ScaleName

if TYPE_CHECKING:
    from counterpoise_study.grid import Shard
    from counterpoise_study.requests import Request
    from counterpoise_study.store import Store

StudyNames = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="STUDY", help_behavior_hint="")]
StoreFolder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STORE", help_behavior_hint="")]
MethodFile = Annotated[Path | None, tyro.conf.arg(metavar="FILE.py", help_behavior_hint="")]

_EVERYTHING = "all"
_WATCH_PAUSE = 1.0


@dataclass(frozen=True)
class Asked:
    """Which studies, at which scale, of which methods."""

    studies: StudyNames
    """Studies, or `all`; `counterpoise-study studies` lists them."""
    scale: ScaleName
    """As published (paper), for two CPU cores and days (reduced), or seconds that show that it runs (smoke);
    the studies finetune and cost have scales of their own."""
    seeds: int = 3
    """Runs of every method, with seeds 0, 1, ...; hyper-parameters are chosen at seed 0, or the scale's own seeds."""
    only: tuple[str, ...] = ()
    """Methods, of those of the studies; by default all."""
    settings: tuple[str, ...] = ()
    """Settings, of those of the studies, such as cifar10-resnet34; by default all."""
    methods: MethodFile = None
    """A Python file with methods of your own, in a dictionary METHODS, that join every study. It is run as code."""
    rule: ValidationMetric = "nll"
    """Validation metric that chooses hyper-parameters: the lowest NLL or ECE, or the highest accuracy."""


AskedFields = Annotated[Asked, tyro.conf.arg(name="")]


@dataclass(frozen=True)
class Run:
    """Run studies: train what is not trained yet, choose hyper-parameters, and write the page of tables and figures.

    The same command again goes on where it stopped. Several at a time, on machines that see the same folder, share the
    work.
    """

    asked: AskedFields
    store: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Folder of all runs and of the page; by default `runs/study-SCALE`."""
    shard: Annotated[str | None, tyro.conf.arg(metavar="i/n", help_behavior_hint="")] = None
    """Only one share of the work, for job arrays: `0/4` to `3/4`."""
    ray: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[ADDRESS]", help_behavior_hint="")] = None
    """Run cells on Ray: on this machine's cores, or on the cluster of the address (`auto`, `ray://head:10001`)."""
    cpus_per_cell: float = 1.0
    """Cores that Ray gives a cell."""
    gpus_per_cell: float = 0.0
    """GPUs that Ray gives a cell, such as 0.25; with 0 it gives none out, and all cells of a machine see them all."""
    again: bool = False
    """Try cells again that were given up after repeated failures, or whose record is gone."""
    allow: tuple[Allowance, ...] = ()
    """Conditions that may have changed since a cell was begun, as for `resume`: another release, threads, device."""
    data_root: DataRoot = None
    """Folder of data sets as Parquet, used without the network; by default COUNTERPOISE_DATA."""

    def run(self) -> None:
        """Run what is left to do, then write the page."""
        with usage_errors():
            if self.ray is not None and (self.shard is not None or len(self.ray) > 1):
                raise ValueError("--ray takes at most one address, and no --shard: it shares the work out by itself")
        requests = requests_of(self.asked)
        from counterpoise_study.data_check import require_data
        from counterpoise_study.grid import Shard, remaining
        from counterpoise_study.report import write_report
        from counterpoise_study.status import status_of
        from counterpoise_study.store import Store
        from counterpoise_study.work import remove_leftovers

        with usage_errors():
            shard = Shard.parse(self.shard) if self.shard is not None else Shard()
        require_data(requests, root=self.data_root)
        store = Store(self.store or default_store(self.asked.scale))
        requests = store.as_begun(requests)
        store.add(requests)
        remove_leftovers(store)
        if self.again:
            store.forgive()
        try:
            self._work(store, requests, shard)
        except KeyboardInterrupt:
            say_interrupted("the same command again goes on")
            raise
        print_status(store, store.contents.requests)
        if self.shard is not None and not remaining(store, requests).is_empty:
            print("report: by the shard that ends last, or by `counterpoise-study report`")
            return
        for path in write_report(store):
            print(f"report: {path}")
        if failed := status_of(store, requests).total.failed:
            raise ValueError(f"{failed} of the cells were given up, for the reasons above; --again tries them again")

    def _work(self, store: "Store", requests: "Sequence[Request]", shard: "Shard") -> None:
        """Without an engine, or on Ray."""
        from counterpoise_study.live_view import LiveView
        from counterpoise_study.scales import SCALES

        page = SCALES[self.asked.scale]().page
        with LiveView(store, requests) as view:
            if self.ray is None:
                from counterpoise_study.grid import run_sequentially
                from counterpoise_study.work import perform

                run_sequentially(
                    store,
                    requests,
                    root=self.data_root,
                    shard=shard,
                    page=page,
                    watch=view.watch,
                    perform=partial(perform, allow=self.allow),
                )
                return
            from counterpoise_study.cluster import run_on_ray

            run_on_ray(
                store,
                requests,
                address=self.ray[0] if self.ray else None,
                root=self.data_root,
                page=page,
                watch=view.watch,
                cpus_per_cell=self.cpus_per_cell,
                gpus_per_cell=self.gpus_per_cell,
                own_methods=self.asked.methods,
                allow=self.allow,
            )


@dataclass(frozen=True)
class Plan:
    """Say what studies would cost before anything runs: cells, network passes, hours and disk.

    Hours come from timing this machine for some seconds, or from the speed of another device.
    """

    asked: AskedFields
    store: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """What is finished in this store is left out."""
    device_flops: Annotated[float | None, tyro.conf.arg(metavar="FLOPS", help_behavior_hint="")] = None
    """Plan for another device that achieves so many floating-point operations a second in training, such as 3e13."""

    def run(self) -> None:
        """Print the plan."""
        requests = requests_of(self.asked)
        from counterpoise.training.progress import say
        from counterpoise_study.hardware_timing import assumed_timing, time_hardware
        from counterpoise_study.plan import plan_of, plan_text
        from counterpoise_study.scales import SCALES
        from counterpoise_study.store import Store

        store = Store(self.store) if self.store is not None else None
        if store is not None and store.contents.scale != self.asked.scale:
            raise ValueError(f"{store.path} holds the scale {store.contents.scale}, not {self.asked.scale}")
        requests = requests if store is None else store.as_begun(requests)
        if self.device_flops is None:
            timing = time_hardware(requests, page=SCALES[self.asked.scale]().page, say=say)
        else:
            timing = assumed_timing(self.device_flops)
        print(plan_text(plan_of(requests, timing=timing, store=store)))


@dataclass(frozen=True)
class Status:
    """Say what of a store is done, running, failed or to come, and how long it may take."""

    store: StoreFolder
    """Folder of the runs."""
    watch: bool = False
    """Stay, and show how it changes, until everything is done."""

    def run(self) -> None:
        """Print the status."""
        from counterpoise_study.store import Store

        store = Store(self.store)
        requests = store.contents.requests
        if self.watch:
            _watch(store, requests)
        print_status(store, requests)


@dataclass(frozen=True)
class Report:
    """Write tables and figures from what is in a store; nothing is trained or predicted."""

    store: StoreFolder
    """Folder of the runs, or of the records that were kept of them."""
    studies: StudyNames = ()
    """Studies to show; by default all that the store holds."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Where to write; by default into the store."""
    html: bool = True
    """A page with tables and figures."""
    markdown: bool = False
    """The tables as Markdown, figures as files beside it."""
    latex: bool = False
    """The tables as LaTeX, for the booktabs package."""
    methods: MethodFile = None
    """As for `counterpoise-study run`; only for the cost of these methods."""

    def run(self) -> None:
        """Write the files, and say which."""
        from counterpoise_study.custom_methods import load_methods
        from counterpoise_study.report import write_report
        from counterpoise_study.store import Store

        store = Store(self.store)
        if self.methods is not None:
            load_methods(self.methods)
        require_known(self.studies, [request.study for request in store.contents.requests])
        for path in write_report(
            store, studies=self.studies, out=self.out, html=self.html, markdown=self.markdown, latex=self.latex
        ):
            print(path)


@dataclass(frozen=True)
class Keep:
    """Copy what is finished into a folder for a repository: records and learning curves, no weights, no predictions.

    The folder is a store for `counterpoise-study report`; the same command again adds what was finished since.
    """

    store: StoreFolder
    """Folder of the runs."""
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")]
    """Where to copy to."""

    def run(self) -> None:
        """Copy, and say how much."""
        from counterpoise_study.keeping import keep
        from counterpoise_study.store import Store

        print(f"{self.folder}: {len(keep(Store(self.store), self.folder))} cells added")


@dataclass(frozen=True)
class Studies:
    """List the studies."""

    def run(self) -> None:
        """Print one line for each."""
        from counterpoise_study.studies import STUDIES

        for name, study in STUDIES.items():
            print(f"{name:20} {study.title} ({len(study.methods)} method{'s' * (len(study.methods) > 1)})")


Command = (
    Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Plan, tyro.conf.subcommand("plan")]
    | Annotated[Status, tyro.conf.subcommand("status")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Keep, tyro.conf.subcommand("keep")]
    | Annotated[Studies, tyro.conf.subcommand("studies")]
)


def main() -> None:
    """Parse the command line and run the subcommand."""
    run_program("counterpoise-study", __version__, parse)


def parse(arguments: list[str]) -> Command:
    """The command that the arguments ask for."""
    return tyro.cli(
        Command,
        args=arguments,
        prog="counterpoise-study",
        description="Run the tables and figures of the paper. `--version` prints the version.",
    )


def requests_of(options: Asked) -> "list[Request]":
    """What a command line asks for, as data."""
    from counterpoise_study.custom_methods import load_methods

    own = load_methods(options.methods) if options.methods is not None else {}
    with usage_errors():
        return _requests_with(options, own)


def _requests_with(options: Asked, own: Mapping[str, str]) -> "list[Request]":
    from counterpoise_study.scales import SCALES
    from counterpoise_study.studies import STUDIES, request_of, studies_at

    if options.seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {options.seeds}")
    names = tuple(studies_at(options.scale)) if options.studies == (_EVERYTHING,) else options.studies
    require_known(names, list(STUDIES))
    if not names:
        raise ValueError(f"name a study, or `all`; the studies are {', '.join(STUDIES)}")
    known = {method for name in names for method in STUDIES[name].methods} | set(own)
    if unknown := [method for method in options.only if method not in known]:
        raise ValueError(f"--only names {', '.join(unknown)}; the methods here are {', '.join(sorted(known))}")
    places = {name: [each.name for each in STUDIES[name].settings(SCALES[options.scale]())] for name in names}
    everywhere = {place for found in places.values() for place in found}
    if unknown := [place for place in options.settings if place not in everywhere]:
        raise ValueError(
            f"--settings names {', '.join(unknown)}; the settings here are {', '.join(sorted(everywhere))}"
        )
    found = [
        request_of(
            name,
            options.scale,
            seeds=range(options.seeds),
            rule=options.rule,
            only=options.only,
            places=options.settings,
            own=own,
        )
        for name in names
        if not options.only or set(options.only) & {*STUDIES[name].methods, *own}
        if not options.settings or set(options.settings) & set(places[name])
    ]
    if not found:
        raise ValueError("no study here has both a method that --only names and a setting that --settings names")
    return found


def require_known(names: Sequence[str], known: Sequence[str]) -> None:
    """Refuse studies that there are not."""
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no study {', '.join(unknown)}; there are {', '.join(known)}")


def default_store(scale: str) -> Path:
    """Where runs go unless a folder is named."""
    return Path("runs") / f"study-{scale}"


def print_status(store: "Store", requests: "Sequence[Request]") -> None:
    """The status as text."""
    from counterpoise_study.status import status_of, status_text

    print(status_text(status_of(store, requests)))


def _watch(store: "Store", requests: "Sequence[Request]") -> None:
    from counterpoise_study.grid import remaining
    from counterpoise_study.live_view import LiveView

    with LiveView(store, requests) as view:
        while not remaining(store, requests).is_empty:
            view.tick()
            time.sleep(_WATCH_PAUSE)
