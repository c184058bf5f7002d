"""Does it hold against artefacts of an enemy? `python -m benchmarks.attacks [--short]`.

Malicious artefacts, each met by the real command or function in a process of its own: does code run, is anything
outside its folder touched or shown, is it refused or harmless within 2 s of processor time and 500 MB above the
imports? Damage: bit flips, truncations and splices of every format with a digest, and of those without: how many are
read with other values? And a soak: thousands of files are evaluated in one process, and 3,600 hours of a stream are fed
to a monitor in another; memory and open files must stay as they are.
"""

import argparse
import gc
import io
import json
import multiprocessing as mp
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks import attack_bombs, attack_code, attack_names, attack_paths
from benchmarks.attack_damage import damage
from benchmarks.attack_places import ATTACKS, CONTROLS, MOST_MEGABYTES, MOST_SECONDS, SECRET, Attack, HarmedError, Place
from benchmarks.attack_soak import soak
from benchmarks.reporting import Check, finish, progress

GIVEN_UP = 60.0
"""Seconds by the clock after which a process hangs, on a machine that others use too."""

PLAIN_SECONDS = 0.3
"""What `_plain_seconds` measures on the machine whose seconds the limit is in."""

IMPORTED = (
    *("counterpoise.cli.evaluate", "counterpoise.cli.check", "counterpoise.cli.train", "counterpoise.cli.predict"),
    *("counterpoise.cli.export", "counterpoise.cli.resume", "counterpoise.report.page", "counterpoise.training"),
    *("counterpoise.integrations.hub", "counterpoise.export.card", "counterpoise_study.cli", "onnxruntime", "onnx"),
    *("counterpoise_study.store", "counterpoise_study.keeping", "huggingface_hub", "timm", "torchvision", "tyro"),
)
_MODULES = (attack_bombs, attack_code, attack_names, attack_paths)
_FORK = mp.get_context("fork")


@dataclass(frozen=True)
class Outcome:
    """What came of an attack; `slower` is the machine against that of the limits, looked at where time was short."""

    name: str
    kind: str
    ended: str
    seconds: float
    megabytes: float
    slower: float
    executed: bool
    outside: bool
    shown: bool
    bounded: bool
    message: str

    @property
    def harmed(self) -> bool:
        """Neither refused with a message nor without any effect, or with one that it must not have."""
        return self.ended not in ("refused", "harmless") or self.executed or self.outside or self.shown

    @property
    def held(self) -> bool:
        """Without harm, in little time and memory."""
        return self.bounded and not self.harmed


def _plain_seconds() -> float:
    """Processor time of unpacking and parsing that is nobody's attack: how fast this machine is at the moment."""
    packed = zlib.compress(json.dumps([[0.5, 1, "a"]] * 400_000).encode())
    taken = []
    for _ in range(3):
        used = time.process_time()
        json.loads(zlib.decompress(packed))
        taken.append(time.process_time() - used)
    return min(taken)


def met(attack: Attack, *, bomb: int) -> Outcome:
    """Run one, up to three times while it only takes too much: for a moment the machine may be busy with others."""
    for _ in range(3):
        outcome = _met_once(attack, bomb=bomb)
        if outcome.bounded or outcome.harmed:
            break
    return outcome


