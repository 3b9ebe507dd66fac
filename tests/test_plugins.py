"""Plugins from files and from installed packages, through the command line on a tiny model; what is refused."""

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest
import tiny

from jaxalign import cli, models, plugins, rewards
from jaxalign.errors import DataError, InputError
from jaxalign.evaluation.experiment import Experiment
from jaxalign.metrics import measures
from jaxalign.rewards import export

pytestmark = pytest.mark.usefixtures("quick_compilation")

PAGE = Path(__file__).parents[1] / "docs" / "plugins.md"
CODE = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL))
MEASURE = "from jaxalign.metrics import measures\n\n@measures.register('{}')\ndef one(row, history):\n    return {}\n"


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(plugins, "_files", {})
    monkeypatch.setattr(plugins, "_installed", {})
    for registry in plugins._registries:
        monkeypatch.setattr(registry, "added", {})
    monkeypatch.setenv("JAXALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm") / "lm"
    config = tiny._config(
        "llama", vocab_size=258, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, max_position=512
    )
    tiny.save_tokenizer(tiny.save(folder, config, bos_token_id=0, eos_token_id=1))
    return folder


@pytest.fixture
def taste(tmp_path):
    """The page's plugin, and votes that its source reads."""
    (tmp_path / "taste.py").write_text(CODE)
    rows = ["user,prompt,up,down"]
    for user in range(6):
        # Few texts of one length: little is compiled.
        rows += [f"u{user},Say it.,sea {(pair + user) % 16 // 4},sky {(pair + user) % 4}" for pair in range(12)]
    (tmp_path / "votes").mkdir()
    (tmp_path / "votes" / "thumbs.csv").write_text("\n".join(rows) + "\n")
    return "taste.py"


def package(site, name, entry, code):
    """An installed package with one entry point."""
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text("")
    (site / name / "taste.py").write_text(code)
    info = site / f"{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[jaxalign.plugins]\ntaste = {entry}\n")


def test_one_of_each_kind_from_a_file(taste, folder, tmp_path, capsys):
    """The page's commands, each with what it adds."""
    assert cli.main(["methods", "--plugins", taste]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["guidance", "end_sooner", "taste.py"] in shown
    assert ["selection", "min_p", "taste.py"] in shown
    assert ["source", "thumbs", "taste.py"] in shown
    assert ["measure", "new_words", "taste.py"] in shown
    assert any(words[:1] == ["steady"] and words[-1] == "taste.py" for words in shown)

    named = ["--plugins", taste]
    prepare = ["data", "prepare", "thumbs", *named, "--data", "votes", "--data-dir", "tfds", "--out", "thumbs.jsonl"]
    assert cli.main(prepare) == 0
    rows = [json.loads(line) for line in (tmp_path / "thumbs.jsonl").read_text().splitlines()]
    assert len(rows) == 72
    assert rows[0].keys() == {"user", "prompt", "chosen", "rejected"}

    model = ["--model", str(folder)]
    fit = ["fit", *named, *model, "--data", "thumbs.jsonl", "--method", "steady", "--set", "steps=2", "--out", "rm"]
    assert cli.main(fit) == 0
    assert export.load(tmp_path / "rm").method.strength == 100.0  # pyright: ignore[reportAttributeAccessIssue]
    capsys.readouterr()

    (tmp_path / "p.jsonl").write_text('{"ids": [5, 6]}\n{"ids": [7]}\n')
    generate = ["generate", *named, *model, "--prompts", "p.jsonl", "--max-new-tokens", "6"]
    assert cli.main([*generate, "--guidance", "end_sooner", "rate=1000"]) == 0
    # Position 0 gets nothing, position 1 gets 1000 nats for the end token.
    stopped = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["tokens"][1:], line["stop_reason"]) for line in stopped] == [([1], "end_token")] * 2
    assert cli.main([*generate, "--guidance", "end_sooner", "rate=1000", "--weight", "0"]) == 0
    plain = [json.loads(line)["tokens"] for line in capsys.readouterr().out.splitlines()]
    assert plain != [line["tokens"] for line in stopped]
    # With a share of 1 only the most probable token is left: greedy, whatever the draws.
    assert cli.main([*generate, "--temperature", "1", "--selection", "min_p", "share=1.0"]) == 0
    assert [json.loads(line)["tokens"] for line in capsys.readouterr().out.splitlines()] == plain


