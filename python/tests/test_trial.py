"""gradtool.trial: codecs in the loop of a training."""

import math
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import gradtool
from conftest import ROOT

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from ranks import run_ranks  # noqa: E402
from trial_training import attempt, batches, make, recorded, run_steps, step_losses, train  # noqa: E402

pytestmark = pytest.mark.usefixtures("core")


def test_none_is_the_training_itself():
    """Losses without a codec are those of a loop that averages by hand."""
    result = attempt(["bf16"], seeds=1)
    torch.manual_seed(1)
    model, optimizer = make()
    for step, expected in enumerate(result.run("none", 1, 1.0)["losses"]):
        optimizer.zero_grad()
        losses = [F.cross_entropy(model(x), y) for x, y in batches(1, step, 3)]
        assert float(sum(losses)) / 3 == pytest.approx(expected, rel=1e-4)
        (sum(losses) / 3).backward()
        optimizer.step()


@pytest.mark.parametrize("spec", ["qsgd:bits=4", "topk:ratio=0.05", "efsignsgd"])
def test_a_worker_does_what_a_rank_would(spec):
    """The averages are those of one gradtool.Codec for each rank, with its own residuals and draws."""
    codecs = [gradtool.Codec(spec, rank=rank, ranks=3, seed=5) for rank in range(3)]
    seen = []

    def compare(trial):
        torch.manual_seed(0)
        model = nn.Linear(12, 4, bias=False)
        for step in trial:
            gradients = []
            for x, y in batches(trial.seed, step, 3):
                gradients += torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
            trial.backward(model, (F.cross_entropy(model(x), y) for x, y in batches(trial.seed, step, 3)))
            if trial.codec != "none" and len(seen) < 6:
                total = np.zeros((4, 12), "f4")
                for codec, gradient in zip(codecs, gradients):
                    codec.decode_add(codec.encode(gradient.numpy(), step=step), total)
                seen.append(np.abs(total / 3 - model.weight.grad.numpy()).max() / np.abs(total).max())
            with torch.no_grad():
                model.weight -= 0.1 * model.weight.grad

    attempt([spec], compare, seeds=[5], steps=20, scheme="gather", stop_early=False)
    assert len(seen) == 6 and max(seen) < 1e-6


def test_verdicts_tell_what_learns_from_what_does_not():
    result = attempt(["bf16", "topk:ratio=0.01,ef=off", "randomk:ratio=0.01,ef=off"], steps=80, seeds=3)
    assert result["bf16"]["verdict"] == "learns"
    assert result["bf16"]["low"] < result["bf16"]["worse_by"] < result["bf16"]["high"] <= result.tolerance
    assert result["topk:ratio=0.01,ef=off"]["verdict"] == "loses"
    assert result["randomk:ratio=0.01,ef=off"]["verdict"] == "loses"
    assert [result[codec]["way"] for codec in ("none", "bf16", "topk:ratio=0.01,ef=off")] == ["sum", "sum", "gather"]
    assert result["none"]["sent"] == 1.0 and result["bf16"]["sent"] == pytest.approx(0.5, rel=0.02)
    # A hopeless codec ends early, and is not run with further seeds.
    hopeless = [run for run in result.runs if run["codec"].startswith("randomk")]
    assert len(hopeless) == 1 and hopeless[0]["steps"] < 80 and hopeless[0]["status"] in ("diverged", "stopped")
    assert "Of those that learn, bf16 sends least" in str(result)


@pytest.mark.parametrize("codec, scheme, way", [("none", "auto", "sum"), ("topk", "auto", "gather"), ("powersgd", "auto", "own"), ("noop", "hop", "none"),
                                                ("nvfp4", "alltoall", "alltoall"), ("nvfp4:reduce=alltoall", "auto", "alltoall"), ("bf16", "hop", "hop")])
def test_a_codec_goes_by_its_own_way_or_by_the_given_one(codec, scheme, way):
    assert gradtool._core.way_of(codec, scheme) == way


def test_a_trial_says_the_way_that_was_taken():
    result = attempt(["nvfp4", "qsgd:bits=4"], steps=20, seeds=1, scheme="alltoall")
    assert [arm["way"] for arm in result.arms] == ["alltoall", "alltoall", "alltoall"] and "alltoall" in str(result)
    old = recorded({"codecs": ["none", "a"], "seeds": [1]}, [{"codec": codec, "seed": 1, "metrics": {"loss": 1.0}} for codec in ("none", "a")])
    assert [arm["way"] for arm in old.arms] == [None, None] and "way" in str(old)


