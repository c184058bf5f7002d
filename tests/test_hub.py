"""Shared folders: loaded with torch and safetensors alone, and a card whose figures are the measured ones."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import counterpoise
from counterpoise import evaluate
from counterpoise.cli import parse
from counterpoise.export import ModelConfig, plain
from counterpoise.export.card import Card
from counterpoise.export.snippet import loading_snippet
from counterpoise.integrations.hub import from_pretrained, push_to_hub, save_pretrained
from counterpoise.metrics import Scores
from counterpoise.models import Backbone, build_model
from counterpoise.models.backbone import RESNETS
from counterpoise.training import train
from example_scripts import example
from tests.hub_server import fake_hub
from tests.runs import small_data, small_recipe

TEMPERATURE = 1.75
BACKBONE = Backbone("resnet10", width=4)
CONFIG = ModelConfig(
    class_names=("cat", "a_dog <b>", "Käfer"),
    shape=(1, 8, 8),
    mean=(0.5,),
    std=(0.25,),
    temperature=TEMPERATURE,
    backbone=BACKBONE,
)


def network(backbone: Backbone = BACKBONE) -> nn.Module:
    """With statistics of batch normalisation that are not those of the start."""
    model = build_model(backbone, classes=3, channels=1, seed=0)
    model.train()(1 + 2 * torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    return model.eval()


@cache
def measured() -> tuple[Scores, Scores]:
    """Scores before and after the temperature that the labels were drawn with."""
    logits = 6 * torch.randn(400, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.multinomial((logits / TEMPERATURE).softmax(-1), 1, generator=torch.Generator().manual_seed(2))[:, 0]
    before, after = (evaluate(logits=logits / t, labels=labels) for t in (1, TEMPERATURE))
    source = replace(before.source, data_sets=["/home/me/photos.parquet"], splits=["test"], path="/home/me/x.parquet")
    return replace(before, source=source), replace(after, source=source)


def card(**changes) -> Card:
    before, after = measured()
    recipe = {"method": "mte1", "optimizer": {"lr": 0.1}, "data": {"name": "/home/me/photos.parquet"}, "limit": None}
    return replace(Card("net", license="mit", before=before, after=after, recipe=recipe), **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("shared") / "net"
    save_pretrained(network(), path, config=CONFIG, card=card())
    return path


@pytest.mark.slow
def test_a_folder_holds_data_and_text_alone(folder):
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["README.md", "SHA256SUMS", "config.json", "model.safetensors", "reliability.png"]
    stored = load_file(folder / "model.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in network().state_dict().items())
    assert json.loads((folder / "config.json").read_text())["temperature"] == TEMPERATURE


def test_a_folder_comes_back_by_name_or_into_a_network(folder):
    images = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    for found in (from_pretrained(folder), from_pretrained(folder, model=build_model(BACKBONE, classes=3, channels=1))):
        assert found.config == CONFIG
        assert not found.model.training
        assert torch.equal(found.model(images), network()(images))


@pytest.mark.slow
def test_the_snippet_of_the_card_needs_torch_and_safetensors_alone(folder):
    snippet = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), flags=re.DOTALL).group(1)
    blocked = ("counterpoise", "huggingface_hub", "lightning", "torchvision", "timm")
    code = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in blocked)
    code += snippet.replace("torch.rand(1, 1, 8, 8)", "torch.full((1, 1, 8, 8), 0.75)")
    code += "print(probabilities.tolist())"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = (network()(torch.ones(1, 1, 8, 8)) / TEMPERATURE).softmax(-1).detach()
    torch.testing.assert_close(torch.tensor(json.loads(done.stdout.splitlines()[-1])), expected, rtol=0, atol=1e-6)
    assert done.stdout.startswith(CONFIG.class_names[int(expected.argmax())])


@pytest.mark.parametrize(
    ("name", "small_images"), [*((name, True) for name in ("cnn", *RESNETS)), ("resnet10", False), ("resnet50", False)]
)
def test_plain_networks_are_those_of_the_library(name, small_images):
    backbone = Backbone(name, width=2, small_images=small_images)
    original = build_model(backbone, classes=3, channels=2, seed=0).eval()
    sizes = {"width": 2, "classes": 3, "channels": 2}
    if name == "cnn":
        copied = plain.cnn(**sizes)
    else:
        bottleneck, blocks = RESNETS[name]
        copied = plain.resnet(blocks=blocks, bottleneck=bottleneck, small_images=small_images, **sizes)
    copied.load_state_dict(original.state_dict())
    images = torch.randn(2, 2, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(copied.eval()(images), original(images))


@pytest.mark.parametrize(
    ("backbone", "line"),
    [
        (None, "model = ...  # the network that was trained"),
        (Backbone("cnn", width=8), "model = cnn(width=8, classes=3, channels=1)"),
        (Backbone("timm/vit_tiny_patch16_224", small_images=False), 'timm.create_model("vit_tiny_patch16_224"'),
        (Backbone("torchvision/vgg11", small_images=False), 'torchvision.models.get_model("vgg11", num_classes=3)'),
        (Backbone("torchvision/googlenet", small_images=False), "num_classes=3, aux_logits=False, init_weights=True)"),
        (Backbone("torchvision/resnet18"), 'build_model(Backbone("torchvision/resnet18"), classes=3, channels=1)'),
    ],
)
def test_snippets_for_other_networks(backbone, line):
    snippet = loading_snippet(replace(CONFIG, backbone=backbone, mean=None, std=None), transformers_class=None)
    compile(snippet, "snippet", "exec")
    assert line in snippet
    assert "mean" not in snippet


def test_the_hub_reads_the_card(folder):
    data = huggingface_hub.ModelCard.load(folder / "README.md").data
    assert (data.license, data.library_name, data.pipeline_tag) == ("mit", "counterpoise", "image-classification")
    after = measured()[1]
    values = {result.metric_type: result.metric_value for result in data.eval_results}
    assert values == {name: round(after[name].value, 4) for name in ("accuracy", "ece")}
    assert f"{after['ece'].low:.4f} to {after['ece'].high:.4f}" in data.eval_results[1].metric_name


def test_the_card_has_the_measured_figures_before_and_after(folder):
    text, both = (folder / "README.md").read_text(), measured()
    cells = [f"{100 * s['ece'].value:.2f} ({100 * s['ece'].low:.2f} to {100 * s['ece'].high:.2f})" for s in both]
    assert f"| ECE, % | {' | '.join(cells)} |" in text
    floors = [f"{100 * s['ece'].floor:.2f}" for s in both]
    assert f"| noise floor of it | {' | '.join(floors)} |" in text
    assert "| optimizer.lr | 0.1 |" in text
    assert "95% intervals" in text
    assert r"a\_dog \<b\>" in text
    assert "![Accuracy against confidence" in text


def test_the_card_names_no_place_on_this_machine(folder):
    text = (folder / "README.md").read_text()
    assert "/home" not in text
    assert "photos.parquet" in text


def test_a_card_without_scores_says_so(tmp_path):
    (tmp_path / "reliability.png").write_bytes(b"of another card")
    save_pretrained(network(), tmp_path, config=CONFIG, card=Card("net"))
    text = (tmp_path / "README.md").read_text()
    assert "It has not been measured" in text
    assert "No licence has been stated" in text
    assert not (tmp_path / "reliability.png").exists()
    assert huggingface_hub.ModelCard(text).data.eval_results is None


@pytest.mark.parametrize(
    ("config", "changes", "complaint"),
    [
        (CONFIG, {"after": None}, r"the config has temperature 1\.75: give the scores at it as card\.after"),
        (replace(CONFIG, temperature=1.0), {}, r"card\.after has scores at a temperature"),
        (CONFIG, {"before": None}, r"give card\.before"),
        (replace(CONFIG, class_names=("a", "b")), {}, "the scores are of 3 classes, the config names 2"),
    ],
)
def test_figures_of_something_else_are_refused(config, changes, complaint, tmp_path):
    with pytest.raises(ValueError, match=complaint):
        save_pretrained(network(), tmp_path / "a", config=config, card=card(**changes))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"temperature": 0.0}, "temperature must be a number from"),
        ({"class_names": ()}, "class_names is empty"),
        ({"std": None}, "give both mean and std"),
        ({"mean": (0.5, 0.5)}, "one value for each channel"),
        ({"std": (0.0,)}, "every std must be positive"),
        ({"shape": None, "mean": None, "std": None}, "shape is missing"),
        ({"shape": ()}, "shape must have sizes of at least 1"),
        ({"shape": (), "mean": None, "std": None}, "shape must have sizes of at least 1"),
        ({"mean": (float("nan"),)}, "every mean and std must be finite"),
    ],
)
def test_wrong_configurations_are_refused(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        replace(CONFIG, **changes)


@pytest.mark.parametrize(
    "text", ["{}", "no", "[" * 100_000, '{"schema": "counterpoise.model", "schema_version": 1, "code": "os"}']
)
def test_other_configurations_are_refused(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json: "):
        from_pretrained(tmp_path)


def test_a_network_of_your_own_is_filled_and_must_be_given(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    save_pretrained(model, tmp_path, config=ModelConfig(CONFIG.class_names), card=Card("mine"))
    with pytest.raises(ValueError, match="names no backbone: build the network yourself and pass it as model="):
        from_pretrained(tmp_path)
    found = from_pretrained(tmp_path, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))
    assert torch.equal(found.model[1].weight, model[1].weight)


def test_objectives_are_not_shared(tmp_path):
    with pytest.raises(ValueError, match=r"export objective\.primary"):
        save_pretrained(counterpoise.MutualTransport(network(), [network()], 0.8), tmp_path, config=CONFIG, card=card())


def test_a_folder_goes_to_the_hub_and_comes_back(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    (folder / ".secret").write_text("x")
    with fake_hub() as (hub, api):
        address = push_to_hub(folder, "me/net", api=api)
        found = from_pretrained("me/net", revision="main", api=api)
    (folder / ".secret").unlink()
    assert address == f"{api.endpoint}/me/net"
    assert [(made["name"], made["visibility"]) for made in hub.created] == [("net", "private")]
    assert hub.cards[0] == (folder / "README.md").read_text()
    assert hub.files == {path.name: path.read_bytes() for path in folder.iterdir()}
    images = torch.ones(1, 1, 8, 8)
    assert torch.equal(found.model(images), network()(images))


def test_without_a_network_the_error_is_one_of_the_system(folder):
    api = huggingface_hub.HfApi(endpoint="http://127.0.0.1:9", token=False)
    with pytest.raises(OSError, match=f"cannot be reached: .*; {folder} is complete, and not uploaded"):
        push_to_hub(folder, "me/net", api=api)


def test_weights_that_are_written_twice_within_a_second_stay(tmp_path, monkeypatch):
    """Some file systems count whole seconds."""
    exact = Path.stat

    class Coarse:
        def __init__(self, found):
            self.found = found

        def __getattr__(self, name):
            return self.found.st_mtime_ns // 10**14 if name == "st_mtime_ns" else getattr(self.found, name)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", lambda path, **options: Coarse(exact(path, **options)))
        for _ in range(2):
            save_pretrained(network(), tmp_path, config=CONFIG, card=card())
    assert from_pretrained(tmp_path).config == CONFIG


def test_other_folders_are_not_uploaded(tmp_path):
    with pytest.raises(ValueError, match=r"no folder of save_pretrained: it has no README\.md, config\.json, \*"):
        push_to_hub(tmp_path, "me/net")


def test_a_missing_client_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"needs huggingface_hub: pip install 'counterpoise\[hub\]'"):
        save_pretrained(network(), tmp_path, config=CONFIG, card=card())
    with pytest.raises(ImportError, match="me/net is no folder here, and the Hub needs huggingface_hub"):
        from_pretrained("me/net")


def test_models_of_transformers_save_themselves(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    options = transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=3, **sizes)
    model = transformers.ViTForImageClassification(options).eval()
    save_pretrained(model, tmp_path, config=replace(CONFIG, backbone=None), card=card())
    again = transformers.ViTForImageClassification.from_pretrained(tmp_path)
    images = torch.ones(1, 1, 8, 8)
    assert torch.equal(again(images).logits, model(images).logits)
    with pytest.raises(ValueError, match=r"saved by transformers: load it with that, and ModelConfig\.load"):
        from_pretrained(tmp_path, model=again)
    assert ModelConfig.load(tmp_path / "counterpoise.json").temperature == TEMPERATURE
    text = (tmp_path / "README.md").read_text()
    assert "from transformers import ViTForImageClassification" in text
    assert "from_pretrained(FOLDER)" not in text
    assert huggingface_hub.ModelCard(text).data.library_name == "transformers"


def test_a_folder_can_be_used_again_for_a_model_of_another_kind(tmp_path):
    for left in ("counterpoise.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"):
        (tmp_path / left).write_text("{}")
    save_pretrained(network(), tmp_path, config=CONFIG, card=card())
    assert from_pretrained(tmp_path).config == CONFIG
    assert "model-00001" not in (tmp_path / "README.md").read_text()


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path, recipe = tmp_path_factory.mktemp("runs") / "stripes", small_recipe("ce", epochs=5)
    train(recipe, path, data=small_data(recipe, test=True))
    return path


def test_a_run_is_shared_by_the_command_line(run, capsys):
    parse(["export", str(run), "--to", "hub", "--temperature", "1.5", "--license", "mit"]).run()
    assert capsys.readouterr().out.strip() == str(run / "hub")
    found = from_pretrained(run / "hub")
    assert found.config.temperature == 1.5
    assert found.config.class_names == ("low", "middle", "high")
    text = (run / "hub" / "README.md").read_text()
    assert "| epochs | 5 |" in text
    assert "are told from its own by confidence" in text


def test_the_command_line_folds_a_temperature_in(run, tmp_path, capsys):
    from counterpoise.calibrators import TemperatureScaling, VectorScaling
    from counterpoise.export import load_pt2
    from counterpoise.scoring import fit_temperature

    logits, labels = torch.tensor([[4.0, 0.0]]).repeat(4, 1), torch.tensor([0, 0, 0, 1])
    TemperatureScaling().fit(logits, labels).save(tmp_path / "t")
    parse(["export", str(run), "--to", "pt2", "--temperature", str(tmp_path / "t")]).run()
    assert json.loads(load_pt2(run / "primary.pt2")[1]["folded_temperature"]) == pytest.approx(3.641, abs=1e-3)
    parse(["export", str(run), "--to", "pt2", "--temperature", "fitted"]).run()
    fitted = fit_temperature(run / "predictions" / "validation.parquet").temperature
    assert json.loads(load_pt2(run / "primary.pt2")[1]["folded_temperature"]) == fitted
    VectorScaling().fit(logits + torch.eye(4)[:, :2], labels).save(tmp_path / "v")
    for wrong, complaint in {
        "nan": "must be a number from",
        "nothing": "--temperature nothing is neither fitted, nor a number, nor a file",
        str(tmp_path / "v"): "is a VectorScaling; only a temperature can be folded in",
    }.items():
        with pytest.raises(ValueError, match=complaint):
            parse(["export", str(run), "--to", "pt2", "--temperature", wrong]).run()
    with pytest.raises(ValueError, match="are for --to hub"):
        parse(["export", str(run), "--to", "pt2", "--repo", "me/net"]).run()


def test_the_example_shares_and_loads(tmp_path):
    assert example("share").main(tmp_path)
    assert (tmp_path / "README.md").is_file()
