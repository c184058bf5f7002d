"""The page: complete in itself, the same for the same evaluation, and unmoved by whatever names are in it."""

import base64
import hashlib
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import fields, is_dataclass, replace
from datetime import date
from html.parser import HTMLParser
from itertools import pairwise

import pytest

import evaluations as made
from counterpoise._text import readable
from counterpoise.metrics import KEY_INFO
from counterpoise.metrics.comparison import Evaluation
from counterpoise.report import figures, gallery, guarantees, numbers, page, slices, tables, terminal
from counterpoise.report.advice import advice_between, advice_for
from counterpoise.report.style import drawing

pytestmark = pytest.mark.usefixtures("few_resamples")

VOID = {"meta", "img", "source"}
TAGS = {
    "a", "article", "aside", "body", "caption", "dd", "details", "div", "dl", "dt", "figure", "footer", "h1", "h2", "h3", "head",
    "header", "html", "img", "li", "main", "meta", "nav", "p", "picture", "section", "small", "source", "span", "strong",
    "style", "summary", "table", "tbody", "td", "th", "thead", "time", "title", "tr", "ul",
}  # fmt: skip
ATTRIBUTES = {
    "alt", "aria-hidden", "aria-label", "charset", "class", "colspan", "content", "datetime", "href", "http-equiv", "id",
    "lang", "media", "name", "scope", "src", "srcset", "tabindex",
}  # fmt: skip
DAY = date(2026, 3, 1)
SVG = "{http://www.w3.org/2000/svg}"


class Document(HTMLParser):
    """Tags in order, each with its attributes, and the text inside each kind of element; every tag must be closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.structure, self.texts, self.path = [], [], [], [], []
        self.tables = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.structure.append((tag, *(name for name, _ in attributes)))
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.structure.append((f"/{tag}",))

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        self.texts.append((inside, data))
        if inside in ("td", "th"):
            self.tables[-1][-1][-1] += data

    def handle_comment(self, data):
        pytest.fail(f"a comment: {data}")

    unknown_decl = handle_pi = handle_comment

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def text(self, tag=None):
        return "".join(data for inside, data in self.texts if tag in (None, inside))


def rendered(evaluation, **options):
    return page.render(evaluation, day=DAY, **options)


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without the time it takes to draw them."""
    monkeypatch.setattr(page, "_picture", lambda draw, alt, tables: page.Picture("data:,", "data:,", alt, tables))


@pytest.fixture(scope="module")
def one():
    return rendered(made.evaluation(1))


@pytest.fixture(scope="module")
def document(one):
    return Document(one)


@pytest.mark.slow
def test_it_loads_nothing_and_runs_nothing(one, document):
    assert one.startswith("<!doctype html>\n<html lang=")
    assert {tag for tag, _ in document.tags} <= TAGS
    assert {name for _, attributes in document.tags for name in attributes} <= ATTRIBUTES
    for _, attributes in document.tags:
        for name in {"src", "srcset"} & set(attributes):
            assert re.fullmatch(r"data:image/svg\+xml;base64,[A-Za-z0-9+/]+=*", attributes[name])
    style = document.text("style")
    assert not re.search(r"url|@import|expression|//|\\", style)


def test_the_policy_comes_first_and_allows_its_own_style_alone(document):
    place = [tag for tag, _ in document.tags].index("head")
    digest = base64.b64encode(hashlib.sha256(document.text("style").encode()).digest()).decode()
    assert document.tags[place + 1] == (
        "meta",
        {
            "http-equiv": "Content-Security-Policy",
            "content": f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; "
            "base-uri 'none'; form-action 'none'",
        },
    )
    assert document.tags[place + 2] == ("meta", {"charset": "utf-8"})
    assert len(document.all("style")) == 1


def test_the_charset_stands_within_the_first_kilobyte(one):
    assert one.index('<meta charset="utf-8">') < 1000