def test_learning_rates_are_chosen_by_the_first_seed():
    rates = []

    def watch(trial):
        model, optimizer = make(rate=1e-4)                         # too small by far
        step = optimizer.step
        optimizer.step = lambda: (rates.append((trial.codec, trial.seed, optimizer.param_groups[0]["lr"])), step())
        for number in trial:
            trial.step(model, optimizer, step_losses(trial, number, model))
            assert optimizer.param_groups[0]["lr"] == 1e-4          # a schedule sees its own rates

    result = attempt(["bf16"], watch, lr_factors=[1, 100], seeds=3, steps=30)
    assert result["bf16"]["lr_factor"] == 100.0 and result["bf16"]["seeds"] == 2
    assert {rate for codec, seed, rate in rates if seed == 1} == {1e-4, 1e-4 * 100}
    assert {rate for codec, seed, rate in rates if seed > 1} == {1e-4 * 100}


def test_a_codec_that_finishes_with_no_learning_rate_loses():
    def unstable(trial):
        model, optimizer = make(rate=0.05 if trial.codec == "none" else 1e30)
        run_steps(trial, model, optimizer)

    arm = attempt(["bf16"], unstable, steps=20, seeds=3, lr_factors=[1, 0.5])["bf16"]
    assert arm["verdict"] == "loses" and arm["reason"].startswith("diverged at step ") and arm["lr_factor"] is None, arm


def test_a_later_seed_that_learns_nothing_does_not_turn_the_tolerance_round(tmp_path):
    def rising(trial):
        model, optimizer = make(rate=1e-12 if trial.seed == 3 else 0.05)
        for step in trial:
            scale = 1.0 + step if trial.seed == 3 else 1.0
            trial.step(model, optimizer, (scale * F.cross_entropy(model(x), y) for x, y in batches(trial.seed, step, trial.workers)))

    result = attempt(["bf16"], rising, seeds=3)
    assert result.tolerance > 0 and "learned nothing with seed 3" in result.warning, result.warning

    def still(trial):
        model, optimizer = make(rate=1e30 if trial.seed == 2 else 1e-12)
        for step in trial:
            trial.step(model, optimizer, ((1.0 + step) * F.cross_entropy(model(x), y) for x, y in batches(trial.seed, step, trial.workers)))

    result = attempt(["bf16"], still, seeds=3)
    assert "diverged with seed 2" in result.warning and "learned nothing with seed 1, 3" in result.warning, result.warning
    assert (result["bf16"]["verdict"], result["bf16"]["reason"]) == ("undecided", "none itself has learned nothing")


def test_runs_that_cannot_be_compared_are_refused():
    runs = []

    def unpaired(trial):
        runs.append(trial)
        torch.manual_seed(1000 + len(runs))
        return train(trial)

    with pytest.raises(gradtool.UsageError, match="the first loss of bf16 with seed [12] is .* of trial.seed alone"):
        attempt(["bf16"], unpaired)

    def diverging(trial):
        model, optimizer = make(rate=1e30)
        run_steps(trial, model, optimizer)

    with pytest.raises(gradtool.UsageError, match="the training has diverged without a codec after .* with seed 1"):
        attempt(["bf16"], diverging)

    def seedless(trial):
        torch.manual_seed(0)
        model, optimizer = make()
        for step in trial:
            trial.step(model, optimizer, (F.cross_entropy(model(x), y) for x, y in batches(7, step, trial.workers)))

    with pytest.raises(gradtool.UsageError, match="same with seed 2 as with seed 1, so that several seeds say no more than one"):
        attempt(["bf16"], seedless)
    assert attempt(["bf16"], seedless, seeds=1).arms[1]["worse_by"] is not None
    with pytest.raises(gradtool.UsageError, match="returned 'loss' with one of the seeds 1 and 2 and not with the other"):
        attempt(["bf16"], lambda trial: (train(trial), {"loss": 1.0} if trial.seed == 1 else None)[1])


def loop(body):
    def function(trial):
        model, optimizer = make()
        for step in trial:
            body(trial, model, optimizer, [F.cross_entropy(model(x), y) for x, y in batches(trial.seed, step, 3)])
    return function


@pytest.mark.parametrize("function, sentence", [
    (loop(lambda trial, model, optimizer, losses: trial.step(model, optimizer, losses[:2])), "2 losses for 3 workers"),
    (loop(lambda trial, model, optimizer, losses: trial.step(model, optimizer, losses + losses[:1])), "more losses than workers"),
    (loop(lambda trial, model, optimizer, losses: trial.step(model, optimizer, [loss.detach() for loss in losses])), "a tensor of one element with a graph"),
    (loop(lambda trial, model, optimizer, losses: None), "made no step"),
    (lambda trial: None, "ended after 0 of 60 steps"),
    (loop(lambda trial, model, optimizer, losses: trial.step(nn.Linear(1, 1) if trial._losses else model, optimizer, losses)), "trains one model"),
])
def test_a_train_that_is_wrong(function, sentence):
    with pytest.raises(gradtool.UsageError, match=sentence.replace("a tensor", "no tensor")):
        attempt(["bf16"], function)


