"""The model card: what a shared model is, how far its confidence can be trusted, and how to load it, in Markdown."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

from counterpoise import __version__
from counterpoise._extras import require
from counterpoise._text import printable
from counterpoise.export.config import ModelConfig

require("jinja2", extra="hub", purpose="a model card")

from jinja2 import Environment, StrictUndefined  # noqa: E402

from counterpoise.metrics.estimates import KEY_INFO, Key  # noqa: E402
from counterpoise.metrics.scores import Scores, verdict  # noqa: E402
from counterpoise.metrics.selective import DEFAULT_RISK  # noqa: E402
from counterpoise.report.figures import reliability, save_figure  # noqa: E402
from counterpoise.report.numbers import metric_title, number, value_and_interval  # noqa: E402
from counterpoise.report.sentences import selective_sentence, worst_classes_sentence  # noqa: E402
from counterpoise.report.tables import as_markdown, table  # noqa: E402

FIGURE = "reliability.png"

METRICS = (
    Key.ACCURACY, Key.NLL, Key.BRIER, Key.MEAN_GAP, Key.ECE, Key.DEBIASED_ECE, Key.CLASSWISE_ECE, Key.AUROC, Key.AURC,
)  # fmt: skip
"""What a card reports; a report page has all."""


@dataclass(frozen=True)
class Card:
    """What only you know about a model.

    Attributes:
        name: of the model.
        license: its identifier on the Hub, such as apache-2.0; None to state none.
        task: as the Hub names it.
        before: scores of the primary's own probabilities, on samples that neither weights nor temperature have seen.
        after: the same at the temperature of the configuration.
        recipe: how it was trained, as plain values by name, nested or not.
        notes: sentences of your own: what it is for, whose data it has seen, how the temperature was fitted.
    """

    name: str
    license: str | None = None
    task: str = "image-classification"
    before: Scores | None = None
    after: Scores | None = None
    recipe: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def shipped(self) -> Scores | None:
        """Scores of what ships: at the temperature, where there is one."""
        return self.after or self.before


def require_consistent(card: Card, config: ModelConfig) -> None:
    """Refuse figures that are not those of what ships."""
    if card.after is not None and (card.before is None or config.temperature == 1):
        raise ValueError("card.after has scores at a temperature: give card.before, and the temperature in the config")
    if card.before is not None and card.after is None and config.temperature != 1:
        raise ValueError(
            f"the config has temperature {config.temperature}: give the scores at it as card.after, for example "
            "evaluate(logits=logits / temperature, labels=labels)"
        )
    for scores in (card.before, card.after):
        if scores is not None and scores.classes != len(config.class_names):
            raise ValueError(f"the scores are of {scores.classes} classes, the config names {len(config.class_names)}")


def write_figure(card: Card, config: ModelConfig, folder: Path) -> None:
    """Draw the reliability diagram, before and after the temperature."""
    if card.before is None:
        (folder / FIGURE).unlink(missing_ok=True)  # of another card
        return
    models = [(card.before, "as trained"), *([(card.after, _at(config))] if card.after else [])]
    named = [replace(scores, source=replace(scores.source, name=name)) for scores, name in models]
    save_figure(reliability(named), folder / FIGURE)


def card_text(card: Card, config: ModelConfig, *, config_file: str, snippet: str, digests: Mapping[str, str]) -> str:
    """The card without the metadata that the Hub wants in front of it.

    Args:
        card: what you say about the model.
        config: what its folder says.
        config_file: where the folder says it.
        snippet: Python that loads it.
        digests: SHA-256 of its files, by name.
    """
    environment = Environment(
        autoescape=False,  # noqa: S701 - Markdown, whose marks are escaped; the escapes of HTML would show in the code
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = resources.files("counterpoise.export").joinpath("card.md.jinja").read_text(encoding="utf-8")
    scores = card.shipped
    return environment.from_string(template).render(
        name=escaped(card.name),
        classes=len(config.class_names),
        class_names=", ".join(map(escaped, config.class_names)) if len(config.class_names) <= 20 else "",
        shape=" x ".join(map(str, config.shape)) if config.shape else "",
        temperature=f"{config.temperature:.4g}" if config.temperature != 1 else "",
        notes=card.notes,
        scores=scores,
        verdict=verdict(scores) if scores else "",
        measured_on=_measured_on(scores) if scores else "",
        metrics=_metrics(card, config) if scores else "",
        findings=_findings(scores) if scores else [],
        figure=FIGURE,
        config_file=config_file,
        snippet=snippet,
        recipe=as_markdown(table("", ("setting", "value"), list(_flat(card.recipe)))) if card.recipe else "",
        provenance=[(name, escaped(value)) for name, value in _provenance(scores, digests)],
        license=card.license,
    )


def escaped(text: str) -> str:
    r"""One line of text from anywhere, without marks of Markdown.

    >>> print(escaped("a_b <c>"))
    a\_b \<c\>
    """
    return re.sub(r"([\\`*_\[\]<>|#~$])", r"\\\1", " ".join(printable(text).split()))


def public_name(text: str) -> str:
    """A name as others may see it: of a path on this machine, its last part.

    >>> public_name("/home/me/photos.parquet"), public_name("clients/acme/photos"), public_name("uoft-cs/cifar10")
    ('photos.parquet', 'photos', 'uoft-cs/cifar10')
    """
    parts = re.split(r"[\\/]", text.rstrip("\\/"))
    on_the_hub = len(parts) == 2 and "\\" not in text and not re.match(r"[/~.]|[A-Za-z]:", text)
    return text if on_the_hub and not text.endswith(".parquet") and not Path(text).exists() else parts[-1]


def _at(config: ModelConfig) -> str:
    return f"T = {config.temperature:.3f}"


def _metrics(card: Card, config: ModelConfig) -> str:
    columns = [("as trained", card.before), (_at(config), card.after)]
    having = [(name, scores) for name, scores in columns if scores is not None]
    rows = []
    for key in METRICS:
        estimates = [scores[key] for _, scores in having]
        info = KEY_INFO[key]
        rows.append((metric_title(info), *(value_and_interval(info, estimate) for estimate in estimates)))
        if any(estimate.floor is not None for estimate in estimates):
            floors = ("" if estimate.floor is None else number(info, estimate.floor) for estimate in estimates)
            rows.append(("noise floor of it", *floors))
    return as_markdown(table("", ("metric", *(name for name, _ in having)), rows))


def _findings(scores: Scores) -> list[str]:
    found = [selective_sentence(scores, risk=DEFAULT_RISK), worst_classes_sentence(scores)]
    for name, ranking in scores.ood.items():
        auroc = value_and_interval(KEY_INFO[Key.AUROC], ranking.estimates[Key.AUROC])
        found.append(f"Samples of {public_name(name)} are told from its own by confidence with an AUROC of {auroc} %.")
    return [escaped(sentence) for sentence in found]


def _measured_on(scores: Scores) -> str:
    sets = ", ".join(map(public_name, scores.source.data_sets))
    splits = ", ".join(scores.source.splits)
    return escaped(f"{scores.samples:,} samples" + (f" of {sets}" if sets else "") + (f" ({splits})" if splits else ""))


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings by dotted name; what is unset or names a schema is left out."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            if value:
                yield f"{prefix}{name}", ", ".join(public_name(str(item)) for item in value)
        elif value is not None and name not in ("schema", "schema_version"):
            yield f"{prefix}{name}", public_name(str(value))


def _provenance(scores: Scores | None, digests: Mapping[str, str]) -> list[tuple[str, str]]:
    rows = [(f"SHA-256 of {name}", digest) for name, digest in digests.items()]
    if scores is not None:
        source = scores.source
        known = {
            "network": source.model,
            "method": source.method,
            "seed": "" if source.seed is None else str(source.seed),
            "SHA-256 of the recipe": source.config_digest,
            "SHA-256 of the scored predictions": source.digest or "",
            "versions": ", ".join(f"{name} {version}" for name, version in source.versions.items()),
        }
        rows += [(name, value) for name, value in known.items() if value]
    return [*rows, ("card written by", f"counterpoise {__version__}")]
