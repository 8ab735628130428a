"""gradtool.trial: the record of a trial, which grows, is resumed, and is not overwritten."""

import json
import math
import os

import pytest

import gradtool

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

from trial_training import attempt, batches, make, run_steps, step_losses, train  # noqa: E402

pytestmark = pytest.mark.usefixtures("core")


def test_an_interrupted_trial_goes_on(tmp_path, capfd):
    out = tmp_path / "trial.json"
    calls = []

    def interrupted(trial):
        calls.append((trial.codec, trial.seed))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(trial)

    with pytest.raises(KeyboardInterrupt):
        attempt(["bf16"], interrupted, out=out, progress=True)
    assert f"trial: interrupted in run 3: {out} has the runs that ended, and the same call begins with this one\n" in capfd.readouterr().err
    resumed = attempt(["bf16"], interrupted, out=out)
    assert calls == [("none", 1), ("bf16", 1), ("none", 2), ("none", 2), ("bf16", 2)]
    assert str(resumed) == str(attempt(["bf16"], interrupted)) and len(calls) == 9
    assert str(attempt(["bf16"], interrupted, out=out)) == str(resumed) and len(calls) == 9      # nothing is left to run
    record = json.loads(out.read_text())
    assert (record["format"], record["schema_version"], record["elements"]) == ("gradtool.trial", 1, 12 * 24 + 24 + 24 * 4 + 4)
    assert record["arms"] == resumed.arms
    assert all(run["producer"].startswith(f"gradtool {gradtool.__version__} (") and torch.__version__ in run["producer"] for run in record["runs"])
    with pytest.raises(gradtool.UsageError, match="it differs in steps"):
        attempt(["bf16"], interrupted, out=out, steps=61)
    with pytest.raises(gradtool.UsageError, match="train_sha256"):
        attempt(["bf16"], train, out=out)
    out.write_text("{}")
    with pytest.raises(gradtool.DataError, match="no record of a trial"):
        attempt(["bf16"], interrupted, out=out)
    assert out.read_text() == "{}"


def test_codecs_and_seeds_are_added_to_a_record(tmp_path):
    """Nothing runs twice, nothing is lost, and the table is that of a trial that had all of them at once."""
    out, ran = tmp_path / "trial.json", []

    def counted(trial):
        ran.append((trial.codec.partition(":")[0], trial.seed))
        return train(trial)

    def attempt(codecs, function=train, **options):
        return gradtool.trial(function, codecs, **{"steps": 20, "workers": 2, "seeds": 2, "progress": False, **options})

    attempt(["bf16"], counted, out=out)
    attempt(["topk:ratio=0.5"], counted, out=out)
    added = attempt(["bf16", "topk:ratio=0.5"], counted, out=out, seeds=3)
    assert ran == [("none", 1), ("bf16", 1), ("none", 2), ("bf16", 2), ("topk", 1), ("topk", 2), ("none", 3), ("bf16", 3), ("topk", 3)]
    assert str(added) == str(attempt(["bf16", "topk:ratio=0.5"], seeds=3))
    attempt(["fp16"], counted, out=out, seeds=[7])
    record = json.loads(out.read_text())
    assert ran[9:] == [("none", 7), ("fp16", 7)] and record["settings"]["seeds"] == [1, 2, 3, 7]
    assert {arm["name"]: arm["seeds"] for arm in record["arms"]} == {"none": 4, "bf16": 3, "topk:ratio=0.5": 3, "fp16": 1}
    attempt(["bf16"], train, seeds=[1, 2, 3], lr_factors=[1, 2], out=tmp_path / "rates.json")
    with pytest.raises(gradtool.UsageError, match=r"it differs in seeds\[0\]"):
        attempt(["bf16"], train, seeds=[2, 3, 4], lr_factors=[1, 2], out=tmp_path / "rates.json")


