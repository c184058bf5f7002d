"""As much of the Hugging Face Hub as its own client needs to upload a folder and to download it again."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from huggingface_hub import HfApi

COMMIT = "a" * 40


class FakeHub:
    """What was sent: requests to make repositories, cards to validate, and files by name."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.cards: list[str] = []
        self.files: dict[str, bytes] = {}


@contextmanager
def fake_hub() -> Iterator[tuple[FakeHub, HfApi]]:
    """The server on this machine, and the real client with its address."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/api/repos/create":
                hub.created.append(json.loads(content))
                self.reply({"url": f"http://{self.headers['Host']}/me/net"})
            elif self.path == "/api/validate-yaml":
                hub.cards.append(json.loads(content)["content"])
                self.reply({"errors": [], "warnings": []})
            elif "/preupload/" in self.path:
                names = [file["path"] for file in json.loads(content)["files"]]
                modes = {"uploadMode": "regular", "shouldIgnore": False}
                self.reply({"files": [{"path": name} | modes for name in names]})
            elif "/commit/" in self.path:
                for entry in map(json.loads, content.splitlines()):
                    if entry["key"] == "file":
                        hub.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                address = f"http://{self.headers['Host']}/me/net/commit/{COMMIT}"
                self.reply({"commitUrl": address, "commitOid": COMMIT, "success": True})
            else:
                self.reply({}, status=404)

        def do_GET(self) -> None:
            if "/revision/" in self.path:
                self.reply({"id": "me/net", "sha": COMMIT, "siblings": [{"rfilename": name} for name in hub.files]})
            elif "/tree/" in self.path:
                self.reply(
                    [
                        {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha256(data).hexdigest()}
                        for name, data in hub.files.items()
                    ]
                )
            elif (name := self.path.rpartition(f"/{COMMIT}/")[2]) in hub.files:
                digest = hashlib.sha256(hub.files[name]).hexdigest()
                self.reply(hub.files[name], headers={"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT})
            else:
                self.reply({}, status=404)

        def do_HEAD(self) -> None:
            self.do_GET()

        def reply(self, content: Any, *, headers: dict[str, str] | None = None, status: int = 200) -> None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in ((headers or {}) | {"Content-Length": str(len(data))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hub, HfApi(endpoint=f"http://127.0.0.1:{server.server_port}", token=False)
        finally:
            server.shutdown()
            thread.join()
