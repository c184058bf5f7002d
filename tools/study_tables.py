"""What the documentation shows of the reduced-scale study, from the records that are kept of it."""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from counterpoise.metrics.estimates import KEY_INFO, Key
from counterpoise.recipes.config import InitialWeights
from counterpoise.recipes.methods import METHODS
from counterpoise.report.numbers import metric_title, number
from counterpoise.training.folder import Environment, Kernels, read_environment
from counterpoise_study.cells import Cell
from counterpoise_study.collected import Choice, Column, Group, Row, StudyResults, collect, hyper_text
from counterpoise_study.reduced import PARTS, SETTING_A
from counterpoise_study.store import Store
from counterpoise_study.summary import Summary, summarise
from counterpoise_study.tables import floor_text
from tools.markdown import markdown_table

SHOWN = (Key.ACCURACY, Key.ECE, Key.CLASSWISE_ECE, Key.NLL)
NOT_RUN = "not run yet"
VERDICTS = BETTER, WORSE, UNDECIDED, ONE_SEED, NOT_COMPARABLE = (
    "better", "**worse**", "inconclusive", "one seed", "not comparable",
)  # fmt: skip
KERNELS: Mapping[Kernels, str] = {"native": "native", "float32": "emulated"}
"""What computed bfloat16: the CPU's own instructions, or float32 kernels that round."""
INITIAL_WEIGHTS: Mapping[InitialWeights, str] = {
    "by-count": "depend on the number of networks: methods share them at seed 0, but for deep ensembles",
    "by-seed": "are the same for every method, and for an ensemble's first member; since version 2 of the recipe",
}
MINUS = "\N{MINUS SIGN}"
SPACE = "\N{NO-BREAK SPACE}"
"""Within a number and its interval, so that no cell of a table breaks there."""


@dataclass(frozen=True)
class Claim:
    """A comparison of two methods that the paper makes.

    Attributes:
        first: the method that the claim is about.
        second: the other.
        key: measured by this.
        study: that has both.
        group: which of the study's tables.
    """

    first: str
    second: str
    key: Key
    study: str = "cifar10"
    group: int = 0


LOSSES = ("ls", "er", "fl", "flsd53", "fl-mdca", "fl-dtdp", "dca", "mmce")
"""Methods of one network that change its loss, most of them for the sake of calibration."""
CLAIMS: Mapping[str, Sequence[Claim]] = {
    "MTE is more accurate than cross-entropy": [Claim(each, "ce", Key.ACCURACY) for each in ("mte1", "mte2")],
    "It is better calibrated": [
        Claim(each, "ce", key) for key in (Key.ECE, Key.CLASSWISE_ECE) for each in ("mte1", "mte2")
    ],
    "It is better calibrated than other losses": [Claim("mte1", other, Key.ECE) for other in LOSSES],
    "It is more accurate than they are": [Claim("mte1", other, Key.ACCURACY) for other in LOSSES],
    "One network trained by MTE is better calibrated than a deep ensemble of three": [
        Claim(each, "de3", Key.ECE) for each in ("mte1", "mte2")
    ],
    "The ensemble is more accurate": [Claim("de3", each, Key.ACCURACY) for each in ("mte1", "mte2")],
    "Auxiliaries that see no labels are better than peers that do (DML)": [
        Claim("mte1", "dml", key, "dml") for key in (Key.ACCURACY, Key.ECE)
    ],
    "MTE-2 is better than MTE-1, each at the alpha chosen for it": [
        Claim("mte2", "mte1", key) for key in (Key.ACCURACY, Key.ECE)
    ],
    "It separates right from wrong predictions better": [
        Claim(each, "ce", key, "misclassification")
        for key in (Key.AUROC, Key.FPR_AT_TPR95)
        for each in ("mte1", "mte2")
    ],
    "It detects OOD images better": [
        Claim(each, "ce", Key.AUROC, "ood", group) for group in range(3) for each in ("mte1", "mte2")
    ],
    "It stays calibrated under corruption": [Claim(each, "ce", Key.ECE, "corruptions") for each in ("mte1", "mte2")],
    "Not in the paper: its NLL is lower": [
        Claim(each, other, Key.NLL) for other in ("ce", "fl", "de3") for each in ("mte1", "mte2")
    ],
    "Not in the paper: DML is better than cross-entropy": [
        Claim("dml", "ce", key) for key in (Key.ACCURACY, Key.ECE, Key.NLL)
    ],
}  # fmt: skip
"""What the paper says of MTE, in our words; last, what it does not measure."""