@pytest.mark.parametrize("options, sentence", [
    ({"codecs": "bf16"}, "a list of codecs"), ({"codecs": []}, "no codec to try"), ({"codecs": ["none"]}, "no codec to try"),
    ({"codecs": ["nothing"]}, "unknown codec"), ({"codecs": ["vgc"]}, "second moments"), ({"steps": 5}, "20 to"),
    ({"workers": 1}, "2 to 1024"), ({"seeds": [1, 1]}, "different ones"), ({"seeds": 0}, "1 to 1000"),
    ({"seeds": 2.0}, "1 to 1000"), ({"seeds": [2**64]}, "a seed is"), ({"codecs": [3]}, "codec 3 is of the type int"), ({"steps": "many"}, "20 to"),
    ({"lr_factors": 0.5}, "a list"), ({"lr_factors": [1, math.nan]}, "above 0"), ({"lr_factors": [1, 2], "seeds": 2}, "two seeds"),
    ({"tolerance": math.inf}, "above 0"), ({"scheme": "sum", "codecs": ["topk"]}, "cannot ride on a sum"), ({"out": "absent/trial.json"}, "cannot be written"),
    ({"lr_factors": [0]}, "above 0"), ({"judge": "accuracy"}, "tolerance="), ({"scheme": "ring"}, "scheme is 'ring'"),
    ({"higher_is_better": True}, "lower"), ({"tolerance": -1.0}, "above 0"), ({"bucket_mb": 0}, "bucket_mb"), ({"bucket_mb": math.inf}, "bucket_mb"), ({"function": 3}, "a function"),
])
def test_settings_that_are_wrong(options, sentence):
    with pytest.raises(gradtool.UsageError, match=sentence):
        attempt(**{"codecs": ["bf16"], **options})


def test_a_training_that_refuses_what_a_codec_did_to_it():
    def strict(trial):
        metrics = train(trial)
        if trial.codec.startswith("topk"):
            raise ValueError("no such thing")
        return metrics

    result = attempt(["topk:ratio=0.5", "bf16"], strict)
    assert result["topk:ratio=0.5"]["verdict"] == "failed" and result["topk:ratio=0.5"]["reason"] == "ValueError: no such thing"
    assert result["bf16"]["verdict"] in ("learns", "undecided")


def test_odd_models():
    """Frozen, unused, bfloat16, channels_last and scalar parameters; a training that does not look at trial.done."""
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
            self.frozen, self.unused = nn.Linear(4, 4), nn.Linear(2, 2)
            self.frozen.requires_grad_(False)
            self.scale, self.halved = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.ones(4, dtype=torch.bfloat16))

        def forward(self, x):
            return (self.frozen(self.conv(x).mean((2, 3))) * self.scale + self.halved.float()).square().mean()

    def careless(trial):
        model = Odd()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        for step in range(10**6):
            generator = torch.Generator().manual_seed(step)
            images = torch.randn(3, 2, 3, 6, 6, generator=generator).to(torch.float32)
            trial.step(model, optimizer, [model(x.contiguous(memory_format=torch.channels_last)) for x in images])
            assert model.unused.weight.grad is None and model.halved.grad.dtype == torch.bfloat16
            if step == 0:
                moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
                assert moved == {"conv.weight", "conv.bias", "scale", "halved"}

    result = attempt(["powersgd:rank=1", "iwp"], careless, steps=20, seeds=1)
    assert all(run["status"] == "finished" for run in result.runs if run["codec"] == "none")
    assert result["powersgd:rank=1"]["verdict"] != "failed" and result["iwp"]["verdict"] != "failed"


def test_what_a_run_lacks_is_not_judged_by_something_else():
    def forgetful(trial):
        metrics = train(trial)
        return {key: metrics[key] for key in ("loss", "accuracy") if trial.codec == "none" or key == "loss"}

    result = attempt(["bf16"], forgetful, judge="accuracy", higher_is_better=True, tolerance=0.01)
    assert result["bf16"]["verdict"] == "failed" and "no 'accuracy'" in result["bf16"]["reason"]
    with pytest.raises(gradtool.UsageError, match="the loss that train.. returned without a codec is not finite"):
        attempt(["bf16"], lambda trial: {**train(trial), "loss": math.nan})

    def leaving(trial):
        model, optimizer = make()
        for step in trial:
            trial.step(model, optimizer, step_losses(trial, step, model))
            if trial.codec != "none":
                break

    assert "ended after 1 of 60 steps" in attempt(["bf16"], leaving)["bf16"]["reason"]


