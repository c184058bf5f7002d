"""The example of each training engine runs, learns, and does what its text says; two of them on two processes."""

import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from counterpoise import MutualTransport
from example_scripts import EXAMPLES, example
from launching import run_python, torchrun

pytestmark = pytest.mark.slow

ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def test_the_group_of_the_ddp_example_outlives_the_model_and_ends_its_threads(programs):
    """A thread of Gloo that runs while the interpreter ends may abort it; a model that ends the group may hang."""
    code = """
import group_ends, torchrun_ddp

holders = group_ends.watch_models()
torchrun_ddp.main(epochs=1)
print("models", *holders)
print("threads", *group_ends.group_threads())
"""
    path = f"{EXAMPLES}:{Path(__file__).parent}"
    one = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0", "PYTHONPATH": path}
    printed = run_python(programs / "python", "-c", code, env=one)
    assert "accuracy" in printed
    assert "models 0" in printed
    assert "gloo" not in printed


def test_the_plain_loop_learns(capsys):
    result = example("plain_loop").main()
    assert result["accuracy"] > 0.9
    assert (result["lr"], result["auxiliary_lr"]) == (pytest.approx(0.001), 0.01)
    assert "epoch 5: " in capsys.readouterr().out
    clipped = example("plain_loop").main(epochs=1, max_norm=1e-3)
    assert clipped["accuracy"] < 0.5


@pytest.mark.filterwarnings("ignore:.*does not have many workers")  # Lightning's advice
def test_the_lightning_loop_learns():
    result = example("lightning_loop").main()
    assert result["accuracy"] > 0.9
    assert (result["lr"], result["auxiliary_lr"], result["alpha"]) == (pytest.approx(0.01), 0.01, 0.8)


def test_the_image_classifier_learns_and_ships_the_primary(tmp_path):
    module = example("transformers_image")
    result = module.main(tmp_path)
    assert result["accuracy"] > 0.7
    assert (result["lr"], result["auxiliary_lr"]) == (pytest.approx(0.0, abs=1e-9), 0.001)
    shipped = module.ViTForImageClassification.from_pretrained(tmp_path / "primary")
    rows = module.digits()[:500]
    with torch.no_grad():
        logits = shipped(pixel_values=torch.stack([row["pixel_values"] for row in rows])).logits
    right = logits.argmax(-1) == torch.tensor([row["labels"] for row in rows])
    assert right.float().mean().item() == pytest.approx(result["accuracy"], abs=0.003)


def test_the_text_classifier_learns(tmp_path):
    result = example("transformers_text").main(tmp_path)
    assert result["accuracy"] > 0.7
    assert (result["lr"], result["auxiliary_lr"], result["alpha"]) == (pytest.approx(0.0, abs=1e-9), 0.001, 0.8)


def test_texts_are_classified_by_both_methods(capsys):
    """With a tiny network; that a pretrained one learns is in the documentation."""
    scores = example("text_finetuning").main(None, each=80, steps=50)
    assert list(scores) == ["cross-entropy", "MTE-1"]
    printed = capsys.readouterr().out
    for name, found in scores.items():
        assert found["nll"].value < 1.4
        assert f"{name:14} accuracy {found['accuracy'].value:.1%}, NLL" in printed


@pytest.mark.parametrize(("name", "processes"), [("torchrun_ddp", 2), ("torchrun_fsdp2", 2), ("torchrun_remote", 3)])
def test_several_processes_give_the_losses_of_one_on_the_whole_batch(name, processes, programs):
    module = example(name)
    torch.manual_seed(0)
    dataset = TensorDataset(*module.clusters(1024))
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, seed=0)
    objective = MutualTransport(module.network(64), [module.network(16)], alpha=0.8)
    optimizer = torch.optim.SGD(objective.parameter_groups(lr=0.1, auxiliary_lr=0.01), momentum=0.9)
    expected = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, labels in DataLoader(dataset, batch_size=128, sampler=sampler):
            optimizer.param_groups[0]["lr"] = 0.1 if len(expected) < 12 else 0.01
            loss = objective(inputs, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
    accuracy = (objective.primary(dataset.tensors[0]).argmax(-1) == dataset.tensors[1]).float().mean().item()

    printed = run_python(programs / "python", EXAMPLES / f"{name}.py", env=ONE_THREAD, launcher=torchrun(processes))
    losses = [float(value) for value in re.findall(r"loss (\S+)", printed)]
    assert losses == pytest.approx(expected, abs=1e-5)
    assert accuracy > 0.9
    rates = "rate 0.010" if name == "torchrun_remote" else "rates 0.010 and 0.010"
    assert f"accuracy {accuracy:.3f}, learning {rates}" in printed


SCHEDULERS = """
import runpy
import sys

import torch
from accelerate import Accelerator
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

runpy.run_path(sys.argv[1])["main"]()
for prepared, linked in ((False, True), (True, True), (True, False)):
    accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=linked)
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)], "lr": lr} for lr in (1.0, 0.01)])
    scheduler = LambdaLR(optimizer, [lambda step: 0.5**step, lambda step: 1.0])
    optimizer = accelerator.prepare(optimizer)
    if prepared:
        scheduler = accelerator.prepare(scheduler)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    accelerator.print(accelerator.num_processes, "processes:", *scheduler.get_last_lr())
"""


def test_a_prepared_scheduler_steps_once_for_each_process(tmp_path, programs):
    script = tmp_path / "schedulers.py"
    script.write_text(SCHEDULERS)
    printed = run_python(
        programs / "python", script, EXAMPLES / "accelerate_loop.py", env=ONE_THREAD, launcher=torchrun(2)
    )
    three_steps, six_steps = "0.125 0.01", "0.015625 0.01"
    assert re.findall("2 processes: (.*)", printed) == [three_steps, six_steps, three_steps]
    assert "learning rates 0.010 and 0.010" in printed


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_accelerate_loop_learns(accumulation):
    result = example("accelerate_loop").main(accumulation=accumulation)
    assert result["accuracy"] > 0.9
    assert (result["lr"], result["auxiliary_lr"]) == (pytest.approx(0.01), 0.01)
