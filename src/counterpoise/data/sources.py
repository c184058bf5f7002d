"""Where the rows of a set are: a name of the table, Parquet files, tar shards, image files, or the hub."""

import difflib
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Literal

from counterpoise._addresses import Address, as_path, regular
from counterpoise._extras import require
from counterpoise.data.sets import SETS, ImageSet
from counterpoise.data.tables import SPLIT_NAMES, is_table, parts_of, read_table

FILES: Final = ("folder", "table")
"""Kinds of sources of image files, whose rows cost nothing to count, and of which any may be damaged."""

ROOT_VARIABLE: Final = "COUNTERPOISE_DATA"
WHOLE: Final = "all"
"""The split of a source that is not divided."""

CLASSES_FILE: Final = "classes.txt"
"""Names of the classes of a WebDataset, one a line, beside its shards."""

_PARQUET, _TAR = ".parquet", ".tar"
_SPLITS = {"train": "train", "validation": "val", "test": "test"}
"""What the names of files of a split begin with; `val` is also the beginning of the longer forms."""
_SHARD = re.compile(r"(?P<start>.*-)\d+-of-(?P<count>\d+)\.parquet")
PICTURES: Final = frozenset(
    {
        ".avif",
        ".bmp",
        ".gif",
        ".heic",
        ".heif",
        ".jfif",
        ".jpe",
        ".jpeg",
        ".jpg",
        ".pgm",
        ".png",
        ".ppm",
        ".tif",
        ".tiff",
        ".webp",
    }
)
"""Of image files; some cannot be decoded, which is better said than passed over."""
_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class DataSource:
    """A set and the place of its rows.

    Attributes:
        info: what is known of the set; columns are "" where they are to be recognised by their names.
        kind: `parquet` files, tar shards of a `webdataset`, a `folder` of images, a `table` of their paths, the `hub`,
            or `scikit-learn`.
        location: the folder or file, or the hub id.
        files: of each stored split, in the order of the rows: Parquet files or tar shards, by their paths or addresses,
            or one folder of class folders, or the table.
        missing: the local folder that would have come before the hub.
    """

    info: ImageSet
    kind: Literal["parquet", "webdataset", "folder", "table", "hub", "scikit-learn"]
    location: str
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: str = ""


