"""An objective of three models that knows nothing of this package but the type that it returns: it works everywhere."""

from functools import partial
from pathlib import Path
from typing import Any

import accelerate
import lightning as L  # noqa: N812
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from counterpoise import ObjectiveOutput
from counterpoise.export import describe, export_onnx, export_pt2, export_safetensors
from counterpoise.integrations.transformers import ObjectiveCallback
from counterpoise.recipes.methods import METHODS, Method
from counterpoise.testing import check_objective
from counterpoise.training import load_run, resume, train
from counterpoise.training.engine import fit
from counterpoise.training.folder import RunFolder
from counterpoise.training.networks import recipe_models
from runs import ending, small_data, small_recipe

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])


class TeacherAndCritic(nn.Module):
    """A student that ships, a teacher that sees the labels, and a critic that follows the student at a fixed rate."""

    accepts_loss_kwargs = False

    def __init__(self, student: nn.Module, teacher: nn.Module, critic: nn.Module) -> None:
        super().__init__()
        self.student, self.teacher, self.critic = student, teacher, critic
        self.process_group = None
        self.trust = 0.0

    @property
    def primary(self) -> nn.Module:
        return self.student

    @property
    def models(self) -> tuple[nn.Module, ...]:
        return self.student, self.teacher, self.critic

    def set_progress(self, progress: float) -> None:
        self.trust = progress

    def parameter_groups(self, *, lr: float, auxiliary_lr: float) -> list[dict[str, Any]]:
        return [
            {"name": "student", "params": list(self.student.parameters()), "lr": lr},
            {"name": "teacher", "params": list(self.teacher.parameters()), "lr": lr / 2},
            {"name": "critic", "params": list(self.critic.parameters()), "lr": auxiliary_lr, "scheduled": False},
        ]

    def forward(self, *inputs: Tensor, labels: Tensor | None = None, **named: Any) -> ObjectiveOutput:
        logits = self.student(*inputs, **named)
        if labels is None:
            return ObjectiveOutput.of(logits=logits)
        own = nn.functional.cross_entropy(logits.float(), labels)
        if not self.training:
            return ObjectiveOutput.of(logits=logits, loss=own)
        taught, criticised = self.teacher(*inputs, **named), self.critic(*inputs, **named)
        pull = nn.functional.mse_loss(logits, taught.detach())
        follow = nn.functional.mse_loss(criticised, logits.detach())
        loss = own + nn.functional.cross_entropy(taught, labels) + (0.1 + self.trust) * pull + follow
        return ObjectiveOutput.of(logits=logits, loss=loss, parts={"trust": torch.tensor(self.trust), "pull": pull})


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def objective() -> TeacherAndCritic:
    torch.manual_seed(0)
    return TeacherAndCritic(net(), net(), net())


def test_it_keeps_the_contract():
    check_objective(objective(), X, Y)


BATCH, STEPS = 6, 8
ROWS = torch.randn(BATCH * STEPS, 4, generator=torch.Generator().manual_seed(1))
LABELS = ROWS[:, :3].argmax(-1)


class Setup:
    """What every loop gets, and the losses that it saw."""

    def __init__(self) -> None:
        self.objective = objective()
        self.optimizer = torch.optim.SGD(self.objective.parameter_groups(lr=0.1, auxiliary_lr=0.01), momentum=0.9)
        decay = [lambda step: 0.5**step] * 2
        self.scheduler = LambdaLR(self.optimizer, [*decay, lambda _: 1.0])
        self.losses: list[float] = []
        self.objective.register_forward_hook(lambda _, __, output: self.losses.append(output["loss"].item()))
        self.rows = [{"input": x, "labels": y} for x, y in zip(ROWS, LABELS, strict=True)]


def plain() -> list[float]:
    setup = Setup()
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        setup.objective.set_progress(step / STEPS)
        setup.objective(ROWS[rows], labels=LABELS[rows]).loss.backward()
        setup.optimizer.step()
        setup.scheduler.step()
        setup.optimizer.zero_grad()
    assert len(set(setup.losses)) == STEPS
    return setup.losses