@pytest.mark.slow
def test_a_run_with_a_source_a_method_and_a_measure(taste, folder, tmp_path, capsys):
    settings = {
        "model": str(folder),
        "min_pairs": 5,
        "test": 0.3,
        "validation": 0.2,
        "shots": (1,),
        "pooling": "mean",
        "weights": (1.0,),
        "top_ks": (2,),
        "batch_size": 8,
        "writing_users": 1,
        "prompts_per_user": 1,
        "response_tokens": 3,
        "in_context": (),
        "in_context_pairs": 0,
        "guided_in_context": False,
    }
    config = "from jaxalign.evaluation.experiment import Experiment\n"
    (tmp_path / "mine.py").write_text(f"{config}experiment = Experiment(**{settings!r})\n")
    named = ["--plugins", taste, "--source", "thumbs", "--data", "votes", "--methods", "steady"]
    run = ["run", "mine.py", *named, "--measures", "new_words", "--out", "ran", "--mesh", "users=1"]
    assert cli.main(run) == 0
    rows = [json.loads(line) for line in (tmp_path / "ran" / "metrics.jsonl").read_text().splitlines()]
    assert {"steady"} <= {row["method"] for row in rows if row["measure"] == "rm_accuracy"}
    measured = [row for row in rows if row["measure"] == "new_words"]
    assert {"plain", "steady"} <= {row["method"] for row in measured}
    texts = [json.loads(line) for line in (tmp_path / "ran" / "generations.jsonl").read_text().splitlines()]
    assert all(row["quality"]["new_words"] is None or 0 <= row["quality"]["new_words"] <= 1 for row in texts)
    assert json.loads((tmp_path / "ran" / "data.json").read_text())["licence"] == "ours"
    assert export.pooling_of(tmp_path / "ran" / "models" / "steady") == "mean"  # which `generate` and `score` then read
    selection = json.loads((tmp_path / "ran" / "selection.json").read_text())
    assert "new_words" in {row["y"] for row in selection["correlations"]}
    kept = json.loads((tmp_path / "ran" / "config.json").read_text())["config"]["plugins"]
    assert kept == {"taste.py": plugins.load([taste])[0].version}

    (tmp_path / "taste.py").write_text(CODE + "# another version\n")
    capsys.readouterr()
    assert cli.main(run) == 2
    assert "plugins: {'taste.py': '" in capsys.readouterr().err


def test_an_installed_package_is_found_by_its_entry_point(tmp_path, monkeypatch, capsys):
    package(tmp_path / "site", "taste_package", "taste_package.taste", CODE)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    try:
        rewards.make("bt")
        assert "taste_package" not in sys.modules  # imported where it is needed
        assert rewards.make("steady").name == "steady"
        assert cli.main(["methods", "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert {"kind": "source", "name": "thumbs", "from": "taste_package"} in lines
        assert next(line["from"] for line in lines if line["name"] == "steady") == "taste_package"
        experiment = Experiment(methods=("bt", "steady"))
        experiment.check()
        assert list(experiment.plugin_versions()) == ["taste_package"]
        assert experiment.plugin_versions()["taste_package"].startswith("1.5, sha256 ")
        assert Experiment(methods=("bt",)).plugin_versions() == {}
    finally:
        for name in [name for name in sys.modules if name.startswith("taste_package")]:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("entry", "code", "message"),
    [
        (
            "taste_broken.taste",
            "x = 1\ny = nothing\n",
            r"'taste' \(taste_broken.taste\) of taste_broken 1.5, line 2: Name",
        ),
        ("taste_broken.absent", "", r"of taste_broken 1.5: ModuleNotFoundError: .*taste_broken.absent"),
        ("taste_broken.taste:go", "", "must name a module"),
    ],
)
def test_a_broken_package_names_its_entry_point_each_time(entry, code, message, tmp_path, monkeypatch):
    package(tmp_path / "site", "taste_broken", entry, code)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    try:
        for _ in range(2):
            with pytest.raises(InputError, match=message):
                rewards.make("steady")
        assert rewards.make("bt").name == "bt"  # nobody else is troubled
    finally:
        for name in [name for name in sys.modules if name.startswith("taste_broken")]:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import jax\n\nx = 1 +\n", "plugin broken.py, line 3: SyntaxError"),
        ("\n\nraise ValueError('no good')\n", "plugin broken.py, line 3: ValueError: no good"),
        ("import sys\nsys.exit(1)\n", "plugin broken.py, line 2: SystemExit"),
        (MEASURE.format("rouge1", 1.0), "broken.py, line 3: There is a measure 'rouge1' already"),
        (MEASURE.format("two words", 1.0), "'two words' cannot name a measure"),
        ("# nothing\n" + MEASURE.format("mine", 1.0) + "1 / 0\n", "line 7: ZeroDivisionError"),
    ],
)
def test_a_broken_file_names_its_line_and_leaves_nothing(code, message, tmp_path, capsys):
    (tmp_path / "broken.py").write_text(code)
    assert cli.main(["methods", "--plugins", "broken.py"]) == 2
    assert message in capsys.readouterr().err
    assert "mine" not in measures.MEASURES.added
    assert cli.main(["methods", "--plugins", "absent.py"]) == 2
    assert "plugins: absent.py cannot be read (No such file or directory)" in capsys.readouterr().err


