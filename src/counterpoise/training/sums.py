"""`SHA256SUMS` of a run, for everything but its checkpoints, which have a manifest: written when the run has ended.

A run that was killed has none yet, or one of the logs that are complete: those of a training that goes on will grow.
"""

from collections.abc import Collection

from counterpoise._digests import changed_in, read_sums, sums_of, write_sums
from counterpoise._files import read_safetensors
from counterpoise.recipes.config import Recipe
from counterpoise.training.folder import RunFolder, member_folders


def fault_of_weights(folder: RunFolder) -> str | None:
    """Why what ships must be made again, or None."""
    if not folder.primary.exists():
        return f"{folder.primary} is missing"
    try:
        read_safetensors(folder.primary)
    except ValueError as error:
        return str(error)
    return None


def vouch(run: RunFolder, recipe: Recipe) -> None:
    """Write the SHA-256 of everything that the run has made, but of logs that were complete before it was resumed.

    Theirs stay, so that nobody vouches for what was damaged since.
    """
    files = [run.config, run.environment, run.split, run.scores, run.report, *run.predictions.glob("*.parquet")]
    for part in member_folders(recipe, run):
        files += [part.steps, part.epochs, part.primary]
    before = read_sums(run.path) or {}
    write_sums(run.path, sums_of(run.path, [path for path in files if path.is_file()]) | before)


def reopen(run: RunFolder, complete: Collection[RunFolder]) -> list[str]:
    """Vouch no longer for what may be written from now on, that is, for all but the logs of `complete` trainings.

    Returns:
        Names of those that are not what they were, which nothing can make again.
    """
    before = read_sums(run.path)
    if before is None:
        return []
    logs = {log.relative_to(run.path).as_posix() for part in complete for log in (part.steps, part.epochs)}
    kept = {name: digest for name, digest in before.items() if name in logs}
    write_sums(run.path, kept)
    return changed_in(run.path, kept)
