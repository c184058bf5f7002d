"""The images of a run as the engine asks for them."""

import lightning as L  # noqa: N812

from counterpoise.data.memory import MemoryLoader
from counterpoise.training.data import Loader, RunData


class RunDataModule(L.LightningDataModule):
    """Gives the engine each rank's share."""

    def __init__(self, data: RunData, *, evaluation_batch: int, seed: int) -> None:
        super().__init__()
        self.data = data
        self.evaluation_batch = evaluation_batch
        self.seed = seed

    def setup(self, stage: str) -> None:
        """Make the loader before checkpoints are loaded into it and into what watches it."""
        assert self.trainer is not None
        self.training = self.data.training(self.seed, self.trainer.global_rank, self.trainer.world_size)
        if not len(self.training):
            raise ValueError("an epoch has no step: the training images do not fill a batch")
        self.training.to(self.trainer.strategy.root_device)

    def train_dataloader(self) -> Loader:
        """Shuffled and augmented batches."""
        return self.training

    def val_dataloader(self) -> MemoryLoader:
        """The held-out images as they are; no rank sees one twice."""
        assert self.trainer is not None
        world = self.trainer.world_size
        return MemoryLoader(
            self.data.validation,
            # Ranks share a batch evenly; which images are in one changes no measure.
            batch=max(self.evaluation_batch // world, 1) * world,
            seed=self.seed,
            augmentation=None,
            shuffle=False,
            drop_last=False,
            rank=self.trainer.global_rank,
            world=world,
            device=self.trainer.strategy.root_device,
        )
