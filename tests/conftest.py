import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("default")


@pytest.fixture(autouse=True, scope="session")
def _fixed_threads() -> None:
    """One thread against two changes float results; every run of the tests uses the same number."""
    torch.set_num_threads(int(os.environ.get("COUNTERPOISE_TEST_THREADS", "1")))
