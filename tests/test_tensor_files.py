"""Predictions that `torch.save` wrote: read as data, and refused where they are more, or claim to be."""

import zipfile
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.predictions import AmbiguousInputError, Columns, PredictionFileError, read_predictions
from prediction_tables import refusal

LOGITS, LABELS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 3, -1, 1, 0])


def saved(folder, held, name="p.pt"):
    torch.save(held, folder / name)
    return folder / name


@given(cuts=st.lists(st.integers(1, 5), unique=True), as_pairs=st.booleans(), numbers=st.booleans())
def test_batches_are_the_whole(tmp_path_factory, cuts, as_pairs, numbers):
    path = tmp_path_factory.mktemp("batches") / "p.pt"
    edges = [0, *sorted(cuts), 6]
    parts = [slice(*edge) for edge in pairwise(edges)]
    labels = [LABELS[part].tolist() if numbers and not as_pairs else LABELS[part] for part in parts]
    if as_pairs:
        torch.save([(LOGITS[part], own) for part, own in zip(parts, labels, strict=True)], path)
    else:
        torch.save({"logits": [LOGITS[part] for part in parts], "y": LABELS.tolist() if numbers else labels}, path)
    columns = Columns(logits="arr_0", label="arr_1") if as_pairs else Columns()
    table = read_predictions(path, columns)
    np.testing.assert_array_equal(table.values, LOGITS)
    np.testing.assert_array_equal(table.labels, LABELS)


def test_tensors_of_any_kind(tmp_path):
    half = LOGITS.bfloat16().requires_grad_()
    table = read_predictions(saved(tmp_path, {"logits": half.t().contiguous().t(), "labels": list(LABELS)}))
    np.testing.assert_array_equal(table.values, half.detach().float())
    np.testing.assert_array_equal(table.labels, LABELS)
    members = torch.stack([LOGITS, LOGITS], dim=1)
    assert read_predictions(saved(tmp_path, {"logits": members, "labels": LABELS})).members == 2
    nested = saved(tmp_path, {"test": {"logits": LOGITS.tolist(), "labels": LABELS}, "seed": 3, "note": "x"})
    np.testing.assert_allclose(read_predictions(nested).values, LOGITS, rtol=1e-6)


def test_code_is_refused(tmp_path):
    message = refusal(saved(tmp_path, {"logits": LOGITS.numpy()}))
    assert message.startswith("it holds numpy.")
    assert "torch.save({'logits': logits, 'labels': labels}, PATH)" in message
    assert "it holds torch.nn.modules.linear.Linear" in refusal(saved(tmp_path, torch.nn.Linear(2, 2)))
    torch.save(LOGITS, tmp_path / "p.pt", _use_new_zipfile_serialization=False)
    assert "not what torch.save has written since PyTorch 1.6" in refusal(tmp_path / "p.pt")


def test_what_its_bytes_cannot_justify_is_refused(tmp_path):
    row = torch.zeros(1, 1000)
    assert "refused" in refusal(saved(tmp_path, {"logits": row.expand(100_000, 1000)}))
    assert "refused" in refusal(saved(tmp_path, [row.expand(1000, 1000)] * 1000))
    laughs = [LABELS]
    for _ in range(30):
        laughs = [laughs, laughs]
    assert "refused" in refusal(saved(tmp_path, laughs))
    assert "refused" in refusal(saved(tmp_path, {"logits": LOGITS, "labels": ["x" * 1_000_000, *["x"] * 500]}))
    itself = [LABELS]
    itself.append(itself)
    assert "refused" in refusal(saved(tmp_path, itself))


def test_a_compressed_archive_is_refused(tmp_path):
    path = saved(tmp_path, {"logits": torch.zeros(100_000, 10), "labels": LABELS})
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    assert "it is compressed" in refusal(path)


def test_labels_beside(tmp_path):
    path = saved(tmp_path, LOGITS, "logits.pt")
    labels = saved(tmp_path, LABELS, "labels.pt")
    with pytest.raises(PredictionFileError, match=r"it has no labels. Choose labels='.*labels\.pt'"):
        read_predictions(path)
    np.testing.assert_array_equal(read_predictions(path, Columns(labels=str(labels))).labels, LABELS)


def test_weights_hold_no_predictions(tmp_path):
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 3))
    for held in (network.state_dict(), {"epoch": 3, "state_dict": network.state_dict()}):
        with pytest.raises(PredictionFileError, match=r"a network's weights, such as '0\.weight', not its predictions"):
            read_predictions(saved(tmp_path, held))


def test_names_within_tell_what_has_one_name_apart(tmp_path):
    others, theirs = LOGITS[:5] + 1, LABELS[:5]
    held = {"train": {"logits": LOGITS, "labels": LABELS}, "test": {"logits": others, "labels": theirs}}
    for path in (saved(tmp_path, held), saved(tmp_path, dict(reversed(held.items())), "turned.pt")):
        with pytest.raises(AmbiguousInputError) as asked:
            read_predictions(path)
        found = {choice["logits"]: dict(choice) for choice, _ in asked.value.choices}
        assert {name: choice["label"] for name, choice in found.items()} == {
            "train.logits": "train.labels",
            "test.logits": "test.labels",
        }
        for split, (logits, labels) in {"train": (LOGITS, LABELS), "test": (others, theirs)}.items():
            table = read_predictions(path, Columns(**found[f"{split}.logits"]))
            np.testing.assert_array_equal(table.values, logits)
            np.testing.assert_array_equal(table.labels, labels)
        with pytest.raises(PredictionFileError, match=r"array 'train\.labels' has 6 rows and 'test\.logits' has 5"):
            read_predictions(path, Columns(logits="test.logits", label="train.labels"))
