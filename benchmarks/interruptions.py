"""Does a killed run end as if nothing had happened? `python -m benchmarks.interruptions [--trials 100]`.

Each trial starts a small training on real CIFAR-10 images in a process of its own, kills it with SIGKILL at a moment
that is uniform over its processor time, resumes it in a new process, and compares with the run that nobody interrupted:
the SHA-256 over all parameters, buffers, optimizer, progress and random state, and the losses of all steps in
hexadecimal. Trials go in turn over methods, pipelines and precisions; networks have BatchNorm, images are augmented,
checkpoints are written inside epochs too. With `--finetuning` all of them train as people fine-tune: AdamW with
learning rates by layer, mixup and CutMix, RandAugment in workers, balanced classes, early stopping. With `--webdataset`
all of them stream tar shards, with validation rows chosen by a hash. With `--remote` their auxiliaries train in
processes of their own, and either the primary's process or an auxiliary's is killed, from the first checkpoint on; the
others must end by themselves within 30 s.
"""

import argparse
import math
import multiprocessing as mp
import os
import random
import shutil
import signal
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import product
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from lightning.pytorch.utilities import rank_zero_only
from PIL import Image

from benchmarks.processes import processor_time
from benchmarks.remote_steps import free_port
from benchmarks.reporting import Check, finish, progress
from counterpoise.data import load_images
from counterpoise.models import Backbone
from counterpoise.recipes.config import DataOptions, EngineOptions, OptimizerOptions, Precision, Recipe
from counterpoise.training import named_data, resume, train
from counterpoise.training.checkpoints import newest_intact, state_digest
from counterpoise.training.folder import STEP_COLUMNS, RowLog, RunFolder, member_folders

METHODS = ("ce", "mte1", "mte2", "dml")
PIPELINES = ("memory", "stream with 0 workers", "stream with 2 workers")
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
STEPS, BATCH, VALIDATION = 10, 20, 100
"""Steps an epoch, images a step, images held out."""
EARLY = 0.1
"""Share of the trials that may be killed before the run has begun, too."""
ENDS_WITHIN = 30.0
"""Seconds in which the other processes of a run must end after one was killed."""

_LAUNCH = mp.get_context("forkserver")


@dataclass(frozen=True)
class Ending:
    """How a run ended: the digest of its state, and its losses by step."""

    digest: str
    losses: tuple[tuple[str, str], ...]


@dataclass
class Trials:
    """What came of the trials: how many ended as the uninterrupted run, where kills fell, and whom they hit."""

    same: int = 0
    killed_at: Counter[str] = field(default_factory=Counter)
    victims: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0
    left: int = 0

    def add(self, *, same: bool, stage: str, victim: str, waited: float, left: int) -> None:
        """One more; `waited` seconds passed until the other processes had ended, `left` temporary files stayed."""
        self.same += same
        self.left += left
        self.killed_at[stage] += 1
        self.victims[victim] += 1
        self.longest = max(self.longest, waited)


def from_scratch() -> dict[str, Recipe]:
    """Each method, pipeline and precision, without anything pretrained."""
    network = Backbone(name="resnet10", width=4)
    return {
        f"{method}, {pipeline}, {precision}": recipe(
            method,
            network,
            pipeline_options(pipeline),
            OptimizerOptions(milestones=(3,)),
            precision=precision,
        )
        for method, pipeline, precision in product(METHODS, PIPELINES, PRECISIONS)
    }


def finetuning() -> dict[str, Recipe]:
    """As people fine-tune: AdamW, mixup and CutMix, RandAugment in workers, balanced classes, early stopping."""
    network = Backbone("timm/test_efficientnet", small_images=False)
    optimizer = OptimizerOptions(
        name="adamw", lr=1e-3, layer_decay=0.8, decay_norms=False, weight_decay=0.05, schedule="cosine", warmup=0.5
    )
    augment = ("RandomResizedCrop", "RandAugment", "RandomErasing")
    return {
        f"{method}, {pipeline}": recipe(
            method,
            network,
            replace(
                pipeline_options(pipeline),
                workers=2,
                augment=augment,
                mixup=0.2,
                cutmix=1.0,
                balance="sampler" if pipeline == "memory" else "none",
            ),
            replace(optimizer, auxiliary_factor=0.5) if method == "mte1" else optimizer,
            patience=3,
        )
        for method, pipeline in product(("ce", "mte1", "dml"), ("memory", "stream with 2 workers"))
    }


def remote() -> dict[str, Recipe]:
    """Auxiliaries in other processes, one for each."""
    network = Backbone(name="resnet10", width=4)
    found = {}
    for (method, ranks), precision in product((("mte1", 1), ("mte2", 2)), PRECISIONS):
        beside = recipe(
            method, network, pipeline_options("memory"), OptimizerOptions(milestones=(3,)), precision=precision
        )
        found[f"{method}, 1+{ranks} processes, {precision}"] = replace(
            beside, engine=replace(beside.engine, auxiliary_devices=ranks)
        )
    return found


