"""The study is a distribution of its own, released with the library."""

import tomllib
from pathlib import Path

import counterpoise
import counterpoise_study

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def test_both_have_one_version():
    assert counterpoise_study.__version__ == counterpoise.__version__
    assert PROJECT["dependencies"] == [f"counterpoise[train]=={counterpoise.__version__}"]


def test_the_licence_is_the_library_s():
    study = Path(__file__).parents[1]
    assert (study / "LICENSE").read_bytes() == (study.parent / "LICENSE").read_bytes()
