"""Every reader of files that may come from somebody else: valid files to begin with, and how each is read."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fuzzing import documents, seeds

Refusals = tuple[type[Exception], ...]


class AcceptedError(Exception):
    """A file was read whose bytes are not those that its digest is of."""


@dataclass(frozen=True)
class Reader:
    """How damaged files of one kind are read.

    Attributes:
        file: name of the file that is damaged, in a folder of its own.
        seeds: valid files; may put others beside them into the folder.
        read: reads the file, all of it.
        refusals: the documented errors.
    """

    file: str
    seeds: Callable[[Path], Sequence[bytes]]
    read: Callable[[Path], object]
    refusals: Refusals = (ValueError,)

    def fault_of(self, path: Path) -> Exception | None:
        """What is wrong with how the file is read: None for a result, or for an error as documented and explained."""
        try:
            self.read(path)
        except Exception as error:
            return None if _is_documented(error, self.refusals) else error
        return None


def _is_documented(error: Exception, refusals: Refusals) -> bool:
    """Of the very kind, or one of ours: parsers' own kinds of `ValueError` say nothing about the file."""
    ours = type(error).__module__.startswith("counterpoise")
    return isinstance(error, refusals) and (type(error) in refusals or ours) and bool(str(error))


def _predictions(path: Path) -> None:
    from counterpoise.predictions import read_predictions

    read_predictions(path)


def _with_labels(path: Path) -> None:
    from counterpoise.predictions import Columns, read_predictions

    read_predictions(path, Columns(labels=str(path.with_name("labels.npy"))))


def _verified(path: Path) -> None:
    _predictions(path)
    stated = path.with_name(f"{path.name}.sha256").read_bytes()
    if hashlib.sha256(path.read_bytes()).hexdigest().encode() not in stated:
        raise AcceptedError(f"{path} was read, and is not what its digest is of")


def _beside_its_digest(folder: Path) -> Sequence[bytes]:
    from counterpoise.predictions import write_predictions

    write_predictions(folder / "p.parquet", seeds.table(6))
    return [(folder / "p.parquet").read_bytes()]


def _digest(path: Path) -> None:
    _verified(path.with_suffix(""))


def _digest_beside(folder: Path) -> Sequence[bytes]:
    _beside_its_digest(folder)
    return [(folder / "p.parquet.sha256").read_bytes()]


def _with_unsealed(made: documents.Seeds) -> documents.Seeds:
    def both(folder: Path) -> Sequence[bytes]:
        found = made(folder)
        return [*found, *map(documents.unsealed, found)]

    return both


def _text(read: Callable[[str], object]) -> Callable[[Path], object]:
    """Bytes that are no text are the caller's concern: such readers get a text."""
    return lambda path: read(path.read_text(encoding="utf-8", errors="replace"))


def _shards(folder: Path) -> Sequence[bytes]:
    from counterpoise.predictions import write_manifest, write_predictions

    for number in range(2):
        write_predictions(folder / f"{number}.parquet", seeds.table(3))
    written = Path(str(write_manifest(folder))).read_bytes()
    plain = documents.unsealed(written)
    return [written, plain, json.dumps(json.loads(plain) | {"schema_version": 1}).encode()]


def _shard_manifest(path: Path) -> None:
    from counterpoise.predictions import find_shards

    for shard in find_shards(path).shards:
        for _ in shard.opened().batches():
            pass


def _checkpoints(folder: Path) -> Sequence[bytes]:
    from counterpoise._files import digest_of
    from counterpoise.training.checkpoints import Entry, Manifest, write_manifest

    (folder / "step-4.ckpt").write_bytes(b"state")
    entry = Entry("step-4.ckpt", digest_of(folder / "step-4.ckpt"), 5, 4, 1, "nll", 0.5)
    write_manifest(folder, Manifest(last=entry, best=replace(entry, step=2)))
    written = (folder / "manifest.json").read_bytes()
    return [written, documents.unsealed(written)]


def _checkpoint_manifest(path: Path) -> None:
    from counterpoise.training.checkpoints import newest_intact

    newest_intact(path.parent)


