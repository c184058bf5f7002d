"""Parts of the page, and how they stand beside each other."""

from dataclasses import dataclass, replace

from counterpoise.report.tables import Table


@dataclass(frozen=True)
class Picture:
    """A figure in both themes as data URIs, what it shows in words, and its numbers."""

    light: str
    dark: str
    alt: str
    tables: list[Table]


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        name: that links lead to.
        title: of it.
        text: paragraphs.
        tables: below them.
        pictures: beside them.
        layout: `half` a row of the page, `split` between words and picture, in `columns` of equal height, or `whole`.
    """

    name: str
    title: str
    text: list[str]
    tables: list[Table]
    pictures: list[Picture]
    layout: str = "whole"


def arranged(sections: list[Section]) -> list[list[Section]]:
    """Rows of the page: two sections of one picture beside each other, any other by itself."""
    rest, rows = list(sections), []
    while rest:
        section = rest.pop(0)
        if not _is_small(section):
            rows.append([section])
        elif (other := next((each for each in rest if _is_small(each)), None)) is not None:
            rest.remove(other)
            rows.append([replace(each, layout="half") for each in (section, other)])
        else:
            rows.append([replace(section, layout="split")])
    return rows


def _is_small(section: Section) -> bool:
    return section.layout == "whole" and len(section.pictures) == 1 and not section.tables