class Study:
    """The kept records of the study, read once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.studies: dict[str, StudyResults] = {each.request.study: each for each in collect(store)}

    @property
    def groups(self) -> list[Group]:
        """All tables of all studies."""
        return [group for each in self.studies.values() for group in each.groups]

    def group(self, study: str, index: int = 0) -> Group | None:
        """A table of a study in setting A; None where nothing of it was asked for."""
        found = self.studies.get(study)
        if found is None:
            return None
        groups = [group for group in found.groups if group.rows[0].setting.name == SETTING_A]
        return groups[index] if index < len(groups) else None

    def choice(self, method: str) -> Choice | None:
        """How a method's hyper-parameters were chosen in setting A; None where there was nothing to choose."""
        found = self.studies.get("cifar10")
        choices = found.choices if found is not None else ()
        return next((each for each in choices if (each.setting.name, each.line.method) == (SETTING_A, method)), None)

    def kernels(self, cells: Sequence[Cell]) -> frozenset[Kernels]:
        """What computed bfloat16 in some trainings."""
        return frozenset[Kernels]().union(
            *(training_kernels(read_environment(self.store.run_folder(cell.id))) for cell in cells)
        )


def training_kernels(environment: Environment) -> frozenset[Kernels]:
    """What computed bfloat16 in a training: a run that is resumed at step 0 is trained anew."""
    sessions = [environment.started, *environment.resumed]
    first = max(index for index, session in enumerate(sessions) if session.step == 0)
    return frozenset(session.kernels for session in sessions[first:])


def kernels_text(kernels: frozenset[Kernels]) -> str:
    """Such as `native`.

    >>> kernels_text(frozenset({"native", "float32"}))
    'native and emulated'
    """
    return " and ".join(text for name, text in KERNELS.items() if name in kernels)


def row_of(group: Group | None, method: str) -> Row | None:
    """A method's row that has results."""
    rows = group.rows if group is not None else ()
    return next((row for row in rows if row.line.method == method and row.records), None)


def column_of(group: Group, key: Key) -> Column:
    """The column of a metric; under corruption there are several, of which this is the first."""
    return next(column for column in group.columns if column.key is key)


def parts_section(study: Study) -> str:
    """What was run, and what was not; a part that has nothing but runs of those before it was not."""
    progress = study.store.progress()
    rows = []
    before = set[str]()
    for part in PARTS:
        done, total = part.progress(study.store)
        runs = {task.cell.id for task in part.shown(study.store) if progress.is_done(task)}
        if done == total:
            state = "complete"
        elif runs - before:
            state = f"in part: {done} of {total} runs"
        else:
            state = f"not run, but for {done} of {total} runs, which are those above" if done else "not run"
        before |= runs
        rows.append((part.title, str(part.seeds), state))
    return markdown_table(("part", "seeds", "state"), rows)


def initial_weights_section(study: Study) -> str:
    """The rule for initial weights that the kept runs had, by their own recipes."""
    records = {run.cell.id: run.record for group in study.groups for row in group.rows for run in row.runs}
    rules = Counter(record.recipe.initial_weights for record in records.values() if record is not None)
    return markdown_table(
        ("`initial_weights`", "the primary's initial weights", "kept runs"),
        [(f"`{rule}`", text, str(rules[rule])) for rule, text in INITIAL_WEIGHTS.items()],
    )


def commands_section(_: Study) -> str:
    """The commands of all parts."""
    return "\n".join(
        [
            "<!-- not run: days of two cores -->",
            "",
            "```bash",
            *(_folded(part.command("STORE")) for part in PARTS),
            "```",
        ]
    )


def _folded(command: Sequence[str], *, most: int = 80) -> str:
    """A command over several lines."""
    lines = [""]
    for word in map(shlex.quote, command):
        if len(lines[-1]) + len(word) > most:
            lines[-1] += "\\"
            lines.append("    ")
        lines[-1] += f"{word} "
    return "\n".join(line.rstrip() for line in lines)


