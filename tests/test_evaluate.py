"""`evaluate` and `Scores`: one call, consistent with the parts, printed, rendered, written and read back."""

import html.parser
import json
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from counterpoise import Scores, evaluate
from counterpoise.metrics import KEY_INFO, Key, ScoreState
from counterpoise.predictions import PredictionFileError, Predictions, write_predictions
from counterpoise.scoring import score_files

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture(scope="module")
def case():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2000, 6, generator=generator)
    labels = torch.multinomial(torch.softmax(0.6 * logits, -1), 1, generator=generator).squeeze(-1)
    return logits, labels, 2 * torch.randn(700, 6, generator=generator)


@pytest.fixture(scope="module")
def scores(case):
    logits, labels, foreign = case
    return evaluate(logits=logits, labels=labels, ood_logits=foreign)


@pytest.mark.slow
def test_values_are_those_of_the_definitions(case, scores):
    logits, labels, foreign = case
    p, y = torch.softmax(logits.double(), -1).numpy(), labels.numpy()
    conf, right = p.max(1), p.argmax(1) == y
    outside = torch.softmax(foreign.double(), -1).amax(-1).numpy()
    expected = {
        Key.ACCURACY: right.mean(),
        Key.NLL: oracles.cross_entropy(p, y),
        Key.BRIER: ((p - np.eye(6)[y]) ** 2).sum(1).mean(),
        Key.ECE: oracles.ece(p, y, 15),
        Key.CLASSWISE_ECE: oracles.classwise_ece(p, y, 15),
        Key.MEAN_GAP: conf.mean() - right.mean(),
        Key.AURC: oracles.aurc(conf, right),
        Key.FPR_AT_TPR95: oracles.fpr_at_tpr(conf, right),
    }
    for key, value in expected.items():
        assert scores[key].value == pytest.approx(value, abs=1e-6), key
    parts = scores[Key.BRIER_CALIBRATION].value + scores[Key.BRIER_REFINEMENT].value
    assert parts == pytest.approx(scores[Key.BRIER].value, abs=1e-12)
    both, inside = np.r_[conf, outside], np.r_[np.ones(2000, bool), np.zeros(700, bool)]
    assert scores.ood["ood"].estimates[Key.FPR_AT_TPR95].value == pytest.approx(
        oracles.fpr_at_tpr(both, inside), abs=1e-3
    )


def test_every_key_is_there_with_an_interval_around_what_is_unbiased(scores):
    together = scores.estimates | scores.misclassification.estimates
    assert set(together) | {Key.POSITIVE_ECE} == set(Key) == set(KEY_INFO)
    biased = {Key.ECE, Key.EQUAL_MASS_ECE, Key.CLASSWISE_ECE, Key.BRIER_CALIBRATION, Key.BRIER_REFINEMENT}
    for key, estimate in together.items():
        assert estimate.low <= estimate.high
        if key not in biased:
            assert estimate.low <= estimate.value <= estimate.high, key
    for key in (Key.ECE, Key.EQUAL_MASS_ECE, Key.SMOOTH_ECE, Key.CLASSWISE_ECE):
        assert together[key].floor > 0


@pytest.mark.slow
def test_kinds_of_input_agree(case, scores):
    logits, labels, foreign = case
    arrays = evaluate(logits=logits.numpy(), labels=labels.numpy(), ood_logits=foreign.numpy())
    lists = evaluate(logits=logits.double().tolist(), labels=labels.tolist(), ood_logits=foreign.tolist())
    pixels = evaluate(logits=logits.view(20, 100, 6), labels=labels.view(20, 100), ood_logits=foreign)
    assert arrays == scores == pixels
    for key, estimate in lists.estimates.items():
        assert estimate.value == pytest.approx(scores[key].value, abs=1e-6)


@pytest.mark.slow
def test_batches_do_not_matter():
    """Rows so wide that they are measured in several batches, against the same rows in one."""
    generator = torch.Generator().manual_seed(1)
    logits, labels = (
        3 * torch.randn(300, 20_000, generator=generator),
        torch.randint(20_000, (300,), generator=generator),
    )
    state = ScoreState(classes=20_000)
    state.update(logits=logits, labels=labels)
    expected = state.compute()
    for key, estimate in evaluate(logits=logits, labels=labels).estimates.items():
        assert estimate.value == pytest.approx(expected[key].value, abs=1e-12)


