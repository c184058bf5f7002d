"""Artefacts that are small and claim, or become, far more than a machine has."""

import gzip
import io
import json
import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np

from benchmarks.attack_code import model_folder
from benchmarks.attack_paths import FLAT
from benchmarks.attack_places import Action, Place, attack, command
from counterpoise.predictions import write_predictions


def _header(shape: str) -> bytes:
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def _evaluated(path: Path, data: bytes) -> Action:
    path.write_bytes(data)
    return command("evaluate", path)


def _repeated(start: bytes, block: bytes, times: int, *, level: int = 1) -> bytes:
    """Compressed by gzip, without the memory of what it stands for."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=level) as file:
        file.write(start)
        for _ in range(times):
            file.write(block)
    return buffer.getvalue()


@attack("bombs")
def an_npz_unpacks_to_a_gigabyte(place: Place) -> Action:
    with (
        zipfile.ZipFile(place.folder / "p.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("logits.npy", "w", force_zip64=True) as member,
    ):
        member.write(_header(f"({place.bomb // 16}, 2)"))
        for _ in range(256):
            member.write(bytes(place.bomb // 256))
    return command("evaluate", place.folder / "p.npz")


@attack("bombs")
def an_npz_says_less_than_it_unpacks_to(place: Place) -> Action:
    an_npz_unpacks_to_a_gigabyte(place)
    path = place.folder / "p.npz"
    data = path.read_bytes()
    return _evaluated(path, data.replace((place.bomb + 128).to_bytes(4, "little"), (1 << 20).to_bytes(4, "little")))


@attack("bombs")
def the_members_of_an_npz_overlap(place: Place) -> Action:
    """One compressed block that a thousand entries of the directory name."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((100_000, 2)))
    with zipfile.ZipFile(place.folder / "p.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a0.npy", buffer.getvalue())
        first = archive.infolist()[0]
        for number in range(1, 1000):
            entry = zipfile.ZipInfo(f"a{number}.npy")
            for name in ("header_offset", "compress_size", "file_size", "CRC", "compress_type"):
                setattr(entry, name, getattr(first, name))
            archive.filelist.append(entry)
    return command("evaluate", place.folder / "p.npz")


@attack("bombs")
def the_shape_of_an_npy_is_enormous(place: Place) -> Action:
    return _evaluated(place.folder / "logits.npy", _header("(1000000000000, 10)") + bytes(800))


@attack("bombs")
def the_shape_of_an_npy_is_negative(place: Place) -> Action:
    return _evaluated(place.folder / "logits.npy", _header("(-1, -100)") + bytes(800))


@attack("bombs")
def a_csv_is_one_endless_line_in_gzip(place: Place) -> Action:
    return _evaluated(place.folder / "p.csv.gz", _repeated(b"label,p0,p1\n0,0.5,", b"5" * (1 << 22), place.bomb >> 22))