def test_two_trials_do_not_write_one_record_in_turns(tmp_path):
    out = tmp_path / "trial.json"

    def twice(trial):
        returned = train(trial)
        if trial.codec != "none":
            attempt(["fp16"], train, seeds=1, out=out, replace=True)
        return returned

    with pytest.raises(gradtool.UsageError, match="trial.json was written by another trial, or by hand, while this one ran"):
        attempt(["bf16"], twice, seeds=1, out=tmp_path / "trial.json")
    assert [arm["name"] for arm in json.loads(out.read_text())["arms"]] == ["none", "fp16"]


def test_a_record_replaces_no_device_and_no_link(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for replace in (True, False):
        with pytest.raises(gradtool.UsageError, match="pipe is no plain file"):
            attempt(["bf16"], train, seeds=1, out=tmp_path / "pipe", replace=replace)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "folder" / "trial.json")
    attempt(["bf16"], train, seeds=1, out=tmp_path / "link.json", replace=True)
    assert (tmp_path / "link.json").is_symlink() and json.loads((tmp_path / "folder" / "trial.json").read_text())["runs"]


def test_a_record_replaces_no_file_of_another_kind(tmp_path):
    for name, content in (("capture.h5", b"\x89HDF\r\n\x1a\n"), ("train.py", b"import torch\n"), ("notes", b"buy milk")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(gradtool.UsageError, match=f"{name} exists and is no record in JSON"):
            attempt(["bf16"], train, seeds=1, out=tmp_path / name, replace=True)
        with pytest.raises(gradtool.DataError, match=f"{name} is no record of a trial"):
            attempt(["bf16"], train, seeds=1, out=tmp_path / name)
        assert (tmp_path / name).read_bytes() == content
    with pytest.raises(gradtool.UsageError, match="cannot be written .File name too long"):
        attempt(["bf16"], train, seeds=1, out=tmp_path / ("x" * 300))
    (tmp_path / "empty.json").touch()
    attempt(["bf16"], train, seeds=1, out=tmp_path / "empty.json", replace=True)


def test_a_seed_with_which_the_training_itself_diverges_is_left_out(tmp_path):
    """The runs of other seeds are not lost, whether the trial goes on or is resumed."""
    ran = []

    def unstable(trial):
        ran.append((trial.codec, trial.seed))
        model, optimizer = make(rate=1e30 if trial.seed == 2 else 0.05)
        run_steps(trial, model, optimizer)

    for _ in range(2):
        result = attempt(["bf16", "topk:ratio=0.5"], unstable, seeds=3, out=tmp_path / "trial.json")
        assert "none itself diverged with seed 2: " in result.warning and result.warning in str(result)
        assert result["bf16"]["verdict"] == "learns" and result["bf16"]["seeds"] == 2 and math.isfinite(result.tolerance)
    assert len(ran) == len(set(ran)) == 7 and [codec for codec, seed in ran if seed == 2] == ["none"]
    assert json.loads((tmp_path / "trial.json").read_text())["warning"] == result.warning


def diverging_at_the_end(trial, model, optimizer):
    """Its last update alone destroys the weights, which no loss shows."""
    for step in trial:
        if trial.seed == 2 and step == trial.steps - 1:
            optimizer.param_groups[0]["lr"] = 1e38
        trial.step(model, optimizer, step_losses(trial, step, model))


def diverging_at_once(trial, model, optimizer):
    if trial.seed == 2:
        optimizer.param_groups[0]["lr"] = 1e30
    for step in range(trial.steps):      # a loop of its own, which ends without a result
        trial.step(model, optimizer, step_losses(trial, step, model))


def diverging_with_an_error(trial, model, optimizer):
    if trial.seed == 2:
        optimizer.param_groups[0]["lr"] = 1e30
    run_steps(trial, model, optimizer)
    if not all(p.isfinite().all() for p in model.parameters()):
        raise RuntimeError("evaluated on weights that are not finite")


@pytest.mark.parametrize("body", [diverging_at_the_end, diverging_at_once, diverging_with_an_error])
def test_a_seed_is_left_out_however_the_training_diverges_with_it(body, tmp_path):
    def unstable(trial):
        model, optimizer = make()
        body(trial, model, optimizer)
        x, y = next(batches(999, 0, 1))
        with torch.no_grad():
            return F.cross_entropy(model(x), y)

    first = attempt(["bf16"], unstable, steps=30, seeds=3, out=tmp_path / "trial.json")
    assert "diverged with seed 2" in first.warning and first["bf16"]["seeds"] == 2, first.warning
    grown = attempt(["bf16"], unstable, steps=30, seeds=4, out=tmp_path / "trial.json")
    assert grown["bf16"]["seeds"] == 3


def test_what_a_record_grows_by_leaves_other_arms_as_they_were(tmp_path):
    def failing(name, seeds):
        def function(trial):
            if trial.codec.startswith(name) and trial.seed in seeds:
                raise RuntimeError("no memory")
            return train(trial)
        return function

    options = {"steps": 20, "workers": 2, "out": tmp_path / "trial.json"}

    def call(codecs, seeds, name="", failing_seeds=()):
        # The source is the same, whatever fails: seeds and names are in a list, which a hash of the source does not see.
        return attempt(codecs, shared, seeds=seeds, **options) if broken.__setitem__(0, (name, failing_seeds)) is None else None

    broken = [("", ())]

    def shared(trial):
        return failing(*broken[0])(trial)

    call(["topk:ratio=0.1"], 2, "topk", (1, 2))
    grown = call(["bf16"], 2)
    assert (grown["topk:ratio=0.1"]["verdict"], grown["topk:ratio=0.1"]["reason"]) == ("failed", "RuntimeError: no memory")
    assert call(["topk:ratio=1e-1"], 2)["topk:ratio=0.1"]["seeds"] == 2      # asked for again, it is tried again, in whatever digits
    # A codec that was added with later seeds, and fails with the first one: never "stopped", with a run that finished.
    assert call(["fp16"], [2, 3])["fp16"]["seeds"] == 2
    arm = call(["fp16"], 3, "fp16", (1,))["fp16"]
    assert (arm["verdict"], arm["reason"]) == ("failed", "RuntimeError: no memory"), arm
    # One seed of its own has no interval, whatever others are pooled with it.
    assert call(["int8"], [1])["int8"]["reason"] == "one seed has no interval"


def test_a_function_made_with_another_number_is_another_training(tmp_path):
    def maker(rate):
        def function(trial):
            model, optimizer = make(rate)
            run_steps(trial, model, optimizer)
        return function

    options = {"steps": 20, "workers": 2, "seeds": 1, "out": tmp_path / "trial.json"}
    attempt(["bf16"], maker(0.05), **options)
    attempt(["fp16"], maker(0.05), **options)
    with pytest.raises(gradtool.UsageError, match="train_sha256"):
        attempt(["fp16"], maker(0.005), **options)


def test_a_partial_is_known_by_what_it_is_bound_to(tmp_path):
    import functools

    def bound(trial, rate):
        return train(trial)

    out = tmp_path / "trial.json"
    attempt(["bf16"], functools.partial(bound, rate=1), out=out)
    attempt(["bf16"], functools.partial(bound, rate=1), out=out)
    with pytest.raises(gradtool.UsageError, match="train_sha256"):
        attempt(["bf16"], functools.partial(bound, rate=2), out=out)
    with pytest.raises(gradtool.UsageError, match="no source"):
        attempt(["bf16"], eval("lambda trial: function(trial)", {"function": train}), out=out)  # pylint: disable=eval-used


def test_the_record_stays_where_it_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()

    def moving(trial):
        import os
        os.chdir(tmp_path / "run")
        return train(trial)

    attempt(["bf16"], moving, out="trial.json")
    assert [path.name for path in tmp_path.iterdir()] and (tmp_path / "trial.json").exists() and not list((tmp_path / "run").iterdir())
