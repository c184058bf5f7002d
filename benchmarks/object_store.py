"""An S3 server on this machine: `rclone serve s3` of a folder, whose folders are buckets."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEY, SECRET = "counterpoise", "not-a-secret"


class ObjectStore:
    """A server that can be killed and started again.

    Args:
        root: folder whose folders are buckets.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self._served = 0

    @property
    def environment(self) -> dict[str, str]:
        """What clients find it by."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_EC2_METADATA_DISABLED": "true",
            # The server takes no checksums behind the body of a request, which newer clients send.
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        }

    def start(self) -> None:
        """Serve, and wait until it does."""
        self._process = subprocess.Popen(
            [
                shutil.which("rclone") or "rclone", "serve", "s3",
                f"--auth-key={KEY},{SECRET}", f"--addr=127.0.0.1:{self.port}",
                "--config=", "--etag-hash=", "--vfs-cache-mode=off", "--dir-cache-time=5ms",
                "--no-checksum", str(self.root),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self._process.poll() is not None:
                raise RuntimeError(f"rclone ended with {self._process.returncode}")
            time.sleep(0.05)
        raise RuntimeError("rclone did not begin to serve within 30 s")

    def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            self._served += self._sent()
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def bytes_sent(self) -> int:
        """What the server has written so far, headers included."""
        return self._served + self._sent()

    def _sent(self) -> int:
        if self._process is None:
            return 0
        lines = Path(f"/proc/{self._process.pid}/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["wchar"])


@contextmanager
def object_store(root: Path) -> Iterator[ObjectStore]:
    """A server of a folder, with the environment of this process set for clients."""
    store = ObjectStore(root)
    before = {name: os.environ.get(name) for name in store.environment}
    os.environ.update(store.environment)
    store.start()
    try:
        yield store
    finally:
        store.kill()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
