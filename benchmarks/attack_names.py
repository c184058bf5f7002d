"""Names that would change what a terminal, a browser, a spreadsheet or a typesetter shows or does."""

import csv
import io
import re
from collections.abc import Callable
from html.parser import HTMLParser

import numpy as np

from benchmarks.attack_places import (
    CONTROLS,
    FORMULA,
    MARKUP,
    ODD_NAME,
    Action,
    HarmedError,
    Place,
    attack,
    command,
    printed,
)
from counterpoise.predictions import Header, Predictions, write_predictions

_STARTS = re.compile(r"^\s*[=+@\t\r]")
_TAG = re.compile(r"(?<!\\)<(?:script|img)")


def _predictions(place: Place, name: str, file: str = "p.parquet") -> str:
    """A file whose classes, model and group have that name."""
    generator = np.random.default_rng(0)
    table = Predictions.of(
        logits=generator.standard_normal((60, 3)).astype(np.float32),
        labels=generator.integers(0, 3, 60),
        domain=[name] * 30 + ["other"] * 30,
        header=Header(class_names=(name, "b", "c"), model=name, method=name),
    )
    write_predictions(place.folder / file, table)
    return str(place.folder / file)


def _controls_in(text: str) -> bool:
    return any(character in text for character in CONTROLS)


def _shown(place: Place, *options: str) -> Action:
    return printed(command("evaluate", _predictions(place, ODD_NAME), *options), _controls_in, "printed raw")


@attack("names")
def names_with_escapes_in_the_table(place: Place) -> Action:
    return _shown(place, "--all")


@attack("names")
def names_with_escapes_in_markdown(place: Place) -> Action:
    return _shown(place, "--markdown")


@attack("names")
def names_with_escapes_in_csv(place: Place) -> Action:
    return _shown(place, "--csv")


@attack("names")
def names_with_escapes_in_json(place: Place) -> Action:
    return _shown(place, "--json")


@attack("names")
def names_with_escapes_in_the_decision(place: Place) -> Action:
    check = command("check", _predictions(place, ODD_NAME), "--require", "ece <= 1")
    return printed(check, _controls_in, "printed raw")


@attack("names")
def a_file_name_with_escapes_in_an_error(place: Place) -> Action:
    (place.folder / f"{ODD_NAME.replace('/', '')}.csv").write_text("x")
    return command("evaluate", place.folder)


@attack("names")
def a_column_name_with_escapes_in_an_error(place: Place) -> Action:
    (place.folder / "p.csv").write_text(f"{ODD_NAME},b\n1,2\n")
    return command("evaluate", place.folder / "p.csv")


@attack("names")
def columns_with_escapes_in_a_question(place: Place) -> Action:
    (place.folder / "p.csv").write_text(f"label,label2{ODD_NAME},p_a,p_b,q_a{ODD_NAME},q_b\n0,0,0.5,0.5,0.5,0.5\n")
    return command("evaluate", place.folder / "p.csv")


@attack("names")
def a_class_folder_with_escapes(place: Place) -> Action:
    for name in (ODD_NAME, "dog"):
        (place.folder / name).mkdir()
        (place.folder / name / "0.png").write_bytes(b"no picture")
    return command("train", "digits", "--data.name", place.folder, "--out", place.folder / "run")


@attack("names")
def the_model_of_an_onnx_file_with_escapes(place: Place) -> Action:
    (place.folder / f"{ODD_NAME}.onnx").write_bytes(b"no model")
    return command("predict", place.folder / f"{ODD_NAME}.onnx", "--data", "digits", "--score-only")


def _page(place: Place, look: Callable[[str], bool]) -> Action:
    out = place.folder / "report.html"
    run = command("evaluate", _predictions(place, MARKUP), "--html", out)

    def checked() -> None:
        try:
            run()
        finally:
            if out.exists() and look(out.read_text()):
                raise HarmedError("a name became a part of the page")

    return checked


@attack("names")
def names_that_are_markup_in_the_report(place: Place) -> Action:
    return _page(place, lambda text: "<script" in text.lower() or "<img src=x" in text or "{{7*7}}49" in text)


@attack("names")
def names_that_end_attributes_in_the_report(place: Place) -> Action:
    class Tags(HTMLParser):
        found = False

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found |= tag == "script" or any(name.startswith("on") for name, _ in attrs)

    def look(text: str) -> bool:
        tags = Tags()
        tags.feed(text)
        return tags.found

    return _page(place, look)


@attack("names")
def the_report_loads_nothing(place: Place) -> Action:
    return _page(place, lambda text: re.search(r"(?:src|href)=[\"']?(?:https?:)?//", text) is not None)


@attack("names")
def names_that_are_formulas_in_csv(place: Place) -> Action:
    def runs(text: str) -> bool:
        cells = (cell for row in csv.reader(io.StringIO(text)) for cell in row)
        return any(_STARTS.match(cell) for cell in cells)

    return printed(command("evaluate", _predictions(place, FORMULA), "--csv"), runs, "a cell is a formula")


@attack("names")
def names_that_are_commands_in_latex(place: Place) -> Action:
    name = r"\input{/etc/passwd}\write18{touch x}"
    run = command("evaluate", _predictions(place, name), "--latex")
    return printed(run, lambda text: r"\input{" in text or r"\write18" in text, "a name is a command")


@attack("names")
def names_that_are_markup_in_markdown(place: Place) -> Action:
    run = command("evaluate", _predictions(place, f"{MARKUP}[x](javascript:alert(1))|a"), "--markdown")
    return printed(run, lambda text: _TAG.search(text) is not None, "a name is markup")


@attack("names")
def names_that_are_markup_in_a_model_card(place: Place) -> Action:
    from counterpoise.export.card import Card
    from counterpoise.export.config import ModelConfig
    from counterpoise.integrations.hub import save_pretrained
    from counterpoise.models import Backbone

    config = ModelConfig((MARKUP, "b"), (3, 8, 8), (0.5,) * 3, (0.2,) * 3, 1.0, Backbone("cnn", width=4))
    card = Card(name=MARKUP, license="mit")

    def run() -> None:
        save_pretrained(config.build(), place.folder / "hub", config=config, card=card)
        if _TAG.search((place.folder / "hub" / "README.md").read_text()):
            raise HarmedError("a name is markup in the card")

    return run
