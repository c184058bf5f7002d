"""A study as people read it: what it shows, its tables and its figures, for a page or for a file of text."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from counterpoise.training.folder import read_environment
from counterpoise_study.collected import StudyResults, collect
from counterpoise_study.details import choice_table, run_tables, setup_table
from counterpoise_study.drawings import Drawing, drawings_of
from counterpoise_study.scales import SCALES
from counterpoise_study.store import Store
from counterpoise_study.studies import Layout
from counterpoise_study.tables import Address, Linked, caption, floor_tables, plain_table, result_tables

READING: Mapping[Layout, str] = {
    "metrics": "Accuracy should be high, calibration errors low.",
    "detection": (
        "Confidence should be high where the prediction is right, and low where it is wrong. FPR at 95% TPR: the share "
        "of wrong predictions that is accepted where 95% of the right ones are."
    ),
    "ood": (
        "Confidence should be high for images of the data set, and low for OOD images; near: those that are like "
        "the data, far: those that are not."
    ),
    "variants": "Rows differ in what their names say, and in nothing else; the primary that ships is the same.",
    "trade-off": (
        "Rows differ in the method and in what their names say; the primary, its initial weights, the order of images "
        "and their augmentation are the same for all rows of a seed."
    ),
    "domains": "Trained on three domains of PACS, tested on the fourth.",
    "in-and-out": (
        "Trained on three domains of PACS. In-domain: the validation images of these three; after temperature scaling, "
        "each half of them is at the temperature of the other, so that no image is scored with what was fitted on it. "
        "Left-out: all images of the fourth domain, at the temperature of all validation images. AUROC: of telling "
        "right from wrong predictions by their confidence."
    ),
    "sweep": (
        "Every value of alpha with all seeds; lines are means, bars one standard deviation. A ring marks the value "
        "that the validation images choose."
    ),
    "severity": (
        "Each point is a corruption, as the mean over seeds; boxes hold the middle half of them, whiskers reach the "
        "extremes. At each severity, methods stand in the order of the legend. In the table, ECE is the mean over the "
        "corruptions."
    ),
    "scatter": "The better, the further to the top left. Bars: one standard deviation over seeds.",
    "reliability": (
        "Bars and points: how often predictions of a given confidence are right, with an interval as wide as one "
        "seed's images give. On the dashed line, confidence is honest; below it, the model claims too much."
    ),
    "bars": "Bars are means over seeds, lines their t intervals.",
}
TEXT = (
    "Best (bold) and second best (underlined, or italic) are marked only where the paired difference to every other "
    "row, seed by seed, is beyond chance by a t interval whose level is adjusted for the number of rows. Often nothing "
    "is.",
    "The noise floor is the ECE that perfect calibration would show with so many images.",
)
"""How all tables are read."""


@dataclass(frozen=True)
class Section:
    """One study.

    Attributes:
        name: of the study.
        title: of it.
        progress: how much of it is done.
        text: what it shows, and how to read it.
        caption: what must be known of all its numbers.
        notices: what went wrong.
        tables: its results, and how they were obtained.
        details: titles and tables of what is looked up seldom.
        drawings: its figures.
    """

    name: str
    title: str
    progress: str
    text: str
    caption: str
    notices: tuple[Linked, ...]
    tables: tuple[Linked, ...]
    details: tuple[tuple[str, tuple[Linked, ...]], ...]
    drawings: tuple[Drawing, ...]


@dataclass(frozen=True)
class Document:
    """A store as people read it.

    Attributes:
        title: of all of it.
        lead: what it holds.
        scale: what must be known of the numbers.
        text: how all tables are read.
        sections: one for each study.
        provenance: conditions of the runs.
    """

    title: str
    lead: str
    scale: str
    text: tuple[str, ...]
    sections: tuple[Section, ...]
    provenance: Linked


def document_of(store: Store, *, studies: Sequence[str], address: Address) -> Document:
    """What a store holds of some studies, or of all."""
    found, scale = collect(store, studies=studies), store.contents.scale
    sections = tuple(section_of(each, address) for each in found)
    done, total = sum(each.done for each in found), sum(each.total for each in found)
    return Document(
        title=f"The benchmark at {scale} scale",
        lead=f"Studies: {len(found)}; {done} of {total} runs done, those that several studies share counted in each.",
        scale=SCALES[scale]().note,
        text=TEXT,
        sections=sections,
        provenance=provenance(store, found),
    )


def section_of(gathered: StudyResults, address: Address) -> Section:
    """A study with everything that is shown of it."""
    choice = choice_table(gathered, address)
    details = [("Candidates of the hyper-parameters, and which was chosen", (choice,))] if choice else []
    return Section(
        name=gathered.request.study,
        title=gathered.study.title,
        progress=f"{gathered.done} of {gathered.total} runs done",
        text=READING[gathered.study.layout],
        caption=caption(gathered),
        notices=(_failures(gathered),) if gathered.failures else (),
        tables=(*result_tables(gathered, address), *floor_tables(gathered), setup_table(gathered)),
        details=(*details, ("Every run", tuple(run_tables(gathered, address)))),
        drawings=tuple(drawings_of(gathered)),
    )


def _failures(gathered: StudyResults) -> Linked:
    return plain_table("Runs that were given up", ("", "reason"), gathered.failures)


def provenance(store: Store, studies: Sequence[StudyResults]) -> Linked:
    """The conditions that runs were started under, and how many had each; nothing that differs from time to time."""
    found = Counter(_conditions(store, studies))
    heads = ("runs", "versions", "revision", "platform", "device", "kernels", "threads", "processes")
    rows = [(str(count), *conditions) for conditions, count in sorted(found.items())]
    return plain_table("Conditions of the runs", heads, rows)


def _conditions(store: Store, studies: Sequence[StudyResults]) -> Iterator[tuple[str, ...]]:
    progress = store.progress()
    cells = {key: cell for gathered in studies for key, (_, cell) in gathered.cells.items()}
    for key, cell in cells.items():
        folder = store.run_folder(key)
        if progress.of(cell) is not None and folder.environment.exists():
            started = read_environment(folder).started
            versions = ", ".join(f"{name} {version}" for name, version in started.versions.items())
            numbers = str(started.threads), str(started.world_size)
            yield versions, started.revision, started.platform, started.device, started.kernels, *numbers