def test_codecs_that_did_nothing_or_bring_momentum_are_named():
    result = attempt(["gradiveq", "dgc"], steps=30)
    assert result["gradiveq"]["verdict"] == "undecided" and "not been at work" in result["gradiveq"]["reason"]
    assert "dgc: it brings momentum of its own, beside which the optimizer should have none." in str(result)


def test_parameters_that_thaw_and_rates_that_do_nothing():
    def thawing(trial):
        model, optimizer = make()
        model[0].requires_grad_(False)
        for step in trial:
            model[0].requires_grad_(step > 3)
            trial.step(model, optimizer, step_losses(trial, step, model))

    with pytest.raises(gradtool.UsageError, match="other parameters need gradients than at the first step"):
        attempt(["bf16"], thawing)

    def by_hand(trial):
        model, optimizer = make()
        for step in trial:
            trial.backward(model, step_losses(trial, step, model), optimizer)
            optimizer.step()

    with pytest.raises(gradtool.UsageError, match="multiplies learning rates with trial.lr_factor itself"):
        attempt(["bf16"], by_hand, lr_factors=[1, 0.1], seeds=1)


def train_ddp(trial):
    model, _ = make()
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rank = torch.distributed.get_rank()
    for step in trial:
        x, y = list(batches(trial.seed, step, 2))[rank]
        trial.step(model, optimizer, F.cross_entropy(model(x), y))
    return {"only": 7.0} if rank == 0 else None


def trial_of_a_rank(rank, size, folder):
    options = {"steps": 30, "seeds": 1, "progress": False, "out": folder + "/ddp.json"}
    result = gradtool.trial(train_ddp, ["qsgd:bits=8"], **options)
    again = gradtool.trial(train_ddp, ["qsgd:bits=8"], **options)      # every rank learns from rank 0 that all runs are made
    assert again.arms == result.arms
    try:
        gradtool.trial(lambda trial: trial.backward(nn.Linear(2, 2), torch.zeros(1, requires_grad=True)), ["bf16"], **{**options, "out": None})
    except Exception as error:  # pylint: disable=broad-except
        return result.arms, [run["losses"] for run in result.runs], str(error), result.runs[1]["metrics"]


def test_ranks_of_a_process_group(tmp_path):
    """Two ranks with ddp_hook train as two workers of one process do."""
    one, two = run_ranks(2, trial_of_a_rank, str(tmp_path))
    assert one == two and one[3] == {"only": 7.0} and "DistributedDataParallel" in one[2]

    def alone(trial):
        model, optimizer = make()
        for step in trial:
            trial.step(model, optimizer, (F.cross_entropy(model(x), y) for x, y in batches(trial.seed, step, 2)))

    result = attempt(["qsgd:bits=8"], alone, workers=2, steps=30, seeds=1)
    for mine, theirs in zip(result.runs, one[1]):
        assert np.allclose(mine["losses"], theirs, rtol=0.02)   # draws go by the place in a bucket, which DDP fills in another order at first
    assert result.arms[1]["sent"] == pytest.approx(one[0][1]["sent"], rel=0.01)


def test_the_scripts_of_the_manual(tmp_path):
    """Each runs with fewer steps, one seed, and on less data: what is tested is that it can be copied and run."""
    smaller = {r"^STEPS, (.*) = \d+,": r"STEPS, \1 = 20,", r"seeds=\d": "seeds=1", "width=96, layers=3": "width=32, layers=1",
               r"\(trial.workers, 8\)": "(trial.workers, 2)", r"pictures\(8,": "pictures(2,", r"pictures\(1000,": "pictures(50,"}
    made = set()
    scripts = re.findall(r"```python\n(# file: (\S+)\n.*?)```", (ROOT / "docs/trial.md").read_text(), re.S)
    assert len(scripts) == 3
    for text, name in scripts:
        path = pathlib.Path(tmp_path / name)
        for long, short in smaller.items():
            text, count = re.subn(long, short, text, flags=re.M)
            made.update([long] if count else [])
        path.write_text(text)
        assert " = 20," in text
        done = subprocess.run([sys.executable, path], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True, timeout=240)
        assert "Judged by" in done.stdout and "verdict" in done.stdout
    assert made == set(smaller), set(smaller) - made