@pytest.mark.slow
def test_probabilities_give_the_same_and_cannot_give_energy(case, scores):
    logits, labels, _ = case
    from_p = evaluate(probabilities=torch.softmax(logits, -1), labels=labels)
    assert from_p[Key.ECE].value == pytest.approx(scores[Key.ECE].value, abs=1e-7)
    assert evaluate(logits=logits, labels=labels, score="energy").misclassification.score == "energy"


def test_prints_within_100_columns(scores):
    text = str(scores)
    assert max(len(line) for line in text.splitlines()) <= 100
    for words in ("overconfident by", "95% interval", "noise floor", "ECE, debiased", "Right from wrong", "from ood"):
        assert words in text


@pytest.mark.parametrize(("factor", "word"), [(3.0, "overconfident"), (0.2, "underconfident"), (1.0, "no difference")])
def test_verdict(factor, word):
    generator = torch.Generator().manual_seed(2)
    logits = 2 * torch.randn(3000, 3, generator=generator)
    labels = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator).squeeze(-1)
    assert word in str(evaluate(logits=factor * logits, labels=labels)).splitlines()[0]


def test_errors_that_cancel_on_average_are_in_the_first_line():
    """Half of the samples are overconfident by 20 points, the other half underconfident by as many."""
    sure, hits = np.repeat([0.9, 0.6], 1000), np.tile(np.arange(1000) % 10, 2) < np.repeat([7, 8], 1000)
    scores = evaluate(probabilities=np.stack([sure, 1 - sure], -1), labels=np.where(hits, 0, 1))
    assert scores["mean_gap"].low < 0 < scores["mean_gap"].high
    first = str(scores).split("\n\n")[0]
    assert "ECE 20.0% (95% interval" in " ".join(first.split())
    assert "no difference" not in first


def test_a_class_without_samples_is_not_ranked_and_said_to_be_untested(tmp_path):
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 600)
    probabilities = np.full((600, 3), 0.01)
    probabilities[np.arange(600), labels] = 0.8
    probabilities[np.arange(600), 1 - labels] = 0.19
    names = ["ant", "bee", "zebra"]
    scores = evaluate(probabilities=probabilities, labels=labels, class_names=names)
    said = "1 of 3 classes has no sample here and so has not been tested: zebra."
    assert said in str(scores)
    scores.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert said in page
    ranked = re.findall(r"<tr>\s*<t[dh][^>]*>(ant|bee|zebra)</t[dh]>", page)
    assert set(ranked) == {"ant", "bee"}


def test_renders_as_html_without_loose_markup(scores):
    class Balance(html.parser.HTMLParser):
        depth = 0

        def handle_starttag(self, tag, attrs):
            self.depth += 1

        def handle_endtag(self, tag):
            self.depth -= 1

    parser = Balance()
    parser.feed(scores._repr_html_())
    assert parser.depth == 0


@pytest.mark.slow
def test_json_round_trip_is_exact_and_strict(scores, tmp_path):
    assert Scores.from_json(scores.to_json()) == scores
    json.loads(scores.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    scores.save(tmp_path / "scores.json")
    assert Scores.load(tmp_path / "scores.json") == scores
    assert len(scores.to_json()) < 200_000


@pytest.mark.slow
def test_undefined_and_infinite_values_survive_json():
    perfect = evaluate(probabilities=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 1])
    assert math.isnan(perfect[Key.AUROC].value)
    assert "undefined" in str(perfect)
    again = Scores.from_json(perfect.to_json())
    assert math.isnan(again[Key.AUROC].value)
    impossible = evaluate(probabilities=[[1.0, 0.0], [0.2, 0.8]], labels=[1, 1])
    assert Scores.from_json(impossible.to_json())[Key.NLL].value == math.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema="other"), "not a scores document"),
        (lambda d: d.update(schema_version=99), "version 99"),
        (lambda d: d.pop("top_label"), "incomplete or malformed"),
        (lambda d: d.update(extra=1), "incomplete or malformed"),
        (lambda d: d["estimates"].update(made_up={}), "made_up|malformed"),
        (lambda d: d["estimates"]["ece"].pop("low"), "incomplete or malformed"),
        (lambda d: d.update(estimates=[1]), "incomplete or malformed"),
    ],
)
def test_other_documents_are_refused(scores, change, message):
    document = json.loads(scores.to_json())
    change(document)
    with pytest.raises(ValueError, match=message):
        Scores.from_json(json.dumps(document))


def test_text_that_is_not_json_is_refused():
    for text in ("", "[1]", "{", "null", '{"schema": NaN}'):
        with pytest.raises(ValueError, match="not"):
            Scores.from_json(text)


