"""The list of what an environment holds."""

import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from tools.sbom import document, locked_hashes

LOCK = Path(__file__).parents[1] / "requirements" / "ci.txt"


@pytest.mark.slow
def test_every_dependency_is_listed_once_with_version_and_hashes():
    hashes = locked_hashes(LOCK.read_text())
    found = document("counterpoise", hashes)
    assert found["bomFormat"] == "CycloneDX"
    components = {component["name"]: component for component in found["components"]}
    assert len(components) == len(found["components"]) > 50
    for name in ("torch", "safetensors", "ray", "onnx", "markupsafe"):  # direct, of extras, and of those
        assert components[name]["version"] == version(name)
        assert components[name]["purl"] == f"pkg:pypi/{name}@{version(name)}"
        digests = [each["hashes"][0]["content"] for each in components[name]["externalReferences"]]
        assert digests == hashes[name]
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
    assert "counterpoise" not in components
    assert found["metadata"]["component"]["name"] == "counterpoise"


@pytest.mark.slow
def test_all_references_are_of_components_and_the_bytes_are_always_the_same():
    found = document("counterpoise", {})
    references = {found["metadata"]["component"]["bom-ref"], *(each["bom-ref"] for each in found["components"])}
    assert {each["ref"] for each in found["dependencies"]} == references
    assert all(set(each["dependsOn"]) <= references for each in found["dependencies"])
    assert json.dumps(document("counterpoise", {})) == json.dumps(found)


def test_what_builds_a_release_is_what_ci_builds_with():
    def pinned(text):
        return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, flags=re.MULTILINE))

    build = pinned((LOCK.parent / "build.txt").read_text())
    assert "hatchling" in build
    assert build.items() <= pinned(LOCK.read_text()).items()
