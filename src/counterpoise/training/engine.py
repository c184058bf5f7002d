"""Lightning's Trainer, set up from a recipe."""

import inspect
import logging
import os
import secrets
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import lightning as L  # noqa: N812
import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.plugins import MixedPrecision, Precision
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch.nn.parallel import DistributedDataParallel

from counterpoise._files import write_text
from counterpoise.objectives import Objective
from counterpoise.objectives.protocol import as_module
from counterpoise.recipes.config import LARGER_IS_BETTER, EngineOptions, Recipe
from counterpoise.recipes.methods import METHODS
from counterpoise.training.callbacks import AverageWeights, PruneSamples, RunLogs, StopEarly, progress_callback
from counterpoise.training.checkpoints import Entry
from counterpoise.training.data import RunData
from counterpoise.training.devices import computes_bfloat16, visible_devices
from counterpoise.training.distributed import is_first_process, leave_group_at_exit, world_size
from counterpoise.training.folder import EPOCH_COLUMNS, STEP_COLUMNS, RowLog, RunFolder
from counterpoise.training.module import ObjectiveModule, RunDataModule
from counterpoise.training.roles import RoleStrategy
from counterpoise.training.saving import SaveCheckpoints, SaveRandomState, TerminationSignal, VerifiedCheckpointIO

_FLAGS = {"float32": "32-true", "bfloat16": "bf16-mixed", "float16": "16-mixed"}
_LOG_STEPS = 50
_THREADS = "OMP_NUM_THREADS"

LoggerName = Literal["tensorboard", "wandb", "mlflow"]


def fit(
    recipe: Recipe,
    folder: RunFolder,
    objective: Objective,
    data: RunData,
    *,
    resume_from: Entry | None,
    pretrained: Sequence[bool] = (),
    callbacks: Sequence[L.Callback] = (),
) -> ObjectiveModule:
    """Train the objective from the start or from a checkpoint; the trained module comes back.

    `pretrained` says of each model whether its weights were trained before: the recipe may freeze those at first.
    """
    engine = recipe.engine
    if engine.strategy != "fsdp":  # which takes contiguous parameters only
        # Images come in this layout; convolutions in it are faster.
        as_module(objective).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if engine.compile:
        as_module(objective).compile()
    module = ObjectiveModule(
        objective,
        optimizer=recipe.optimizer_in_force,
        epochs=recipe.epochs,
        pretrained=pretrained,
        ema=engine.ema,
        sharded=engine.strategy == "fsdp",
        class_weights=data.class_weights,
    )
    step = 0 if resume_from is None else resume_from.step
    datamodule = RunDataModule(data, evaluation_batch=recipe.evaluation.batch, seed=recipe.seed)
    path = None if resume_from is None else str(folder.checkpoints / resume_from.file)
    with warnings.catch_warnings(), threads_kept():
        _silence()
        trainer = build_trainer(recipe, folder, step=step, callbacks=callbacks)
        L.seed_everything(recipe.seed + trainer.global_rank, verbose=False)
        try:
            trainer.fit(module, datamodule=datamodule, ckpt_path=path, weights_only=True)
        except SystemExit:
            # The engine's answer to Ctrl-C and SIGTERM; whoever called may have another.
            raise KeyboardInterrupt from None
        except RuntimeError as error:
            if path is None or not str(error).startswith("Error(s) in loading state_dict"):
                raise
            first = str(error).splitlines()[1].strip()
            raise ValueError(f"{path} is of other networks than the recipe's: {first}") from None
        finally:
            # Torch waits five seconds for each worker that is left to the garbage collector.
            datamodule.close()
            finish_loggers(engine.loggers)
    if world_size() > 1:
        leave_group_at_exit()
    return module


@contextmanager
def threads_kept() -> Iterator[None]:
    """Leave this process with its threads: recipes set them, and for several devices Lightning takes fewer."""
    threads, variable = torch.get_num_threads(), os.environ.get(_THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if variable is None:
            os.environ.pop(_THREADS, None)
        else:
            os.environ[_THREADS] = variable


def build_trainer(recipe: Recipe, folder: RunFolder, *, step: int, callbacks: Sequence[L.Callback]) -> L.Trainer:
    """The Trainer with everything that watches a run; `step` is where it goes on."""
    engine = recipe.engine
    logs = RunLogs(RowLog(folder.steps, STEP_COLUMNS), RowLog(folder.epochs, EPOCH_COLUMNS))
    if is_first_process():
        logs.steps.begin_after(step)
        logs.epochs.begin_after(step)
    (strategy, files), termination = _strategy(recipe), TerminationSignal()
    stopping = None if recipe.patience is None else StopEarly(recipe.patience)
    monitor = engine.monitor if stopping is None else "nll"
    checkpoints = SaveCheckpoints(
        folder.checkpoints,
        files=files,
        every_steps=engine.checkpoint_steps,
        every_epochs=engine.checkpoint_epochs,
        metric=monitor,
        larger_is_better=monitor in LARGER_IS_BETTER,
        stopping=stopping,
        flush=logs.flush,
        termination=termination,
    )
    asked: list[L.Callback] = [PruneSamples(recipe.pruning)] if METHODS[recipe.method].prunes else []
    asked += [] if stopping is None else [stopping]
    # Checkpoints come last, so that one holds what all others know after the step.
    watching = [SaveRandomState(), AverageWeights(), logs, progress_callback(), *asked, *callbacks]
    watching += [termination, checkpoints]
    plugins: list[Any] = [files, *_environment(engine)]
    precision = _precision(engine)
    plugins += [precision] if precision is not None else []
    return L.Trainer(
        accelerator=engine.accelerator,
        devices=engine.devices + engine.auxiliary_devices,
        num_nodes=engine.nodes,
        strategy=strategy,
        precision=None if precision is not None else _FLAGS[engine.precision],  # type: ignore[arg-type]
        plugins=plugins,
        max_epochs=recipe.epochs,
        callbacks=watching,
        logger=[build_logger(name, folder=folder.path, step=step) for name in engine.loggers],
        log_every_n_steps=_LOG_STEPS,
        default_root_dir=folder.path,
        deterministic=engine.deterministic,
        benchmark=not engine.deterministic,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in watching),
        enable_model_summary=False,
        use_distributed_sampler=False,
    )


