"""What trackers hold after one call, read back by their own readers."""

from dataclasses import replace

import pytest
from torch.utils.tensorboard import SummaryWriter

import evaluations as made
from counterpoise.integrations.trackers import log_to_mlflow, log_to_tensorboard, log_to_wandb, scalars
from counterpoise.metrics import Evaluation

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore")
def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    evaluation = made.evaluation(2)
    with mlflow.start_run() as run:
        log_to_mlflow(evaluation, step=3)
    client = mlflow.MlflowClient()
    metrics = client.get_run(run.info.run_id).data.metrics
    assert metrics == pytest.approx(scalars(evaluation))
    assert metrics["net_0/ece"] == evaluation.models[0]["ece"].value
    names = {item.path for item in client.list_artifacts(run.info.run_id, "counterpoise/3")}
    assert {"counterpoise/3/report.html", "counterpoise/3/reliability.png"} <= names
    text = mlflow.artifacts.load_text(f"runs:/{run.info.run_id}/counterpoise/3/scores.json")
    assert Evaluation.from_json(text) == evaluation


@pytest.mark.filterwarnings("ignore")
def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    scores = made.scores(0)
    with pytest.raises(ValueError, match=r"wandb\.init"):
        log_to_wandb(scores)
    with wandb.init(dir=tmp_path, project="test") as run:
        log_to_wandb(scores, run=run)
        summary = dict(run.summary)
    assert summary["counterpoise/ece"] == pytest.approx(scores["ece"].value)
    assert any(tmp_path.rglob("*.html"))
    assert any(tmp_path.rglob("*.png"))


def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    scores = made.scores(0)
    with SummaryWriter(str(tmp_path)) as writer:
        report = log_to_tensorboard(scores, writer, step=7)
    events = EventAccumulator(str(tmp_path)).Reload()
    (event,) = events.Scalars("counterpoise/ece")
    assert (event.step, event.value) == (7, pytest.approx(scores["ece"].value, rel=1e-6))
    assert "counterpoise/reliability" in events.Tags()["images"]
    assert report.read_text().startswith("<!")


def test_names_that_are_alike_once_they_are_plain_stay_apart():
    names = ["CE (a)", "CE [a]", "ce_a_2"]
    plain = made.evaluation(len(names)).models
    models = [replace(each, source=replace(each.source, name=name)) for name, each in zip(names, plain, strict=True)]
    found = scalars(Evaluation(models))
    assert {value for name, value in found.items() if name.endswith("/nll")} == {each["nll"].value for each in plain}
    assert len({name.lower() for name in found}) == len(found)
