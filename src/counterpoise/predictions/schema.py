"""The columns of an own Parquet file, and the header in its metadata that states them."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

import pyarrow as pa

from counterpoise._json import parsed
from counterpoise.predictions.table import (
    CATEGORIES,
    KINDS,
    VALUE_DTYPES,
    Header,
    Kind,
    PredictionFileError,
    Predictions,
)

SCHEMA = "counterpoise.predictions"
SCHEMA_VERSION = 1
METADATA_KEY = b"counterpoise"
OPTIONAL = (*CATEGORIES, "severity", "in_distribution")


@dataclass(frozen=True)
class Shape:
    """What fixes the type of every column, so that a file can be held to it.

    Attributes:
        kind: logits or probabilities.
        classes: K.
        members: M, or None without a member axis.
        dtype: precision of the values.
        text_ids: whether ids are text rather than integers.
        columns: which of the optional columns there are.
    """

    kind: Kind
    classes: int
    members: int | None
    dtype: str
    text_ids: bool
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        sizes: tuple[Any, ...] = (self.classes,) if self.members is None else (self.classes, self.members)
        if self.kind not in KINDS or self.dtype not in VALUE_DTYPES:
            raise ValueError(f"unknown kind or precision: {self.kind!r}, {self.dtype!r}")
        if not set(OPTIONAL).issuperset(self.columns):
            raise ValueError(f"unknown columns among {self.columns!r}")
        if not all(type(size) is int and size > 0 for size in sizes):
            raise ValueError(f"{self.classes!r} classes and {self.members!r} members")

    @classmethod
    def of(cls, predictions: Predictions) -> "Shape":
        if predictions.kind not in KINDS:
            raise ValueError(f"own files hold {' or '.join(KINDS)}, not the kind {predictions.kind!r}; write a CSV")
        if predictions.groups:
            raise ValueError(f"own files hold no column {next(iter(predictions.groups))!r}; write a CSV")
        return cls(
            kind=predictions.kind,
            classes=predictions.classes,
            members=predictions.members,
            dtype=predictions.values.dtype.name,
            text_ids=predictions.ids.dtype.kind != "i",
            columns=tuple(name for name in OPTIONAL if getattr(predictions, name) is not None),
        )

    @property
    def width(self) -> int:
        return self.classes * (self.members or 1)

    def schema(self) -> pa.Schema:
        """The columns that the file must have, no more and no less."""
        types = {"severity": pa.int64(), "in_distribution": pa.bool_()}
        value = pa.from_numpy_dtype(self.dtype)
        return pa.schema(
            [
                pa.field("id", pa.string() if self.text_ids else pa.int64(), nullable=False),
                pa.field("label", pa.int64()),
                pa.field(self.kind, pa.list_(pa.field("element", value, nullable=False), self.width), nullable=False),
                *(
                    pa.field(name, pa.dictionary(pa.int32(), pa.string()))
                    if name in CATEGORIES
                    else pa.field(name, types[name], nullable=False)
                    for name in self.columns
                ),
            ]
        )


def header_json(shape: Shape, header: Header) -> bytes:
    """Shape and header as they are stored in the metadata."""
    provenance = {
        "class_names": header.class_names,
        "model": header.model,
        "method": header.method,
        "seed": header.seed,
        "config_digest": header.config_digest,
        "versions": dict(header.versions),
    }
    document = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **asdict(shape), "header": provenance}
    return json.dumps(document, allow_nan=False).encode()


def parse_header(metadata: bytes) -> tuple[Shape, Header]:
    """Shape and header from the metadata, every field of its type and none unknown."""
    document: Any = parsed(metadata)
    if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
        raise PredictionFileError(f"its metadata are not of the schema {SCHEMA!r}")
    version = document.pop("schema_version", None)
    if version != SCHEMA_VERSION or type(version) is not int:
        raise PredictionFileError(
            f"it has schema version {version!r:.80}, this release reads {SCHEMA_VERSION}; "
            "install the release that wrote it"
        )
    try:
        provenance = document.pop("header")
        if missing := {field.name for field in fields(Header)}.difference(provenance):
            raise ValueError(f"{', '.join(sorted(missing))} missing")
        header = Header(**provenance)
        columns, text_ids = document.pop("columns"), document.pop("text_ids")
        if not isinstance(columns, list) or not isinstance(text_ids, bool):
            raise ValueError(f"columns {columns!r:.80} and text_ids {text_ids!r:.80}")
        shape = Shape(**document, columns=tuple(columns), text_ids=text_ids)
    except (KeyError, TypeError, ValueError) as error:
        raise PredictionFileError(f"its header is malformed: {error}") from None
    if header.class_names is not None and len(header.class_names) != shape.classes:
        raise PredictionFileError(f"its header names {len(header.class_names)} classes, and states {shape.classes}")
    return shape, header
