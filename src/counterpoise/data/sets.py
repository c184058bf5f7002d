"""The image classification sets that are known by name, as one literal table.

A part of a set, or a resized copy, is a set of its own with a name and a note of its own, so that it is never taken for
the whole.
"""

# ruff: noqa: SIM905 - a hundred names are easier to read as words than as a hundred lines

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

Channels = tuple[float, ...]

IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ImageSet:
    """What is known of a set before a file is opened.

    Attributes:
        name: in the table, and of its folder under the data root.
        title: as reports show it.
        image: column of the encoded images.
        label: column of the class indices; -1 or nothing stands for a sample without a label.
        classes: names in the order of the indices; empty where the files name them.
        size: pixels a side; None where the images differ.
        channels: 3, or 1 for grey.
        mean: of each channel, of the training images scaled to [0, 1]; of a set of domains, of all of them.
        std: of each channel, likewise.
        flip: whether a mirrored image is still of its class.
        hub: id on the Hugging Face hub; None where the set is not there.
        hub_config: which configuration of it.
        hub_splits: the hub's names of splits, where they are not "train" and "test".
        domains: values of the column `domain`; such a set has one split, and trains on all domains but one.
        images: how many there are in each split, or in each domain; empty where a cost cannot be counted beforehand.
        class_count: how many classes the files name; None where `classes` has them.
        note: what a reader of a result must know.
    """

    name: str
    title: str
    image: str
    label: str
    classes: tuple[str, ...]
    size: int | None
    channels: int = 3
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD
    flip: bool = True
    hub: str | None = None
    hub_config: str | None = None
    hub_splits: Mapping[str, str] = field(default_factory=dict)
    domains: tuple[str, ...] = ()
    images: Mapping[str, int] = field(default_factory=dict)
    class_count: int | None = None
    note: str = ""


_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_PACS = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
_DIGITS = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
_CIFAR100 = tuple(
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can "
    "castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin "
    "elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard "
    "lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear "
    "pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark "
    "shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone "
    "television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm".split()
)
_DTD = tuple(
    "banded blotchy braided bubbly bumpy chequered cobwebbed cracked crosshatched crystalline dotted fibrous "
    "flecked freckled frilly gauzy grid grooved honeycombed interlaced knitted lacelike lined marbled matted "
    "meshed paisley perforated pitted pleated polka-dotted porous potholed scaly smeared spiralled sprinkled "
    "stained stratified striped studded swirly veined waffled woven wrinkled zigzagged".split()
)

_CIFAR100_SET = ImageSet(
    name="cifar100",
    title="CIFAR-100",
    image="img",
    label="fine_label",
    classes=_CIFAR100,
    size=32,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    hub="uoft-cs/cifar100",
    hub_config="cifar100",
    images={"train": 50_000, "test": 10_000},
)
_SVHN_SET = ImageSet(
    name="svhn",
    title="SVHN",
    image="image",
    label="label",
    classes=_DIGITS,
    size=32,
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
    flip=False,
    hub="ufldl-stanford/svhn",
    hub_config="cropped_digits",
    images={"train": 73_257, "test": 26_032},
)
_DTD_SET = ImageSet(
    name="dtd",
    title="DTD",
    image="image",
    label="label",
    classes=_DTD,
    size=None,
    hub="tanganke/dtd",
    note="normalised with ImageNet's mean and standard deviation",
)
_PACS_SET = ImageSet(
    name="pacs",
    title="PACS",
    image="image",
    label="label",
    classes=_PACS,
    size=227,
    # Measured on the copy of 64 pixels, over all four domains.
    mean=(0.7636, 0.7440, 0.7153),
    std=(0.2941, 0.3038, 0.3334),
    hub="flwrlabs/pacs",
    domains=("art_painting", "cartoon", "photo", "sketch"),
    images={"art_painting": 2_048, "cartoon": 2_344, "photo": 1_670, "sketch": 3_929},
)

_ALL = (
    ImageSet(
        name="cifar10",
        title="CIFAR-10",
        image="img",
        label="label",
        classes=_CIFAR10,
        size=32,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        hub="uoft-cs/cifar10",
        hub_config="plain_text",
        images={"train": 50_000, "test": 10_000},
    ),
    _CIFAR100_SET,
    replace(
        _CIFAR100_SET,
        name="cifar100_partial",
        title="CIFAR-100 (part)",
        hub=None,
        images={"train": 1_117, "test": 916},
        note="a part of CIFAR-100: its first 1,117 training and 916 test images",
    ),
    ImageSet(
        name="tiny-imagenet",
        title="Tiny-ImageNet",
        image="image",
        label="label",
        classes=(),
        size=64,
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        hub="zh-plus/tiny-imagenet",
        hub_splits={"test": "valid"},
        images={"train": 100_000, "test": 10_000},
        class_count=200,
        note="the test split is the published validation set; the labels of the test set are not public",
    ),
    _SVHN_SET,
    replace(
        _SVHN_SET,
        name="svhn_partial",
        title="SVHN (part)",
        hub=None,
        images={"train": 949, "test": 949},
        note="a part of SVHN: its first 949 training and 949 test images, without labels",
    ),
    _DTD_SET,
    replace(
        _DTD_SET,
        name="dtd_32",
        title="DTD (32 px)",
        size=32,
        hub=None,
        images={"train": 0, "test": 5_430},
        note=f"DTD resized and centre-cropped to 32 pixels; {_DTD_SET.note}",
    ),
    _PACS_SET,
    replace(_PACS_SET, name="pacs_64", title="PACS (64 px)", size=64, hub=None, note="PACS resized to 64 pixels"),
    ImageSet(
        name="digits",
        title="Digits",
        image="images",
        label="target",
        classes=_DIGITS,
        size=8,
        channels=1,
        mean=(0.3049,),
        std=(0.3755,),
        flip=False,
        note="scikit-learn's handwritten digits",
    ),
)

MISSPELT: Mapping[str, str] = {"cra": "crab"}
"""Names of classes as the hub's files have them, and as they are."""

SETS: dict[str, ImageSet] = {each.name: each for each in _ALL}
"""The sets that have names."""