def _state(path: Path) -> None:
    from counterpoise.training.checkpoints import read_state

    read_state(path)


def _tar(folder: Path) -> Sequence[bytes]:
    (folder / "classes.txt").write_text("cat\ndog")
    found = []
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as shard:
            for row in range(3):
                label = {"label": row % 2, "caption": "x"} if row == 2 else row % 2
                extension = "json" if row == 2 else "cls"
                for name, content in (("png", seeds.png()), (extension, json.dumps(label).encode())):
                    member = tarfile.TarInfo(f"{'long' * 40 * (row == 1 and form != tarfile.USTAR_FORMAT)}{row}.{name}")
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))
        found.append(buffer.getvalue()[:10240])
    return found


def _webdataset(path: Path) -> None:
    from counterpoise.data.decode import decoded_images
    from counterpoise.data.sources import resolve
    from counterpoise.data.tars import TarRows

    rows = TarRows(resolve(path), str(path))
    sizes, places = rows.index()
    rows.labels()
    for size, place in zip(sizes.tolist(), places.tolist(), strict=True):
        for chunk in rows.chunks(place, np.arange(size), most=100):
            list(decoded_images(chunk, channels=3, size=8))


def _tar_index(folder: Path) -> Sequence[bytes]:
    from counterpoise.data import index_shards

    (folder / "train.tar").write_bytes(_tar(folder)[0])
    index_shards(folder / "train.tar")
    return [(folder / "train.tar.index").read_bytes()]


def _indexed(path: Path) -> None:
    _webdataset(path.with_suffix(""))


def _image(path: Path) -> None:
    from counterpoise.data.chunks import Chunk
    from counterpoise.data.decode import decoded_images

    chunk = Chunk([path.read_bytes()], np.array([0]), np.array([0]), [path.name])
    list(decoded_images(chunk, channels=3, size=8))


def _table_of_paths(path: Path) -> None:
    from counterpoise.data.tables import read_table

    _ = read_table(str(path)).classes


def _images_in_parquet(path: Path) -> None:
    from counterpoise.data import load_images

    load_images(path, "all", size=8)


READERS: dict[str, Reader] = {
    "parquet": Reader("p.parquet", seeds.parquet, _predictions),
    "parquet-verified": Reader("p.parquet", _beside_its_digest, _verified),
    "digest": Reader("p.parquet.sha256", _digest_beside, _digest),
    "csv": Reader("p.csv", seeds.csv, _predictions),
    "csv-gz": Reader("p.csv.gz", seeds.csv_gz, _predictions),
    "json-lines": Reader("p.jsonl", seeds.json_lines, _predictions),
    "json": Reader("p.json", seeds.json_documents, _predictions),
    "npz": Reader("p.npz", seeds.npz, _predictions),
    "npy": Reader("probabilities.npy", seeds.npy, _with_labels),
    "safetensors": Reader("p.safetensors", seeds.safetensors, _predictions),
    "torch": Reader("p.pt", seeds.tensors, _predictions),
    "arrow": Reader("p.arrow", seeds.arrow, _predictions),
    "shards": Reader("manifest.json", _shards, _shard_manifest),
    "checkpoints": Reader("manifest.json", _checkpoints, _checkpoint_manifest),
    "checkpoint": Reader("step-4.ckpt", seeds.checkpoint, _state),
    "webdataset": Reader("train.tar", _tar, _webdataset),
    "webdataset-index": Reader("train.tar.index", _tar_index, _indexed),
    "image": Reader("i.png", seeds.images, _image),
    "image-table": Reader("photos.csv", seeds.image_table, _table_of_paths),
    "image-parquet": Reader("photos.parquet", seeds.image_parquet, _images_in_parquet),
    **{
        name: Reader(file, _with_unsealed(made) if name in documents.SEALED else made, read if whole else _text(read))
        for name, (file, made, read, whole) in documents.DOCUMENTS.items()
    },
}
"""By name. Files of predictions raise `PredictionFileError`, which is a `ValueError`, as all others do."""