def test_accelerate_gives_the_losses_of_the_plain_loop():
    setup = Setup()
    accelerator = accelerate.Accelerator(cpu=True)
    loader = DataLoader(setup.rows, batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(setup.objective, setup.optimizer, loader)
    for step, batch in enumerate(loader):
        setup.objective.set_progress(step / STEPS)
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        setup.scheduler.step()
        optimizer.zero_grad()
    assert setup.losses == plain()


def trainer_of(setup: Setup, folder: Path, **changes: Any) -> transformers.Trainer:
    arguments = {
        "max_grad_norm": 0,
        "remove_unused_columns": False,
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": 1,
        "train_sampling_strategy": "sequential",
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    optimizers = changes.pop("optimizers", (setup.optimizer, setup.scheduler))
    return transformers.Trainer(
        setup.objective,
        transformers.TrainingArguments(str(folder), **(arguments | changes)),
        train_dataset=setup.rows,
        optimizers=optimizers,
        callbacks=[ObjectiveCallback()],
    )


@pytest.mark.slow
def test_trainer_gives_the_losses_of_the_plain_loop(tmp_path):
    setup = Setup()
    trainer_of(setup, tmp_path).train()
    assert setup.losses == plain()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_grad_norm": 1.0}, "one joint norm"),
        ({"optimizers": (None, None)}, "mixes the primary with the auxiliaries"),
        ({"optimizers": "no scheduler"}, "the learning-rate schedule of the primary"),
    ],
)
def test_trainers_defaults_are_refused(changes, message, tmp_path):
    setup = Setup()
    if changes.get("optimizers") == "no scheduler":
        changes = {"optimizers": (setup.optimizer, None)}
    with pytest.raises(ValueError, match=message):
        trainer_of(setup, tmp_path, **changes).train()
    assert setup.losses == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "export", [export_safetensors, partial(export_onnx, example=X), partial(export_pt2, example=X)]
)
def test_what_ships_is_the_primary(export, tmp_path):
    made = objective().eval()
    metadata = describe(class_names=["a", "b", "c"], mean=[0.0], std=[1.0])
    with pytest.raises(ValueError, match=r"TeacherAndCritic is for training.*export objective\.primary"):
        export(made, tmp_path / "objective", metadata=metadata)
    export(made.primary, tmp_path / "primary", metadata=metadata)
    assert (tmp_path / "primary").stat().st_size > 0


class Watch(L.Callback):
    """The learning rates, the progress and the norm of each model's gradient at every step."""

    def __init__(self) -> None:
        self.rates: list[list[float]] = []
        self.progress: list[float] = []
        self.norms: list[list[float]] = []

    def on_before_zero_grad(self, trainer: L.Trainer, module: L.LightningModule, optimizer: Any) -> None:
        self.rates.append([group["lr"] for group in optimizer.param_groups])
        self.progress.append(module.objective.trust)
        gradients = [[p.grad for p in model.parameters()] for model in module.objective.models]
        self.norms.append([float(nn.utils.get_total_norm(each)) for each in gradients if each[0] is not None])


@pytest.fixture
def method(monkeypatch):
    """A line in the methods table is all that a recipe needs."""
    line = Method("Teacher and critic", 3, lambda models: TeacherAndCritic(*models), {}, "a test")
    monkeypatch.setitem(METHODS, "teacher-and-critic", line)
    return "teacher-and-critic"


def test_the_engine_clips_each_model_and_keeps_the_schedule_off_the_critic(method, tmp_path):
    recipe = small_recipe(method, optimizer__clip=0.05, optimizer__auxiliary_lr=0.03)
    models = recipe_models(recipe, classes=3, channels=3)(0)
    watch, run = Watch(), RunFolder(tmp_path)
    run.checkpoints.mkdir()
    fit(recipe, run, TeacherAndCritic(*models), small_data(recipe), resume_from=None, callbacks=[watch])
    assert watch.rates[0] == pytest.approx([0.05, 0.025, 0.03])
    assert watch.rates[-1] == pytest.approx([0.005, 0.0025, 0.03])
    assert watch.progress == pytest.approx([step / 10 for step in range(10)])
    norms = [norms for norms in watch.norms if norms]
    assert norms
    assert max(max(each) for each in norms) == pytest.approx(0.05, rel=1e-3)
    assert all(len(each) == 3 for each in norms)


@pytest.mark.slow
def test_a_run_of_it_resumes_bit_for_bit_and_ships_the_student(method, tmp_path):
    recipe = small_recipe(method)
    data = small_data(recipe, test=True)
    train(recipe, tmp_path / "whole", data=data, page=False)
    models, calls = recipe_models(recipe, classes=3, channels=3), []

    def interrupted(seed):
        built = models(seed)
        built[0].register_forward_hook(lambda *_: calls.append(1) if len(calls) < 8 else stop())
        return built

    def stop():
        raise RuntimeError("stopped by the test")

    with pytest.raises(RuntimeError, match="stopped by the test"):
        train(recipe, tmp_path / "parted", data=data, models=interrupted, page=False)
    resume(tmp_path / "parted", data=data, models=models, page=False)
    assert ending(tmp_path / "parted") == ending(tmp_path / "whole")
    shipped = load_run(tmp_path / "whole").model.state_dict()
    assert shipped.keys() == models(0)[0].state_dict().keys()
