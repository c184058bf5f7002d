"""What the guides say of real predictions: two networks of the study of costs, for the 10,000 test images of CIFAR-10.

`examples/predictions` holds their logits: cross-entropy (seed 9) and MTE-1 with a shared trunk after stage 2 (seed 1),
both ResNet10 of width 16, trained on 5,000 images of 16 pixels.
"""

import contextlib
import csv
import io
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from counterpoise.calibrators import ConformalSets, SelectiveThreshold
from counterpoise.cli import parse
from tools.markdown import markdown_table

FOLDER = Path(__file__).parent.parent / "examples" / "predictions"
MODELS = {"cross-entropy": FOLDER / "cifar10-cross-entropy.npz", "shared trunk": FOLDER / "cifar10-shared-trunk.npz"}
ALPHA, RISK, DELTA = 0.1, 0.2, 0.1
CALIBRATION = 5000
ANIMALS = (2, 3, 4, 5, 6, 7)
DAILY, CHANGED = 300, 2300


def ship_section() -> str:
    """What `counterpoise check` prints."""
    base, model = MODELS.values()
    requirements = ("accuracy >= base", "nll <= base", "ece <= 0.05")
    printed = _printed("check", str(model), "--against", str(base), "--require", *requirements)
    command = " ".join(f'"{each}"' for each in requirements)
    command = f"$ counterpoise check {model.name} --against {base.name} --require {command}"
    return f"```text\n{command}\n{printed}\n```"


def accept_section() -> str:
    """What sets and thresholds keep of what they promise."""
    rows = []
    for name, path in MODELS.items():
        logits, labels = _read(path)
        fitted, new = (logits[:CALIBRATION], labels[:CALIBRATION]), (logits[CALIBRATION:], labels[CALIBRATION:])
        sets = ConformalSets.fit(*fitted, alpha=ALPHA)(new[0])
        accepted = SelectiveThreshold.fit(*fitted, risk=RISK, delta=DELTA)(new[0])
        held = sets.gather(-1, new[1][:, None]).double().mean()
        wrong = (new[0].argmax(-1) != new[1]).double()
        rows.append(
            (
                name,
                f"{wrong.mean():.1%}",
                f"{held:.1%}",
                f"{sets.sum(-1).double().mean():.2f}",
                f"{accepted.double().mean():.1%}",
                f"{wrong[accepted].mean():.1%}",
            )
        )
    head = ("", "wrong", f"sets for {1 - ALPHA:.0%} hold", "labels a set", "accepted", "of these wrong")
    return markdown_table(head, rows)


def monitor_section() -> str:
    """What `counterpoise monitor show` prints of a stream that turns into animals alone."""
    logits, labels = _read(MODELS["shared trunk"])
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    reference, before, after = order[:CALIBRATION], order[CALIBRATION:-CHANGED], order[-CHANGED:]
    after = after[torch.isin(labels[after], torch.tensor(ANIMALS))]
    days = [*torch.split(before, DAILY), *torch.split(after, DAILY)[:3]]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        np.savez("reference.npz", logits=logits[reference].numpy(), labels=labels[reference].numpy())
        for day, rows in enumerate(days, start=1):
            shares = logits[rows].softmax(-1)
            with Path(f"day-{day:02}.csv").open("w", newline="") as file:
                table = csv.writer(file)
                table.writerow(["id", "time", *(f"p{k}" for k in range(shares.shape[-1])), "label"])
                for row, values in zip(rows.tolist(), shares.tolist(), strict=True):
                    table.writerow([row, f"2026-03-{day:02}T12:00:00Z", *values, int(labels[row])])
        _printed("monitor", "begin", "watch", "reference.npz", "--every", "day", "--start", "2026-03-01")
        _printed("monitor", "update", "watch", "day-*.csv")
        printed = _printed("monitor", "show", "watch")
    return f"```text\n{printed}\n```"


def _printed(*arguments: str) -> str:
    printed, notes = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(notes), contextlib.suppress(SystemExit):
        parse(list(arguments)).run()
    return printed.getvalue().strip()


def _read(path: Path) -> tuple[Tensor, Tensor]:
    with np.load(path, allow_pickle=False) as arrays:
        return torch.from_numpy(arrays["logits"]).double(), torch.from_numpy(arrays["labels"]).long()


SECTIONS = {
    "ship-example": ("docs/ship_or_not.md", ship_section),
    "accept-example": ("docs/accept_or_refer.md", accept_section),
    "monitor-example": ("docs/still_fine.md", monitor_section),
}
"""By name: the page that shows it, and how."""
