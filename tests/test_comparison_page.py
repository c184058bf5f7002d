"""docs/comparison.md speaks of the versions that were measured."""

from pathlib import Path

from tools import documentation
from tools.comparison_tables import shown

PAGE = Path(__file__).parent.parent / "docs" / "comparison.md"


def test_the_page_states_the_measured_versions():
    result = documentation.result("comparison")
    introduction = " ".join(PAGE.read_text().split("## ")[0].split())
    versions = result["figures"]["libraries"] | {"counterpoise": result["versions"]["counterpoise"]}
    for name, number in versions.items():
        assert f"{shown(name)} {number}" in introduction