def test_a_number_that_no_float_holds_is_refused(scores):
    document = json.loads(scores.to_json())
    document["level"] = 10**400
    with pytest.raises(ValueError, match=r"scores\.level is a number too large"):
        Scores.from_json(json.dumps(document))


def test_saturated_members_averaged_beyond_1_rank_as_1():
    """0.1 added ten times, or a mean of ten in float32, is a little more than 1."""
    logits = 40 * torch.nn.functional.one_hot(torch.arange(100) % 3, 3).float()
    logits[50:] /= 20
    average = torch.softmax(logits, -1) * torch.tensor(1 + 2e-7)
    same = evaluate(probabilities=average, labels=torch.zeros(100, dtype=torch.int64), ood_probabilities=average)
    assert same.ood["ood"].estimates[Key.AUROC].value == 0.5


def test_curves_are_thinned_evenly_by_samples():
    generator = torch.Generator().manual_seed(0)
    certain = torch.rand(6000, generator=generator, dtype=torch.float64) < 0.5
    top = torch.where(certain, 0.999, 0.5 + 0.4 * torch.rand(6000, generator=generator, dtype=torch.float64))
    top += 1e-6 * torch.randint(0, 3, (6000,), generator=generator)
    probabilities = torch.stack([top, 1 - top], -1)
    foreign = probabilities[:40]
    found = evaluate(probabilities=probabilities, labels=torch.arange(6000) % 3 % 2, ood_probabilities=foreign)
    coverage = torch.tensor(found.misclassification.curves["coverage"])
    few = coverage[coverage > 0.55]
    assert few.diff().max() < 2 / 512
    assert coverage[-1] == 1
    negatives = torch.tensor(found.ood["ood"].curves["false_positive_rate"])
    assert len(negatives.unique()) > 15


@pytest.mark.slow
@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), samples=st.integers(1, 6), classes=st.integers(2, 4), foreign=st.integers(1, 3))
def test_a_handful_of_samples(seed, samples, classes, foreign):
    rng = np.random.default_rng(seed)
    logits = rng.choice([0.0, 1.0, 30.0], size=(samples, classes))
    few = evaluate(
        logits=logits, labels=rng.integers(classes, size=samples), ood_logits=rng.normal(size=(foreign, classes))
    )
    assert Scores.from_json(few.to_json()).to_json() == few.to_json()
    for estimate in (few.estimates | few.misclassification.estimates | few.ood["ood"].estimates).values():
        undefined = math.isnan(estimate.value) or (samples == 1 and math.isnan(estimate.low))
        assert undefined or estimate.low <= estimate.high


def test_autocast_does_not_round_it(case, scores):
    logits, labels, foreign = case
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert evaluate(logits=logits, labels=labels, ood_logits=foreign) == scores


def test_unknown_measure_is_named(scores):
    with pytest.raises(KeyError, match=r"no metric 'ecee'; there are accuracy"):
        scores["ecee"]


@pytest.mark.slow
def test_same_predictions_give_the_same_scores_to_the_bit(case):
    logits, labels, foreign = case
    one, two = (evaluate(logits=logits, labels=labels, ood_logits=foreign).to_json() for _ in range(2))
    assert one == two


def test_scores_of_logits_are_refused_where_there_are_none(tmp_path):
    """The log-sum-exp of log-probabilities is 0 whatever the members say: their order would be that of rounding."""

    def drawn(seed):
        return torch.randn(50, 4, generator=torch.Generator().manual_seed(seed))

    def write(path, **columns):
        write_predictions(path, Predictions.of(**columns, labels=labels))
        return path

    labels = torch.arange(50) % 4
    members = torch.stack([drawn(seed) for seed in range(3)], 1)
    ensemble = write(tmp_path / "members.parquet", logits=members)
    plain = write(tmp_path / "plain.parquet", logits=drawn(0))
    sure = write(tmp_path / "sure.parquet", probabilities=drawn(0).softmax(-1))
    for score in ("energy", "max_logit"):
        with pytest.raises(PredictionFileError, match=rf"{score} needs the logits of one network, .*ensemble of 3"):
            score_files([ensemble], score=score)
        with pytest.raises(PredictionFileError, match=f"{score} needs the logits of one network"):
            score_files([plain], ood=[ensemble], score=score)
        with pytest.raises(PredictionFileError, match=f"{score} needs logits"):
            score_files([sure], score=score, temperature=2.0)
    assert score_files([ensemble], score="negative_entropy").models