def test_pictures_are_plain_drawings_with_words_and_numbers_beside_them(document):
    names = [tag for tag, _ in document.tags]
    assert names.count("picture") == names.count("img") == names.count("figure") >= 7
    for place in (index for index, name in enumerate(names) if name == "picture"):
        assert names[place : place + 3] == ["picture", "source", "img"]
        if names[place + 3] == "details":
            assert names[place + 4 : place + 7] == ["summary", "div", "table"]
        else:  # they stand beside it
            assert names[:place].index("table")
    for image in document.all("img"):
        assert len(image["alt"]) > 15
        drawing = ET.fromstring(base64.b64decode(image["src"].partition(",")[2]))  # noqa: S314 - our own
        assert drawing.tag == f"{SVG}svg"
        for element in drawing.iter():
            assert element.tag not in {f"{SVG}{name}" for name in ("script", "image", "foreignObject", "a", "iframe")}
            for name, value in element.attrib.items():
                assert not name.startswith("on")
                if name.endswith("href"):
                    assert value.startswith("#")
                assert not re.search(r"url\((?!#)", value)


def test_headings_go_down_one_step_at_a_time(document):
    levels = [int(tag[1]) for tag, _ in document.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_link_leads_to_a_section_and_every_section_is_listed(document):
    names = [attributes["id"] for attributes in document.all("section") if "id" in attributes]
    assert [attributes["href"] for attributes in document.all("a")] == [f"#{name}" for name in names]
    assert len(set(names)) == len(names) > 8


@pytest.mark.parametrize("models", [1, 2, 3])
def test_the_top_says_title_day_three_numbers_and_what_to_do(undrawn, models):
    evaluation = made.evaluation(models)
    text = rendered(evaluation, title="Spring release", notices=["labels: `y`", "labels: `y`"])
    found = Document(text)
    assert found.text("title") == found.text("h1") == "Spring release"
    assert found.text("time") == "1 March 2026"
    large = re.findall(r'<dl class="large">(.*?)</dl>', text)
    assert len(large) == models
    for scores, numbers_of in zip(evaluation.models, large, strict=True):
        values = re.findall("<dd>([^<]*)</dd>", numbers_of)
        assert values[:2] == [f"{100 * scores[key].value:.1f}%" for key in ("accuracy", "ece")]
        assert len(values) == 3
        accuracy = scores["accuracy"]
        assert f"{100 * accuracy.low:.1f} to {100 * accuracy.high:.1f}" in numbers_of
    advice = advice_for(evaluation.models[0]) if models == 1 else advice_between(evaluation)
    assert advice.line in found.text("strong")
    assert found.text("li").count("labels: `y`") == 1
    assert "12 rows without a label were left out" in found.text("li")


def test_no_box_where_there_is_nothing_to_say(undrawn):
    text = rendered(replace(made.evaluation(1), notices=[]))
    assert "About the input" not in text


def test_what_scores_lack_is_left_out(undrawn):
    """As of predictions that hold the confidence of the predicted class alone."""
    full = made.scores(0)
    none = {field.name: [] for field in fields(full.by_class)}
    few = {key: full.estimates[key] for key in ("accuracy", "mean_gap", "ece")}
    part = replace(full, estimates=few, by_class=replace(full.by_class, **none), recalibration=None, groups=[], ood={})
    part = replace(part, guarantees=None)
    text = rendered(Evaluation([part]))
    assert 'id="reliability"' in text
    assert 'id="classes"' not in text
    assert 'id="temperature"' not in text
    assert 'id="sets"' not in text
    blind = replace(part, estimates={"accuracy": few["accuracy"]})
    blind = replace(blind, misclassification=replace(full.misclassification, estimates={}, curves={}))
    blind = replace(blind, top_label=replace(full.top_label, count=[0] * made.BINS))
    text = rendered(Evaluation([blind]))
    assert "No advice" in text
    assert 'id="selective"' not in text
    assert 'id="reliability"' not in text
    assert set(gallery.drawn(Evaluation([blind]), risk=0.05)) == set()


@pytest.mark.slow
def test_the_same_evaluation_gives_the_same_page(one):
    again = Evaluation.from_json(made.evaluation(1).to_json())
    assert rendered(again) == one


def test_tables_hold_the_numbers(undrawn):
    evaluation = made.evaluation(3)
    found = Document(rendered(evaluation, risk=0.2))
    rows = [row for table in found.tables for row in table]
    differences = numbers.paired_differences(evaluation), numbers.scaled_differences(evaluation)
    expected = [numbers.summary(evaluation), *differences]
    for model in evaluation.models:
        expected += [numbers.reliability_table(model), numbers.class_table(model, most=50), numbers.risk_table(model)]
        expected += [numbers.recalibration_table(model), numbers.severity_table(model), slices.slice_table(model)]
        expected += [numbers.rates_table(ranking) for ranking in (model.misclassification, *model.ood.values())]
        expected += guarantees.coverage_tables(model)
    for table in expected:
        assert list(table.columns) in rows
        for row in table.rows:
            assert [cell.text for cell in row] in rows or row[0].text in found.text("caption")
    best = Counter(cell.text for table in expected for row in table.rows for cell in row if cell.best)
    marked = Counter(data for inside, data in found.texts if inside == "td" and data in best)
    assert len(re.findall('class="best', rendered(evaluation))) == best.total()
    assert marked >= best
    worse = sum(cell.worse for table in expected for row in table.rows for cell in row)
    assert len(re.findall('class="worse', rendered(evaluation))) == worse > 0
    for words in ("To be wrong at most 20% of the time", "3 models, 1,500 labelled samples", "Made by counterpoise"):
        assert words in found.text()
    smaller = replace(evaluation.models[1], samples=900)
    assert "900 to 1,500 labelled samples" in rendered(Evaluation([evaluation.models[0], smaller]))


PAYLOADS = (
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>',
    "'><svg onload=alert(1)>", "</style><script>alert(1)</script>", "</title><b>", "</table></div></main>", "<!--",
    "-->", "<![CDATA[", "]]>", "<?php echo 1 ?>", "&lt;b&gt;", "&#60;b&#62;", "&amp;amp;", "&", "&nbsp", "{{7*7}}",
    "{{ config }}", "{% raw %}", "{% include '/etc/passwd' %}", "{# note #}", "${x}", "#{x}", "%s %n %(x)s", "{0}{x}",
    "javascript:alert(1)", "data:text/html,<script>alert(1)</script>", "vbscript:x", "\x00", "a\x00<b>", "\x0b\x0c\x1f",
    "\u202eevil\u202c", "\u2066a\u2069", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", '"', "'", "`", '" onclick="x', "' style='x",
    "\u2018\u2019\u201c\u201d\xab\xbb", "x" * 3000, "长" * 500, "🙂👩‍💻", "e\u0301\u0301", "\u2028\u2029", "\ufeff", "\ufffe", "\udc80", "\u200b\u200d",
    "} body { display: none } @import 'x'", "/* */ url(http://x.y)", "expression(alert(1))", "http://x.y/?a=b&c=d",
    "<base href=http://x.y>", "<meta http-equiv=refresh content=0>", "<iframe srcdoc=x>", "<plaintext>", "<textarea>",
    "<math><mi//xlink:href=x>", "\\", "a/../../b", "  two spaces", "=1+1", "$\\frac{x$", "\t", "\r\n", "<", ">", "<a", "</",
)  # fmt: skip
CONTEXTS = ("{}", "a {} b", '"{}')


def poisoned(value, payload, *, name=""):
    """A copy with the payload in front of every text, those of names and keys included."""
    if is_dataclass(value):
        return replace(value, **{f.name: poisoned(getattr(value, f.name), payload, name=f.name) for f in fields(value)})
    if isinstance(value, dict) and name != "curves":
        return {poisoned(key, payload): poisoned(item, payload) for key, item in value.items()}
    if isinstance(value, list) and not (value and isinstance(value[0], float)):
        return [poisoned(item, payload) for item in value]
    return payload + value if isinstance(value, str) and value not in KEY_INFO else value


SHOWN = (
    *made.CLASS_NAMES, *made.FOREIGN_SETS, *made.CORRUPTIONS, "town", "country", "net 0", "net 1",
    "/data/net0.parquet", "ab" * 32, "logits", "net", "ce", "cd" * 8, "cifar10", "test", "torch", "2.8",
    "max_softmax", "converged", "12 rows without a label were left out",
)  # fmt: skip


def test_there_are_over_200_hostile_texts():
    assert len(set(PAYLOADS)) * len(CONTEXTS) > 200


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS)
def test_hostile_texts_stay_texts(undrawn, context):
    evaluation = made.evaluation(2)
    benign = Document(rendered(poisoned(evaluation, "x"))).structure
    for payload in PAYLOADS:
        hostile = context.format(payload) if "{}" not in payload else context.replace("{}", payload)
        text = rendered(poisoned(evaluation, hostile))
        text.encode()
        found = Document(text)
        assert found.structure == benign, payload
        words = found.text() + "".join(image["alt"] for image in found.all("img"))
        for original in SHOWN:
            assert readable(hostile) + original in words, (payload, original)
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


@pytest.mark.slow
def test_hostile_texts_are_drawn_as_texts(document):
    payload = "<script>alert(1)</script>$\\frac{x$_^\x00\x1b[31m</svg>]]>&lt;\"'\u957f\U0001f642\u202e\udc80"
    found = Document(rendered(poisoned(made.evaluation(1), payload)))
    assert found.structure == document.structure
    for image in found.all("img"):
        assert b"<script" not in base64.b64decode(image["src"].partition(",")[2])


def test_the_file_is_the_page(undrawn, tmp_path):
    evaluation = poisoned(made.evaluation(1), "\udc80\r\n")
    path = tmp_path / "report.html"
    path.write_text("old")
    page.write_report(path, evaluation, day=DAY)
    assert path.read_bytes() == rendered(evaluation).encode()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
@pytest.mark.parametrize("name", made.EDGES)
def test_everything_can_be_shown_at_the_edges(undrawn, name):
    evaluation = Evaluation([made.edge_cases()[name]])
    with drawing():
        for title, figure in gallery.drawn(evaluation, risk=0.05).items():
            if title == "severity" or not evaluation.models[0].groups:  # else it is one of those drawn before
                figure.draw_without_rendering()
    text = Document(rendered(evaluation)).text() + terminal.as_text(evaluation, risk=0.05)
    assert "nan" not in text
    for form in (tables.as_text, tables.as_markdown, tables.as_latex):
        assert "Accuracy" in form(numbers.summary(evaluation))
    assert numbers.estimates_csv(evaluation).startswith("model,section,metric")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("perfect", ("undefined", "keeps 100.0% of them, of which 0.0% are wrong")),
        ("all wrong", ("undefined", "No threshold keeps errors at 5% of what is accepted")),
        ("energy", ("by energy", "a score (energy)")),
        ("entropy", ("by negative_entropy",)),
        ("thousand classes", ("1,000 classes", "class ")),
        ("corruptions without severity", ("Group by group", "fog", "blur")),
        ("severities without corruption", ("images degrade", "unnamed")),
        ("domains with severities", ("fog, town", "fog, country", "Group by group")),
        ("certain and wrong", ("inf",)),
    ],
)
def test_what_the_edges_say(undrawn, name, words):
    text = Document(rendered(Evaluation([made.edge_cases()[name]]))).text()
    for word in words:
        assert word in text


@pytest.mark.parametrize("name", ["perfect", "all wrong"])
def test_no_curve_is_drawn_where_there_is_nothing_to_tell_apart(name):
    edges = made.edge_cases()
    for models in (edges[name], [edges[name], edges["unnamed"]]):
        drawn = figures.detection(models).findobj()
        curves = [artist for artist in drawn if artist.get_gid() == "rates"]
        assert len(curves) == (0 if models is edges[name] else 1)
        assert any(artist.get_gid() == "undefined" for artist in drawn)


def test_groups_are_told_apart():
    edges = made.edge_cases()
    towns = numbers.severity_table(edges["domains with severities"])
    assert [row[0].text for row in towns.rows] == ["clean, town", "fog, town", "fog, country"]
    assert [row[0].text for row in slices.slice_table(edges["domain without corruption"]).rows] == ["town"]
