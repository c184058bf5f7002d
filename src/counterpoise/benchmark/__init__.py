"""Every table and figure of the paper, by one command: studies, the grid of their runs, the store, the report."""

from counterpoise._extras import require

require("lightning", extra="train", purpose="the benchmark")

from counterpoise.benchmark.grid import Shard, run_sequentially  # noqa: E402
from counterpoise.benchmark.store import Store  # noqa: E402
from counterpoise.benchmark.studies import STUDIES, request_of  # noqa: E402

__all__ = ["STUDIES", "Shard", "Store", "request_of", "run_sequentially"]
