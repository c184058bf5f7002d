"""What of a store is kept in a repository: records, conditions and learning curves; no weights and no predictions.

    FOLDER/store.json, manifest.jsonl       what was asked for, and what is finished
    FOLDER/cells/ID/cell.json               all that tables and figures need
    FOLDER/cells/ID/environment.json        versions, revision, threads
    FOLDER/cells/ID/epochs.csv              the learning curve; of an ensemble, in members/N
    FOLDER/SHA256SUMS                       digests of all of these, which `counterpoise-study report` verifies

A cell whose validation images alone were predicted has no `cell.json`: its metrics are in the manifest. The folder is a
store itself. `counterpoise-study report` draws from it, and a copy of it can be run on: what is finished stays
finished, and a run that is needed further is trained anew, because its weights were not kept.
"""

import shutil
from dataclasses import replace
from pathlib import Path

from counterpoise._digests import inside, sums_of, write_sums
from counterpoise.training.folder import RunFolder
from counterpoise_study.cells import STAGES
from counterpoise_study.store import Store


def keep(store: Store, folder: Path) -> list[str]:
    """Copy what is finished; what the folder holds already stays.

    A cell is added in the order in which it was finished, so that a manifest that grows only gets longer. Names of
    machines and processes are left out.

    Returns:
        Ids of the cells that are new in the folder, or complete where they were not.
    """
    kept = Store(folder)
    kept.add(store.contents.requests)
    store.progress()
    before = kept.progress().metrics
    finished = [
        state.committed
        for task, state in store.manifest.tasks.items()
        if state.committed is not None and task not in before
    ]
    finished.sort(key=lambda event: (event.time, event.cell, STAGES.index(event.stage)))
    for event in finished:
        _copy(store.run_folder(event.cell), kept.run_folder(event.cell), record=store.record_file(event.cell).name)
    kept.adopt([replace(event, worker="") for event in finished])
    _vouch(folder)
    return list(dict.fromkeys(event.cell for event in finished))


def _vouch(folder: Path) -> None:
    """Write `SHA256SUMS` of everything that is kept."""
    cells = (path for path in (folder / "cells").rglob("*") if path.suffix != ".lock" and not path.name.startswith("."))
    files = [path for path in (*folder.glob("store.json"), *folder.glob("manifest.jsonl"), *cells) if path.is_file()]
    write_sums(folder, sums_of(folder, [inside(folder, path.relative_to(folder).as_posix()) for path in files]))


def _copy(source: RunFolder, target: RunFolder, *, record: str) -> None:
    """The small files of a run; those of an ensemble's members are in folders of their own."""
    wanted = [source.path / record, source.environment, source.epochs, *source.path.glob("members/*/epochs.csv")]
    for path in wanted:
        if path.exists():
            inside(source.path.parent, path.relative_to(source.path.parent).as_posix())
            place = target.path / path.relative_to(source.path)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
