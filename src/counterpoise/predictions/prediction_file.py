"""`PredictionFile`: an opened file of predictions, whatever its format."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from counterpoise.predictions.digest import Source
from counterpoise.predictions.table import Header, Kind, PredictionFileError, Predictions


@dataclass(frozen=True)
class PredictionFile:
    """What a file says before its rows are read; `batches` reads them.

    Attributes:
        path: of the file.
        kind: logits or probabilities.
        classes: K.
        members: M, or None without a member axis.
        rows: number of rows, or None where only reading tells.
        header: where the predictions come from.
        has_ids: whether it has ids; if not, rows are numbered.
        digest: SHA-256 of the file that was verified, or None where there was none to verify.
        notices: what a reader should know, such as a missing digest.
        read: the format's own reader.
    """

    path: Path
    kind: Kind
    classes: int
    members: int | None
    rows: int | None
    header: Header
    has_ids: bool
    digest: str | None
    notices: tuple[str, ...]
    read: Callable[[], Iterator[Predictions]]

    def batches(self) -> Iterator[Predictions]:
        """The rows in order, in batches of some megabytes.

        Raises:
            PredictionFileError: a row is damaged or malformed, or the file was replaced since it was opened.
        """
        return self.read()


def notices_of(source: Source, ignored: Sequence[str], *, has_header: bool = False) -> tuple[str, ...]:
    """What a reader should know: which columns were passed over, and that a digest is missing.

    Other programs write none: it is missed beside a file that has the header of this one's.
    """
    unverified = (f"{source.path}: there is no digest beside it, so damage may go unnoticed",)
    unread = (f"{source.path}: what has no meaning here was ignored: {', '.join(ignored)}",)
    return (unverified if has_header and source.digest is None else ()) + (unread if ignored else ())


@contextmanager
def refusing(path: Path, *, what: str) -> Iterator[None]:
    """Every way in which a file can be unreadable becomes one exception that names the file."""
    try:
        yield
    except PredictionFileError as error:
        raise PredictionFileError(f"{path}: {error}") from None
    except (FileNotFoundError, PermissionError, MemoryError):
        raise
    except Exception as error:
        # What a parser raises for damaged bytes is nowhere listed: besides Arrow's own, KeyError, RecursionError,
        # struct.error, TokenError and more.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PredictionFileError(f"{path}: not a readable {what} of predictions: {reason}") from None
