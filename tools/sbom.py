"""What an environment holds, as CycloneDX 1.6: `python -m tools.sbom counterpoise --hashes requirements/ci.txt`.

The component of the document is the distribution that is named, with all its extras; its dependencies, and theirs, are
those that are installed. Each has its version, licence and package URL, and the SHA-256 of the files that a
requirements file allows. The same environment gives the same bytes.
"""

import argparse
import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_LOCKED = re.compile(r"^([A-Za-z0-9_.-]+)==\S+ \\$")
_Need = tuple[str, frozenset[str]]
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def document(name: str, hashes: Mapping[str, list[str]]) -> dict[str, Any]:
    """The document of a distribution and all that it needs."""
    found: dict[str, Distribution] = {}
    needs: dict[str, list[str]] = {}
    waiting: list[_Need] = [(canonicalize_name(name), frozenset(_extras(distribution(name))))]
    seen = set(waiting)
    while waiting:
        key, extras = waiting.pop()
        found[key] = distribution(key)
        for need in _needed(found[key], extras):
            needs.setdefault(key, []).append(need[0])
            if need not in seen:
                seen.add(need)
                waiting.append(need)
    main = canonicalize_name(name)
    urls = {key: f"pkg:pypi/{key}@{found[key].version}" for key in sorted(found)}
    components = {key: _component(key, url, found[key], hashes.get(key, [])) for key, url in urls.items()}
    described = components.pop(main)
    graph = [
        {"ref": url, "dependsOn": sorted({urls[each] for each in needs.get(key, [])} - {url})}
        for key, url in urls.items()
    ]
    digest = hashlib.sha256(json.dumps([[*components.values()], graph], sort_keys=True).encode()).digest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # The same contents have the same number.
        "serialNumber": uuid.UUID(bytes=digest[:16], version=4).urn,
        "version": 1,
        "metadata": {"component": described},
        "components": [*components.values()],
        "dependencies": graph,
    }


def _extras(found: Distribution) -> list[str]:
    return found.metadata.get_all("Provides-Extra") or []


def _needed(found: Distribution, extras: frozenset[str]) -> list[_Need]:
    """Names, with the extras that are asked for, of what is installed of its requirements."""
    needed: list[_Need] = []
    for text in found.requires or []:
        need = Requirement(text)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            try:
                distribution(need.name)
            except PackageNotFoundError:
                continue
            needed.append((canonicalize_name(need.name), frozenset(need.extras)))
    return needed


def _component(key: str, url: str, found: Distribution, hashes: list[str]) -> dict[str, Any]:
    stated = found.metadata.json
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": url,
        "name": key,
        "version": stated["version"],
        "purl": url,
    }
    if expression := stated.get("license_expression"):
        component["licenses"] = [{"expression": expression}]
    elif (licence := str(stated.get("license", "")).strip()) and "\n" not in licence:
        component["licenses"] = [{"license": {"name": licence}}]
    if hashes:
        # There are several files, one for each platform; hashes of the component would be of one.
        component["externalReferences"] = [
            {"type": "distribution", "url": url, "hashes": [{"alg": "SHA-256", "content": each}]} for each in hashes
        ]
    return component


def locked_hashes(text: str) -> dict[str, list[str]]:
    """The hashes of each distribution in a requirements file."""
    hashes: dict[str, list[str]] = {}
    key = ""
    for line in text.splitlines():
        if start := _LOCKED.match(line):
            key = canonicalize_name(start[1])
        if found := _HASH.search(line):
            hashes.setdefault(key, []).append(found[1])
    return hashes


def main() -> None:
    """Print the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--hashes", type=Path, help="a requirements file with hashes")
    options = parser.parse_args()
    hashes = {} if options.hashes is None else locked_hashes(options.hashes.read_text(encoding="utf-8"))
    print(json.dumps(document(options.name, hashes), indent=1))


if __name__ == "__main__":
    main()
