"""Cases in child processes, whose memory and time are bounded, so that an abort is a finding and not the end."""

import hashlib
import mmap
import multiprocessing as mp
import resource
import shutil
import signal
import struct
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from benchmarks.processes import processor_time
from fuzzing.mutations import mutated
from fuzzing.readers import READERS

CORPUS = Path(__file__).parent / "corpus"
MOST_SECONDS = 10.0
"""Of processor time that a small file may take to be read."""

_LONGEST_WAIT = 60.0
"""Seconds by the clock in which it must be read."""

MOST_MEMORY = 500 << 20
"""Bytes that it may take."""

_FORK = mp.get_context("fork")


@dataclass(frozen=True)
class Finding:
    """A case that is not read as documented: what happened, where, and the file."""

    reader: str
    what: str
    where: str
    data: bytes

    def keep(self) -> Path:
        """Put it into the corpus, which tests read again."""
        path = CORPUS / self.reader / f"{self.what.split(':')[0].lower()}-{hashlib.sha256(self.data).hexdigest()[:8]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        return path


@dataclass
class Outcome:
    """Of one reader."""

    cases: int
    findings: list[Finding]


def corpus_of(reader: str) -> list[bytes]:
    """What was found earlier."""
    return [path.read_bytes() for path in sorted((CORPUS / reader).glob("*"))]


def fuzzed(reader: str, *, seconds: float, seed: int) -> Outcome:
    """Damaged files for so long, in as many children as that takes; the corpus comes first."""
    found: dict[tuple[str, str], Finding] = {}
    cases, end, children = 0, time.monotonic() + seconds, 0
    while children == 0 or time.monotonic() < end:
        with tempfile.TemporaryDirectory() as name:
            # Of one child after another, so that what has ended the first does not end all.
            given = corpus_of(reader) if children == 0 else []
            done, findings = _watched(reader, Path(name), given, seconds=end - time.monotonic(), seed=seed + children)
        cases, children = cases + done, children + 1
        for finding in findings:
            found.setdefault((finding.what.split(":")[0], finding.where), finding)
    return Outcome(cases, list(found.values()))


def _watched(
    reader: str, folder: Path, given: Sequence[bytes], *, seconds: float, seed: int
) -> tuple[int, list[Finding]]:
    """One child, until its time is over or a case has ended it."""
    progress = mmap.mmap(-1, 8)
    answers, asked = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=_child, args=(reader, folder, given, seconds, seed, progress, asked))
    child.start()
    asked.close()
    seen, since, used, findings, ended = -1, time.monotonic(), 0.0, list[Finding](), False
    while not ended:
        try:
            if answers.poll(0.1):
                findings.append(answers.recv())
        except EOFError:
            ended = True
        done = struct.unpack("q", progress)[0]
        if done != seen:
            seen, since, used = done, time.monotonic(), processor_time(child.pid)
        waited, computed = time.monotonic() - since, processor_time(child.pid) - used
        # By the clock, a busy machine would be a finding. The first case imports what it needs.
        if (seen > 0 and (computed > MOST_SECONDS or waited > _LONGEST_WAIT)) or waited > 5 * _LONGEST_WAIT:
            child.kill()
            child.join()
            return seen, [*findings, Finding(reader, "Hang", "", (folder / READERS[reader].file).read_bytes())]
    child.join()
    if child.exitcode and child.exitcode < 0:
        what = f"Abort: {signal.Signals(-child.exitcode).name}"
        findings.append(Finding(reader, what, "", (folder / READERS[reader].file).read_bytes()))
    elif child.exitcode:
        raise RuntimeError(f"{reader}: the child failed, see above")
    return seen, findings


def _child(
    name: str,
    folder: Path,
    given: Sequence[bytes],
    seconds: float,
    seed: int,
    progress: mmap.mmap,
    asked: Connection,
) -> None:
    warnings.simplefilter("ignore")
    reader, random = READERS[name], Random(seed)  # noqa: S311
    seeds = list(reader.seeds(folder))
    bound_memory(2 * MOST_MEMORY)
    seen = set[tuple[str, str]]()
    end = time.monotonic() + seconds
    for count, data in enumerate(_cases(random, given, seeds), 1):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        finding = read(name, folder, data)
        if finding is None and (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 > MOST_MEMORY:
            finding = Finding(name, "Memory", "", data)
        if finding is not None and (finding.what.split(":")[0], finding.where) not in seen:
            seen.add((finding.what.split(":")[0], finding.where))
            asked.send(finding)
        struct.pack_into("q", progress, 0, count)
        if count >= len(given) + len(seeds) and time.monotonic() > end:
            return


def _cases(random: Random, given: Sequence[bytes], seeds: Sequence[bytes]) -> Iterator[bytes]:
    yield from seeds
    yield from given
    while True:
        yield mutated(random, seeds)


def read(name: str, folder: Path, data: bytes) -> Finding | None:
    """One case in this process."""
    reader = READERS[name]
    path = folder / reader.file
    if path.is_dir():
        shutil.rmtree(path)
    path.write_bytes(data)
    error = reader.fault_of(path)
    if error is None:
        return None
    return Finding(name, f"{type(error).__name__}: {error}", _place(traceback.extract_tb(error.__traceback__)), data)


def _place(frames: Iterable[traceback.FrameSummary]) -> str:
    ours = [frame for frame in frames if "counterpoise" in frame.filename or "fuzzing" in frame.filename]
    return f"{ours[-1].filename}:{ours[-1].lineno}" if ours else ""


def bound_memory(more: int) -> None:
    """So much more than there is now: addresses, because a process that only reserves memory fails early so."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
