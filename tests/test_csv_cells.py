"""Values that spreadsheets and pandas write as text, and classes within the names of columns."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoise.predictions import AmbiguousInputError, Columns, PredictionFileError, csv, read_predictions
from prediction_tables import csv_file, refusal


def test_percent_signs(tmp_path, monkeypatch):
    monkeypatch.setattr(csv, "_BLOCK_BYTES", 64)
    rows = "".join(f"{row}%,{100 - row} %,a\n" for row in range(50))
    head = "prob_a,prob_b,label\n"
    table = read_predictions(csv_file(tmp_path, head + rows))
    np.testing.assert_allclose(table.values, [[row / 100, 1 - row / 100] for row in range(50)])
    path = csv_file(tmp_path, head + rows + "1%,,a\n")
    assert "row 50, column 'prob_b' is missing" in refusal(path)
    path = csv_file(tmp_path, head + rows + "99,1%,a\n")
    assert "row 50, column 'prob_a' is '99'; write a percentage with its sign" in refusal(path)
    path = csv_file(tmp_path, head + rows)
    with pytest.raises(PredictionFileError, match=r"sums to 1: leave out --percent"):
        read_predictions(path, Columns(percent=True))


def test_lists_in_cells(tmp_path):
    path = csv_file(tmp_path, 'label,logits\n1,"[1, -2.5e0,3]"\n0,"[ 4. .5\n -inf]"\n')
    assert read_predictions(path).values.tolist() == [[1, -2.5, 3], [4, 0.5, -math.inf]]
    for cell in ("[1 ... 3]", "1 2 3", "[1 2 x]", "[1 2"):
        path = csv_file(tmp_path, f"label,logits\n0,[1 2 3]\n1,{cell}\n")
        assert f"row 1, column 'logits' is {cell!r}; write a list of all its numbers" in refusal(path)


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_what_ends_a_line_elsewhere_ends_none_in_csv(tmp_path, separator):
    table = read_predictions(csv_file(tmp_path, f"prob_a{separator},prob_b,label\n0.25,0.75,b\n"))
    assert table.header.class_names[1] == "b"
    assert table.values.tolist() == [[0.25, 0.75]]


def test_lines_with_a_cell_more_than_the_header_line(tmp_path):
    """R's `write.table` gives no name to those of rows; other programs end lines, but the first, with a separator."""
    for row in ('"1",{}', "{},"):
        text = f"prob_a,prob_b,label\n{row.format('0.25,0.75,b')}\n{row.format('0.5,0.5,a')}\n"
        table = read_predictions(csv_file(tmp_path, text))
        assert (table.values.tolist(), table.labels.tolist()) == ([[0.25, 0.75], [0.5, 0.5]], [1, 0])
        assert "row 1, column 'label' is 'x'" in refusal(csv_file(tmp_path, text.replace("0.5,a", "0.5,x")))
        assert "column 'prob_a': row 1: " in refusal(csv_file(tmp_path, text.replace("0.5,0.5", "?,0.5")))


def test_a_separator_that_is_named_first(tmp_path):
    table = read_predictions(csv_file(tmp_path, "sep=;\nprob_a;prob_b;label\n0,25;0,75;b\n"))
    assert (table.values.tolist(), table.labels.tolist()) == ([[0.25, 0.75]], [1])


def test_files_put_one_after_another(tmp_path):
    part = "prob_a,prob_b,label\n0.25,0.75,b\n"
    assert "row 1 is the header line again, as where files were put one after another" in refusal(
        csv_file(tmp_path, part + part)
    )


def test_a_column_of_text_is_not_left_out_of_the_classes(tmp_path):
    path = csv_file(tmp_path, 'logit_a,logit_b,logit_c,label\n"1,234.5",2,3,b\n7,8,9,c\n')
    assert "column 'logit_a' holds text, such as '1,234.5'; write numbers" in refusal(path)


def test_a_pointer_of_git_lfs(tmp_path):
    path = csv_file(tmp_path, "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12345\n")
    assert "it is a pointer of Git LFS instead of the file; run git lfs pull" in refusal(path)


def test_classes_in_the_names_of_columns(tmp_path):
    path = csv_file(tmp_path, 'P(new_york),P(new_jersey),"P(a, b)",label\n0.2,0.2,0.6,new_york\n')
    table = read_predictions(path, Columns(probabilities="P(*"))
    assert table.header.class_names == ("new_york", "new_jersey", "a, b")
    named = Columns(probabilities="P(*", class_names='new_york,new_jersey,"a, b"')
    assert read_predictions(path, named).header.class_names == table.header.class_names
    unknown = csv_file(tmp_path, "P(a),P(b),label\n0.5,0.5,c\n")
    with pytest.raises(PredictionFileError, match=r"taken to be 'P\(a\)', 'P\(b\)', in order with --class-names"):
        read_predictions(unknown, Columns(probabilities="P(*"))


def test_spaces_around_names_and_labels(tmp_path):
    table = read_predictions(csv_file(tmp_path, " prob_cat , prob_dog , label \n 0.25 , 0.75 , dog \n"))
    assert (table.header.class_names, table.labels.tolist()) == (("cat", "dog"), [1])
    table = read_predictions(csv_file(tmp_path, " cat , dog , label \n 0.25 , 0.75 , dog \n"))
    assert (table.header.class_names, table.labels.tolist()) == (("cat", "dog"), [1])


