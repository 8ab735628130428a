"""gradtool.trial: what is read off runs that are given, without a training."""

import json
import math

import numpy as np
import pytest

pytest.importorskip("torch")
from trial_training import recorded  # noqa: E402

pytestmark = pytest.mark.usefixtures("core")


def test_the_interval_is_students():
    from gradtool._trial_result import _student
    assert [round(_student(n), 3) for n in (1, 2, 4, 10, 100)] == [12.706, 4.303, 2.776, 2.228, 1.984]


def test_statistics_of_given_runs():
    """Differences are taken within a seed; arms that shake the training more do not widen the interval of one that does less."""
    shaken = np.random.default_rng(0).standard_normal(100)
    values = {"none": (1.0, 2.0), "a": (1.01, 2.02), "b": (1.51, 2.49)}
    result = recorded({"codecs": list(values), "seeds": [1, 2], "tolerance": 0.25},
                      [{"codec": codec, "seed": seed, "metrics": {"loss": value[seed - 1]}, "losses": list(np.linspace(4, 1, 100) + shaken * noise)}
                       for (codec, value), noise in zip(values.items(), (0, 0.01, 0.1)) for seed in (1, 2)])
    none, a, b = result.arms
    assert (none["verdict"], a["verdict"], b["verdict"]) == ("baseline", "learns", "loses")
    assert a["worse_by"] == pytest.approx(0.015) and b["worse_by"] == pytest.approx(0.5)
    own = math.sqrt(2 * 0.005**2)                                  # one degree of freedom: a alone
    assert a["high"] - a["worse_by"] == pytest.approx(12.706 * own / math.sqrt(2), rel=1e-3)
    assert b["worse_by"] - b["low"] == pytest.approx(12.706 * math.sqrt(2) * 0.01 / math.sqrt(2), rel=1e-3)
    assert a["same_as_none"] == 1.0


def test_a_value_with_fewer_seeds_stands_beside_that_of_none():
    """A record grows: of a later codec the seeds that are easy may be there alone, and its mean would be above that of none."""
    values = {"none": {1: 0.5, 2: 0.9}, "a": {1: 0.4, 2: 0.8}, "b": {2: 0.7}}
    result = recorded({"codecs": list(values), "seeds": [1, 2], "judge": "accuracy", "higher_is_better": True},
                      [{"codec": codec, "seed": seed, "metrics": {"accuracy": value}} for codec, seeds in values.items() for seed, value in seeds.items()])
    none, a, b = result.arms
    assert none["value"] == 0.7 and a["value"] == pytest.approx(0.6) and b["value"] == pytest.approx(0.5), result.arms
    assert all(arm["worse_by"] == pytest.approx(none["value"] - arm["value"]) for arm in (a, b)), result.arms


def test_a_trial_whose_none_learns_nothing_is_warned_of(tmp_path):
    """A loss within its noise is no training; one that falls slowly through as much noise is."""
    noise = np.random.default_rng(3).standard_normal(100)
    runs = lambda losses: [{"codec": codec, "seed": 1, "metrics": {}, "losses": list(losses)} for codec in ("none", "a")]
    still = recorded({"codecs": ["none", "a"], "seeds": [1]}, runs(4 + 0.1 * noise))
    assert "Warning: none itself has learned nothing: its loss went from" in str(still) and "in 100 steps" in still.warning
    slowly = recorded({"codecs": ["none", "a"], "seeds": [1]}, runs(np.linspace(4, 3.7, 100) + 0.1 * noise))
    assert slowly.warning is None and "Warning" not in str(slowly)
    still.save(tmp_path / "still.json")
    assert json.loads((tmp_path / "still.json").read_text())["warning"] == still.warning
    # One seed of two, and a rising loss.
    both = recorded({"codecs": ["none"], "seeds": [1, 2]}, [{"codec": "none", "seed": 1, "metrics": {}, "losses": list(np.linspace(4, 1, 100))},
                                                            {"codec": "none", "seed": 2, "metrics": {}, "losses": list(np.linspace(4, 5, 100))}])
    assert "learned nothing with seed 2" in both.warning


