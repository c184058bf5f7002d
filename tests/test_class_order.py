"""Which output is which class: by numbers and names in columns, whatever order these have; else it is asked."""

import json

import numpy as np
import pandas as pd
import pytest

from counterpoise.predictions import AmbiguousInputError, Columns, PredictionFileError, read_predictions

ROWS, CLASSES = 60, 12
RNG = np.random.default_rng(5)
P = RNG.dirichlet(np.ones(CLASSES), ROWS)
Y = RNG.integers(0, CLASSES, ROWS)
OWN = P[np.arange(ROWS), Y]
ORDERS = {
    "as text": sorted(range(CLASSES), key=str),
    "turned": [*range(CLASSES)][::-1],
    "mixed": RNG.permutation(CLASSES).tolist(),
}
NAMES = ("ant", "bee", "cow")


def probability_of_labels(table):
    """Of each row, what was predicted for its label, which is the same whatever the order of classes is."""
    return table.values[np.arange(len(table)), table.labels]


def csv_of(folder, columns, labels):
    pd.DataFrame(columns | {"label": labels}).to_csv(folder / "p.csv", index=False)
    return folder / "p.csv"


def lines_of(folder, rows):
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "p.jsonl"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "name", ["prob_class_{}", "prob_LABEL_{}", "class {}", "T{}", "c{:02}", "logit_{:03}", "p(x{})"]
)
@pytest.mark.parametrize("of_labels", ["number", "name"])
def test_columns_that_differ_in_a_number_are_in_its_order(tmp_path, order, name, of_labels):
    within = name.removeprefix("prob_").removeprefix("logit_")
    labels = Y if of_labels == "number" else [within.format(label) for label in Y]
    path = csv_of(tmp_path, {name.format(k): P[:, k] for k in ORDERS[order]}, labels)
    kind = (
        {} if name.startswith(("prob", "logit")) else {"probabilities": name.replace("{}", "*").replace("{:02}", "*")}
    )
    table = read_predictions(path, Columns(**kind))
    np.testing.assert_allclose(probability_of_labels(table), OWN)
    if of_labels == "number":
        np.testing.assert_array_equal(table.labels, Y)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("of_labels", ["number", "name"])
@pytest.mark.parametrize("form", ["list", "object"])
def test_scores_of_numbered_labels(tmp_path, order, of_labels, form):
    labels = Y.tolist() if of_labels == "number" else [f"LABEL_{label}" for label in Y]
    rows = [{f"LABEL_{k}": row[k] for k in ORDERS[order]} for row in P.tolist()]
    if form == "list":
        rows = [[{"label": name, "score": score} for name, score in row.items()] for row in rows]
    path = lines_of(tmp_path, [{"probs": row, "label": label} for row, label in zip(rows, labels, strict=True)])
    np.testing.assert_allclose(probability_of_labels(read_predictions(path)), OWN)


def three():
    p = P[:, :3] / P[:, :3].sum(1, keepdims=True)
    return p, Y % 3


def test_scores_that_come_in_no_order_are_asked_about(tmp_path):
    p, y = three()
    rows = [[{"label": NAMES[k], "score": row[k]} for k in np.argsort(row).tolist()] for row in p.tolist()]
    path = lines_of(tmp_path, [{"probs": row, "label": label} for row, label in zip(rows, y.tolist(), strict=True)])
    for columns in (Columns(), Columns(probabilities="probs.*")):
        with pytest.raises(AmbiguousInputError, match="nothing says which number each of the classes 'ant', 'bee'"):
            read_predictions(path, columns)
    for order in ((0, 1, 2), (2, 0, 1)):
        names = ",".join(NAMES[k] for k in order)
        listed = ",".join(f"probs.{NAMES[k]}" for k in order)
        for columns in (Columns(class_names=names), Columns(probabilities=listed)):
            table = read_predictions(path, columns)
            np.testing.assert_allclose(table.values, p[:, order])
            np.testing.assert_array_equal(table.labels, y)
    named = lines_of(tmp_path, [{"probs": row, "label": NAMES[label]} for row, label in zip(rows, y, strict=True)])
    np.testing.assert_allclose(probability_of_labels(read_predictions(named)), p[np.arange(ROWS), y])