def test_comments_at_the_beginning(tmp_path):
    rows = "0.25,0.75,1\n0.5,0.5,0\n"
    for head in ("# a\n#b\n\np0,p1,label\n", "#a\n# p0,p1,label\n", "#p0,p1,label\r\n"):
        table = read_predictions(csv_file(tmp_path, head + rows))
        assert (table.values[0].tolist(), table.labels.tolist()) == ([0.25, 0.75], [1, 0])
        assert "row 2, column 'p1' is missing" in refusal(csv_file(tmp_path, f"{head}{rows}0.5,,1\n"))
        message = refusal(csv_file(tmp_path, f"{head}{rows}0.5,x,1\n"))
        assert message.startswith("In column 'p1': row 2: CSV conversion error")
    numbered = read_predictions(csv_file(tmp_path, "#,p0,p1,label\n1,0.25,0.75,1\n2,0.5,0.5,0\n"))
    assert numbered.labels.tolist() == [1, 0]
    assert "it is empty" in refusal(csv_file(tmp_path, "# p0,p1,label\n"))


def test_labels_as_people_write_them(tmp_path):
    head = "prob_cat,prob_Dog,label\n"
    table = read_predictions(csv_file(tmp_path, head + "0.5,0.5,CAT\n0.5,0.5,dog \n"))
    assert table.labels.tolist() == [0, 1]
    assert "row 1, column 'label' is 1.000e+00, and nothing says which number each" in refusal(
        csv_file(tmp_path, head + "0.5,0.5,CAT\n0.5,0.5,1.000e+00\n")
    )
    numbered = csv_file(tmp_path, "prob_0,prob_1,label\n0.5,0.5,0\n0.5,0.5,1.000e+00\n")
    assert read_predictions(numbered).labels.tolist() == [0, 1]
    capitals = "prob_cat,prob_Cat,label\n0.5,0.5,CAT\n"
    assert "row 0, column 'label' is 'CAT', neither" in refusal(csv_file(tmp_path, capitals))
    correct = "confidence,correct\n0.5,Yes\n0.6, no \n0.7,\n0.8,TRUE\n"
    assert read_predictions(csv_file(tmp_path, correct)).labels.tolist() == [0, 1, -1, 0]
    message = refusal(csv_file(tmp_path, correct + "0.9,perhaps\n"))
    assert message == "row 4, column 'correct' is 'perhaps'; write true or false"


def test_classes_that_are_numbers(tmp_path):
    rows = "".join(f"0.{row},0.{9 - row},0.1,{row + 1}\n" for row in range(3))
    path = csv_file(tmp_path, "prob_1,prob_3,prob_2,label\n" + rows)
    with pytest.raises(AmbiguousInputError, match="not numbered from 0 to 2") as asked:
        read_predictions(path)
    choice = asked.value.choices[0][0]
    assert choice == {"class_names": "1,3,2"}
    table = read_predictions(path, Columns(**choice))
    assert (table.labels.tolist(), table.header.class_names) == ([0, 2, 1], ("1", "3", "2"))
    turned = read_predictions(csv_file(tmp_path, "p1,p0,label\n0.2,0.8,b\n"), Columns(class_names="a,b"))
    assert (turned.values.tolist(), turned.labels.tolist()) == ([[0.8, 0.2]], [1])
    pq.write_table(pa.table({"probs": [[0.5, 0.5]] * 3, "label": [20.0, None, 10.0]}), tmp_path / "p.parquet")
    table = read_predictions(tmp_path / "p.parquet", Columns(class_names="10,20"))
    assert table.labels.tolist() == [1, -1, 0]
    path = csv_file(tmp_path, "prob_1,prob_3,prob_2,label\n" + rows)
    with pytest.raises(PredictionFileError, match="row 0, column 'label' is '1', neither"):
        read_predictions(path, Columns(class_names="7,8,9"))


def test_the_positive_class_in_the_first_column(tmp_path):
    path = csv_file(tmp_path, "prob_yes,prob_no,label\n0.9,0.1,1\n0.2,0.8,0\n")
    for order in (None, "prob_no,prob_yes", "prob_yes,prob_no"):
        table = read_predictions(path, Columns(probabilities=order))
        assert [table.header.class_names[label] for label in table.labels] == ["yes", "no"]
        np.testing.assert_allclose(table.values, [[0.1, 0.9], [0.8, 0.2]])
    named = csv_file(tmp_path, "prob_yes,prob_no,label\n0.9,0.1,yes\n0.2,0.8,No\n")
    assert read_predictions(named).labels.tolist() == [1, 0]


def test_names_of_samples_are_not_offered_as_labels(tmp_path):
    path = csv_file(tmp_path, "path,cat,dog\na.png,0.25,0.75\nb.png,0.5,0.5\n")
    with pytest.raises(AmbiguousInputError) as asked:
        read_predictions(path)
    assert [dict(choice) for choice, _ in asked.value.choices] == [{"probabilities": "cat,dog"}, {"logits": "cat,dog"}]


def test_a_file_without_a_header_line(tmp_path):
    message = refusal(csv_file(tmp_path, "0.25,0.75,1\n0.5,0.5,0\n"))
    assert "its first line holds numbers, such as '0.25', where names of columns are due" in message