@attack("bombs")
def a_csv_is_a_gigabyte_of_rows_in_zstd(place: Place) -> Action:
    import pyarrow as pa

    with pa.CompressedOutputStream(str(place.folder / "p.csv.zst"), "zstd") as file:
        file.write(b"label,p0,p1\n")
        for _ in range(64):
            file.write(b"9,0.5,0.5\n" * (place.bomb // 640))
    return command("evaluate", place.folder / "p.csv.zst")


@attack("bombs")
def a_csv_is_a_gigabyte_of_zeros_in_xz(place: Place) -> Action:
    compressor = lzma.LZMACompressor(preset=0)
    data = compressor.compress(b"label,p0\n") + b"".join(
        compressor.compress(bytes(1 << 22)) for _ in range(place.bomb >> 22)
    )
    return _evaluated(place.folder / "p.csv.xz", data + compressor.flush())


@attack("bombs")
def json_lines_are_one_endless_line_in_gzip(place: Place) -> Action:
    return _evaluated(place.folder / "p.jsonl.gz", _repeated(b'{"a": [', b"1," * (1 << 21), place.bomb >> 22))


@attack("bombs")
def a_csv_has_a_million_columns(place: Place) -> Action:
    names = ",".join(f"p{number}" for number in range(1_000_000))
    return _evaluated(place.folder / "p.csv", f"label,{names}\n0,1\n".encode())


@attack("bombs")
def a_parquet_file_claims_two_to_the_forty_rows(place: Place) -> Action:
    path = place.folder / "p.parquet"
    write_predictions(path, FLAT)
    (place.folder / "p.parquet.sha256").unlink()
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    # The counts of rows are zigzag varints of 4, which follow the heads of their fields.
    claimed = footer.replace(b"\x16\x08", b"\x16\x80\x80\x80\x80\x80\x80\x01")
    return _evaluated(path, data[: -8 - length] + claimed + len(claimed).to_bytes(4, "little") + b"PAR1")


@attack("bombs")
def a_parquet_file_is_a_dictionary_of_one_value(place: Place) -> Action:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = place.bomb // 50
    column = pa.array(np.full(rows, 0.5))
    pq.write_table(pa.table({"label": pa.array(np.zeros(rows, int)), "p0": column, "p1": column}), "p.parquet")
    return command("evaluate", place.folder / "p.parquet")


@attack("bombs")
def the_header_of_safetensors_is_enormous(place: Place) -> Action:
    return _evaluated(place.folder / "p.safetensors", (1 << 60).to_bytes(8, "little") + b"{}")


@attack("bombs")
def the_header_of_safetensors_is_90_megabytes(place: Place) -> Action:
    header = b'{"__metadata__":{"a":"' + b"x" * 90_000_000 + b'"}}'
    return _evaluated(place.folder / "p.safetensors", len(header).to_bytes(8, "little") + header)


@attack("bombs")
def an_arrow_file_says_that_a_buffer_unpacks_to_terabytes(place: Place) -> Action:
    import pyarrow as pa

    buffer = io.BytesIO()
    table = pa.table({"label": [0, 1] * 500, "p0": [0.5] * 1000, "p1": [0.5] * 1000})
    with pa.ipc.new_file(buffer, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
        file.write_table(table)
    data = buffer.getvalue().replace((8000).to_bytes(8, "little"), (1 << 42).to_bytes(8, "little"))
    return _evaluated(place.folder / "p.arrow", data)


def _picture_bomb(width: int) -> bytes:
    """A PNG whose header claims a square of that width."""
    from fuzzing.seeds import png

    data = png()
    header = b"IHDR" + width.to_bytes(4, "big") * 2 + data[24:29]
    return data[:12] + header + zlib.crc32(header).to_bytes(4, "big") + data[33:]


def _class_folders(place: Place, name: str, data: bytes) -> Action:
    from counterpoise.data import load_images
    from fuzzing.seeds import png

    for each in ("cat", "dog"):
        (place.folder / each).mkdir()
        (place.folder / each / "0.png").write_bytes(png())
    (place.folder / "cat" / name).write_bytes(data)
    return lambda: load_images(place.folder, "all", size=8)


@attack("bombs")
def a_picture_claims_100_000_by_100_000_pixels(place: Place) -> Action:
    return _class_folders(place, "bomb.png", _picture_bomb(100_000))


@attack("bombs")
def a_picture_has_13_000_by_13_000_pixels_of_nothing(place: Place) -> Action:
    """Just below what Pillow refuses; cameras come to half of it."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("1", (13_000, 13_000)).save(buffer, "PNG")
    return _class_folders(place, "bomb.png", buffer.getvalue())


@attack("bombs")
def the_text_of_a_picture_unpacks_to_a_gigabyte(place: Place) -> Action:
    from fuzzing.seeds import png

    compressor = zlib.compressobj(1)
    text = (
        b"zTXtComment\0\0"
        + b"".join(compressor.compress(bytes(1 << 22)) for _ in range(place.bomb >> 22))
        + compressor.flush()
    )
    chunk = (len(text) - 4).to_bytes(4, "big") + text + zlib.crc32(text).to_bytes(4, "big")
    data = png()
    return _class_folders(place, "bomb.png", data[:33] + chunk + data[33:])


@attack("bombs")
def a_tar_member_claims_an_exabyte(place: Place) -> Action:
    from counterpoise.data import load_images

    member = tarfile.TarInfo("0.png")
    member.size = 1 << 60
    data = member.tobuf(tarfile.GNU_FORMAT) + bytes(1024)
    (place.folder / "train.tar").write_bytes(data)
    return lambda: load_images(place.folder / "train.tar", "all", size=8)


def _scores(place: Place, text: str) -> Action:
    from counterpoise.metrics import Scores

    (place.folder / "scores.json").write_text(text)
    return lambda: Scores.load(place.folder / "scores.json")


@attack("bombs")
def json_is_nested_a_million_deep(place: Place) -> Action:
    return _scores(place, "[" * 1_000_000)


@attack("bombs")
def json_is_nested_inside_a_schema(place: Place) -> Action:
    return _scores(
        place, '{"schema": "counterpoise.scores", "schema_version": 1, "a": ' + '{"a":' * 900 + "1" + "}" * 901
    )


@attack("bombs")
def json_holds_a_number_of_ten_million_digits(place: Place) -> Action:
    return _scores(place, '{"schema": ' + "9" * 10_000_000 + "}")


@attack("bombs")
def a_manifest_of_shards_is_nested_deep(place: Place) -> Action:
    (place.folder / "manifest.json").write_text('{"a":' * 100_000)
    return command("evaluate", place.folder)


@attack("bombs")
def rules_are_nested_deep(place: Place) -> Action:
    write_predictions(place.folder / "p.parquet", FLAT)
    (place.folder / "rules.toml").write_text("require = " + "[" * 100_000)
    return command("check", place.folder / "p.parquet", "--rules", place.folder / "rules.toml")


@attack("bombs")
def a_rule_makes_a_regular_expression_go_back(place: Place) -> Action:
    write_predictions(place.folder / "p.parquet", FLAT)
    (place.folder / "rules.toml").write_text(f"require = [{json.dumps('a' * 50_000 + ' ' * 50_000)}]")
    return command("check", place.folder / "p.parquet", "--rules", place.folder / "rules.toml")


@attack("bombs")
def a_shared_network_is_a_billion_wide(place: Place) -> Action:
    from safetensors.numpy import save_file

    from counterpoise.integrations.hub import from_pretrained

    model_folder(place, backbone={"width": 1_000_000_000})
    save_file({"w": np.zeros(2)}, place.folder / "model.safetensors")
    return lambda: from_pretrained(place.folder)


@attack("bombs")
def a_cell_of_a_manifest_nests_deep(place: Place) -> Action:
    from counterpoise_study.manifest import Manifest

    (place.folder / "manifest.jsonl").write_text("[" * 1_000_000 + "\n")
    return Manifest(place.folder / "manifest.jsonl").refresh


@attack("bombs")
def class_names_of_weights_nest_deep(place: Place) -> Action:
    from safetensors.numpy import save_file

    from benchmarks.attack_code import run_folder
    from counterpoise.training.networks import load_run

    metadata = {"class_names": "[" * 1_000_000, "mean": "[0]", "std": "[1]", "channels": "3", "size": "8"}
    save_file({"w": np.zeros(2)}, run_folder(place) / "primary.safetensors", metadata=metadata)
    return lambda: load_run(place.folder)
