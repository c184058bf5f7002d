"""Commands and clusters that are watched: processor time, peak memory, and workers that are killed."""

import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.object_store import ObjectStore
from benchmarks.processes import descendants

_PAUSE, _CHANCE = 0.05, 0.05
"""Seconds between two looks at a run, and the chance that one kills a worker."""

_TICKS = os.sysconf("SC_CLK_TCK")

_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@dataclass
class Run:
    """What a command printed, and what it took."""

    printed: bytes = b""
    seconds: float = 0.0
    processor: dict[str, float] = field(default_factory=dict)
    megabytes: dict[str, float] = field(default_factory=dict)
    sent: int = 0
    killed: int = 0

    def figures(self, size: int) -> dict[str, Any]:
        """For the JSON."""
        return {
            "seconds": round(self.seconds, 1),
            "processor seconds": {name: round(value, 1) for name, value in self.processor.items()},
            "megabytes": {name: round(value) for name, value in self.megabytes.items()},
            "bytes sent over size": round(self.sent / size, 4),
            "killed": self.killed,
        }


@contextmanager
def ray_cluster(workers: int, store: ObjectStore) -> Iterator[tuple[str, int]]:
    """A Ray cluster of so many cores, in a session of its own; its address and its first process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    head = subprocess.Popen(
        [
            str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}",
            f"--num-cpus={workers}", "--include-dashboard=false", "--disable-usage-stats",
            "--object-store-memory=400000000", "--node-ip-address=127.0.0.1",
        ],
        env=os.environ | store.environment | _RAY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        time.sleep(3)
        yield f"127.0.0.1:{port}", head.pid
    finally:
        ours = [head.pid, *descendants(head.pid)]
        for pid in ours:
            _kill(pid, signal.SIGTERM)
        time.sleep(2)
        for pid in ours:
            _kill(pid, signal.SIGKILL)
        head.wait()


def watched(
    command: Sequence[str],
    store: ObjectStore,
    *,
    head: int | None = None,
    address: str | None = None,
    kills: int = 0,
) -> Run:
    """A command, watched: processor time and peak memory of it and of the workers of a cluster."""
    found, sent, started = Run(), store.bytes_sent(), time.monotonic()
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | _RAY
    environment |= {} if address is None else {"RAY_ADDRESS": address}
    before = _workers(head)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
        watch = _Watch(process.pid, head, before, kills)
        while process.poll() is None:
            watch.look()
            time.sleep(_PAUSE)
        watch.look()
        output.seek(0)
        errors.seek(0)
        found.printed = output.read()
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {errors.read().decode()[-2000:]}")
    found.seconds = time.monotonic() - started
    found.processor, found.megabytes, found.killed = watch.processor(), watch.megabytes(), watch.killed
    found.sent = store.bytes_sent() - sent
    return found


class _Watch:
    """The processes of a run, looked at now and then: the kernel keeps what they used."""

    def __init__(self, driver: int, head: int | None, before: dict[int, float], kills: int) -> None:
        self._driver, self._head, self._before = driver, head, before
        self._seconds: dict[int, float] = {}
        self._peak: dict[int, float] = {}
        self._is_worker: dict[int, bool] = {}
        self.kills, self._to_kill, self.killed = kills, kills, 0
        self._random = random.Random(0)  # noqa: S311

    def look(self) -> None:
        for pid in (
            self._driver,
            *descendants(self._driver),
            *([] if self._head is None else descendants(self._head)),
        ):
            seconds, peak = _used(pid)
            if seconds:
                self._seconds[pid], self._peak[pid] = seconds, max(peak, self._peak.get(pid, 0))
                self._is_worker[pid] = self._is_worker.get(pid, False) or _title(pid).startswith("ray::")
        busy = [pid for pid in self._is_worker if _title(pid).startswith("ray::score_remotely")]
        # One at the first chance; several are spread over the run.
        if self._to_kill and busy and (self.kills == 1 or self._random.random() < _CHANCE):
            _kill(self._random.choice(busy), signal.SIGKILL)
            self._to_kill -= 1
            self.killed += 1

    def processor(self) -> dict[str, float]:
        used = {pid: seconds - self._before.get(pid, 0.0) for pid, seconds in self._seconds.items()}
        workers = sum(used[pid] for pid, is_worker in self._is_worker.items() if is_worker)
        driver = used.get(self._driver, 0.0)
        return {"driver": driver, "workers": workers, "Ray's services": sum(used.values()) - workers - driver}

    def megabytes(self) -> dict[str, float]:
        workers = [self._peak[pid] for pid, is_worker in self._is_worker.items() if is_worker]
        return {"driver": self._peak.get(self._driver, 0.0), "worker": max(workers, default=0.0)}


def _workers(head: int | None) -> dict[int, float]:
    return {} if head is None else {pid: _used(pid)[0] for pid in descendants(head)}


def _used(pid: int) -> tuple[float, float]:
    """Seconds of processor time, and most megabytes that were resident."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0.0
    peak = next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)
    return (int(fields[11]) + int(fields[12])) / _TICKS, peak


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