def test_steps_that_none_needed():
    losses = [4 - 3 * step / 99 for step in range(100)]
    behind = [loss + 0.45 for loss in losses]                      # 15 % of the fall, so none was there after 85 steps
    result = recorded({"codecs": ["none", "a"], "seeds": [1]},
                      [{"codec": "none", "seed": 1, "metrics": {}, "losses": losses}, {"codec": "a", "seed": 1, "metrics": {}, "losses": behind}])
    assert result.arms[1]["same_as_none"] == pytest.approx(0.85, abs=0.02)
    assert result.arms[1]["verdict"] == "undecided" and "one seed" in result.arms[1]["reason"]
    assert result.tolerance == pytest.approx(0.02 * (4 - np.mean(losses[-10:])))


def test_steps_that_none_needed_where_batches_differ():
    """The end of a training is where its last batches are in the mean: by the luckiest of them, none seemed to need all of its steps."""
    steps = np.arange(1, 301)
    slow, fast = 1.6 + 3 * (steps / 2) ** -0.6, 1.6 + 3.0 * steps ** -0.6
    found = []
    for seed in range(60):
        noise = 0.04 * np.random.default_rng(seed).standard_normal((2, 300))
        result = recorded({"codecs": ["none", "a"], "seeds": [1], "steps": 300},
                          [{"codec": "none", "seed": 1, "metrics": {}, "losses": list(fast + noise[0])},
                           {"codec": "a", "seed": 1, "metrics": {}, "losses": list(slow + noise[1])}])
        found.append(result.arms[1]["same_as_none"])
    assert np.median(found) == pytest.approx(0.5, abs=0.06)


def test_a_gap_on_a_flat_curve_is_not_hopeless():
    """None was early where such a run is, and so will the run be at the end: within the tolerance."""
    from gradtool._trial_result import is_hopeless
    flat = np.array([1 + 3 * math.exp(-step / 10) for step in range(300)])
    shaken = 0.002 * np.random.default_rng(0).standard_normal(300)
    for gap in (0.01, 0.05, 0.1):
        assert not any(is_hopeless(list((flat + gap + shaken)[:made]), list(flat), 300) for made in range(1, 301))
    falling = np.linspace(4, 1, 300)
    assert is_hopeless(list(4 - 0.2 * np.linspace(0, 3, 300)[:150]), list(falling), 300)
    # A codec with a memory is late, and catches up.
    late = np.concatenate([np.full(100, 4.0), np.linspace(4, 1.2, 200)])
    assert not is_hopeless(list(late[:225]), list(falling), 300)


def test_exact_codecs_say_nothing_about_noisy_ones():
    """Three arms that are equal in every step leave a noisy one its own two degrees of freedom."""
    generator = np.random.default_rng(3)
    base = np.linspace(4, 1, 100)
    runs = []
    for seed, off in ((1, 0.01), (2, 0.03), (3, 0.05)):
        for codec in ("none", "a", "b", "c"):
            runs.append({"codec": codec, "seed": seed, "metrics": {"loss": 1.0}, "losses": list(base)})
        runs.append({"codec": "noisy", "seed": seed, "metrics": {"loss": 1.0 + off}, "losses": list(base + 0.1 * generator.standard_normal(100))})
    result = recorded({"codecs": ["none", "a", "b", "c", "noisy"], "seeds": [1, 2, 3], "tolerance": 0.04}, runs)
    assert [arm["verdict"] for arm in result.arms] == ["baseline", "learns", "learns", "learns", "undecided"]
    half = 4.303 * 0.02 / math.sqrt(3)  # Student's t, of two degrees of freedom
    assert result.arms[4]["high"] - result.arms[4]["worse_by"] == pytest.approx(half, rel=1e-3)
    assert result.arms[4]["reason"] == "more steps would tell, or another tolerance", "74 seeds are nobody's"
    wider = recorded({"codecs": ["none", "a", "b", "c", "noisy"], "seeds": [1, 2, 3], "tolerance": 0.06}, runs)
    assert wider.arms[4]["reason"] == f"some {math.ceil(3 * (half / 0.03) ** 2)} seeds in all, or more steps, would tell"