def _met_once(attack: Attack, *, bomb: int) -> Outcome:
    """Run one in a process of its own, and look at what it left."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder).resolve(), bomb).made()
        answers, asked = _FORK.Pipe(duplex=False)
        child = _FORK.Process(target=_child, args=(attack, place, asked))
        child.start()
        asked.close()
        ended, seconds, megabytes, text = "hung", GIVEN_UP, 0.0, ""
        before: dict[str, tuple[int, bytes]] = {}
        try:
            if answers.poll(10 * GIVEN_UP):
                before = answers.recv()
            if answers.poll(GIVEN_UP):
                ended, seconds, megabytes, text = answers.recv()
        except EOFError:
            ended = "aborted"
        child.kill()
        child.join()
        lines = text.strip().splitlines()
        slower = max(1.0, _plain_seconds() / PLAIN_SECONDS) if seconds > MOST_SECONDS else 1.0
        return Outcome(
            name=attack.name,
            kind=attack.kind,
            ended=ended,
            seconds=round(seconds, 2),
            megabytes=round(megabytes),
            slower=round(slower, 2),
            executed=place.canary.exists(),
            outside=bool(before) and (place.seen_outside() != before or sum(1 for _ in place.root.iterdir()) > 2),
            shown=SECRET in text or any(control in text for control in CONTROLS) or _is_copied(place),
            # Odd names are read, and what follows takes the time of any report.
            bounded=(seconds <= MOST_SECONDS * slower or attack.kind == "names") and megabytes <= MOST_MEGABYTES,
            message=(lines[-1] if lines else "").replace(folder, "")[:160],
        )


def _is_copied(place: Place) -> bool:
    """Whether the private file is inside now, not as a link."""
    for path in place.folder.rglob("*"):
        same_size = path.is_file() and not path.is_symlink() and path.stat().st_size == len(SECRET)
        if same_size and path.read_bytes() == SECRET.encode():
            return True
    return False


def _child(attack: Attack, place: Place, asked: Connection) -> None:
    warnings.simplefilter("ignore")
    os.chdir(place.folder)
    action = attack.make(place)
    asked.send(place.seen_outside())
    text = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="surrogateescape", write_through=True)
    ended = "harmless"
    size, used = _peak(), time.process_time()
    with redirect_stdout(text), redirect_stderr(text):
        try:
            action()
        except SystemExit as end:
            ended = "refused" if end.code else "harmless"
        except HarmedError as harm:
            ended = "harmed"
            print(harm)
        except (ValueError, OSError) as error:
            ended = "refused" if str(error) else "crashed"
            print(str(error).encode(errors="replace").decode() if attack.kind != "names" else "refused")
        except BaseException:
            ended = "crashed"
            traceback.print_exc()
    seconds = time.process_time() - used
    sys.stdout.flush()
    written = text.buffer.getvalue().decode(errors="replace")
    asked.send((ended, seconds, _peak() - size, written))
    os._exit(0)  # libraries take a while to be torn down


def _peak() -> float:
    """Megabytes of this process at its largest."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Attacks, damage, soak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="smaller bombs, less damage, fewer files")
    parser.add_argument("--files", type=int, default=None, help="of the soak; by default 5,000, or 200 with --short")
    parser.add_argument("--hours", type=int, default=None, help="likewise; by default 3,600, or 200 with --short")
    parser.add_argument("--soak", action="store_true", help="the soak, and nothing else")
    parser.add_argument("--only", default="", help="attacks whose names hold this, and nothing else")
    options = parser.parse_args()
    torch.set_num_threads(1)
    files, hours = options.files or (200 if options.short else 5000), options.hours or (200 if options.short else 3600)
    command = f"python -m benchmarks.attacks{' --short' * options.short}{' --soak' * options.soak}"
    if options.soak:
        finish(command, *soak(files=files, hours=hours))
        return
    for name in IMPORTED:
        import_module(name)
    gc.freeze()  # a collection would copy the memory that processes share
    chosen = [each for each in ATTACKS if options.only in each.name]
    outcomes = []
    for number, each in enumerate(chosen, 1):
        outcome = met(each, bomb=1 << (28 if options.short else 30))
        outcomes.append(outcome)
        mark = "held" if outcome.held else "DID NOT HOLD"
        progress(f"{number} of {len(chosen)}: {outcome.name}: {outcome.ended}, {outcome.seconds} s, {mark}")
        if not outcome.held:
            progress(f"  {outcome}")
    figures = {
        "attacks": len(outcomes),
        "by kind": dict(Counter(outcome.kind for outcome in outcomes)),
        "ended": dict(Counter(outcome.ended for outcome in outcomes)),
        "most seconds": max(outcome.seconds for outcome in outcomes),
        "most megabytes": max(outcome.megabytes for outcome in outcomes),
        "each": [asdict(outcome) for outcome in outcomes],
    }
    checks = [
        Check("attacks whose code ran", sum(outcome.executed for outcome in outcomes), at_most=0),
        Check("attacks that touched what is outside", sum(outcome.outside for outcome in outcomes), at_most=0),
        Check("attacks that showed what they must not", sum(outcome.shown for outcome in outcomes), at_most=0),
        Check("attacks that held", sum(outcome.held for outcome in outcomes), at_least=len(outcomes)),
    ]
    if not options.only:
        damaged, damage_checks = damage(short=options.short)
        soaked, soak_checks = soak(files=files, hours=hours)
        figures |= {"damage": damaged, "soak": soaked}
        checks += [*damage_checks, *soak_checks, Check("attacks", len(outcomes), at_least=40)]
    finish(command, figures, checks)


if __name__ == "__main__":
    main()