def test_a_file_is_executed_once_and_again_when_it_changes(tmp_path):
    (tmp_path / "mine.py").write_text(MEASURE.format("first", 1.0))
    (once,) = plugins.load(["mine.py"])
    assert plugins.load([tmp_path / "mine.py"]) == [once]
    (tmp_path / "mine.py").write_text(MEASURE.format("second", 2.0))
    (again,) = plugins.load(["mine.py"])
    assert again.version != once.version
    assert measures.MEASURES.names() == ("second",)


def test_code_of_plugins_that_fails_later_is_named(folder, tmp_path):
    (tmp_path / "mine.py").write_text(
        MEASURE.format("broken", "1 / 0")
        + MEASURE.format("endless", "float('inf')").replace("def one", "def two")
        + "from jaxalign.decoding.registry import register_guidance\n"
        "from jaxalign.data.sources import registry, ukp\n"
        "import dataclasses\n"
        "@register_guidance('nothing')\ndef nothing(lm, *, size):\n    return size\n"
        "@registry.register(dataclasses.replace(ukp.SOURCE, name='odd'))\ndef odd(path):\n    yield 'a row'\n"
    )
    plugins.load(["mine.py"])
    row = {"method": "bt", "user": "ann", "text": "a"}
    with pytest.raises(
        InputError, match=r"measure 'broken' \(method bt, user 'ann'\) of mine.py, line 5: ZeroDivision"
    ):
        measures.value("broken", row, [])
    with pytest.raises(InputError, match="measure 'endless' is inf for a text of bt for user 'ann'"):
        measures.value("endless", row, [])
    from jaxalign.data.sources import registry as sources
    from jaxalign.decoding.registry import make_guidance

    with pytest.raises(DataError, match="source 'odd': row 1 is a str, not a Preference"):
        sources.rows("odd", tmp_path)
    lm = models.load(str(folder))
    with pytest.raises(InputError, match="needs a value: give size=VALUE"):
        make_guidance("nothing", lm)
    with pytest.raises(InputError, match=r"no setting 'szie'. Did you mean 'size'\? It has size"):
        make_guidance("nothing", lm, szie=1)
    with pytest.raises(InputError, match="gave a int, which is no jaxalign"):
        make_guidance("nothing", lm, size=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "ukpp", "data": Path("x")}, r"no source 'ukpp'. Did you mean 'ukp'"),
        ({"measures": ("rouge1",)}, "'rouge1' is a name of jaxalign's own"),
        ({"measures": ("nothing",)}, "no measure 'nothing'. None is known"),
        ({"plugins": (Path("absent.py"),)}, "absent.py cannot be read"),
        ({"methods": ("steady",)}, "Name the file of a plugin with `plugins`"),
    ],
)
def test_configs_that_name_what_is_not_there(changes, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(Experiment(), **changes).check()


def test_names_on_the_command_line_are_checked_before_the_model_is_loaded(taste, capsys):
    base = ["generate", "--model", "/nowhere", "--prompt", "a", "--plugins", taste]
    for flags, message in (
        (["--guidance", "end_soner"], "Did you mean 'end_sooner'"),
        (["--guidance", "end_sooner", "rate"], "'rate' is not name=value"),
        (["--selection", "min_q"], "Did you mean 'min_p'"),
        (["--selection", "min_p", "shore=1"], "Did you mean 'share'"),
    ):
        assert cli.main([*base, *flags]) == 2
        assert message in capsys.readouterr().err
