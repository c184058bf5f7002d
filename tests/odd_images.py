"""Folders and tables of images as people have them, each with what must come of it."""

import csv
import io
import shutil
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def picture(mode="RGB", size=(9, 7), suffix="png", seed=0, **options):
    """An encoded image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, {"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix), **options)
    return file.getvalue()


def photos(folder, counts, **options):
    """Class folders of so many images each."""
    for label, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            (folder / name / f"{index}.png").write_bytes(picture(seed=1000 * label + index, **options))
    return folder


def pets(folder, count=10):
    return photos(folder, {"cat": count, "dog": count})


def table(path, rows, header=("path", "label"), **options):
    with path.open("w", newline="", encoding=options.pop("encoding", "utf-8")) as file:
        csv.writer(file, **options).writerows([header, *rows])
    return path


def rows_of(folder, split=None):
    """Paths below a folder with the names of their folders."""
    found = sorted(folder.rglob("*.png"))
    return [(str(path.relative_to(folder)), path.parent.name, *([split] if split else [])) for path in found]


# Each makes a folder or a table and returns its path.
ODD = {}


def odd(expected):
    def named(make):
        ODD[make.__name__] = (make, expected)
        return make

    return named


@odd(r"^pets: 20 images, 2 classes of 10$")
def plain(place):
    return pets(place)


@odd("ValueError: .*has one class, 'cat'; at least 2 are needed: put the images of each class into a folder")
def one_class(place):
    return photos(place, {"cat": 9})


@odd(r"ValueError: .*has one class, 'images'; at least 2 are needed; if cat, dog are the classes, give .*pets/images$")
def classes_one_folder_deeper(place):
    return pets(place / "images").parent


@odd(r"ValueError: .*has one class, 'images'; at least 2 are needed; if labels.csv tells them, give .*pets/labels.csv$")
def a_folder_of_images_and_a_table(place):
    photos(place, {"images": 9})
    table(place / "labels.csv", [("0.png", "cat"), ("1.png", "dog")])
    return place


@odd(r"ValueError: .*there is no file .*pets/0.png .* write them as images/0.png, or move the table there$")
def a_table_beside_the_folder_of_its_images(place):
    photos(place, {"images": 9})
    return table(place / "labels.csv", [(f"{index}.png", "cat" if index % 2 else "dog") for index in range(9)])


@odd(r"ValueError: .*pets.zip is neither a table of paths .* unpack an archive, and give the folder$")
def an_archive(place):
    return Path(shutil.make_archive(str(place), "zip", pets(place)))


@odd(r"(?s)^pets: 22 images, 2 classes of 11$.*1 image .* left out: .*photo.HEIC.*it is in HEIC, as phones write it")
def what_phones_and_browsers_save(place):
    pets(place)
    for path in place.glob("*/0.png"):
        path.with_name("saved.jfif").write_bytes(picture(suffix="jpg"))
    (place / "cat" / "photo.HEIC").write_bytes(b"\x00\x00\x00\x18ftypheic" + bytes(40))
    return place


@odd("warning: there are no training images of 'bird'")
def an_empty_class(place):
    (place / "bird").mkdir(parents=True)
    return pets(place)


@odd(r"warning: 1 image cannot be read and is left out: .*dog/broken.jpg.*its format is not known")
def a_corrupt_file(place):
    pets(place)
    (place / "dog" / "broken.jpg").write_bytes(b"\xff\xd8 no more")
    return place


@odd(r"warning: 1 image cannot be read and is left out: .*dog/cut.jpg.*truncated")
def a_truncated_jpeg(place):
    pets(place)
    (place / "dog" / "cut.jpg").write_bytes(picture(size=(64, 64), suffix="jpg")[:-900])
    return place


@odd(r"warning: 1 image cannot be read and is left out: .*cat/nothing.png.*it is empty")
def a_file_of_no_bytes(place):
    pets(place)
    (place / "cat" / "nothing.png").write_bytes(b"")
    return place


@odd(r"ValueError: .*has no such rows; the first that cannot be read: .*cat/0.png")
def nothing_but_damage(place):
    for path in pets(place).rglob("*.png"):
        path.write_bytes(b"damage")
    return place


@odd(r"^pets: 20 images, 2 classes of 10$")
def cmyk(place):
    for path in pets(place).glob("dog/*.png"):
        path.with_suffix(".jpg").write_bytes(picture("CMYK", suffix="jpg"))
        path.unlink()
    return place


@odd(r"^pets: 20 images, 2 classes of 10$")
def sixteen_bits(place):
    for path in pets(place).glob("dog/*.png"):
        Image.fromarray(np.arange(63, dtype=np.uint16).reshape(7, 9) * 1000).save(path)
    return place


@odd(r"^pets: 20 images, 2 classes of 10$")
def grey_and_alpha(place):
    for mode, path in zip(["LA", "L", "RGBA", "1"] * 5, sorted(pets(place).rglob("*.png")), strict=True):
        path.write_bytes(picture(mode))
    return place


@odd(r"^pets: 22 images, 2 classes of 11$")
def palettes_and_animations(place):
    pets(place)
    frames = [Image.fromarray(np.full((7, 9), shade, np.uint8)) for shade in (0, 99, 200)]
    frames[0].save(place / "cat" / "moving.gif", save_all=True, append_images=frames[1:])
    (place / "dog" / "palette.png").write_bytes(picture("P", transparency=bytes(range(256))))
    return place


@odd(r"sizes: 7 x 9 to 9 x 7, median 9 x 7; all become 8 x 8")
def rotated_by_exif(place):
    pets(place)
    exif = Image.Exif()
    exif[0x0112] = 6
    (place / "cat" / "turned.jpg").write_bytes(picture(suffix="jpg", exif=exif))
    return place


@odd(r"warning: 1 image cannot be read and is left out: .*dog/bomb.png.*decompression bomb")
def a_decompression_bomb(place):
    pets(place)
    head = picture()
    size = (30_000).to_bytes(4, "big")
    header = b"IHDR" + size + size + head[24:29]
    (place / "dog" / "bomb.png").write_bytes(head[:12] + header + zlib.crc32(header).to_bytes(4, "big") + head[33:])
    return place


@odd(r"(?s)^pets: 20 images, 2 classes of 10$.*1 image lies beside the class folders.* left out: .*new.png")
def other_files_among_them(place):
    shutil.copy(pets(place) / "cat" / "0.png", place / "new.png")
    for name in ("Thumbs.db", ".DS_Store", "notes.txt", "._0.png"):
        (place / "cat" / name).write_bytes(b"no image")
        (place / name).write_bytes(b"no image")
    (place / ".cache").mkdir()
    (place / ".cache" / "0.png").write_bytes(picture())
    return place


@odd(r"^pets: 30 images, 2 classes of 15$")
def nested_folders_with_the_same_names(place):
    for name in ("cat", "dog"):
        photos(place / name, {"indoors": 5, "outdoors/day": 5, "outdoors/night": 5})
    return place


@odd(r"^pets: 25 images, 2 classes of 10 \(dog\) to 15 \(cat\)$")
def symbolic_links(place):
    pets(place.parent / "elsewhere")
    photos(place.parent, {"more": 5})
    (place.parent / "elsewhere" / "cat" / "more").symlink_to(place.parent / "more")
    place.mkdir()
    (place / "cat").symlink_to(place.parent / "elsewhere" / "cat")
    (place / "dog").mkdir()
    for path in (place.parent / "elsewhere" / "dog").iterdir():
        (place / "dog" / path.name).symlink_to(path)
    (place / "dog" / "again").symlink_to(place / "dog")  # which leads back, and adds nothing
    return place


@odd(r"warning: 1 image cannot be read and is left out: .*gone.png.*No such file or directory")
def a_link_that_leads_nowhere(place):
    pets(place)
    (place / "cat" / "gone.png").symlink_to(place / "nowhere.png")
    return place


@odd(r"2 classes of 10 \(été en Provence\) to 11 \(猫 🐈\)")
def names_in_any_script(place):
    return photos(place, {"猫 🐈": 11, "été en Provence": 10})


@odd(r"^pets: 20 images, 2 classes of 10$")
def endings_in_capitals(place):
    for path in pets(place).rglob("*.png"):
        path.rename(path.with_suffix(".PNG"))
    return place


@odd(r"^warning: 745 classes without validation images: ('\d+', ){5}and 740 more$")
def a_thousand_classes_of_two(place):
    data = picture(size=(2, 2), suffix="bmp")
    for name in range(1000):
        (place / f"{name:03}").mkdir(parents=True)
        for index in range(2):
            (place / f"{name:03}" / f"{index}.bmp").write_bytes(data)
    return place


@odd("ValueError: each of 12 classes has one image, so that none can be held out; give more images")
def one_image_of_each_class(place):
    return photos(place, {f"class {number}": 1 for number in range(12)})


@odd(r"ValueError: a batch of 4 is more than the 2 training images; choose a smaller batch \(--batch 1\)")
def hardly_any_images(place):
    return pets(place, 2)


@odd(r"sizes: all 1 x 1; all become 8 x 8")
def single_pixels(place):
    return photos(place, {"cat": 8, "dog": 8}, size=(1, 1))


@odd(r"sizes: 900 x 2 to 2 x 999, median 900 x 2; all become 8 x 8")
def very_long_ones(place):
    photos(place, {"cat": 8}, size=(900, 2))
    return photos(place, {"dog": 4}, size=(2, 999))


@odd("ValueError: .*pets holds neither Parquet files nor tar shards nor class folders of images$")
def no_images_at_all(place):
    place.mkdir()
    return place


@odd("ValueError: .*but 5 images: put those of each class into a folder with its name")
def no_class_folders(place):
    return photos(place.parent, {place.name: 5}) / place.name


@odd(r"split: 14 for training, 3 for validation, 3 for testing, each class in proportion")
def a_training_split_alone(place):
    return pets(place / "train").parent


@odd(r"split: 17 for training, 3 for validation, 6 for testing, each class in proportion")
def training_and_test(place):
    pets(place / "Train")
    return pets(place / "TEST", 3).parent


@odd(r"split: 20 for training, 4 for validation, 6 for testing, as they are stored")
def all_three_splits(place):
    pets(place / "train")
    pets(place / "val", 2)
    return pets(place / "test", 3).parent


@odd("ValueError: .*valid and .*val are both validation images; rename or join them")
def two_validation_splits(place):
    for name in ("train", "val", "valid"):
        pets(place / name, 5)
    return place


@odd("warning: there are no training images of 'fox'")
def a_test_split_with_another_class(place):
    pets(place / "train")
    return photos(place / "test", {"cat": 2, "fox": 2}).parent


@odd(r"warning: 1 image cannot be read and is left out: .*test/cat/broken.png")
def damage_in_the_test_split(place):
    pets(place / "train")
    pets(place / "test", 3)
    (place / "test" / "cat" / "broken.png").write_bytes(b"damage")
    return place


@odd(r"^pets: 20 images, 2 classes of 10$")
def a_table(place):
    return table(pets(place) / "pets.csv", rows_of(place))


@odd(r"split: 16 for training, 2 for validation, 2 for testing, as they are stored")
def a_table_with_splits(place):
    rows = [(*row, ["train"] * 8 + ["Val", "test"]) for row in rows_of(pets(place))]
    rows = [(path, label, splits[number % 10]) for number, (path, label, splits) in enumerate(rows)]
    return table(place / "pets.tsv", rows, ("filename", "Class", "split"), delimiter="\t")


@odd(
    r"ValueError: .*pets.csv, row 20: there is no file .*gone.png \(2 of 22 are missing\); paths are absolute, or start"
)
def a_table_of_missing_files(place):
    return table(pets(place) / "pets.csv", [*rows_of(place), ("gone.png", "cat"), ("lost.png", "dog")])


@odd(r"ValueError: .*pets: row 20 has no label \(1 of 21 have none\); train on labelled images only")
def a_table_with_empty_labels(place):
    return table(pets(place) / "pets.csv", [*rows_of(place), ("cat/0.png", " ")])


@odd(r"2 classes of 10$")
def a_table_of_integers(place):
    rows = [(path, ["cat", "dog"].index(label)) for path, label in rows_of(pets(place))]
    pq.write_table(pa.table({"image": [row[0] for row in rows], "y": [row[1] for row in rows]}), place / "pets.parquet")
    return place / "pets.parquet"


@odd(r"^pets: 20 images, 2 classes of 10$")
def a_table_of_absolute_paths(place):
    return table(place.parent / "pets.csv", [(str(pets(place) / path), label) for path, label in rows_of(pets(place))])


@odd(r"^pets: 20 images, 2 classes of 10$")
def a_table_that_a_spreadsheet_wrote(place):
    rows = [(path.replace("/", "\\"), label) for path, label in rows_of(pets(place))]
    return table(place / "pets.csv", rows, delimiter=";", encoding="utf-8-sig")


@odd(r"2 classes of 10$")
def a_table_whose_numbers_begin_with_zeros(place):
    rows = [(path, {"cat": "007", "dog": "7"}[label]) for path, label in rows_of(pets(place))]
    return table(place / "pets.csv", rows)


@odd(
    "AmbiguousTableError: .*'label' and 'category' may each hold the labels; name the table as '.*pets.csv.label=label'"
)
def a_table_with_two_columns_of_labels(place):
    rows = [(*row, "pet") for row in rows_of(pets(place))]
    return table(place / "pets.csv", rows, ("path", "label", "category"))


@odd("AmbiguousTableError: .*no column is called path, file, .*its columns are 'a', 'b'")
def a_table_of_unknown_columns(place):
    return table(pets(place) / "pets.csv", rows_of(place), ("a", "b"))


@odd(r"ValueError: .*pets.csv, row 1 has 3 values for 2 columns")
def a_table_with_a_comma_too_many(place):
    pets(place)
    (place / "pets.csv").write_text("path,label\ncat/0.png,cat\ncat/1.png,cat,\n")
    return place / "pets.csv"


@odd(r"ValueError: .*pets.csv is no UTF-8 text: byte 12 is 0xe9")
def a_table_in_another_encoding(place):
    return table(pets(place) / "pets.csv", [("é.png", "cat")], encoding="latin-1")


@odd(r"ValueError: .*pets.csv is empty; its first line names the columns")
def an_empty_table(place):
    place.mkdir()
    (place / "pets.csv").touch()
    return place / "pets.csv"


@odd(r"ValueError: .*pets.csv, row 0: the split is 'maybe'; there are train, validation and test")
def a_table_of_unknown_splits(place):
    return table(pets(place) / "pets.csv", rows_of(place, "maybe"), ("path", "label", "split"))