def resolve(name_or_path: str | Path, *, root: Path | None = None) -> DataSource:
    """Find a set; no image is read and nothing is downloaded yet.

    In this order: a name of the table `SETS` (text: a `Path` is a path), whose folder under `root` (by default the
    environment variable COUNTERPOISE_DATA) comes before the hub; a CSV, TSV or Parquet file of image paths and labels;
    a Parquet file of images or a tar shard of a WebDataset, or a folder with such files whose names start with their
    split, or a pattern such as `shards/*.tar`; a folder of class folders, perhaps below `train` and `test`, or one of
    images without labels; a hub id such as "owner/name". Names of the classes of a WebDataset may be in `classes.txt`
    beside the shards, one a line.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, str) and text in SETS:
        return _of_table(SETS[text], root)
    if isinstance(address := as_path(text), Address):
        return _of_address(address)
    if not text:
        raise ValueError(f"a data set needs a name, or a path; known are {', '.join(SETS)}")
    path = _expanded(name_or_path)
    if (table := _expanded(parts_of(text)[0])).is_file() and is_table(table):
        return _of_path_table(text, table)
    if path.is_file():
        if path.suffix.lower() not in (_PARQUET, _TAR):
            raise ValueError(
                f"{path} is neither a table of paths (.csv, .tsv, .parquet) nor a file of images (.parquet, .tar); "
                "unpack an archive, and give the folder"
            )
        return _of_stored(path.stem, text, {WHOLE: (str(path),)})
    if path.is_dir():
        return _of_folder(path)
    if "*" in path.name and (found := _by_split(path.parent.glob(path.name))):
        return _of_stored(path.parent.resolve().name, text, found)
    if _HUB_ID.fullmatch(text):
        return DataSource(_unknown(text), "hub", text, missing=text)
    near = difflib.get_close_matches(text, SETS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"{text!r} is not the name of a data set ({', '.join(SETS)}), not a file or folder that exists, "
        f"and not a hub id such as 'owner/name'{hint}"
    )


def stored_split(source: DataSource, split: str, domain: str | None) -> str:
    """The stored split that holds the rows of `split`.

    A set of domains is stored whole: its `train` is all domains but `domain`, its `test` is `domain`.
    """
    name, domains = source.info.name, source.info.domains
    if not domains and domain is not None:
        raise ValueError(f"{name} has no domains; leave domain out")
    if domains and split not in ("train", "test", WHOLE):
        raise ValueError(f"{name} has the splits 'train', 'test' and {WHOLE!r}, not {split!r}")
    if domains and split != WHOLE and domain not in domains:
        raise ValueError(
            f"{name} trains on all domains but one and tests on that one: domain must be one of "
            f"{', '.join(domains)}, got {domain!r}"
        )
    if source.kind == "hub" and not domains and split == WHOLE:
        raise ValueError(f"{name} on the hub is divided: name a split of it, such as 'train' or 'test', not {WHOLE!r}")
    stored = WHOLE if domains else split
    if source.files and stored not in source.files:
        stored = SPLIT_NAMES.get(split, split)
    if source.files and stored not in source.files:
        raise ValueError(
            f"{name} has no split {split!r} at {source.location}; it has {', '.join(map(repr, source.files))}"
        )
    return stored


def ood_split(name_or_path: str | Path, *, root: Path | None = None) -> str:
    """The split to take OOD images from: `test`, or `all` where a source is not divided, or by domains alone."""
    source = resolve(name_or_path, root=root)
    return WHOLE if source.info.domains or set(source.files) == {WHOLE} else "test"


def pictures_in(folder: str | Path, name: str) -> Iterator[Path]:
    """Image files below a folder of a folder, in any order, without hidden ones and those in hidden folders.

    Links to folders are followed, but for those that lead back to where they are.
    """
    if name.startswith("."):
        return
    for place, folders, files in os.walk(Path(folder) / name, followlinks=True):
        folders[:] = [each for each in folders if not each.startswith(".") and not _leads_back(Path(place) / each)]
        yield from filter(_is_picture, (Path(place) / each for each in files if not each.startswith(".")))


def loose_pictures(folder: str | Path) -> list[Path]:
    """Image files in a folder itself, by name: beside class folders they are of no class."""
    return [each for each in sorted(Path(folder).iterdir()) if not each.name.startswith(".") and _is_picture(each)]


def _leads_back(folder: Path) -> bool:
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def _is_picture(path: Path) -> bool:
    """By its name; a link that leads nowhere is one that cannot be read."""
    return path.suffix.lower() in PICTURES and (path.is_file() or (path.is_symlink() and not path.exists()))


def _expanded(path: str | Path) -> Path:
    """A path with the user's folder in place of `~`; that of a user who does not exist as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _of_table(info: ImageSet, root: Path | None) -> DataSource:
    if info.name == "digits":
        return DataSource(info, "scikit-learn", "scikit-learn")
    stated = root if root is not None else os.environ.get(ROOT_VARIABLE)
    folder = _expanded(stated) / info.name if stated else None
    if folder is not None and folder.is_dir():
        files = _table_files(info, folder)
        if not files:
            expected = ", ".join(info.domains) if info.domains else "train or test"
            raise ValueError(f"{folder} holds no Parquet files whose names start with {expected}")
        _require_all_files(info, folder, [file for split in files.values() for file in split])
        return DataSource(info, "parquet", str(folder), files)
    missing = str(folder) if folder is not None else f"{info.name} (no root given, and {ROOT_VARIABLE} is not set)"
    if info.hub is None:
        raise ValueError(
            f"{info.name} ({info.note}) is not on the hub, and there is no folder {missing}; "
            f"set {ROOT_VARIABLE} to the folder that holds {info.name}/"
        )
    return DataSource(info, "hub", info.hub, missing=missing)


def _table_files(info: ImageSet, folder: Path) -> dict[str, tuple[str, ...]]:
    if info.domains:
        by_domain = tuple(file for domain in info.domains for file in _parquet_files(folder, domain))
        files = {WHOLE: by_domain or _parquet_files(folder, "train")}
    else:
        files = {
            split: _parquet_files(folder, start, info.hub_config)
            or _parquet_files(folder, info.hub_splits.get(split, start), info.hub_config)
            for split, start in _SPLITS.items()
        }
        if files["validation"] == files["test"]:  # which the hub calls so
            files["validation"] = ()
    return {split: found for split, found in files.items() if found}


def _parquet_files(folder: Path, start: str, config: str | None = None) -> tuple[str, ...]:
    """Stored in the folder itself, else as a copy of the hub's repository has them."""
    for place in (folder, folder / "data", *([folder / config] if config else [])):
        if found := tuple(str(file) for file in sorted(place.glob(f"{start}*.parquet"))):
            return found
    return ()


def _by_split(files: Iterable[Path | Address]) -> dict[str, tuple[str, ...]]:
    """Files by the split that their names start with, in the order of names; all where none does."""
    every = {file.name: _location(file) for file in files}
    names = sorted(every)
    splits = {split: tuple(every[name] for name in names if name.startswith(start)) for split, start in _SPLITS.items()}
    found = {split: files for split, files in splits.items() if files}
    return found or ({WHOLE: tuple(every[name] for name in names)} if every else {})


def _location(file: Path | Address) -> str:
    """What `as_path` makes the same of; of an address, with credentials and settings, which its text does not show."""
    if not isinstance(file, Address):
        return str(file)
    store, mark, settings = file.store.partition("?")
    return f"{store}/{file.key}{mark}{settings}"


