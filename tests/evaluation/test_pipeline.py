"""The whole job on a tiny model: files whose numbers can be recomputed, reruns, interruptions, refusals."""

import contextlib
import dataclasses
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from tiny_run import RESULTS, SETTINGS, read, rows, save_model, settings, write

from jaxalign import models
from jaxalign.cli import main
from jaxalign.errors import InputError
from jaxalign.evaluation.experiment import Experiment
from jaxalign.evaluation.pipeline import run

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def lm(folder):
    return models.load(str(folder))


@pytest.fixture(scope="module")
def undisturbed(lm, tmp_path_factory):
    """One whole run, with its experiment."""
    place = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXALIGN_CACHE", str(place / "cache"))
        experiment = settings(place)
        return experiment, run(experiment, lm)


def test_the_table_follows_from_the_pairs_and_texts(undisturbed):
    experiment, results = undisturbed
    pairs = read(results.folder, "pairs.jsonl")
    chosen = [r for r in results.metrics if r["chosen"] and r["average"] == "macro" and r["shots"] is None]
    for method in ("bt", "per_user"):
        for group in ("seen", "unseen"):
            own = [pair for pair in pairs if pair["method"] == method and pair["group"] == group]
            right: dict[str, list] = {}
            for pair in own:
                gaps = [pair[f"{name}_chosen"] - pair[f"{name}_rejected"] for name in ("reward", "policy")]
                right.setdefault(pair["user"], []).append(np.sign(gaps) / 2 + 0.5)
            macro = np.mean([np.mean(values, axis=0) for values in right.values()], axis=0)
            for measure, form, value in (("rm_accuracy", None, macro[0]), ("policy_accuracy", "policy", macro[1])):
                (row,) = [
                    r
                    for r in chosen
                    if (r["measure"], r["method"], r["group"], r["form"]) == (measure, method, group, form)
                    and r["length"] in (None, experiment.length)
                ]
                assert row["value"] == pytest.approx(value, abs=1e-6)
                assert row["low"] <= row["value"] <= row["high"]
                assert row["users"] == len(right)
    generations = read(results.folder, "generations.jsonl")
    kinds = {row["kind"] for row in generations}
    assert kinds == {"plain", "in_context", "graded", "guided", "guided_in_context"}
    for row in generations:
        if row["kind"].startswith("guided"):
            assert "".join(text for text, _ in row["pieces"]) == row["text"]
            assert 0 <= row["quality"]["changed"] <= 1
    # The reference is a control: it has accuracies and no texts, and is no candidate.
    assert not any(row["method"] == "reference" for row in generations)
    reference = [r for r in chosen if r["method"] == "reference" and r["measure"] == "rm_accuracy"]
    assert [r["value"] for r in reference] == [0.5] * 3
    assert results.selection is not None
    assert results.selection["deploy"]["method"] in ("bt", "per_user")
    assert results.report.is_file()


def test_the_same_again_computes_nothing_and_changes_nothing(undisturbed, lm):
    experiment, results = undisturbed
    before = {name: (results.folder / name).read_bytes() for name in RESULTS}
    told = []

    @contextlib.contextmanager
    def progress(what, total):
        yield lambda count: told.append((what, count))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXALIGN_CACHE", str(experiment.out.parent / "cache"))
        assert run(experiment, lm, progress).metrics == results.metrics
    assert {name: (results.folder / name).read_bytes() for name in RESULTS} == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "stage", ["features", "fit", "policies judged", "in-context policies judged", "texts", "quality of texts"]
)
def test_interrupted_in_any_stage_and_run_again_gives_the_same(stage, undisturbed, lm, tmp_path):
    _, results = undisturbed
    experiment = settings(tmp_path / "again")
    stopped = []

    @contextlib.contextmanager
    def interrupt(what, total):
        def done(count):
            if what == stage and not stopped:
                stopped.append(what)
                raise KeyboardInterrupt

        yield done

    with pytest.raises(KeyboardInterrupt):
        run(experiment, lm, interrupt)
    again = run(experiment, lm)
    assert stopped == [stage]
    for name in RESULTS:
        assert (again.folder / name).read_bytes() == (results.folder / name).read_bytes()


@pytest.mark.parametrize("damage", ["a flipped bit", "half of it"])
def test_a_damaged_file_is_named_and_computed_again(damage, undisturbed, lm, caplog):
    """All files that a rerun reads, damaged at once."""
    experiment, results = undisturbed
    cache = experiment.out.parent / "cache"
    kept = [*results.folder.glob("*/[0-9]*.jsonl"), *results.folder.glob("*/*.safetensors")]
    kept += [*results.folder.glob("models/*/*"), *cache.glob("features/*/*.features"), *results.folder.glob("*.jsonl")]
    before = {path: path.read_bytes() for path in kept}
    assert len(before) > 15
    for path, content in before.items():
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes(flipped if damage == "a flipped bit" else content[:middle])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXALIGN_CACHE", str(cache))
        assert run(experiment, lm).metrics == results.metrics
    for path, content in before.items():
        assert path.read_bytes() == content or path.name == "fit_report.json"  # has its seconds
        # Those in the folder itself are written anew in any case.
        assert path.parent == results.folder or path.name in caplog.text or path.parent.name in caplog.text


