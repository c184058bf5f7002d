"""Small valid files, written by our writers or as other programs write them."""

import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from counterpoise.predictions import Header, Predictions, write_predictions

CLASSES = ("cat", "dog", "owl")


def table(rows: int, *, members: int | None = None, text_ids: bool = True) -> Predictions:
    """Predictions with every column."""
    generator = np.random.default_rng(rows)
    shape = (rows, len(CLASSES)) if members is None else (rows, members, len(CLASSES))
    return Predictions.of(
        logits=generator.standard_normal(shape).astype(np.float32),
        labels=generator.integers(-1, len(CLASSES), rows),
        ids=[f"image-{row}" for row in range(rows)] if text_ids else list(range(rows)),
        split="test",
        corruption=["fog" if row % 2 else None for row in range(rows)],
        severity=[row % 2 for row in range(rows)],
        in_distribution=[row % 3 > 0 for row in range(rows)],
        header=Header(class_names=CLASSES, model="cnn", method="ce", seed=1, versions={"torch": "2"}),
    )


def probabilities(rows: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """Of three classes."""
    values: np.ndarray[tuple[int, int], np.dtype[np.float64]] = np.random.default_rng(rows).dirichlet([1, 1, 1], rows)
    return values


def parquet(folder: Path) -> Sequence[bytes]:
    """Own files, with members and without, and one of another program."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = []
    for own in (table(6), table(4, members=2, text_ids=False)):
        write_predictions(folder / "seed.parquet", own)
        found.append((folder / "seed.parquet").read_bytes())
    columns = {"label": [0, 1, 2], **{f"p{k}": [0.2, 0.3, 0.5] for k in range(3)}, "who": ["a", "b", "a"]}
    pq.write_table(pa.table(columns), folder / "seed.parquet", row_group_size=2)
    found.append((folder / "seed.parquet").read_bytes())
    for path in folder.glob("seed.parquet*"):
        path.unlink()
    return found


def csv(_: Path) -> Sequence[bytes]:
    """With commas, with semicolons and decimal commas, in UTF-16, with quotes, percentages, lists, names of rows."""
    rows = probabilities(4).round(4).tolist()
    plain = "id,label,probability_cat,probability_dog,probability_owl\n" + "".join(
        f"{n},{CLASSES[n % 3]},{','.join(map(str, row))}\n" for n, row in enumerate(rows)
    )
    foreign = plain.replace(",", ";").replace(".", ",")
    quoted = 'label,"probability_cat","probability_dog",who\ncat,0.25,0.75,"a, ""b"""\ndog,0.5,0.5,"x\ny"\n'
    correct = "confidence,correct,severity\n0.9,1,0\n0.4,0,1\n"
    percentages = "label;prob_cat;prob_dog\ncat;22,5 %;77,5 %\ndog;1e1%;90%\n"
    lists = 'label,probs\n0,"[0.25, 0.75]"\n1,[.5 5e-1]\n1,"tensor([np.float64(0.5), 0.5], device=\'cpu\')"\n'
    rownames = 'sep=;\n"cat";"dog";"label"\n"1";0.25;0.75;"cat"\n"2";1;0;"dog"\n'
    texts = (plain, foreign, quoted, correct, percentages, lists, rownames)
    return [*(text.encode() for text in texts), plain.encode("utf-16")]


def csv_gz(folder: Path) -> Sequence[bytes]:
    """The first of them, compressed."""
    return [gzip.compress(text, mtime=0) for text in csv(folder)[:2]]


def json_lines(_: Path) -> Sequence[bytes]:
    """Lists of logits, columns, and objects."""
    lists = [{"id": n, "label": n % 3, "logits": row} for n, row in enumerate(probabilities(3).tolist())]
    columns = [
        {"label": "cat", "probability_cat": 0.25, "probability_dog": 0.75},
        {"label": "dog", "probability_cat": 0.5, "probability_dog": 0.5},
    ]
    objects = [{"label": "cat", "probs": {"cat": 0.25, "dog": 0.75}}, {"label": "dog", "probs": {"cat": 1, "dog": 0}}]
    return ["".join(f"{json.dumps(row)}\n" for row in rows).encode() for rows in (lists, columns, objects)]


def json_documents(_: Path) -> Sequence[bytes]:
    """Samples, with scores by class and in objects, by id and inside; columns, as lists, by row and as a table."""
    rows = probabilities(3).round(4).tolist()
    scores = [[{"label": name, "score": value} for name, value in zip(CLASSES, row, strict=True)] for row in rows]
    samples = [{"probs": row, "label": number, "prediction": 0} for number, row in enumerate(rows)]
    documents = (
        [{"label": "cat", "prob": row} for row in scores],
        [
            {"label": CLASSES[number], "probs": {"cat": row[0], "dog": 1 - row[0]}}
            for number, row in enumerate(rows[:2])
        ],
        {"probs": rows, "label": [0, 1, None], "class_names": CLASSES},
        {f"p{place}": {str(row): values[place] for row, values in enumerate(rows)} for place in range(3)},
        {"results": samples, "epoch": 3},
        {f"image {number}": sample for number, sample in enumerate(samples)},
        {"columns": ["confidence", "prediction", "target"], "data": [[row[0], round(row[0]), 1] for row in rows]},
    )
    return [json.dumps(document).encode() for document in documents]


def npz(_: Path) -> Sequence[bytes]:
    """Stored and deflated."""
    arrays = {"probabilities": probabilities(4), "labels": np.arange(4) % 3, "class_names": np.array(CLASSES)}
    found = []
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, **arrays)  # type: ignore[arg-type]
        found.append(buffer.getvalue())
    return found


