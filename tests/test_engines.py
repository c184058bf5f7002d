"""Training engines: the same losses in every loop, what their defaults would change, and what the callback refuses."""

from pathlib import Path
from types import SimpleNamespace

import accelerate
import lightning as L  # noqa: N812
import pytest
import safetensors.torch
import torch
import transformers
from torch import nn
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    OneCycleLR,
    SequentialLR,
)
from torch.utils.data import DataLoader

from counterpoise import DeepMutualLearning, MutualTransport, SupervisedObjective, linear_warmup
from counterpoise.functional.losses import cross_entropy
from counterpoise.integrations.transformers import ObjectiveCallback

BATCH, STEPS, SEED = 16, 12, 7

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")  # Lightning's advice


class Net(nn.Module):
    """Takes whatever it is given beside its pixels, as many models do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 4)
        )

    def forward(self, pixels: torch.Tensor, **_: object) -> torch.Tensor:
        return self.layers(pixels)


class Training:
    """What every engine gets: an objective, two groups, a change of one learning rate, an alpha that grows, rows."""

    def __init__(self, accumulation: int = 1) -> None:
        torch.manual_seed(0)
        self.accumulation = accumulation
        self.objective = MutualTransport(Net(32), [Net(16)], alpha=linear_warmup(0.8, fraction=0.5))
        self.optimizer = torch.optim.SGD(
            self.objective.parameter_groups(lr=0.1, auxiliary_lr=0.01), momentum=0.9, weight_decay=5e-4
        )
        self.scheduler = LambdaLR(self.optimizer, [lambda step: 0.1 if step >= 5 else 1.0, lambda step: 1.0])
        inputs = 3 * torch.randn(BATCH * STEPS * accumulation, 8)
        labels = inputs[:, :4].argmax(-1)
        self.rows = [{"pixels": x, "labels": y} for x, y in zip(inputs, labels, strict=True)]
        self.losses: list[float] = []
        self.rates: list[tuple[float, ...]] = []
        self.objective.register_forward_hook(self.record)

    def record(self, module: nn.Module, inputs: object, output: dict[str, torch.Tensor]) -> None:
        self.losses.append(output["loss"].item())
        self.rates.append(tuple(group["lr"] for group in self.optimizer.param_groups))

    def loader(self) -> DataLoader:
        return DataLoader(self.rows, batch_size=BATCH)


def plain(training: Training, *, divide: bool = True) -> None:
    torch.manual_seed(SEED)
    for index, batch in enumerate(training.loader()):
        step, substep = divmod(index, training.accumulation)
        training.objective.set_progress(step / STEPS)
        loss = training.objective(**batch).loss
        (loss / training.accumulation if divide else loss).backward()
        if substep == training.accumulation - 1:
            training.optimizer.step()
            training.scheduler.step()
            training.optimizer.zero_grad()


class Module(L.LightningModule):
    def __init__(self, training: Training) -> None:
        super().__init__()
        self.training_parts, self.objective = training, training.objective

    def configure_optimizers(self) -> dict[str, object]:
        scheduler = {"scheduler": self.training_parts.scheduler, "interval": "step"}
        return {"optimizer": self.training_parts.optimizer, "lr_scheduler": scheduler}

    def on_train_batch_start(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        self.objective.set_progress(self.global_step / self.trainer.estimated_stepping_batches)

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.objective(**batch).loss


def lightning(training: Training, **options: object) -> None:
    trainer = L.Trainer(
        max_epochs=1,
        accumulate_grad_batches=training.accumulation,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    torch.manual_seed(SEED)
    trainer.fit(Module(training), training.loader())


def accelerated(training: Training) -> None:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=training.accumulation)
    model, optimizer, loader = accelerator.prepare(training.objective, training.optimizer, training.loader())
    torch.manual_seed(SEED)
    for index, batch in enumerate(loader):
        training.objective.set_progress(index // training.accumulation / STEPS)
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.sync_gradients:
                training.scheduler.step()


class Unchecked(ObjectiveCallback):
    """Tells alpha the progress, and refuses nothing."""

    def on_train_begin(self, *_: object, **__: object) -> None:
        return


def trainer_of(training: Training, folder: Path, *, checked: bool = True, **options: object) -> transformers.Trainer:
    """A Trainer with the settings that the documentation asks for, but for `options`."""
    optimizers = options.pop("optimizers", (training.optimizer, training.scheduler))
    arguments = {
        "max_grad_norm": 0,
        "remove_unused_columns": False,
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": 1,
        "gradient_accumulation_steps": training.accumulation,
        "train_sampling_strategy": "sequential",
        "seed": SEED,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return transformers.Trainer(
        options.pop("model", training.objective),
        transformers.TrainingArguments(str(folder), **(arguments | options)),
        train_dataset=training.rows,
        optimizers=optimizers,
        callbacks=[ObjectiveCallback() if checked else Unchecked()],
    )


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("engine", ["lightning", "accelerate", "transformers"])
def test_every_engine_gives_the_losses_of_the_plain_loop(engine, accumulation, tmp_path):
    expected, training = Training(accumulation), Training(accumulation)
    plain(expected)
    if engine == "transformers":
        trainer_of(training, tmp_path).train()
    else:
        {"lightning": lightning, "accelerate": accelerated}[engine](training)
    assert len(training.losses) == STEPS * accumulation
    assert training.losses == expected.losses
    changed = 5 * accumulation
    assert training.rates[:changed] == [(0.1, 0.01)] * changed
    assert training.rates[changed:] == [(pytest.approx(0.01), 0.01)] * (len(training.rates) - changed)
    for one, other in zip(training.objective.parameters(), expected.objective.parameters(), strict=True):
        assert torch.equal(one, other)


def test_accelerate_saves_a_registered_scheduler(tmp_path):
    saved, loaded = Training(), Training()
    for training in (saved, loaded):
        accelerator = accelerate.Accelerator(cpu=True)
        accelerator.prepare(training.objective, training.optimizer)
        accelerator.register_for_checkpointing(training.scheduler)
        if training is saved:
            training.optimizer.step()
            training.scheduler.step()
            accelerator.save_state(tmp_path)
    accelerator.load_state(tmp_path)
    assert loaded.scheduler.last_epoch == saved.scheduler.last_epoch == 1


# What the engines' defaults would do.


@pytest.mark.slow
def test_one_joint_norm_changes_the_losses(tmp_path):
    unclipped, expected, by_lightning, by_trainer = Training(), Training(), Training(), Training()
    plain(unclipped)
    clip = nn.utils.clip_grad_norm_
    expected.optimizer.register_step_pre_hook(lambda *_: clip(expected.objective.parameters(), 1.0) and None)
    plain(expected)
    lightning(by_lightning, gradient_clip_val=1.0)
    trainer_of(by_trainer, tmp_path, max_grad_norm=1.0, checked=False).train()
    assert by_lightning.losses == by_trainer.losses == expected.losses
    assert max(abs(one - other) for one, other in zip(expected.losses, unclipped.losses, strict=True)) > 0.01


@pytest.mark.slow
def test_without_the_attribute_trainer_does_not_divide_by_the_accumulation_steps(tmp_path, monkeypatch):
    undivided, training = Training(2), Training(2)
    plain(undivided, divide=False)
    monkeypatch.delattr(MutualTransport, "accepts_loss_kwargs")
    trainer_of(training, tmp_path, checked=False).train()
    assert training.losses == undivided.losses
    with pytest.raises(ValueError, match="MutualTransport the class attribute accepts_loss_kwargs = False"):
        trainer_of(Training(2), tmp_path).train()


@pytest.mark.slow
def test_unused_columns_are_the_models_inputs(tmp_path):
    with pytest.raises(TypeError, match="pixels"):
        trainer_of(Training(), tmp_path, remove_unused_columns=True, checked=False).train()


@pytest.mark.slow
def test_a_scheduler_made_by_trainer_decays_the_auxiliaries(tmp_path):
    training = Training()
    trainer_of(training, tmp_path, optimizers=(training.optimizer, None), checked=False).train()
    assert training.rates[-1] == pytest.approx((0.1 / STEPS, 0.01 / STEPS))
    with pytest.raises(ValueError, match="gives the auxiliaries the learning-rate schedule of the primary"):
        trainer_of(training, tmp_path, optimizers=(training.optimizer, None)).train()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_grad_norm": 1.0}, "max_grad_norm=0"),
        ({"remove_unused_columns": True}, "remove_unused_columns=False"),
        ({"optimizers": (None, None)}, "mixes the primary with the auxiliaries"),
    ],
)
def test_the_callback_refuses_the_defaults(options, message, tmp_path):
    training = Training()
    with pytest.raises(ValueError, match=message):
        trainer_of(training, tmp_path, **options).train()
    assert training.losses == []


def refusal(
    objective: nn.Module, optimizer: torch.optim.Optimizer, scheduler: object = None, **arguments: object
) -> str:
    """What the callback says when training begins; empty where it says nothing."""
    settings = {"max_grad_norm": 0.0, "remove_unused_columns": False, "label_smoothing_factor": 0.0, "n_gpu": 1}
    state = SimpleNamespace(global_step=0, max_steps=10)
    try:
        ObjectiveCallback().on_train_begin(
            SimpleNamespace(**(settings | arguments)),
            state,
            None,
            model=objective,
            optimizer=optimizer,
            lr_scheduler=scheduler,
            train_dataloader=None,
        )
    except ValueError as error:
        return str(error)
    return ""


def test_the_callback_names_every_problem():
    training = Training()
    objective, optimizer = training.objective, training.optimizer
    assert refusal(objective, optimizer, training.scheduler) == ""
    everything = refusal(objective, optimizer, label_smoothing_factor=0.1, n_gpu=2, max_grad_norm=1.0)
    assert len(everything.splitlines()) == 3
    primary_alone = torch.optim.SGD(objective.primary.parameters(), lr=0.1)
    assert "first auxiliaries.0.layers.0.weight, are not in the optimizer" in refusal(objective, primary_alone)
    assert "mixes" in refusal(objective, torch.optim.SGD(objective.parameters(), lr=0.1))


def test_the_callback_looks_at_what_a_shared_schedule_does():
    training = Training()
    objective, optimizer = training.objective, training.optimizer
    for name in ("linear", "cosine", "constant_with_warmup"):
        scheduler = transformers.get_scheduler(name, optimizer, num_warmup_steps=2, num_training_steps=10)
        assert "gives the auxiliaries the learning-rate schedule of the primary" in refusal(
            objective, optimizer, scheduler
        )
    assert refusal(objective, optimizer, transformers.get_scheduler("constant", optimizer)) == ""
    for composed in (
        SequentialLR(optimizer, [LinearLR(optimizer), CosineAnnealingLR(optimizer, 10)], [5]),
        ChainedScheduler([ExponentialLR(optimizer, 0.9)]),
        OneCycleLR(optimizer, max_lr=0.1, total_steps=10),
        MultiplicativeLR(optimizer, lambda _: 0.9),
    ):
        assert "the learning-rate schedule of the primary" in refusal(objective, optimizer, composed)
    parts = [LambdaLR(optimizer, [lambda step: 0.5, lambda step: 1.0]) for _ in range(2)]
    assert refusal(objective, optimizer, SequentialLR(optimizer, parts, [5])) == ""
    both_on_purpose = LambdaLR(optimizer, [lambda step: 0.9**step, lambda step: 0.99**step])
    assert refusal(objective, optimizer, both_on_purpose) == ""


def test_finer_groups_and_frozen_parameters_are_accepted():
    objective = Training().objective
    objective.primary.layers[0].requires_grad_(False)
    groups = [{"params": [parameter]} for parameter in objective.parameters() if parameter.requires_grad]
    assert refusal(objective, torch.optim.SGD(groups, lr=0.1)) == ""


def test_one_model_may_be_clipped_and_peers_may_not():
    single = SupervisedObjective(Net(8), cross_entropy)
    assert refusal(single, torch.optim.SGD(single.parameters(), lr=0.1), max_grad_norm=1.0) == ""
    peers = DeepMutualLearning([Net(8), Net(8)], alpha=1.0)
    optimizer = torch.optim.SGD(peers.parameter_groups(lr=0.1))
    assert refusal(peers, optimizer) == ""
    assert "joint norm" in refusal(peers, optimizer, max_grad_norm=1.0)


@pytest.mark.parametrize("wrap", [lambda objective: objective, nn.DataParallel], ids=["bare", "wrapped"])
def test_the_callback_tells_alpha_the_progress(wrap):
    objective = Training().objective
    state = SimpleNamespace(global_step=3, max_steps=12)
    ObjectiveCallback().on_step_begin(None, state, None, model=wrap(objective))
    assert objective.alpha.item() == pytest.approx(0.4)


@pytest.mark.slow
def test_the_other_objectives_train_under_trainer(tmp_path):
    peers = DeepMutualLearning([Net(8), Net(8)], alpha=1.0)
    before = [model.layers[-1].weight.clone() for model in peers.models]
    optimizer = torch.optim.SGD(peers.parameter_groups(lr=0.1))
    trainer_of(Training(), tmp_path, model=peers, optimizers=(optimizer, None)).train()
    assert not any(torch.equal(old, model.layers[-1].weight) for old, model in zip(before, peers.models, strict=True))
    single = SupervisedObjective(Net(8), cross_entropy)
    result = trainer_of(Training(), tmp_path, model=single, optimizers=(None, None), max_grad_norm=1.0).train()
    assert result.global_step == STEPS


@pytest.mark.slow
def test_trainer_resumes_where_it_was_and_saves_every_model(tmp_path):
    whole, resumed = Training(), Training()
    trainer_of(whole, tmp_path, save_strategy="steps", save_steps=6).train()
    checkpoint = tmp_path / "checkpoint-6"
    trainer_of(resumed, tmp_path / "resumed").train(resume_from_checkpoint=str(checkpoint))
    assert resumed.losses == whole.losses[6:]
    assert resumed.rates == whole.rates[6:]
    names = set(safetensors.torch.load_file(checkpoint / "model.safetensors"))
    assert names == set(whole.objective.state_dict())
    assert {name.split(".")[0] for name in names} == {"primary", "auxiliaries"}


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [5]),
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        torch.optim.lr_scheduler.ReduceLROnPlateau,
    ],
)
def test_the_callback_refuses_schedulers_that_slow_the_auxiliaries_down_as_well(schedule):
    training = Training()
    assert "schedule of the primary" in refusal(training.objective, training.optimizer, schedule(training.optimizer))
