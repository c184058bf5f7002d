"""Image files of a split and their labels: of class folders, or of a table of paths."""

from pathlib import Path

from counterpoise.data.sources import WHOLE, DataSource, pictures_in
from counterpoise.data.tables import read_table, require_files


def image_files(source: DataSource, stored: str) -> list[tuple[Path, int | None]]:
    """Paths and labels, None where there is none: by class and path, or in the order of the table's rows.

    A folder without class folders holds images without labels.
    """
    (place,) = source.files[stored]
    classes = source.info.classes
    if source.kind == "folder" and not classes:
        return [(path, None) for path in sorted(pictures_in(place, ""))]
    if source.kind == "folder":
        return [(path, label) for label, name in enumerate(classes) for path in sorted(pictures_in(place, name))]
    table = read_table(place)
    require_files(table, place)
    labels = {name: label for label, name in enumerate(classes)}
    splits = table.splits or [WHOLE] * len(table.paths)
    rows = zip(table.paths, table.labels or [""] * len(table.paths), splits, strict=True)
    return [(path, labels.get(label)) for path, label, split in rows if split == stored]
