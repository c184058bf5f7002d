"""What auxiliaries in other processes send and take, as the documentation shows it."""

from typing import Any

from tools.markdown import markdown_table


def remote_section(document: dict[str, Any]) -> str:
    """Differences from one process, bytes and times; and what was not reached."""
    figures = document["figures"]
    differences = figures["largest difference from one process"]
    exact = {
        dtype: max(value for name, value in differences.items() if name.endswith(dtype))
        for dtype in ("float32", "float64")
    }
    rows = [(f"largest difference from one process over 50 steps, {dtype}", f"{exact[dtype]:.1e}") for dtype in exact]
    sent = figures["bytes of a step"]["primary"]
    rows += [
        ("logits of a batch of 64, 100 classes", f"{sent['logits']:,} bytes"),
        ("sent by a rank in a step, counted by the kernel", f"{sent['by_kernel']:,.0f} bytes"),
        ("sent by a rank of DDP over both ResNet18, likewise", f"{sent['ddp']:,} bytes"),
    ]
    seconds = figures["seconds of a step"]
    kinds = {
        "together": "with the other role",
        "at once": "while the other works too, without an exchange",
        "alone": "while the other waits",
    }
    for kind, words in kinds.items():
        wall, processor = (
            " and ".join(f"{1e3 * seconds[f'{role}, {kind}'][clock]:.1f}" for role in ("primary", "auxiliary"))
            for clock in ("wall", "processor")
        )
        rows.append((f"step of the primary and of the auxiliary, {words}", f"{wall} ms; processor {processor} ms"))
    over = "step over that of the slower role alone"
    measured = {check["name"]: check["measured"] for check in document["checks"]}
    rows += [(name, f"{measured[name]:.3f}") for name in (f"{over}, by the clock", f"{over}, by the model")]
    rows.append(("exchange of logits, both sides ready", f"{1e3 * figures['seconds of an exchange']:.2f} ms"))
    rows.append(("processes that wanted one of the two cores", f"{figures['processes that wanted a core']:.1f}"))
    missed = [check for check in document["checks"] if not check["passed"]]
    notes = [f"- {check['name']}: {check['measured']:.3g}, at most {check['at_most']:g} wanted" for check in missed]
    return markdown_table(("", "measured"), rows) + ("\n\nNot reached:\n\n" + "\n".join(notes) if notes else "")