@pytest.mark.parametrize("form", ["prob_{}", "{}", "P(y={})"])
@pytest.mark.parametrize("chosen", ["ant,bee,cow", "bee,cow,ant", "Cow,ANT,bee"])
def test_chosen_names_turn_columns_that_name_their_classes(tmp_path, form, chosen):
    p, y = three()
    path = csv_of(tmp_path, {form.format(NAMES[k]): p[:, k] for k in (2, 0, 1)}, np.array(NAMES)[y])
    pattern = None if form == "prob_{}" else ",".join(form.format(NAMES[k]) for k in (2, 0, 1))
    table = read_predictions(path, Columns(class_names=chosen, probabilities=pattern))
    assert table.header.class_names == tuple(chosen.split(","))
    np.testing.assert_allclose(probability_of_labels(table), p[np.arange(ROWS), y])


def test_chosen_names_that_contradict_the_columns_are_refused(tmp_path):
    p, y = three()
    path = csv_of(tmp_path, {f"prob_{NAMES[k]}": p[:, k] for k in (2, 0, 1)}, np.array(NAMES)[y])
    with pytest.raises(PredictionFileError, match="gives 'ant' another place beside other names"):
        read_predictions(path, Columns(class_names="ant,bee,owl"))
    with pytest.raises(ValueError, match="class_names has 'ant' twice"):
        Columns(class_names="ant, bee,ant")
    np.savez(tmp_path / "p.npz", probs=p, labels=y, class_names=np.array(NAMES))
    with pytest.raises(PredictionFileError, match="the file says that its outputs are 'ant', 'bee', 'cow', and"):
        read_predictions(tmp_path / "p.npz", Columns(class_names="cow,ant,bee"))


def test_classes_that_are_numbered_otherwise_are_asked_about(tmp_path):
    p, y = three()
    for first, labels in ((1, y + 1), (1, y), (7, y)):
        path = csv_of(tmp_path, {f"prob_grade{k + first}": p[:, k] for k in range(3)}, labels)
        with pytest.raises(AmbiguousInputError, match="not numbered from 0 to 2") as asked:
            read_predictions(path)
        table = read_predictions(path, Columns(**asked.value.choices[0][0]))
        np.testing.assert_allclose(probability_of_labels(table), p[np.arange(ROWS), y])
        named = csv_of(
            tmp_path, {f"prob_grade{k + first}": p[:, k] for k in range(3)}, [f"grade{k + first}" for k in y]
        )
        np.testing.assert_array_equal(read_predictions(named).labels, y)


def test_text_with_numbers_in_it_is_offered_in_their_order_first(tmp_path):
    np.savez(tmp_path / "p.npz", probs=P, labels=np.array([f"T{label}" for label in Y]))
    with pytest.raises(AmbiguousInputError) as asked:
        read_predictions(tmp_path / "p.npz")
    orders = [dict(choice)["class_names"] for choice, _ in asked.value.choices]
    names = [f"T{k}" for k in range(CLASSES)]
    assert orders == [",".join(names), ",".join(sorted(names))]


def as_npz(folder, **arrays):
    np.savez(folder / "p.npz", **arrays)
    return folder / "p.npz"


@pytest.mark.parametrize("labels", ["text", "number"])
def test_class_names_that_are_numbers_name_classes_and_not_their_places(tmp_path, labels):
    order = np.array(ORDERS["as text"])
    names = order.astype(str)
    given = Y.astype(str) if labels == "text" else Y
    path = as_npz(tmp_path, probabilities=P[:, order], labels=given, class_names=names)
    with pytest.raises(AmbiguousInputError) as asked:
        read_predictions(path)
    first, _ = asked.value.choices[0]
    np.testing.assert_allclose(probability_of_labels(read_predictions(path, Columns(**first))), OWN)