def conditions_section(study: Study) -> str:
    """Hyper-parameters of every method, the values they were chosen from, and what computed bfloat16."""
    group = study.group("cifar10")
    rows = []
    for row in group.rows if group is not None else ():
        finished = [run.cell for run in row.runs if run.record is not None]
        if not finished or row.hyper is None:
            continue
        choice = study.choice(row.line.method)
        tried = [trial.cell for trial in choice.trials if trial.metrics is not None] if choice is not None else []
        rows.append(
            (
                row.label,
                hyper_text(row.hyper) or "none",
                str(len(tried)) if tried else "nothing to choose",
                kernels_text(study.kernels(tried)),
                kernels_text(study.kernels(finished)),
            )
        )
    heads = ("", "hyper-parameters", "candidates", "kernels of the candidates", "kernels of the results")
    return markdown_table(heads, rows) if rows else NOT_RUN


def equal_alpha_section(study: Study) -> str:
    """MTE with one and with two auxiliaries at the same alpha, on the validation images of the first seed."""
    measured = {}
    for method in ("mte1", "mte2"):
        choice = study.choice(method)
        for trial in choice.trials if choice is not None else ():
            if trial.metrics is not None:
                measured[method, trial.cell.recipe.hyper["alpha"]] = trial.metrics
    columns = [(key, method) for key in (Key.ACCURACY, Key.ECE, Key.NLL) for method in ("mte1", "mte2")]
    rows = [
        (f"{alpha:g}", *(number(KEY_INFO[key], measured[method, alpha][key]) for key, method in columns))
        for alpha in sorted({alpha for _, alpha in measured})
        if all((method, alpha) in measured for _, method in columns)
    ]
    heads = ("alpha", *(f"{metric_title(KEY_INFO[key])}, {METHODS[method].title}" for key, method in columns))
    return markdown_table(heads, rows) if rows else NOT_RUN


def quality_section(study: Study, *, scaled: bool = False) -> str:
    """Methods in setting A: means over seeds, with half the width of their 95% t intervals."""
    group, errors = study.group("cifar10"), study.group("misclassification")
    if group is None:
        return NOT_RUN
    heads = ["", *(metric_title(KEY_INFO[key]) for key in SHOWN), "AUROC of errors, %", "seeds"]
    floor = SHOWN.index(Key.ECE) + 1
    heads.insert(1 + floor, "its noise floor")
    rows = []
    for row in group.rows:
        ranked = row_of(errors, row.line.method)
        if ranked is None or errors is None:
            continue
        cells = [spread(row, column_of(group, key), scaled=scaled) for key in SHOWN]
        cells.insert(floor, floor_text(row, column_of(group, Key.ECE), scaled=scaled))
        cells.append(spread(ranked, column_of(errors, Key.AUROC), scaled=scaled))
        rows.append([row.label, *cells, str(len(row.records))])
    return markdown_table(heads, rows) if rows else NOT_RUN


def spread(row: Row, column: Column, *, scaled: bool) -> str:
    """Such as `62.91 ± 1.34`."""
    return summary_text(column.key, summarise(row.values(column, scaled=scaled)))


def summary_text(key: Key, found: Summary) -> str:
    """A mean, with half the width of its interval where it has one."""
    text = number(KEY_INFO[key], found.mean)
    return text if found.count < 2 else f"{text}{SPACE}±{SPACE}{number(KEY_INFO[key], found.mean - found.low)}"


SECTIONS: Mapping[str, tuple[str, Callable[[Study], str]]] = {
    "study-parts": ("docs/study.md", parts_section),
    "study-initial-weights": ("docs/study.md", initial_weights_section),
    "study-commands": ("docs/study.md", commands_section),
    "study-conditions": ("docs/study.md", conditions_section),
    "study-equal-alpha": ("docs/study.md", equal_alpha_section),
    "study-plain": ("docs/study.md", quality_section),
    "study-scaled": ("docs/study.md", lambda study: quality_section(study, scaled=True)),
}
"""By name: the page that shows it, and how."""
