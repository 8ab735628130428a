"""scripts/verdicts/trials.py: what a training in PyTorch leaves is read like a campaign of run.py, and the pages have it."""
import csv
import os
import pathlib
import shutil
import sys
import types

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("torch")
pytest.importorskip("h5py")
pytest.importorskip("scipy")
pytest.importorskip("matplotlib")
import gradtool  # noqa: E402  pylint: disable=wrong-import-position

pytestmark = pytest.mark.usefixtures("core")
SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "verdicts"


@pytest.fixture
def scripts():
    """The scripts as modules, and no longer than these tests: their names are common ones."""
    before = set(sys.modules)
    sys.path.insert(0, str(SCRIPTS))
    import pages
    import results
    import trials
    yield types.SimpleNamespace(pages=pages, results=results, trials=trials)
    sys.path.remove(str(SCRIPTS))
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(SCRIPTS) in str(sys.modules[name].__file__):
            del sys.modules[name]


def images(folder):
    """CIFAR-10's files with a few images, whose brightest rows tell their class."""
    generator = np.random.default_rng(0)
    for name in (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"):
        labels = generator.integers(0, 10, 64).astype(np.uint8)
        pixels = generator.integers(0, 96, (64, 3, 32, 32)).astype(np.uint8)
        for image, label in zip(pixels, labels):
            image[:, 3 * label:3 * label + 3] += 150
        np.concatenate([labels[:, None], pixels.reshape(64, -1)], axis=1).tofile(folder / name)


def test_a_training_becomes_a_campaign(scripts, tmp_path, monkeypatch):
    program = shutil.which("gradtool")
    if not program:
        pytest.skip("there is no program gradtool")
    images(tmp_path)
    options = types.SimpleNamespace(out=str(tmp_path / "out"), gradtool=program, cifar=str(tmp_path), text=str(tmp_path / "text"))
    monkeypatch.setattr(scripts.trials, "ARMS", ("topk:ratio=0.2", "qsgd:bits=4,bucket=512"))
    made = scripts.trials.trainings(options)["conv"]()
    made.steps, made.seeds = 80, (1, 2)   # three windows of 24
    scripts.trials.run("conv", lambda: made, options)
    rows = list(csv.DictReader(open(tmp_path / "out" / "conv" / "train.csv", newline="")))
    assert [(row["codec"], row["seed"]) for row in rows] == [(codec, seed) for seed in "12" for codec in ("none", "topk", "qsgd")]
    assert all(row["status"] == "finished" and 0.0 <= float(row["test_accuracy"]) <= 1.0 for row in rows)

    found = scripts.results.Results(options.out)
    topk, none = found.arm("conv", "topk:ratio=0.2"), found.arm("conv", "none")
    record = gradtool.trial(made.run, ["none", *scripts.trials.ARMS], steps=80, workers=4, seeds=(1, 2), stop_early=False, judge="accuracy",
                            higher_is_better=True, tolerance=0.01, name="conv", out=os.path.join(options.out, "conv", "trial.json"), progress=False)
    assert found.difference(topk, none).mean == pytest.approx(-100 * record["topk:ratio=0.2"]["worse_by"], abs=1e-6)
    assert found.ratio(topk, "wire") == pytest.approx(1 / record["topk:ratio=0.2"]["sent"], rel=1e-6)
    # A worker sends the whole gradient, 1.5 times in a ring of four, or a fifth of it with an index of a bit or more for each element.
    assert 2.0 < found.ratio(topk, "payload") < 5.0
    assert {(row["moment"], row["arm"], row["delays"]) for row in found.replay} == {
        (moment, arm, delays) for moment in ("early", "middle") for arm, delays in (("topk:ratio=0.2", "1"), ("qsgd:bits=4,bucket=512", "0"))}
    assert {(row["phase"], row["steps"]) for row in found.predictors} == {(phase, steps) for phase in ("early", "middle", "late") for steps in ("10", "24")}
    assert found.campaigns["conv"]["data_sha256"].count(":") == 6 and str(tmp_path) not in open(os.path.join(options.out, "campaigns.csv")).read()
    assert scripts.pages.main([options.out, "--out", str(tmp_path / "pages")]) == 0
    assert "(conv: by `gradtool.trial`, in PyTorch)" in open(tmp_path / "pages" / "README.md").read()


def test_only_trainings_that_are_there(scripts, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["trials.py", "--out", "o", "--gradtool", sys.executable, "--cifar", "c", "--text", "t", "--only", "vgg"])
    with pytest.raises(SystemExit, match="no training vgg; there are vit, conv, gru"):
        scripts.trials.main()