def test_numbers_among_other_class_names_are_names(tmp_path):
    p, y = three()
    names = np.array(["1", "2", "3+"])
    table = read_predictions(as_npz(tmp_path, probabilities=p, labels=names[y], class_names=names))
    np.testing.assert_array_equal(table.labels, y)


def test_labels_from_minus_one_are_asked_about(tmp_path):
    p, y = three()
    path = csv_of(tmp_path, {f"prob_{name}": p[:, k] for k, name in enumerate(("neg", "neu", "pos"))}, y - 1)
    with pytest.raises(AmbiguousInputError, match="nothing says which number each of the classes 'neg'") as asked:
        read_predictions(path)
    assert asked.value.choices[0][0] == {"class_names": "-1,0,1"}
    np.testing.assert_array_equal(read_predictions(path, Columns(class_names="-1,0,1")).labels, y)
    path = csv_of(tmp_path, {f"prob_{k}": p[:, k] for k in range(3)}, y - 1)
    with pytest.raises(AmbiguousInputError, match="is -1, which may be a class or a missing label") as asked:
        read_predictions(path)
    missing = np.where(y == 0, -1, y - 1)
    for (choice, _), wanted in zip(asked.value.choices, (y, missing), strict=True):
        np.testing.assert_array_equal(read_predictions(path, Columns(**choice)).labels, wanted)


def test_names_in_a_list_beside_the_values_are_those_of_the_outputs(tmp_path):
    p, y = three()
    rows = zip(p[:, [2, 0, 1]].tolist(), y, strict=True)
    path = lines_of(
        tmp_path, [{"probs": row, "classes": ["cow", "ant", "bee"], "label": NAMES[label]} for row, label in rows]
    )
    np.testing.assert_allclose(probability_of_labels(read_predictions(path)), p[np.arange(ROWS), y])
    order = np.argsort(-p, 1)
    sorted_rows = [
        {"probs": p[row, places].tolist(), "classes": places.tolist(), "label": int(y[row])}
        for row, places in enumerate(order)
    ]
    with pytest.raises(
        PredictionFileError, match="'classes' names the outputs of 'probs' in another order in each row"
    ):
        read_predictions(lines_of(tmp_path, sorted_rows))


def test_of_two_classes_the_one_that_the_column_is_called_after_is_offered_first(tmp_path):
    q, labels = P[:, 0], np.where(Y % 2, "fraud", "legit")
    with pytest.raises(AmbiguousInputError) as asked:
        read_predictions(csv_of(tmp_path, {"prob_fraud": q}, labels), Columns(probabilities="prob_fraud"))
    assert asked.value.choices[0] == ({"class_names": "legit,fraud"}, "y = 1 is 'fraud'")


def test_columns_numbered_from_one_in_text_order_are_offered_in_the_order_of_numbers(tmp_path):
    columns = {f"prob_class_{k}": P[:, k - 1] for k in sorted(range(1, CLASSES + 1), key=str)}
    path = csv_of(tmp_path, columns, Y)
    with pytest.raises(AmbiguousInputError) as asked:
        read_predictions(path)
    np.testing.assert_allclose(probability_of_labels(read_predictions(path, Columns(**asked.value.choices[0][0]))), OWN)


def test_columns_with_commas_in_their_names_are_offered_in_quotes(tmp_path):
    p, y = three()
    path = csv_of(tmp_path, {f"P(a, {name})": p[:, k] for k, name in enumerate(NAMES)}, [NAMES[label] for label in y])
    with pytest.raises(AmbiguousInputError) as asked:
        read_predictions(path)
    found = read_predictions(path, Columns(**asked.value.choices[0][0]))
    np.testing.assert_allclose(probability_of_labels(found), p[np.arange(ROWS), y])
