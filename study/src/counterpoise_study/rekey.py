"""Names of cells by the present rule, in a store that has those of the first: `counterpoise-study rekey STORE`.

Up to version 2 of `store.json` the identity of a cell was its whole recipe; since version 3 it is the fields that can
change a result. Nothing but names changes: folders, the lines of the manifest, the version of the store. What was asked
for says which cell had which name; of cells that nobody asks for any more, their own files do.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from counterpoise._files import write_text
from counterpoise._locks import holding
from counterpoise.recipes.config import recipe_of_version_1, version_1_digest
from counterpoise_study.cells import Cell, cell_id, tuning_setting
from counterpoise_study.requests import Request
from counterpoise_study.store import RECORD, Store, read_contents

CONTENTS, MANIFEST = "store.json", "manifest.jsonl"
_LAST_WITH_FIRST_NAMES = 2


def rekey(path: Path) -> dict[str, str]:
    """Rename the cells of a store; a store that has been renamed, or in part, is no error.

    Returns:
        The new name of each cell that is in the store, by its old one; empty where there was nothing to do.
    """
    store, file = Store(path), path / CONTENTS
    document = json.loads(file.read_text()) if file.exists() else {}
    if document.get("schema_version") != _LAST_WITH_FIRST_NAMES:
        _ = store.contents  # refuses what is no store
        return {}
    contents = read_contents(file.read_text(), upgrades={_LAST_WITH_FIRST_NAMES: lambda same: same})
    store.withdraw_digests()
    with holding(store.lock):
        found = _present(path)
        names = dict(_asked_for(contents.requests, document)) | dict(_from_files(path, found))
        known = {old: new for old, new in names.items() if old in found}
        _require_renamable(store, found, names)
        for old, new in known.items():
            if (path / "cells" / old).exists() and old != new:
                (path / "cells" / old).rename(path / "cells" / new)
            (path / "cells" / f"{old}.lock").unlink(missing_ok=True)
        if (path / MANIFEST).exists():
            events = [json.loads(line) for line in (path / MANIFEST).read_text().splitlines()]
            renamed = [event | {"cell": names.get(event["cell"], event["cell"])} for event in events]
            write_text(path / MANIFEST, "".join(f"{json.dumps(event)}\n" for event in renamed))
        # Last: until then the store is one of the first rule, and the same command goes on.
        write_text(file, contents.to_json())
    return known


def _present(path: Path) -> set[str]:
    """Cells that have a folder, or a line of the manifest."""
    folders = {folder.name for folder in (path / "cells").glob("*") if folder.is_dir()}
    lines = (path / MANIFEST).read_text().splitlines() if (path / MANIFEST).exists() else []
    return folders | {json.loads(line)["cell"] for line in lines}


def _asked_for(requests: tuple[Request, ...], document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Old and new names of every cell that the requests can lead to."""
    for request, stored in zip(requests, document["requests"], strict=True):
        recipes = {setting["name"]: setting["recipe"] for setting in stored["settings"]}
        for line in request.lines:
            for setting in {line.setting, tuning_setting(request, line)}:
                recipe = request.setting(setting).recipe
                for hyper in line.candidates:
                    for seed in line.seeds:
                        cell = Cell(
                            replace(recipe, method=line.method, hyper=recipe.hyper | hyper, seed=seed), line.source
                        )
                        changed = {"method": line.method, "hyper": cell.recipe.hyper, "seed": seed}
                        yield _first_name(recipes[setting] | changed, line.source), cell.id


def _from_files(path: Path, cells: set[str]) -> Iterator[tuple[str, str]]:
    """The same of cells that have a record."""
    for cell in cells:
        record = path / "cells" / cell / RECORD
        if record.exists():
            found = json.loads(record.read_text())
            first = _first_name(found["recipe"], found["source"])
            recipe = recipe_of_version_1(found["recipe"])
            yield first, Cell(recipe, found["source"]).id


def _first_name(recipe: Mapping[str, Any], source: str) -> str:
    return cell_id(version_1_digest(recipe), source)


def _require_renamable(store: Store, found: set[str], names: Mapping[str, str]) -> None:
    """Refuse, before anything is touched, what could not be undone."""
    if unknown := sorted(found - names.keys() - set(names.values())):
        raise ValueError(
            f"{store.path}: nothing says what the cells {', '.join(unknown)} are; move them out of the store, with "
            "their lines of the manifest"
        )
    same = defaultdict(list)
    for old in sorted(found & names.keys()):
        same[names[old]].append(old)
    if doubled := [olds for olds in same.values() if len(olds) > 1]:
        raise ValueError(
            f"{store.path}: the cells {' and '.join(doubled[0])} have the same result, and would have the same name; "
            "keep one of them"
        )
    if held := [cell for cell in sorted(found) if store.is_held(cell)]:
        raise ValueError(f"{store.path}: another process works on {', '.join(held)}; wait until it ends")