def webdataset(folder: Path) -> dict[str, Recipe]:
    """Streams of tar shards, which are written into a folder; their validation rows are chosen by a hash."""
    write_shards(folder)
    network = Backbone(name="resnet10", width=4)
    return {
        f"{method}, shards with {workers} workers": recipe(
            method,
            network,
            replace(pipeline_options("stream"), name=str(folder), limit=None, workers=workers),
            OptimizerOptions(milestones=(3,)),
        )
        for method, workers in product(METHODS, (0, 2))
    }


def recipe(
    method: str,
    network: Backbone,
    data: DataOptions,
    optimizer: OptimizerOptions,
    *,
    precision: Precision = "float32",
    patience: int | None = None,
) -> Recipe:
    """Five epochs of ten steps, and a checkpoint every four steps and every epoch."""
    return Recipe(
        method=method,
        primary=network,
        auxiliary=network,
        epochs=5,
        batch=BATCH,
        patience=patience,
        data=data,
        optimizer=optimizer,
        engine=EngineOptions(precision=precision, accelerator="cpu", threads=1, checkpoint_steps=4),
    )


def pipeline_options(pipeline: str) -> DataOptions:
    """Of one of the pipelines, by its name."""
    return DataOptions(
        name="cifar10",
        validation=VALIDATION,
        limit=VALIDATION + STEPS * BATCH,
        pipeline="memory" if pipeline == "memory" else "stream",
        workers=2 if pipeline.endswith("2 workers") else 0,
        window=50,
    )


