"""The predictions for one file of images, batch by batch, in whatever process makes them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from counterpoise._files import FilePath
from counterpoise.data.chunks import Chunk, class_places, regrouped
from counterpoise.data.decode import Survey, UnreadableImageError, surveyed_chunk
from counterpoise.data.images import check_labels
from counterpoise.predictions import MISSING_LABEL, Header, PredictionFile, Predictions, Reading
from counterpoise.predictions.columns import Layout
from counterpoise.predictions.digest import Source
from counterpoise.predictions.shards import Form
from counterpoise.recipes.config import Unreadable
from counterpoise.training.findings import left_out
from counterpoise.training.image_shards import ImageShard
from counterpoise.training.predictors import ModelSource, Predictor, loaded
from counterpoise.training.progress import say

SKIPPING = "remove it, or leave out what cannot be read: --unreadable skip"


@dataclass(frozen=True)
class Job:
    """How files are predicted, in any process.

    Attributes:
        model: that predicts.
        device: where it computes.
        size: that images are resized to.
        batch: images at a time.
        ood: out of distribution; labels are left out.
        header: where the predictions come from.
        members: of an ensemble, or None.
        unreadable: what is done with images that cannot be decoded.
    """

    model: ModelSource
    device: str
    size: int | None
    batch: int
    ood: bool
    header: Header
    members: int | None
    unreadable: Unreadable

    @property
    def classes(self) -> tuple[str, ...]:
        return self.header.class_names or ()


@dataclass(frozen=True, eq=False)
class PredictedShard:
    """The predictions for one file of images, made as they are read."""

    job: Job
    images: ImageShard
    groups: range | None = None

    @property
    def path(self) -> FilePath:
        return self.images.path

    def tables(self) -> Iterator[Predictions]:
        job, images = self.job, self.images
        predictor, survey = loaded(job.model, job.device), Survey(skip=job.unreadable == "skip")
        with images.opened(job.batch) as rows:
            # Files that name no classes have labels by the model's.
            known = job.classes if job.ood else rows.classes or job.classes
            places = class_places(known, job.classes, where=str(images.path))
            for chunk in regrouped(rows.chunks, job.batch):
                labels = np.full_like(chunk.labels, MISSING_LABEL) if job.ood else chunk.labels
                ids = torch.from_numpy(chunk.ids)
                check_labels(torch.from_numpy(labels), ids, classes=len(places) - 1, where=chunk.files)
                pixels, chunk = self._decoded(chunk, predictor, survey)
                labels = labels[np.isin(ids.numpy(), chunk.ids)]
                if not len(labels):
                    continue
                yield Predictions.of(
                    logits=predictor(pixels),
                    labels=places[labels],
                    ids=[rows.names[row] for row in chunk.ids] if rows.names else chunk.ids,
                    data_set=images.source.info.name,
                    split=images.called or images.split,
                    in_distribution=not job.ood,
                    header=job.header,
                )
        if survey.unreadable and not survey.sizes:
            raise ValueError(f"{images.path}: none of its images can be read; the first: {survey.unreadable[0]}")
        for line in left_out(survey):
            say(line)

    def opened(self, _reading: Reading, *, first: Form | None = None) -> PredictionFile:
        job = self.job
        width = len(job.classes) * (job.members or 1)
        own = Layout("logits", ("logits",), width, job.members, label=("label",), id="id", class_names=job.classes)
        return PredictionFile(
            layout=own,
            rows=self.images.rows if job.unreadable == "refuse" else None,
            group_rows=(),
            header=job.header,
            source=Source(self.path, digest=None, size=self.images.size, identity=()),
            notices=(),
            read=lambda _: self.tables(),
            models=list,
        )

    def divided(self, _reading: Reading, _wanted: int) -> Iterator[tuple["PredictedShard", int]]:
        """Never, because batches would not be the same."""
        yield self, 0

    def _decoded(self, chunk: Chunk, predictor: Predictor, survey: Survey) -> tuple[Tensor, Chunk]:
        """Pixels, uint8 `[n, C, H, W]`, and the rows that were not left out."""
        assert predictor.config.shape is not None
        channels, height, width = predictor.config.shape
        pixels = [np.empty((0, height, width, channels), np.uint8)]
        kept: list[int] = []
        for row in range(len(chunk.ids)):
            one = chunk.part(slice(row, row + 1))
            where = f"(row {int(one.ids[0]) - self.images.first} of this file)"
            try:
                image, readable, _ = surveyed_chunk(
                    one, channels=channels, size=self.job.size, shape=None, survey=survey
                )
            except UnreadableImageError as error:
                raise ValueError(f"{error} {where}; {SKIPPING}") from None
            except ValueError as error:
                raise ValueError(f"{error} {where}") from None
            if not len(readable.ids):
                continue
            if image.shape[1:3] != (height, width):
                remedy = (
                    f"resize and crop all with --size {width}" if width == height else "resize all to that beforehand"
                )
                raise ValueError(
                    f"{one.files[0]}: the image has {image.shape[2]} x {image.shape[1]} pixels, the model takes "
                    f"{width} x {height}; {remedy} {where}"
                )
            pixels.append(image)
            kept.append(row)
        return torch.from_numpy(np.concatenate(pixels)).permute(0, 3, 1, 2), chunk.part(np.array(kept, int))