def npy(folder: Path) -> Sequence[bytes]:
    """In both orders, and with the labels beside it, which a single array asks for."""
    np.save(folder / "labels.npy", np.arange(4) % 3)
    found = []
    for values in (probabilities(4), np.asfortranarray(probabilities(4)), probabilities(4).astype(">f4")):
        buffer = io.BytesIO()
        np.save(buffer, values)
        found.append(buffer.getvalue())
    return found


def safetensors(_: Path) -> Sequence[bytes]:
    """Logits and labels."""
    import torch
    from safetensors.torch import save

    logits, labels = torch.from_numpy(probabilities(4)).log(), torch.arange(4) % 3
    return [save({"logits": logits, "labels": labels}), save({"logits": logits.bfloat16(), "labels": labels})]


def tensors(_: Path) -> Sequence[bytes]:
    """A dictionary, and batches of one."""
    import torch

    logits, labels = torch.from_numpy(probabilities(4)).log(), torch.arange(4) % 3
    named: dict[str, object] = {"logits": logits, "labels": labels.tolist(), "class_names": list(CLASSES)}
    found = []
    batches = [{"logits": logits[rows], "labels": labels[rows]} for rows in (slice(2), slice(2, 4))]
    for held in (named, batches):
        buffer = io.BytesIO()
        torch.save(held, buffer)
        found.append(buffer.getvalue())
    return found


def arrow(_: Path) -> Sequence[bytes]:
    """A file of record batches."""
    import pyarrow as pa

    values = pa.table({"label": [0, 1], "p0": [0.25, 0.5], "p1": [0.75, 0.5]})
    found = []
    for codec in (None, "zstd"):
        buffer = io.BytesIO()
        with pa.ipc.new_file(buffer, values.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as file:
            file.write_table(values)
        found.append(buffer.getvalue())
    return found


def checkpoint(_: Path) -> Sequence[bytes]:
    """As torch saves one."""
    import torch

    buffer = io.BytesIO()
    torch.save({"state_dict": {"w": torch.arange(6.0)}, "epoch": 1, "loops": {"a": [1, "x", None]}}, buffer)
    return [buffer.getvalue()]


def png() -> bytes:
    """Eight by eight pixels."""
    return _encoded("PNG")


def images(_: Path) -> Sequence[bytes]:
    """One of each common format."""
    return [_encoded(name) for name in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")]


def _encoded(name: str) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(buffer, name)
    return buffer.getvalue()


def image_table(folder: Path) -> Sequence[bytes]:
    """Paths and labels."""
    (folder / "a.png").write_bytes(png())
    return [b"path,label,split\na.png,cat,train\na.png,dog,test\n", b"file;class\na.png;1\na.png;2\n"]


def image_parquet(_: Path) -> Sequence[bytes]:
    """As the library `datasets` writes images."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    names = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    rows = pa.table({"image": [{"bytes": png(), "path": "a.png"}] * 3, "label": [0, 1, 0]})
    pq.write_table(rows.replace_schema_metadata({"huggingface": json.dumps(names)}), buffer)
    return [buffer.getvalue()]
