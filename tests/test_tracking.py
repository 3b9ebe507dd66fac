"""What TensorBoard and Weights & Biases get: read back from the event file, and from a stand-in for wandb."""

import dataclasses
import json
import struct
import subprocess
import sys
import types
from pathlib import Path

import pytest
import tiny

from jaxalign import cli, files, tracking
from jaxalign.errors import InputError
from jaxalign.evaluation.experiment import Experiment
from jaxalign.tracking import Point

POINTS = [
    Point("loss", 0, 2.0),
    Point("loss", 1, 1.5),
    Point("other", 1, 0.25),
    Point("rm_accuracy/seen/bt+x", None, 0.75),
]


def events(folder):
    """(tag, step, value or text) of all events, by the published framing: length, checksum, message, checksum."""
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto import event_pb2

    found = []
    (file,) = Path(folder).glob("events.out.tfevents.*")
    data = file.read_bytes()
    place = 0
    while place < len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        event = event_pb2.Event.FromString(  # pyright: ignore[reportAttributeAccessIssue]
            data[place + 12 : place + 12 + length]
        )
        place += length + 16
        for value in event.summary.value:
            text = value.tensor.string_val[0].decode() if value.tensor.string_val else value.simple_value
            found.append((value.tag, event.step, text))
    return found


class FakeWandb(types.ModuleType):
    """The part of wandb that is used; keeps what it was told."""

    Error = type("Error", (Exception,), {})

    def __init__(self):
        super().__init__("wandb")
        self.told = []
        self.summary = {}
        self.fails = ""

    def login(self):
        self.told.append("login")
        if self.fails == "login":
            raise self.Error("no API key")

    def Settings(self, **settings):
        return settings

    def init(self, **settings):
        if self.fails == "init":
            raise self.Error("no network")
        self.settings = settings
        return self

    def log(self, values, step):
        self.told.append((step, values))

    def finish(self):
        self.told.append("finish")


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return fake


def test_an_event_file_holds_everything_once(tmp_path):
    pytest.importorskip("tensorboardX")
    told = {"name": "mine", "config": {"data": Path("a.jsonl"), "seed": 3}, "points": POINTS}
    tracking.write(["tensorboard"], tmp_path, **told)
    (old,) = (tmp_path / "tensorboard").iterdir()
    old.rename(old.with_name("events.out.tfevents.1.earlier"))
    tracking.write(["tensorboard"], tmp_path, **told)  # the same results again
    (name, _, text), *numbers = events(tmp_path / "tensorboard")
    assert name.startswith("mine")
    assert json.loads(text.removeprefix("```json").removesuffix("```")) == {"data": "a.jsonl", "seed": 3}
    assert numbers == [("loss", 0, 2.0), ("loss", 1, 1.5), ("other", 1, 0.25), ("rm_accuracy/seen/bt_x", 0, 0.75)]


def test_wandb_gets_curves_in_the_order_of_steps_and_final_numbers_as_summary(wandb, tmp_path):
    tracking.check(["wandb"])
    tracking.write(["wandb"], tmp_path / "run", name="mine", config={"seed": 3}, points=reversed(POINTS))
    assert wandb.told == ["login", (0, {"loss": 2.0}), (1, {"other": 0.25, "loss": 1.5}), "finish"]
    assert wandb.summary == {"rm_accuracy/seen/bt_x": 0.75}
    assert wandb.settings["dir"] == str(tmp_path / "run")
    assert (wandb.settings["project"], wandb.settings["name"], wandb.settings["config"]) == (
        "jaxalign",
        "mine",
        {"seed": 3},
    )
    assert wandb.settings["settings"]["disable_code"]
    assert wandb.settings["settings"]["disable_git"]
    assert wandb.settings["settings"]["console"] == "off"


def test_offline_asks_for_no_login(wandb, monkeypatch):
    wandb.fails = "login"
    with pytest.raises(InputError, match=r"wandb is not logged in .*WANDB_MODE=offline"):
        tracking.check(["wandb"])
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracking.check(["wandb"])
    wandb.fails = "init"
    with pytest.raises(InputError, match=r"wandb failed \(no network\). All results are in"):
        tracking.write(["wandb"], Path("x"), name="mine", config={}, points=[])