@pytest.mark.slow
def test_users_who_wrote_texts(lm, tmp_path):
    """The Pref-LaMP style recipe: own texts against samples, with references for what is written."""
    own = [
        {"user": f"u{u}", "prompt": f"Title {p} of {u}.", "completion": f"the sea is {'very ' * u}deep {p}"}
        for u in range(6)
        for p in range(8)
    ]
    experiment = Experiment(
        **SETTINGS
        | {
            "source": "completions",
            "data": write(tmp_path / "own.jsonl", own),
            "out": tmp_path / "out",
            "methods": ("bt",),
            "rejected": ("lm_sample", "other_user"),
            "in_context": ("in_context_bm25_2",),
            "weights": (1.0,),
        }
    )
    results = run(experiment, lm)
    generations = read(results.folder, "generations.jsonl")
    written = {row["completion"] for row in own}
    assert {row["reference"] for row in generations} <= written
    assert all(row["quality"]["rouge1"] is not None for row in generations)
    assert any(r["measure"] == "rouge1" and r["method"] == "in_context_bm25_2" for r in results.metrics)
    assert any(row["y"] == "rouge1" for row in results.selection["correlations"])


def test_another_config_or_other_data_in_the_same_folder_is_refused(undisturbed, lm, tmp_path):
    experiment, results = undisturbed
    with pytest.raises(InputError, match=r"another config \(.*seed: 0 there, 7 now"):
        run(dataclasses.replace(experiment, seed=7), lm)
    write(tmp_path / "other.jsonl", rows(users=7))
    same = dataclasses.replace(experiment, data=tmp_path / "other.jsonl")
    config = json.loads((results.folder / "config.json").read_text())
    kept = (results.folder / "config.json").read_text()
    config["config"]["data"] = str(same.data)
    (results.folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="results of other data"):
        run(same, lm)
    (results.folder / "config.json").write_text(kept)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ()}, "methods is empty"),
        ({"methods": ("best_method",)}, "best_method"),
        ({"methods": ("bt", "bt")}, "named twice"),
        ({"min_pairs": 500}, "No user has min_pairs = 500"),
        ({"data": Path("absent.jsonl")}, "no such file"),
        ({"in_context": ("in_context_best_4",)}, "in_context_best_4"),
        ({"rejected": ("nothing",)}, "nothing"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"source": "ukp", "data": None}, "needs data"),
        ({"weights": (-1.0,)}, "weights = -1"),
        ({"validation": 0.0}, "No row is left for seen_validation"),
    ],
)
def test_bad_requests_are_refused_before_any_work(changes, message, lm, tmp_path):
    with pytest.raises(InputError, match=message):
        run(settings(tmp_path / "bad", **changes), lm)


def test_one_method_only_has_no_tau(undisturbed):
    from jaxalign.evaluation.selecting import select
    from jaxalign.evaluation.table import Table

    experiment, results = undisturbed
    table = Table()
    for row in read(results.folder, "users.jsonl"):
        label = row["measure"] if row["group"] != "validation" else f"validation {row['measure']}"
        if row["form"] in (None, "policy") and row["length"] in (None, "mean"):
            table.values.setdefault((label, row["method"], row["group"]), {})[row["user"]] = row["value"]
    found = select(table, dataclasses.replace(experiment, methods=("bt",)), "seen", [], 1e6)
    assert found is not None
    assert all(row["tau_b"] is None and row["note"] for row in found["correlations"])
    assert found["deploy"]["method"] == "bt"


def test_the_command(undisturbed, folder, tmp_path, capsys, monkeypatch):
    """`run` gives what Python gives, and tells trackers; a dry run writes nothing; a fitted model of the run guides
    `generate`."""
    told = []
    writer = types.SimpleNamespace(add_text=lambda *_: None, add_scalar=lambda *point: told.append(point))
    fake = types.SimpleNamespace(SummaryWriter=lambda place: contextlib.nullcontext(writer))
    monkeypatch.setitem(sys.modules, "tensorboardX", fake)
    _, results = undisturbed
    config = tmp_path / "mine.py"
    made = f"experiment = Experiment(**{ ({'model': str(folder)} | SETTINGS)!r})"
    config.write_text(f"from jaxalign.evaluation.experiment import Experiment\n{made}\n")
    data = write(tmp_path / "pairs.jsonl", rows())
    asked = ["run", str(config), "--data", str(data), "--out", str(tmp_path / "ran"), "--mesh", "users=1"]
    assert main([*asked, "--dry-run"]) == 0
    assert "policies judged" in capsys.readouterr().out
    assert not (tmp_path / "ran").exists()
    assert main([*asked, "--track", "tensorboard"]) == 0
    numbers = {(name, step): value for name, value, step in told}
    assert len(numbers) == len(told)  # each by a name of its own
    (row,) = [
        row
        for row in results.metrics
        if (row["measure"], row["method"], row["group"], row["average"]) == ("rm_accuracy", "bt", "unseen", "macro")
        and row["shots"] == 2
    ]
    assert numbers["rm_accuracy/unseen/bt/shots", 2] == row["value"]
    assert ("fit/per_user/train_loss", 0) in numbers
    printed = capsys.readouterr().out
    for word in ("RM accuracy", "plain", "longer", "Deploy:", "report.html"):
        assert word in printed
    assert (tmp_path / "ran" / "metrics.jsonl").read_bytes() == (results.folder / "metrics.jsonl").read_bytes()
    model = ["--rewards", str(tmp_path / "ran" / "models" / "bt"), "--user", "u1"]
    assert main(["generate", "--model", str(folder), *model, "--prompt", "Hi", "--max-new-tokens", "2"]) == 0
    assert main(["run", str(tmp_path / "absent.py")]) == 2
    assert "no such experiment" in capsys.readouterr().err
    assert main([*asked, "--processes", "none"]) == 2
