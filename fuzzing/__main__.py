"""`python -m fuzzing [READER ...] [--seconds 60]`: exits with 1 where something was found."""

import argparse
import sys
import time

import torch

from fuzzing.children import fuzzed
from fuzzing.readers import READERS


def main() -> None:
    """One reader after the other; findings go to the corpus."""
    parser = argparse.ArgumentParser(prog="python -m fuzzing", description=__doc__)
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"by default all: {', '.join(READERS)}")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each reader; 3600 for a night")
    parser.add_argument("--seed", type=int, default=None, help="of the damage; by default another one every time")
    options = parser.parse_args()
    if unknown := sorted(set(options.readers) - set(READERS)):
        parser.error(f"there is no reader {', '.join(unknown)}; there are {', '.join(READERS)}")
    torch.set_num_threads(1)
    seed = time.time_ns() if options.seed is None else options.seed
    print(f"seed {seed}", file=sys.stderr)
    found = 0
    for name in options.readers or READERS:
        outcome = fuzzed(name, seconds=options.seconds, seed=seed)
        print(f"{name}: {outcome.cases:,} cases, {len(outcome.findings)} findings", flush=True)
        for finding in outcome.findings:
            print(f"  {finding.what:.200} at {finding.where}: kept as {finding.keep()}", flush=True)
        found += len(outcome.findings)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