def _environment(engine: EngineOptions) -> list[ClusterEnvironment]:
    """Who started the processes, where Lightning would be wrong about it."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return []
    if engine.processes == 1:
        return [LightningEnvironment()]  # and not a task of SLURM, of which there may be more, each with a run
    # A requeue would save a checkpoint of Lightning's own, which the run's manifest does not know.
    return [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []


def _strategy(recipe: Recipe) -> tuple[Strategy | str, VerifiedCheckpointIO]:
    """How the ranks share the work, and how what they save is written."""
    engine = recipe.engine
    ranks = engine.processes
    if engine.auxiliary_devices:
        strategy = RoleStrategy(
            devices=engine.devices,
            auxiliary_devices=engine.auxiliary_devices,
            networks=METHODS[recipe.method].models - 1,
            buffer_option=_buffer_option(),
        )
        return strategy, VerifiedCheckpointIO()
    if engine.strategy == "fsdp":
        from counterpoise.training.sharding import ShardedCheckpointIO, ShardedStrategy  # seconds to import

        return ShardedStrategy(data_parallel_size=ranks, tensor_parallel_size=1), ShardedCheckpointIO()
    if engine.strategy == "ddp" or ranks > 1:
        # Running statistics are averaged before they are used; until then every rank keeps its own.
        options: dict[str, Any] = {_buffer_option(): False}
        # On steps that an auxiliary does not learn from, its parameters have no gradients.
        options["find_unused_parameters"] = recipe.savings_in_force.every > 1
        return DDPStrategy(gradient_as_bucket_view=True, **options), VerifiedCheckpointIO()
    return "auto", VerifiedCheckpointIO()


def _buffer_option() -> str:
    """What DDP calls the broadcast of buffers in each forward pass; newer releases of torch have renamed it."""
    parameters = inspect.signature(DistributedDataParallel).parameters
    return "forward_sync_buffers" if "forward_sync_buffers" in parameters else "broadcast_buffers"


def _precision(engine: EngineOptions) -> Precision | None:
    """What Lightning would not choose by itself: on a CPU, where it turns float16 into bfloat16."""
    if engine.precision == "float16" and device_type(engine) == "cpu":
        return MixedPrecision("16-mixed", "cpu")
    return None


def precision_advice(engine: EngineOptions) -> str | None:
    """What to say about a precision that costs more than it saves here."""
    if engine.precision != "bfloat16" or computes_bfloat16(device_type(engine)):
        return None
    return (
        "this CPU has no bfloat16 instructions: a step takes longer than in float32, and rounds more; "
        "--engine.precision float32 is faster here, and exact"
    )


def device_type(engine: EngineOptions) -> str:
    """Such as `cpu` or `cuda`."""
    if engine.accelerator == "auto":
        return visible_devices()[-1].partition(":")[0]
    # Lightning's name for Apple's GPU too.
    gpu = "mps" if torch.backends.mps.is_available() else "cuda"
    return {"gpu": gpu}.get(engine.accelerator, engine.accelerator)


def require_devices(engine: EngineOptions) -> None:
    """Refuse to train on devices that are not there."""
    kind, there = device_type(engine), visible_devices()
    wanted = engine.devices + engine.auxiliary_devices
    if kind != "cpu" and sum(name.startswith(f"{kind}:") for name in there) < wanted:
        further = f" and engine.auxiliary_devices {engine.auxiliary_devices}" if engine.auxiliary_devices else ""
        raise ValueError(
            f"engine.accelerator {engine.accelerator} with engine.devices {engine.devices}{further} needs as many "
            f"{kind} devices; torch sees {', '.join(there)} here; choose fewer, or engine.accelerator cpu"
        )


def _silence() -> None:
    """Leave out what the engine says about itself; what is wrong still speaks."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    silenced = (
        "does not have many workers",
        "Found .* in eval mode",
        "isinstance.treespec, LeafSpec.",
        "smaller than the logging interval",
    )
    for text in silenced:
        warnings.filterwarnings("ignore", message=f".*{text}.*")


def build_logger(name: LoggerName, *, folder: Path, step: int) -> Logger:
    """One logger that writes below the run's folder; what TensorBoard holds beyond `step` is written again."""
    title = folder.name
    if name == "tensorboard":
        return TensorBoardLogger(folder, name="", version="tensorboard", purge_step=step)
    if name == "wandb":
        # The id makes a resumed run the same run; what it logged after its last checkpoint is there twice.
        # Other ranks log nothing, and must not choose another.
        run_id = _wandb_id(folder) if is_first_process() else None
        return WandbLogger(name=title, id=run_id, project="counterpoise", save_dir=folder, resume="allow")
    return MLFlowLogger(experiment_name="counterpoise", run_name=title, save_dir=str(folder / "mlflow"))


def finish_loggers(names: Collection[LoggerName]) -> None:
    """End the run that Weights & Biases keeps for the process, or the next training would go on with it."""
    if "wandb" in names:
        import wandb

        wandb.finish()


def _wandb_id(folder: Path) -> str:
    """One for each folder, kept in it: names of folders are not unique."""
    path = folder / "wandb-id"
    if not path.exists():
        write_text(path, secrets.token_hex(8))
    return path.read_text()
