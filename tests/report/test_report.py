"""The report of a synthetic run: what it says, that nothing in it can act, and what it does with half a run."""

import base64
import csv
import hashlib
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from jaxalign import cli, report
from jaxalign.errors import DataError, InputError
from jaxalign.report import numbers, read, tables

sys.path.insert(0, str(Path(__file__).parent))
import synthetic

ONE = ("lore",)
FIGURES = ("accuracy", "weight", "shots", "spread", "quality", "equivalence")


class Page(HTMLParser):
    """Every start tag with its attributes, the text, and the elements that are still open at the end."""

    VOID = ("meta", "wbr", "link", "img", "br", "input")

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.texts, self.open = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in ("div", "p", "td", "th", "dd", "li"):
            self.texts.append(" ")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join("".join(self.texts).split())


@pytest.fixture
def no_pictures(monkeypatch):
    """Painting is slow, and tested once."""
    monkeypatch.setattr("jaxalign.report.png.write", lambda *_: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a complete run with its report, without pictures."""
    folder = synthetic.write(tmp_path_factory.mktemp("whole") / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxalign.report.png.write", lambda *_: None)
        assert report.write(folder) == folder / "report.html"
    return folder


def written(folder):
    return Page(report.write(folder).read_text(encoding="utf-8"))


def test_the_top_says_what_to_deploy_and_what_rm_accuracy_costs(whole):
    text = Page((whole / "report.html").read_text()).text
    assert "Deploy lore." in text
    assert "RM accuracy would have picked gpo." in text
    assert "loses 6.0 points of policy accuracy" in text
    assert "0.0 to 9.4 points" in text
    assert text.index("Deploy lore.") < text.index("Methods")


def test_every_section_shows_its_numbers(whole):
    text = Page((whole / "report.html").read_text()).text
    assert "tau-b between RM accuracy and policy accuracy is 0.21 (95 % interval \u22120.29 to 0.64, p = 0.55)" in text
    assert "71.0" in text
    assert "68.0\u201374.0" in text
    assert "Met RM accuracy agrees weakly" in text
    assert "Not met Guidance fails" in text
    assert "Cannot be said In-context learning wins" in text
    assert "On arguing: what people prefer" in text  # the user's own text
    assert "Argument preferences" in text
    assert "CC BY 4.0" in text
    assert "0123abc" in text
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b|Undefined", text)


def test_changed_tokens_are_marked_and_explained(whole):
    page = (whole / "report.html").read_text()
    assert "<mark>argue</mark>" in page
    assert "4 of 15 tokens changed" in page
    assert "tokens that guidance changed" in page


def test_the_page_is_well_formed_and_accessible(whole):
    page = Page((whole / "report.html").read_text())
    assert page.open == []
    assert ("html", {"lang": "en"}) in page.tags
    assert any(a.get("name") == "viewport" and "width=device-width" in a["content"] for _, a in page.tags)
    charts = [a for tag, a in page.tags if tag == "svg" and a.get("class") == "chart"]
    assert charts
    assert all(a["role"] == "img" and a["aria-label"] for a in charts)
    assert sum(tag == "figure" for tag, _ in page.tags) == sum(tag == "figcaption" for tag, _ in page.tags) == 6
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    identifiers = [a["id"] for _, a in page.tags if "id" in a]
    assert len(identifiers) == len(set(identifiers))
    assert {a["href"][1:] for tag, a in page.tags if tag == "a"} <= set(identifiers)
    tables = [place for place, (tag, _) in enumerate(page.tags) if tag == "table"]
    assert tables
    assert all("scroll" in page.tags[place - 1][1].get("class", "") for place in tables)


def test_nothing_is_fetched_and_nothing_runs(whole):
    text = (whole / "report.html").read_text()
    page = Page(text)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "form", "base", "use"}
    names = {name for _, attributes in page.tags for name in attributes}
    assert not [name for name in names if name.startswith("on") or name in ("src", "srcset", "style", "xlink:href")]
    assert all(a["href"].startswith("#") for _, a in page.tags if "href" in a)
    assert not re.search(r"https?:|url\(|@import", text)
    style = re.search("<style>(.*?)</style>", text, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    assert f"style-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_figures_and_tables_are_written_as_files(whole):
    for name in FIGURES:
        rows = list(csv.DictReader((whole / "figures" / f"{name}.csv").read_text().splitlines()))
        assert rows
    rows = list(csv.DictReader((whole / "figures" / "accuracy.csv").read_text().splitlines()))
    lore = next(row for row in rows if row["method"] == "lore" and row["length"] == "sum")
    assert (float(lore["rm_accuracy"]), float(lore["policy_accuracy"])) == (0.71, 0.67)
    assert float(lore["rm_accuracy_low"]) == pytest.approx(0.68)
    assert {path.stem for path in (whole / "tables").iterdir()} == {"accuracy", "forms", "quality", "metrics"}


def test_every_figure_is_painted_for_light_and_dark(tmp_path):
    methods = ("lore", "gpo")
    few = [row for row in synthetic.metrics(methods) if row["measure"] in ("rm_accuracy", "policy_accuracy", "rouge1")]
    folder = synthetic.write(tmp_path / "run", methods, metrics=few, generations=None)
    report.write(folder)
    sizes = set()
    for name in FIGURES:
        light, dark = (pixels(folder / "figures" / f"{name}{suffix}.png") for suffix in ("", "_dark"))
        assert light.shape == dark.shape
        assert tuple(light[0, 0]) == (255, 255, 255)
        assert tuple(dark[0, 0]) == (0x16, 0x18, 0x1B)
        # What is drawn takes the same places in both.
        drawn = [(image != image[0, 0]).any(axis=-1).mean() for image in (light, dark)]
        assert drawn[0] == pytest.approx(drawn[1], rel=0.05)
        assert drawn[0] > 0.01
        sizes.add(light.shape)
    assert len(sizes) > 1


def pixels(path):
    """`[height, width, 3]` of a PNG file, 0 to 255."""
    import matplotlib.image

    return np.rint(matplotlib.image.imread(path)[..., :3] * 255).astype(int)


HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(1)> <!-- &amp; ]]> \u202eevil\u202c \x1b[31m\x00 "
    "{{ 7 * 7 }} \"' </style></details></svg>\ud83d"
)


def test_hostile_text_is_inert_wherever_it_stands(tmp_path, no_pictures):
    evil = HOSTILE
    swap = {"lore": evil}

    def named(rows):
        return [{**row, "method": swap.get(row["method"], row["method"])} for row in rows]

    generations = [
        {**row, "user": evil, "prompt": [{"role": evil, "content": evil}], "reference": evil, "text": evil,
         "stop_reason": evil, "pieces": [[evil, True], [evil, False]], "quality": {evil: 0.5}, "kind": evil}
        for row in named(synthetic.generations())
    ]  # fmt: skip
    selection = synthetic.selection()
    selection["deploy"] = {"method": evil, "criterion": evil, "why": evil}
    for field in ("correlations", "regret", "equivalence", "claims"):
        for row in selection[field]:
            row |= {key: evil for key in row if isinstance(row[key], str)}
    metrics = [*named(synthetic.metrics()), synthetic._row(evil, evil, 0.5)]
    folder = synthetic.write(
        tmp_path / "run",
        generations=generations,
        metrics=metrics,
        users=[{**row, "user": evil} for row in named(synthetic.users())],
        selection=selection,
        config={**synthetic.CONFIG, "config": {"name": evil, evil: evil}, "versions": {evil: evil}},
        data={"title": evil, "source": evil, "licence": evil, "notes": [evil], "users": {evil: 1}},
    )
    text = report.write(folder).read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"script", "img"}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    assert "<script>alert(1)</script>" in page.text
    assert "\u27e8U+202E\u27e9evil" in page.text
    assert "{{ 7 * 7 }}" in page.text
    for file in (*(folder / "figures").iterdir(), *(folder / "tables").iterdir()):
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202e]", file.read_text(encoding="utf-8"))


def test_huge_texts_are_cut_and_the_page_says_so(tmp_path, no_pictures):
    rows = [{**row, "text": "word " * 100_000, "pieces": None} for row in synthetic.generations(ONE)]
    page = written(synthetic.write(tmp_path / "run", ONE, generations=rows))
    assert len(page.text) < 400_000
    assert "497000 more characters" in page.text


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", " =", "\uff1d", "'="])
def test_no_cell_of_a_csv_file_is_a_formula(tmp_path, start):
    column = tables.Column("method", "method")
    cell = f"{start}HYPERLINK(1)"
    table = tables.Table("t", "", [column, tables.Column("value", "value")], [{"method": cell, "value": -1.5}])
    tables.write_csv(tmp_path / "t.csv", table)
    row = list(csv.reader((tmp_path / "t.csv").read_text(encoding="utf-8").splitlines()))[1]
    assert row[0] == "'" + cell
    assert row[1] == "-1.5"  # a number stays one


def test_a_header_is_no_formula_either(tmp_path):
    tables.write_csv(tmp_path / "t.csv", tables.Table("t", "", [tables.Column("=1+1", "")], []))
    assert (tmp_path / "t.csv").read_text() == "'=1+1\n"


MISSING = {
    "metrics": "There are no accuracies. The run folder has no metrics.jsonl.",
    "users": "There is no policy accuracy of single users. The run folder has no users.jsonl.",
    "generations": "No texts were generated. The run folder has no generations.jsonl.",
    "selection": "There is no selection analysis. The run folder has no selection.json.",
    "data": "There is no data card. The run folder has no data.json.",
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_file_is_said_in_its_place(tmp_path, no_pictures, name):
    page = written(synthetic.write(tmp_path / "run", **{name: None}))
    assert MISSING[name] in page.text
    assert page.open == []


def test_a_run_that_has_only_begun_has_a_report(tmp_path, no_pictures):
    page = written(synthetic.write(tmp_path / "run", **dict.fromkeys(MISSING)))
    assert "No recommendation." in page.text
    assert all(sentence in page.text for sentence in MISSING.values())
    assert "Fewer than two weights were tried." in page.text


def test_one_method_has_no_tau_and_the_report_says_so(tmp_path, no_pictures):
    page = written(synthetic.write(tmp_path / "run", ONE))
    assert "tau-b between RM accuracy and policy accuracy is undefined: one method" in page.text
    assert "Deploy lore." in page.text
    assert "RM accuracy would have picked it too" in page.text


def test_a_figure_that_cannot_be_drawn_any_more_goes(tmp_path, no_pictures):
    folder = synthetic.write(tmp_path / "run", ONE)
    report.write(folder)
    assert (folder / "figures" / "spread.csv").is_file()
    (folder / "users.jsonl").unlink()
    report.write(folder)
    assert not (folder / "figures" / "spread.csv").exists()


def test_validation_users_are_no_result(tmp_path, no_pictures):
    rows = [*synthetic.metrics(ONE), synthetic._row("rm_accuracy", "lore", 0.987, group="validation")]
    assert "98.7" not in written(synthetic.write(tmp_path / "run", ONE, metrics=rows)).text


@pytest.mark.parametrize("length", ["sum", "mean"])
def test_rows_are_ordered_by_the_headline_of_the_config(length):
    rows = [
        synthetic._row("policy_accuracy", method, value, form="policy", length=form, weight=1.0, top_k=10)
        for method, values in {"one": {"sum": 0.7, "mean": 0.5}, "two": {"sum": 0.6, "mean": 0.8}}.items()
        for form, value in values.items()
    ]
    table = tables.accuracy(numbers.Numbers(rows, "unseen", length, 10))
    assert [row["method"] for row in table.rows] == (["one", "two"] if length == "sum" else ["two", "one"])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("metrics.jsonl", '{"measure": "ece"}\n', "line 1: field 'method' is missing"),
        ("metrics.jsonl", "\n{oops\n", "line 2: it is not JSON"),
        ("metrics.jsonl", "[1]\n", "line 1: it must be a JSON object"),
        ("users.jsonl", '{"measure": "m", "method": "b", "group": "g", "user": 7, "value": 1}', "'user' must be text"),
        ("metrics.jsonl", '{"measure": "m", "method": "b", "group": "g", "value": NaN}', "NaN is not JSON"),
        ("metrics.jsonl", '{"measure": "m", "method": "b", "group": "g", "value": true}', "must be a number or null"),
        ("selection.json", '{"regret": [{"criterion": 1}]}', "field 'regret', entry 1: 'criterion' must be text"),
        ("data.json", "\xff", "it is not UTF-8"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named_with_its_line_and_field(tmp_path, file, content, message):
    folder = synthetic.write(tmp_path, ONE)
    (folder / file).write_text(content, encoding="latin-1")
    with pytest.raises(DataError, match=message) as error:
        read.load(folder)
    assert file in str(error.value)


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no such folder"):
        read.load(tmp_path / "none")
    with pytest.raises(InputError, match=r"no config\.json"):
        read.load(tmp_path)
    synthetic.write(tmp_path, ONE, config={"schema": 1, "config": {}})
    with pytest.raises(InputError, match="schema is 1, and this version reads 2"):
        read.load(tmp_path)


def test_the_command_prints_the_verdict_and_the_path(tmp_path, no_pictures, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    folder = synthetic.write(tmp_path / "run", ONE)
    assert cli.main(["report", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "Deploy lore." in printed
    assert "71.0" in printed
    assert str(folder / "report.html") in printed
    assert cli.main(["report", str(tmp_path / "none")]) == 2
    assert "there is no such folder" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_without_errors_and_without_a_sideways_scroll(whole, tmp_path, width):
    """Headless Chromium reports what the page's policy blocked, and how wide the page came out."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("there is no Chromium on this machine")
    # A frame of the width asked for, since a window has a least width of its own.
    frame = tmp_path / "frame.html"
    page = (whole / "report.html").as_uri()
    frame.write_text(
        f"<iframe id=f width={width} height=900 src='{page}'></iframe><script>f.onload = () => {{"
        "const d = f.contentDocument.documentElement; document.title = 'wide ' + d.scrollWidth + ' of ' + d.clientWidth"
        " + ' sized ' + f.contentWindow.getComputedStyle(d.querySelector('.verdict')).fontSize }</script>"
    )
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
               "--enable-logging=stderr", "--virtual-time-budget=5000", f"--user-data-dir={tmp_path / 'profile'}",
               "--dump-dom", frame.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.search(r"<title>wide (\d+) of (\d+) sized (\d+)px</title>", done.stdout)
    assert found, done.stderr[-2000:]
    assert int(found[1]) <= int(found[2])
    assert int(found[3]) == (31 if width == 390 else 44)  # the style sheet was let in
    assert "Content Security Policy" not in done.stderr
