"""What can go wrong with files in a store: the right scores, or one clear error that names the file; never others."""

import json
import os
import re
import socket
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from benchmarks.object_store import object_store
from counterpoise import _addresses
from counterpoise._addresses import as_path
from counterpoise._engines import Processes
from counterpoise.predictions import Predictions, digest, open_predictions, write_manifest, write_predictions
from counterpoise.predictions.shards import MANIFEST
from counterpoise.scoring import score_files

ROWS, PARTS = 200, 3


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    (root / "bucket").mkdir()
    with object_store(root) as server:
        yield server


@pytest.fixture
def folder(store, tmp_path):
    """A set of shards with its manifest, as a local path."""
    path = store.root / "bucket" / tmp_path.name
    path.mkdir()
    for part in range(PARTS):
        write_predictions(path / f"part-{part}.parquet", table(part))
    write_manifest(path)
    return path


def table(part, *, rows=ROWS, classes=4, seed=None):
    rng = np.random.default_rng(part if seed is None else seed)
    logits = (2 * rng.normal(size=(rows, classes))).astype(np.float32)
    return Predictions.of(logits=logits, labels=rng.integers(classes, size=rows), ids=np.arange(rows) + part * rows)


def estimates(location, **options):
    (model,) = score_files([location], **options).models
    return {key: (each.value, each.low, each.high) for key, each in model.estimates.items()}


def address_of(folder):
    return f"s3://bucket/{folder.name}"


def edit(path, change):
    data = bytearray(path.read_bytes())
    path.write_bytes(change(data))


def flipped(place):
    def change(data):
        data[place] ^= 1
        return data

    return change


def manifest(folder, change):
    document = json.loads((folder / MANIFEST).read_text())
    document = change(document) or document
    document.pop("sha256", None)  # of those who edit on purpose
    (folder / MANIFEST).write_text(json.dumps(document))


def swapped(folder):
    """Two shards that have taken each other's names."""
    first, second = folder / "part-0.parquet", folder / "part-1.parquet"
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)


def without_manifest(change):
    def changed(folder):
        (folder / MANIFEST).unlink()
        change(folder)

    return changed


