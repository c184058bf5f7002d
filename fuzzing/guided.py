"""The same readers under Atheris, which looks for inputs that reach new lines: `python -m fuzzing.guided READER`.

Atheris is no dependency; it is installed by hand, `pip install atheris`. It knows lines of Python alone, so it is worth
its time for what is parsed here: footers, tars, manifests, documents. Options of libFuzzer may follow, such as
`-max_total_time=3600`. A finding ends it; `python -m fuzzing` with other seeds finds most of them sooner.
"""

import sys
import tempfile
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["counterpoise", "counterpoise_study"]):
    from fuzzing.children import MOST_MEMORY, corpus_of, read
    from fuzzing.readers import READERS


def main() -> None:
    """Fuzz one reader from its seeds and what was found before."""
    name, *options = sys.argv[1:]
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as seeds:
        for number, data in enumerate([*READERS[name].seeds(Path(folder)), *corpus_of(name)]):
            (Path(seeds) / str(number)).write_bytes(data)

        def one(data: bytes) -> None:
            finding = read(name, Path(folder), data)
            if finding is not None:
                raise RuntimeError(f"{finding.what} at {finding.where}: kept as {finding.keep()}")

        # One process: there is nothing after the first finding, and libFuzzer bounds memory and time itself.
        bounds = [f"-rss_limit_mb={4 * (MOST_MEMORY >> 20)}", "-timeout=10"]
        atheris.Setup([sys.argv[0], *bounds, *options, seeds], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