def _of_stored(name: str, shown: str, files: Mapping[str, tuple[str, ...]]) -> DataSource:
    """A source of Parquet files or, by their suffix, of tar shards, whose classes may be named beside the first."""
    first = as_path(next(iter(files.values()))[0])
    if first.suffix.lower() != _TAR:
        return DataSource(_unknown(name), "parquet", shown, files)
    beside = first.with_name(CLASSES_FILE)
    classes = tuple(beside.read_text(encoding="utf-8-sig").rstrip().splitlines()) if beside.is_file() else ()
    if "" in classes:
        raise ValueError(f"{beside}, line {classes.index('') + 1}: there is no name of a class; write one on each line")
    return DataSource(_unknown(name, classes), "webdataset", shown, files)


def _of_address(address: Address) -> DataSource:
    if address.suffix.lower() in (_PARQUET, _TAR) and "*" not in address.name:
        return _of_stored(address.stem, str(address), {WHOLE: (_location(address),)})
    folder, listed = (address.parent, address.matches()) if "*" in address.name else (address, address.listed())
    for suffix in (_PARQUET, _TAR):
        stored = (file for file, size in listed if size is not None and file.suffix.lower() == suffix)
        if found := _by_split(stored):
            return _of_stored(folder.name or str(folder), str(address), found)
    raise ValueError(
        f"{address} holds neither Parquet files nor tar shards, which alone are read from a store; folders and tables "
        "of image files are read from a disk"
    )


def open_file(name: str) -> BinaryIO:
    """The bytes of a file of a source, by its path or address."""
    if name.startswith("hf://"):
        found: BinaryIO = require("fsspec", extra="train", purpose="the hub").open(name).open()
        return found
    return regular(as_path(name)).open("rb")


def _require_all_files(info: ImageSet, folder: Path, files: list[str]) -> None:
    """Refuse a copy of a named set of which files are missing: its figures would be taken for those of the whole."""
    names = {Path(file).name for file in files}
    found = {domain for domain in info.domains if any(name.startswith(domain) for name in names)}
    missing = [domain for domain in info.domains if found and domain not in found]
    shards = {(shard["start"], shard["count"]) for name in names if (shard := _SHARD.fullmatch(name))}
    for start, count in sorted(shards):
        every = (f"{start}{number:0{len(count)}}-of-{count}.parquet" for number in range(int(count)))
        missing += [name for name in every if name not in names]
    if missing:
        raise ValueError(
            f"{folder} is not all of {info.title}: {', '.join(missing[:5])} {'is' if len(missing) == 1 else 'are'} "
            "missing; complete the copy, or move it to a folder of another name and give its path"
        )


def _of_path_table(address: str, path: Path) -> DataSource:
    table = read_table(address)
    splits = dict.fromkeys(sorted(set(table.splits)) or (WHOLE,), (address,))
    return DataSource(_unknown(path.stem, table.classes), "table", address, splits)


def _of_folder(path: Path) -> DataSource:
    name = path.resolve().name
    files = {split: found for split, start in _SPLITS.items() if (found := _parquet_files(path, start))}
    files = files or ({WHOLE: found} if (found := _parquet_files(path, "")) else {})
    if files:
        return _of_stored(name, str(path), files)
    if shards := _by_split(path.glob(f"*{_TAR}")):
        return _of_stored(name, str(path), shards)
    # A class may be called "train", too: a split holds class folders.
    folders: dict[str, Path] = {}
    for each in sorted(path.iterdir()):
        split = SPLIT_NAMES.get(each.name.lower())
        if split is not None and _classes_in(each):
            if split in folders:
                raise ValueError(f"{each} and {folders[split]} are both {split} images; rename or join them")
            folders[split] = each
    folders = folders or {WHOLE: path}
    classes = tuple(sorted({each for folder in folders.values() for each in _classes_in(folder)}))
    if not classes and not any(pictures_in(path, "")):
        raise ValueError(f"{path} holds neither Parquet files nor tar shards nor class folders of images")
    _require_told_apart(classes, path)
    files = {split: (str(folder),) for split, folder in folders.items()}
    return DataSource(_unknown(name, classes), "folder", str(path), files)


def _require_told_apart(classes: Sequence[str], path: Path) -> None:
    """Refuse class folders whose names look alike, as when some of them were packed on a Mac."""
    forms = {unicodedata.normalize("NFC", name): name for name in classes}
    for name in classes:
        if (other := forms[unicodedata.normalize("NFC", name)]) != name:
            raise ValueError(
                f"{path} has two classes {name!r}, spelt {name!a} and {other!a} in Unicode; give their "
                "folders the same name"
            )


def _classes_in(folder: Path) -> list[str]:
    """Names of the folders that hold images, or nothing at all; hidden ones are of programs."""
    if not folder.is_dir():
        return []
    folders = [each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")]
    full = [each.name for each in folders if any(pictures_in(folder, each.name))]
    if not full and loose_pictures(folder):
        return []  # beside images, an empty folder is none of a class
    return full + [each.name for each in folders if not any(each.iterdir())]


def _unknown(name: str, classes: tuple[str, ...] = ()) -> ImageSet:
    return ImageSet(
        name=name,
        title=name,
        image="",
        label="",
        classes=classes,
        size=None,
        note="normalised with ImageNet's mean and standard deviation",
    )