PART = "part-1.parquet"
FAULTS = {
    "a byte of the values is flipped": (lambda f: edit(f / PART, flipped(400)), rf"{PART}: it is not the file"),
    "a byte of the footer is flipped": (lambda f: edit(f / PART, flipped(-60)), rf"{PART}: it is not the file"),
    "the object is cut off": (lambda f: edit(f / PART, lambda data: data[:-100]), rf"{PART}: it has .* bytes"),
    "the object is empty": (lambda f: (f / PART).write_bytes(b""), rf"{PART}: it has 0 bytes"),
    "the object is longer": (lambda f: edit(f / PART, lambda data: data + b"x"), rf"{PART}: it has .* bytes"),
    "the object is missing": (lambda f: (f / PART).unlink(), rf"names {PART}, which is missing"),
    "the object is of another set": (
        lambda f: write_predictions(f / PART, table(1, seed=9)),
        rf"{PART}: (it is not the file|it has .* bytes)",
    ),
    "two objects are swapped": (swapped, r"part-0.parquet: it (is not the file|has .* bytes)"),
    "the manifest is of another set": (
        lambda f: manifest(f, lambda d: [s.update(sha256="0" * 64) for s in d["shards"]] and None),
        r"part-0.parquet: it is not the file that the manifest names",
    ),
    "the manifest is half written": (
        lambda f: (f / MANIFEST).write_text((f / MANIFEST).read_text()[:80]),
        rf"{MANIFEST}: not a manifest",
    ),
    "the manifest is empty": (lambda f: (f / MANIFEST).write_text(""), rf"{MANIFEST}: not a manifest"),
    "the manifest is not JSON": (lambda f: (f / MANIFEST).write_bytes(b"\xff\x00"), rf"{MANIFEST}: not a manifest"),
    "the manifest is of a later version": (
        lambda f: manifest(f, lambda d: d.update(schema_version=99)),
        r"version 99",
    ),
    "the manifest names a file twice": (
        lambda f: manifest(f, lambda d: d["shards"].append(d["shards"][0])),
        r"names a file twice",
    ),
    "the manifest names a file elsewhere": (
        lambda f: manifest(f, lambda d: d["shards"][0].update(name="../x.parquet")),
        r"not a file beside it",
    ),
    "the manifest names other sizes": (
        lambda f: manifest(f, lambda d: d["shards"][1].update(bytes=7)),
        rf"{PART}: it has .* bytes, the manifest says 7",
    ),
    "the manifest names other rows": (
        lambda f: manifest(f, lambda d: d["shards"][1].update(rows=7)),
        rf"{PART}: it has 200 rows, the manifest says 7",
    ),
    "the manifest names no file": (lambda f: manifest(f, lambda d: d.update(shards=[])), r"names no file"),
    "a shard is not in the manifest": (lambda f: write_predictions(f / "part-9.parquet", table(9)), None),
    "no manifest, cut off": (
        without_manifest(lambda f: edit(f / PART, lambda data: data[:-100])),
        rf"{PART}: its bytes do not agree",
    ),
    "no manifest, no digest, cut off": (
        without_manifest(lambda f: (f / f"{PART}.sha256").unlink() or edit(f / PART, lambda data: data[:-100])),
        rf"{PART}: it does not end as a Parquet file does",
    ),
    "no manifest, no digest, a byte of the values is flipped": (
        without_manifest(lambda f: (f / f"{PART}.sha256").unlink() or edit(f / PART, flipped(400))),
        rf"{PART}: .*(CRC|checksum)",
    ),
    "no manifest, the digest is damaged": (
        without_manifest(lambda f: (f / f"{PART}.sha256").write_text("?")),
        rf"{PART}: .*holds no SHA-256 digest",
    ),
    "no manifest, a shard of other classes": (
        without_manifest(lambda f: write_predictions(f / PART, table(1, classes=5))),
        rf"{PART}: it holds logits for 5 classes",
    ),
    "no manifest, the same samples twice": (
        without_manifest(lambda f: write_predictions(f / PART, table(0, seed=4))),
        rf"part-0.parquet row 0 and .*{PART} row 0 have the same id",
    ),
    "no manifest, another kind of file": (
        without_manifest(lambda f: (f / PART).write_bytes(b"PK\x03\x04" + bytes(100))),
        rf"{PART}: ",
    ),
    "the folder is gone": (lambda f: f.rename(f.with_name("gone")), r"there is no such file"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damage_in_a_store(folder, fault):
    expected = estimates(folder)
    damage, message = FAULTS[fault]
    damage(folder)
    if message is None:
        assert estimates(address_of(folder)) == expected
        return
    with pytest.raises((ValueError, OSError)) as caught:
        estimates(address_of(folder))
    assert re.search(message, str(caught.value)), caught.value
    assert "s3://bucket/" in str(caught.value)


def test_a_shard_that_disappears_while_others_are_read(folder):
    class Gone:
        def __call__(self, *_):
            (folder / "part-2.parquet").unlink(missing_ok=True)

    with pytest.raises(FileNotFoundError, match=r"s3://.*part-2.parquet: there is no such file"):
        score_files([address_of(folder)], progress=Gone())


def test_a_file_that_is_replaced_while_it_is_read(folder, monkeypatch):
    monkeypatch.setattr(digest, "FETCHED_WHOLE", 10)

    def replace(*_):
        write_predictions(folder / "part-1.parquet", table(1, rows=2 * ROWS, seed=5))

    (folder / MANIFEST).unlink()
    listed = [f"{address_of(folder)}/part-{part}.parquet" for part in range(PARTS)]
    expected = estimates(listed)
    with pytest.raises(ValueError, match=r"same id|changed or replaced"):
        score_files([listed], progress=replace)
    for part in range(PARTS):
        write_predictions(folder / f"part-{part}.parquet", table(part))
    assert estimates(listed) == expected


def test_an_object_that_another_takes_the_place_of_while_it_is_read(store, folder, monkeypatch):
    monkeypatch.setattr(digest, "FETCHED_WHOLE", 10)
    path = folder / "single.npz"
    labels = np.arange(300_000) % 2
    for name, predicted in (("other.npz", 1 - labels), (path.name, labels)):
        np.savez(folder / name, probabilities=np.eye(2)[predicted], labels=labels)
    batches = open_predictions(f"{address_of(folder)}/{path.name}").batches()
    next(batches)
    path.write_bytes((folder / "other.npz").read_bytes())
    later = path.stat().st_mtime_ns + 2_000_000_000  # the server tells whole seconds, and no ETag
    os.utime(path, ns=(later, later))
    time.sleep(0.1)  # what the server says of a folder may be 5 ms old
    with pytest.raises(ValueError, match=r"s3://.*single.npz: it was changed or replaced after it was opened"):
        list(batches)


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_a_wrong_credential(folder, monkeypatch, name):
    monkeypatch.setenv(name, "a-wrong-one")
    with pytest.raises(PermissionError, match=r"s3://bucket/.*refused access.*AWS_ACCESS_KEY_ID") as caught:
        score_files([address_of(folder)])
    assert "a-wrong-one" not in str(caught.value)


def test_a_server_that_is_gone(folder, monkeypatch):
    monkeypatch.setattr(_addresses, "PAUSES", ())
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        where = f"s3://bucket/x?scheme=http&endpoint_override=127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=r"s3://bucket/x: the store could not be reached in 1 attempts"):
            as_path(where).read_bytes()


@pytest.mark.parametrize(("patience", "attempts"), [(60.0, 2), (0.0, 1)])
def test_a_silent_server_is_given_up_within_a_minute(monkeypatch, patience, attempts):
    """Each attempt is one request: clients have retries of their own, which multiply with ours."""
    assert sum(_addresses.PAUSES) + (len(_addresses.PAUSES) + 1) * _addresses.SILENCE <= _addresses.PATIENCE == 60
    monkeypatch.setattr(_addresses, "PAUSES", (0.1,))
    monkeypatch.setattr(_addresses, "SILENCE", 1.0)
    monkeypatch.setattr(_addresses, "PATIENCE", patience)
    connections, said = [], rf"s3://bucket/p.csv: .* could not be reached in {attempts} attempts"
    with silent(connections) as port, pytest.raises(ConnectionError, match=said):
        score_files([f"s3://bucket/p.csv?scheme=http&endpoint_override=127.0.0.1:{port}"])
    assert len(connections) == attempts


@contextmanager
def silent(connections):
    """A server that takes connections and never says a word."""

    def serve(listener):
        with suppress(OSError):
            while True:
                connections.append(listener.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
    for each in connections:
        each.close()


def test_a_server_that_is_killed_and_started_again(store, folder):
    expected, begun = estimates(folder), threading.Event()

    def interrupt():
        begun.wait()
        store.kill()
        time.sleep(1)
        store.start()

    thread = threading.Thread(target=interrupt)
    thread.start()
    found = estimates(address_of(folder), progress=lambda *_: begun.set())
    thread.join()
    assert found == expected


@contextmanager
def cutting(port, *, after, cuts):
    """A proxy that closes its first connections after some bytes of what the server says."""
    left, sockets = [cuts], []

    def pump(source, sink, most):
        sent = 0
        try:
            while data := source.recv(1 << 16):
                if most is not None and sent + len(data) > most:
                    sink.sendall(data[: most - sent])
                    break
                sink.sendall(data)
                sent += len(data)
        except OSError:
            pass
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def serve(listener):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", port))
            sockets.extend((client, server))
            most = after if left[0] > 0 else None
            left[0] -= 1
            for source, sink, limit in ((client, server, None), (server, client, most)):
                threading.Thread(target=pump, args=(source, sink, limit), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1], left
    for each in sockets:
        each.close()


@pytest.mark.parametrize(
    ("after", "cuts", "whole"),
    [(900, 1, True), (2000, 1, True), (2500, 4, True), (2500, 4, False), (5000, 4, True)],
)
def test_connections_that_are_cut(store, folder, monkeypatch, after, cuts, whole):
    """Also where the client takes half an answer for an empty one."""
    if not whole:
        monkeypatch.setattr(digest, "FETCHED_WHOLE", 10)
    expected = estimates(folder)
    with cutting(store.port, after=after, cuts=cuts) as (port, left):
        where = f"{address_of(folder)}?scheme=http&endpoint_override=127.0.0.1:{port}"
        assert estimates(where) == expected
    assert left[0] < 0


def test_workers_that_are_killed(folder):
    expected, killed = estimates(folder), []
    engine = Processes(2)

    def kill(*_):
        if len(killed) < 1:
            children = [int(name) for name in _children(os.getpid())]
            workers = [child for child in children if "spawn_main" in _command(child)]
            killed.extend(workers[:1])
            for pid in workers[:1]:
                os.kill(pid, 9)

    try:
        assert estimates(address_of(folder), engine=engine, progress=kill) == expected
        assert killed
        assert estimates(address_of(folder), engine=engine) == expected
    finally:
        engine.close()


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123
        return file.read().split()


def _command(pid):
    with open(f"/proc/{pid}/cmdline") as file:  # noqa: PTH123
        return file.read()
