"""What a method asks of the other parts of a recipe."""

from counterpoise.recipes.methods import METHODS
from counterpoise.recipes.savings import SavingOptions


def method_problems(
    name: str,
    *,
    savings: SavingOptions,
    streams: bool,
    balances: bool,
    mixes: bool,
    batch: int,
    primary_ranks: int,
    auxiliary_ranks: int,
) -> list[str]:
    """Problems of a method with what else a recipe says; none of a method, somebody's own, that is not known here.

    Args:
        name: of the method.
        savings: as the recipe has them.
        streams: whether images are streamed.
        balances: whether classes are drawn equally often.
        mixes: whether images are mixed.
        batch: images of a step.
        primary_ranks: processes that share them.
        auxiliary_ranks: processes that train the auxiliaries alone, over all auxiliaries.
    """
    problems, method = [], METHODS.get(name)
    if batch % primary_ranks:
        problems.append(f"batch {batch} cannot be divided between {primary_ranks} devices")
    if savings.cached and mixes:
        problems.append("savings.cached keeps what was said of whole images: leave out data.mixup and data.cutmix")
    if method is None:
        return problems
    if method.prunes and streams:
        problems.append(f"{name} prunes its samples, which needs data.pipeline memory")
    if method.prunes and balances:
        problems.append(f"{name} prunes its samples, which leaves no choice to data.balance sampler")
    if not method.soft_labels and mixes:
        able = ", ".join(name for name, other in METHODS.items() if other.soft_labels)
        problems.append(
            f"{name} needs one class for each image, which data.mixup and data.cutmix do not leave; methods that take "
            f"mixed images are {able}"
        )
    with_auxiliaries = ", ".join(name for name, other in METHODS.items() if other.savings is not None)
    if method.savings is None and savings != SavingOptions():
        problems.append(
            f"{name} has no auxiliaries that could save anything; methods that have some are {with_auxiliaries}"
        )
    if method.savings not in (None, SavingOptions()) and savings != SavingOptions():
        problems.append(
            f"{name} has savings of its own, which these would replace: take mte1 with all that are wanted, such as "
            "--savings.trunk half --savings.every 4 --optimizer.auxiliary-factor 1"
        )
    if auxiliary_ranks and method.savings is None:
        problems.append(
            f"{name} has no auxiliaries that engine.auxiliary_devices could train; methods with some are "
            f"{with_auxiliaries}"
        )
    elif auxiliary_ranks:
        problems += _remote_problems(
            savings=method.savings_with(savings),
            networks=method.models - 1,
            batch=batch,
            primary_ranks=primary_ranks,
            auxiliary_ranks=auxiliary_ranks,
            by_rank="data.pipeline stream" if streams else "data.mixup and data.cutmix" if mixes else None,
        )
    return problems


def _remote_problems(
    *,
    savings: SavingOptions,
    networks: int,
    batch: int,
    primary_ranks: int,
    auxiliary_ranks: int,
    by_rank: str | None,
) -> list[str]:
    """Of auxiliaries in other processes; `by_rank` is what makes a batch depend on how many ranks share it."""
    if savings != SavingOptions():
        return ["savings are of auxiliaries beside the primary; leave them out, or engine.auxiliary_devices"]
    each, rest = divmod(auxiliary_ranks, networks)
    if rest:
        return [
            f"engine.auxiliary_devices: {auxiliary_ranks} processes cannot be divided between {networks} auxiliaries"
        ]
    if batch % each:
        return [f"batch {batch} cannot be divided between the {each} processes of an auxiliary"]
    if by_rank is not None and each != primary_ranks:
        return [
            f"with {by_rank} a batch depends on the number of processes that share it: give each auxiliary as many "
            f"as the primary, engine.auxiliary_devices {primary_ranks * networks}"
        ]
    return []