def test_the_real_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracking.check(["wandb"])
    tracking.write(["wandb"], tmp_path, name="mine", config={"seed": 3}, points=POINTS)
    wandb.teardown()  # its process writes until then
    (kept,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert all(name in kept.read_bytes() for name in (b"loss", b"rm_accuracy/seen/bt_x"))


@pytest.mark.parametrize(("tracker", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_package_names_its_extra_before_any_work(tracker, package, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"needs the package {package} .*pip install 'jaxalign\[{tracker}\]'"
    with pytest.raises(InputError, match=message):
        dataclasses.replace(Experiment(), track=(tracker,)).check()
    for command in ("fit", "tune"):
        assert cli.main([command, "--model", "/nowhere", "--data", "/no", "--out", "/no", "--track", tracker]) == 2
        assert f"jaxalign[{tracker}]" in capsys.readouterr().err


def test_nothing_is_imported_unasked():
    code = (
        "import sys; from jaxalign import tracking; from jaxalign.evaluation.experiment import Experiment;"
        "Experiment().check(); tracking.write((), None, name='', config={}, points=[]);"
        "assert not {'wandb', 'tensorboardX'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_points_of_a_run():
    row = {"group": "seen", "method": "bt", "chosen": True, "shots": None, "form": None, "length": None, "top_k": None}
    policy = {"form": "score", "length": "sum", "top_k": 10}
    rows = [
        {**row, "measure": "rm_accuracy", "average": "macro", "value": 0.7},
        {**row, "measure": "rm_accuracy", "average": "micro", "value": 0.6},
        {**row, "measure": "rm_accuracy", "average": "macro", "value": 0.5, "group": "unseen", "shots": 2},
        {**row, "measure": "policy_accuracy", "average": "macro", "value": 0.4} | policy,
        {**row, "measure": "policy_accuracy", "average": "macro", "value": 0.3, "chosen": False},
        {**row, "measure": "ece", "average": "micro", "value": None},
    ]
    assert list(tracking.run_points(rows, [])) == [
        Point("rm_accuracy/seen/bt", None, 0.7),
        Point("rm_accuracy/seen/bt/micro", None, 0.6),
        Point("rm_accuracy/unseen/bt/shots", 2, 0.5),
        Point("policy_accuracy/seen/bt/score/sum/k10", None, 0.4),
    ]


def test_the_points_of_a_tuned_model():
    report = {
        "method": "arm",
        "train_loss": [0.7, 0.6],
        "gradient_norm": [3.0, 2.0],
        "validation_loss": {"0": 0.7, "2": 0.5},
    }
    assert list(tracking.tune_points({**report, "validation": {"loss": 0.5, "ece": None}})) == [
        Point("tune/arm/train_loss", 0, 0.7),
        Point("tune/arm/train_loss", 1, 0.6),
        Point("tune/arm/gradient_norm", 0, 3.0),
        Point("tune/arm/gradient_norm", 1, 2.0),
        Point("tune/arm/validation_loss", 0, 0.7),
        Point("tune/arm/validation_loss", 2, 0.5),
        Point("tune/arm/validation/loss", None, 0.5),
    ]


def test_fit_writes_its_curves(wandb, tmp_path, monkeypatch, capsys):
    """From the command line; early stopping leaves no points."""
    pytest.importorskip("tensorboardX")
    monkeypatch.setenv(files.CACHE_VARIABLE, str(tmp_path / "cache"))
    config = tiny._config("llama", vocab_size=258, hidden_size=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8)
    tiny.save_tokenizer(tiny.save(tmp_path / "lm", config, bos_token_id=0, eos_token_id=1))
    rows = [
        {"user": "ann", "prompt": "Q", "chosen": f"a{n % 4}", "rejected": f"b{n % 3}", "split": split}
        for n, split in enumerate(["train"] * 8 + ["validation"] * 4)
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--model", str(tmp_path / "lm"), "--data", str(tmp_path / "p.jsonl"), "--out", str(tmp_path / "rm")]
    method = ["--method", "bt", "--set", "steps=30", "--grid", "strength=1.0"]
    assert cli.main(["fit", *arguments, *method, "--track", "tensorboard", "wandb"]) == 0
    report = json.loads((tmp_path / "rm" / "fit_report.json").read_text())["report"]
    found = events(tmp_path / "rm" / "tensorboard")
    losses = [(step, value) for tag, step, value in found if tag == "fit/bt/train_loss"]
    assert losses == [(n, pytest.approx(v)) for n, v in enumerate(report["train_loss"][0]) if v is not None]
    validation = [(step, value) for tag, step, value in found if tag == "fit/bt/validation_loss"]
    wanted = zip((0, 20, 30), report["validation_loss"][0], strict=True)
    assert validation == [(n, pytest.approx(v)) for n, v in wanted if v is not None]
    assert len(validation) > 1
    assert wandb.summary["fit/bt/train/micro"] == report["train"]["micro"]
    assert wandb.settings["config"]["method"] == "bt"
    assert wandb.settings["name"] == "rm"
