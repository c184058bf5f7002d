"""`counterpoise doctor`: sound machines pass, broken ones are told what is broken, and nothing ends the command."""

import dataclasses
import json
import math
import os
import sys
import time
from dataclasses import replace

import pytest
import torch

from counterpoise import cli
from counterpoise.cli.doctor import Diagnosis, as_line, conclusion
from counterpoise.doctor import (
    CHECKS,
    CPU,
    CUDA,
    TINY,
    Bench,
    Check,
    Finding,
    checks,
    commands,
    numerics,
    run_checks,
    runs,
    step_times,
    throughput,
)
from counterpoise.doctor.bench import Skipped, gratings, images_for, recipe_for
from counterpoise.recipes.config import EngineOptions
from counterpoise.recipes.methods import METHODS
from counterpoise.training import from_images, train
from counterpoise.training.progress import quiet

OF_THEIR_OWN_PROCESS = ("two ranks", "torch.compile")
QUICK = ("MTE loss and gradients", "losses of all methods", "accuracy, NLL, ECE")


def a_bench(*, seconds: float = 600.0) -> Bench:
    return Bench("a check", "cpu", TINY, time.monotonic() + seconds, lambda _: None)


def only(monkeypatch, names) -> None:
    monkeypatch.setattr(checks, "CHECKS", tuple(check for check in CHECKS if check.name in names))


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["counterpoise", "doctor", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    printed = capsys.readouterr()
    return stop.value.code, printed.out, printed.err


def test_all_that_runs_in_this_process_passes(monkeypatch):
    names = [check.name for check in CHECKS if check.name not in OF_THEIR_OWN_PROCESS]
    only(monkeypatch, names)
    told = []
    findings = run_checks("cpu", TINY, seconds=600, tell=told.append)
    assert findings == told
    assert [finding.name for finding in findings] == names
    assert all(finding.passed for finding in findings), findings
    by_name = {finding.name: finding for finding in findings}
    assert "resumed at step" in by_name["resuming"].detail
    assert not torch.are_deterministic_algorithms_enabled()


def test_names_are_unique_and_scales_are_possible():
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for scale in (CPU, CUDA, TINY):
        # A run is interrupted after a checkpoint, in the second of two epochs.
        assert scale.training.steps > 2


class TestAFaultIsFound:
    def test_in_the_loss(self, monkeypatch, capsys):
        right = numerics.mutual_transport

        def wrong(*arguments, **options):
            terms = right(*arguments, **options)
            return terms._replace(loss=1.001 * terms.loss)

        monkeypatch.setattr(numerics, "mutual_transport", wrong)
        only(monkeypatch, QUICK)
        code, out, _ = run(monkeypatch, capsys, "--device", "cpu", "--seconds", "30")
        assert code == 1
        assert "WRONG    MTE loss and gradients   0.001 relative, limit 1e-05" in out
        assert out.splitlines()[-1].startswith("does not work here (cpu)")
        assert out.splitlines()[-1].endswith("WRONG: MTE loss and gradients")

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_in_a_method_that_gives_no_number(self, monkeypatch, value):
        ce = METHODS["ce"]

        def build(models, **choice):
            objective = ce.build(models, **choice)
            return lambda inputs, labels: {"loss": objective(inputs, labels=labels)["loss"] * value}

        monkeypatch.setitem(METHODS, "ce", replace(ce, build=build))
        finding = numerics.every_method(a_bench())
        assert finding.passed is False
        assert "worst ce" in finding.detail

    def test_in_mixed_precision(self, monkeypatch):
        right = runs.trained

        def wrong(recipe, images, *, callbacks):
            trace = right(recipe, images, callbacks=callbacks)
            factor = 1.2 if recipe.engine.precision == "bfloat16" else 1.0
            return replace(trace, losses=tuple((factor * value).hex() for value in trace.values))

        monkeypatch.setattr(runs, "trained", wrong)
        assert runs.mixed_precision(a_bench(), "bfloat16").passed is False

    def test_in_resuming(self, monkeypatch):
        right = runs.resume

        def wrong(folder, *, data, models):
            other = gratings(len(images_for(TINY.training)), pixels=TINY.training.pixels, seed=1)
            right(folder, data=from_images(recipe_for(TINY.training, device="cpu"), other), models=models)

        monkeypatch.setattr(runs, "resume", wrong)
        finding = runs.resuming(a_bench())
        assert finding.passed is False
        assert finding.measured == 2  # the steps after the last checkpoint

    def test_in_determinism(self, monkeypatch):
        seeds = iter(range(2))
        right = runs._repeatable
        monkeypatch.setattr(runs, "_repeatable", lambda bench: replace(right(bench), seed=next(seeds)))
        finding = runs.determinism(a_bench())
        assert finding.passed is False
        assert finding.measured == 2 * TINY.training.steps

    def test_in_the_data_pipeline(self, monkeypatch):
        made = []

        class Broken(runs.MemoryLoader):
            def __init__(self, *arguments, **options):
                made.append(self)
                super().__init__(*arguments, **(options | {"seed": len(made)}))

        monkeypatch.setattr(runs, "MemoryLoader", Broken)
        assert runs.data_pipeline(a_bench()).passed is False


def test_a_check_that_raises_becomes_a_finding_and_the_next_one_runs(monkeypatch):
    def raises(_):
        raise RuntimeError("no kernel\nfor this device")

    monkeypatch.setattr(checks, "CHECKS", (Check("broken", raises, 0), Check("sound", numerics.measures, 0)))
    broken, sound = run_checks("cpu", TINY, seconds=60)
    assert (broken.passed, broken.status) == (False, "WRONG")
    assert as_line(broken) == "WRONG    broken                   RuntimeError: no kernel for this device"
    assert sound.passed


def test_what_the_time_does_not_suffice_for_is_skipped_with_its_reason(monkeypatch):
    only(monkeypatch, OF_THEIR_OWN_PROCESS)
    findings = run_checks("cpu", TINY, seconds=5)
    assert [finding.status for finding in findings] == ["skipped", "skipped"]
    assert findings[0].detail == "takes up to 20 s, 5 s are left"


@pytest.mark.parametrize("check", [runs.determinism, runs.resuming, throughput.throughput])
def test_a_training_gives_up_when_its_time_is_up(check):
    with pytest.raises(Skipped, match="the time was up"):
        check(a_bench(seconds=0.0))


def test_nothing_checked_is_no_success(monkeypatch, capsys):
    only(monkeypatch, OF_THEIR_OWN_PROCESS)
    code, out, _ = run(monkeypatch, capsys, "--seconds", "1")
    assert code == 1
    assert "skipped: two ranks, torch.compile" in out


def test_the_document_is_complete_and_alone_on_standard_output(monkeypatch, capsys):
    only(monkeypatch, (*QUICK, "two ranks"))
    code, out, err = run(monkeypatch, capsys, "--json", "--device", "cpu", "--seconds", "15")
    document = json.loads(out, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
    assert code == 0
    assert document["schema"] == "counterpoise.doctor"
    assert document["works"] is True
    assert document["device"] == "cpu"
    assert {"counterpoise", "python", "torch", "lightning", "devices"} <= set(document["about"])
    assert [finding["name"] for finding in document["findings"]] == [*QUICK, "two ranks"]
    fields = {field.name for field in dataclasses.fields(Finding)}
    assert all(set(finding) == fields for finding in document["findings"])
    skipped = document["findings"][-1]
    assert (skipped["passed"], skipped["measured"]) == (None, None)
    assert "works here (cpu)" in err


def test_progress_goes_to_standard_error(monkeypatch, capsys):
    only(monkeypatch, QUICK[:1])
    _, out, err = run(monkeypatch, capsys, "--seconds", "15")
    assert "... MTE loss and gradients" in err
    assert "ok       MTE loss and gradients" in out


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["--seconds", "0"], 2, "--seconds must be positive"),
        (["--device", "mps"], 1, "torch sees no device 'mps' here"),
    ],
)
def test_errors_are_one_line(monkeypatch, capsys, arguments, exit_code, message):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    code, out, err = run(monkeypatch, capsys, *arguments)
    assert (code, out) == (exit_code, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_slow_engine_is_first_a_warning():
    finding = a_bench().finding(1.1, 1.05, "of a bare step", passed=True)
    assert finding.status == "warning"
    diagnosis = Diagnosis({}, "cpu", 3.0, works=True, findings=[finding])
    assert conclusion(diagnosis) == "works here (cpu), checked in 3 s; warning: a check"


@pytest.mark.parametrize(
    ("engine", "bare", "passed"), [(0.101, 0.1, True), (0.12, 0.1, True), (0.13, 0.1, False), (0.004, 0.002, True)]
)
def test_the_speed_is_judged_by_the_fastest_blocks(monkeypatch, engine, bare, passed):
    times = throughput.StepTimes((engine, 9.0), (9.0, bare))
    monkeypatch.setattr(throughput, "step_times", lambda *_, **__: times)
    finding = throughput.throughput(a_bench())
    assert finding.measured == pytest.approx(engine / bare)
    assert finding.passed is passed


def test_steps_are_timed_in_turn_and_shown():
    recipe, lines = recipe_for(TINY.training, device="cpu", precision="bfloat16"), []
    images = gratings((2 * 3 + 1) * TINY.training.batch, pixels=TINY.training.pixels)
    times = step_times(recipe, images, block=2, blocks=2, say=lines.append)
    assert len(times.engine) == len(times.bare) == 2
    assert times.ratio > 0
    assert lines[-1].startswith("block 2 of 2: engine ")
    with pytest.raises(ValueError, match="the bare loop is of mte1 in float32 or bfloat16"):
        step_times(replace(recipe, method="ce"), images, block=2, blocks=2)


def test_the_bare_loop_is_the_same_training(monkeypatch):
    objective = METHODS["mte1"]
    recipe = recipe_for(TINY.training, device="cpu")
    images = images_for(TINY.training)
    models = []
    make = throughput.recipe_models
    monkeypatch.setattr(
        throughput,
        "recipe_models",
        lambda *a, **o: lambda seed: models.append(make(*a, **o)(seed)) or models[-1],
    )
    steps = throughput.bare_loop(recipe, images)
    first = make(recipe, classes=10, channels=3)(recipe.seed + 1)
    reference = objective.build(first, **recipe.choice).to(memory_format=torch.channels_last)
    options = recipe.optimizer
    optimizer = torch.optim.SGD(
        reference.parameter_groups(lr=options.lr, auxiliary_lr=options.first_auxiliary_lr),
        momentum=options.momentum,
        weight_decay=options.weight_decay,
    )
    loader = runs.MemoryLoader(images, batch=recipe.batch, seed=0, augmentation=None, shuffle=True, drop_last=True)
    for batch in loader:
        optimizer.zero_grad()
        reference(batch.images, labels=batch.labels).loss.backward()
        optimizer.step()
    steps(len(loader))
    for mine, theirs in zip(models[0][0].parameters(), first[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


class TestProcessesOfTheirOwn:
    @pytest.fixture
    def digits(self):
        """A small part of the digits, which a process would train on as a whole."""
        return commands.load_images("digits", "train", limit=400)

    @pytest.mark.parametrize("check", [commands.several_ranks, commands.compiled])
    @pytest.mark.parametrize("same", [True, False])
    def test_are_compared_with_this_one(self, monkeypatch, digits, check, same):
        asked = []

        def process(command, *, timeout):
            asked.extend(command)
            assert 0 < timeout <= 600
            folder = command[command.index("--out") + 1]
            recipe = replace(commands.RECIPES["digits"].recipe(), epochs=1, seed=0 if same else 1)
            recipe = replace(recipe, engine=EngineOptions(accelerator="cpu"))
            with quiet():
                train(recipe, folder, data=from_images(recipe, digits))

        monkeypatch.setattr(commands, "load_images", lambda *_, **__: digits)
        monkeypatch.setattr(commands, "_run", process)
        monkeypatch.setattr(commands, "DISTRIBUTED_LIMIT", 1e-4)
        finding = check(a_bench())
        assert finding.passed is same
        assert ("--engine.devices" in asked) is (check is commands.several_ranks)

    def test_of_two_ranks_take_the_steps_of_one(self, monkeypatch, programs):
        """The real thing: the recipe as the command line has it, and as this process trains it, are one."""
        monkeypatch.setattr(sys, "executable", str(programs / "python"))
        finding = commands.several_ranks(a_bench())
        assert finding.passed, finding
        assert finding.measured < commands.DISTRIBUTED_LIMIT

    def test_end_with_all_that_they_started_when_the_time_is_up(self, tmp_path):
        mark = tmp_path / "child"
        child = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
        parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
        with pytest.raises(Skipped, match="the time was up"):
            commands._run([sys.executable, "-c", parent], timeout=2.0)
        for _ in range(50):
            if not alive(int(mark.read_text())):
                return
            time.sleep(0.1)
        pytest.fail("the child still runs")

    def test_that_fail_say_why(self):
        with pytest.raises(RuntimeError, match="ended with code 3: no NCCL here"):
            commands._run([sys.executable, "-c", "print('no NCCL here'); raise SystemExit(3)"], timeout=60)

    def test_need_what_they_need(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        with pytest.raises(Skipped, match="needs 2 GPUs, there is 1"):
            commands.several_ranks(replace(a_bench(), device="cuda"))
        monkeypatch.setattr(commands.shutil, "which", lambda _: None)
        with pytest.raises(Skipped, match=r"no C\+\+ compiler"):
            commands.compiled(a_bench())
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda _: False)
        with pytest.raises(Skipped, match="no bfloat16"):
            runs.mixed_precision(replace(a_bench(), device="cuda"), "bfloat16")


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_images_can_be_learnt_and_are_the_same_each_time():
    images = gratings(40, pixels=8)
    assert torch.equal(images.pixels, gratings(40, pixels=8).pixels)
    assert images.labels.unique().tolist() == list(range(10))