def write_shards(folder: Path) -> None:
    """The first images of CIFAR-10 as tar shards of a WebDataset."""
    shards = 5
    images = load_images("cifar10", "train", limit=VALIDATION + STEPS * BATCH)
    for number in range(shards):
        with tarfile.open(folder / f"train-{number}.tar", "w") as shard:
            for row in range(number * len(images) // shards, (number + 1) * len(images) // shards):
                picture = BytesIO()
                Image.fromarray(images.pixels[row].permute(1, 2, 0).numpy()).save(picture, "PNG")
                for extension, content in (("png", picture.getvalue()), ("cls", b"%d" % int(images.labels[row]))):
                    member = tarfile.TarInfo(f"{row:05}.{extension}")
                    member.size = len(content)
                    shard.addfile(member, BytesIO(content))
    (folder / "classes.txt").write_text("\n".join(images.classes))


def main() -> None:
    """All trials, in turn over all combinations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--finetuning", action="store_true", help="train as people fine-tune")
    kinds.add_argument("--remote", action="store_true", help="train auxiliaries in processes of their own")
    kinds.add_argument("--webdataset", action="store_true", help="train on a stream of tar shards")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        recipes = finetuning() if options.finetuning else remote() if options.remote else from_scratch()
        if options.webdataset:
            recipes = webdataset(Path(folder))
        trials = run_trials(recipes, options.trials, seed=options.seed)
    figures = {"trials": options.trials, "killed in the state": dict(trials.killed_at)}
    checks = [Check("runs that end with the same state and losses", trials.same, at_least=options.trials)]
    if options.remote:
        figures["killed"] = dict(trials.victims)
        checks.append(Check("seconds until the other processes ended", trials.longest, at_most=ENDS_WITHIN))
    kind = " --finetuning" * options.finetuning + " --webdataset" * options.webdataset + " --remote" * options.remote
    finish(f"python -m benchmarks.interruptions{kind}", figures, checks)


def run_trials(recipes: Mapping[str, Recipe], trials: int, *, seed: int) -> Trials:
    """So many trials, in turn over the recipes."""
    _LAUNCH.set_forkserver_preload(["counterpoise.training.run", "counterpoise.data.stream"])
    combinations = list(recipes)
    # The order is mixed, so that a few trials are not all of one method.
    random.Random(seed).shuffle(combinations)  # noqa: S311
    moments = random.Random(seed + 1)  # noqa: S311
    references: dict[str, tuple[list[Ending], float, float]] = {}
    done = Trials()
    with tempfile.TemporaryDirectory() as scratch:
        for trial in range(trials):
            combination = combinations[trial % len(combinations)]
            recipe = recipes[combination]
            if combination not in references:
                folder = Path(scratch) / f"reference-{len(references)}"
                processes = _start(recipe, folder)
                begun, seconds = _watched(processes[0], folder, begins=_beginning(recipe))
                _finish(processes)
                references[combination] = endings(recipe, folder), begun, seconds
            reference, begun, seconds = references[combination]
            folder = Path(scratch) / f"trial-{trial}"
            first = 0.0 if recipe.engine.processes == 1 and moments.random() < EARLY else begun
            victim = trial // len(combinations) % recipe.engine.processes
            while (kill := interrupted(recipe, folder, victim=victim, after=moments.uniform(first, seconds))) is None:
                # It was faster than the reference, and ended by itself.
                shutil.rmtree(folder)
            stage, waited = kill
            _age(folder)
            _finish(_start(recipe, folder))
            agrees = endings(recipe, folder) == reference
            role = "primary" if victim < recipe.engine.devices else "auxiliary"
            done.add(same=agrees, stage=stage, victim=role, waited=waited, left=len(list(folder.rglob(".*.tmp"))))
            others = f"; others ended after {waited:.1f} s" if recipe.engine.processes > 1 else ""
            agreement = "same" if agrees else "NOT the same"
            progress(f"{trial + 1} of {trials}: {combination}; {role}, {stage}{others}: {agreement}")
    return done


def interrupted(recipe: Recipe, folder: Path, *, victim: int = 0, after: float) -> tuple[str, float] | None:
    """Start a run, and kill one of its processes after so much processor time of the first.

    Returns:
        How far it had come, and the seconds until its other processes had ended; None if the killed one had by then.
    """
    processes = _start(recipe, folder)
    _watched(processes[0], folder, until=after)
    processes[victim].kill()
    killed = time.monotonic()
    for process in processes:
        process.join(max(0.0, killed + 2 * ENDS_WITHIN - time.monotonic()))
    waited = time.monotonic() - killed
    for process in processes:
        process.kill()
        process.join()
    if processes[victim].exitcode != -signal.SIGKILL:
        return None
    run = RunFolder(folder)
    if not run.config.exists():
        return "before the run began", waited
    # The members of an ensemble are trained one after another: it is in the last that has begun.
    members = member_folders(recipe, run)
    begun = [member for member in members if member.checkpoints.exists()]
    entry, _ = newest_intact(begun[-1].checkpoints) if begun else (None, [])
    if entry is None:
        return "before the first checkpoint", waited
    if members[-1].primary.exists():
        return "after training", waited
    return "after a checkpoint " + ("inside an epoch" if entry.step % STEPS else "at an epoch's end"), waited


def _age(folder: Path) -> None:
    """As if a person had come back an hour later: new temporary files may be of a process that is hidden."""
    for path in folder.rglob(".*.tmp"):
        os.utime(path, (time.time() - 3600,) * 2)


def _beginning(recipe: Recipe) -> str:
    """The first file from which on runs may be killed.

    Processes that wait for others to join are their launcher's to end, and there is none here; once there is a
    checkpoint, all have joined.
    """
    return "config.json" if recipe.engine.processes == 1 else "checkpoints/step-*.ckpt"


def _watched(
    process: BaseProcess, folder: Path, *, until: float = math.inf, begins: str = "config.json"
) -> tuple[float, float]:
    """Wait for a process to end, or to have used so much processor time; what it had used when its run began, and last.

    By the clock, most kills would fall into the start of a run while others keep the machine busy.
    """
    begun, seconds = 0.0, 0.0
    while process.is_alive() and seconds < until:
        seconds = max(seconds, processor_time(process.pid))
        if not any(folder.glob(begins)):
            begun = seconds
        time.sleep(0.01)
    return begun, seconds


def endings(recipe: Recipe, folder: Path) -> list[Ending]:
    """What a finished run left, of each member where it is an ensemble."""
    return [ending(member) for member in member_folders(recipe, RunFolder(folder))]


def ending(run: RunFolder) -> Ending:
    """What a finished run, or a member of one, left."""
    entry, faults = newest_intact(run.checkpoints)
    if entry is None or faults:
        raise RuntimeError(f"{run.path} has no intact checkpoint: {faults}")
    rows = RowLog(run.steps, STEP_COLUMNS).rows()
    return Ending(state_digest(run.checkpoints / entry.file), tuple((row["step"], row["loss_hex"]) for row in rows))


def run_to_the_end(recipe: Recipe, folder: Path, rank: int, port: int, *, goes_on: bool) -> None:
    """Start the run, or go on with it; no predictions."""
    if recipe.engine.processes > 1:
        # As a launcher does.
        os.environ |= {"LOCAL_RANK": str(rank), "MASTER_PORT": str(port), "MASTER_ADDR": "127.0.0.1"}
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        rank_zero_only.rank = rank  # type: ignore[attr-defined]
        # Those whose peer was killed say so at length.
        with (folder.parent / f"{folder.name}-{rank}.log").open("a") as log:
            os.dup2(log.fileno(), sys.stderr.fileno())
    # As in a process that a person starts; here the method of the trials' own processes would be inherited.
    mp.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    data = replace(named_data(recipe), test=None)
    if goes_on:
        resume(folder, data=data)
    else:
        train(recipe, folder, data=data)


def _start(recipe: Recipe, folder: Path) -> list[BaseProcess]:
    told = {"goes_on": RunFolder(folder).config.exists()}
    port = free_port()
    processes: list[BaseProcess] = [
        _LAUNCH.Process(target=run_to_the_end, args=(recipe, folder, rank, port), kwargs=told)
        for rank in range(recipe.engine.processes)
    ]
    for process in processes:
        process.start()
    return processes


def _finish(processes: Iterable[BaseProcess]) -> None:
    codes = []
    for process in processes:
        process.join()
        codes.append(process.exitcode)
    if any(codes):
        raise RuntimeError(f"a run ended with exit codes {codes}")


if __name__ == "__main__":
    main()
