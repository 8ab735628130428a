"""Traces that torch.profiler writes of a training under DDP, read by `gradtool bench --compute-ms`."""

import json
import statistics
import subprocess

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from ranks import run_ranks  # noqa: E402  pylint: disable=wrong-import-position

nn = torch.nn
RANKS, STEPS = 2, 4


def train(rank, _size, folder):
    """Some steps under DDP with two buckets, and the trace of all but the first two."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    model = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs = torch.randn(32 * (1 + rank), 256)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], schedule=torch.profiler.schedule(wait=1, warmup=1, active=STEPS, repeat=1),
        record_shapes=True, on_trace_ready=lambda profile: profile.export_chrome_trace(f"{folder}/rank{rank}.json"),
    ) as profile:
        for _ in range(2 + STEPS):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            profile.step()


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    run_ranks(RANKS, train, str(folder))
    return [folder / f"rank{rank}.json" for rank in range(RANKS)]


def events_of(path):
    document = json.loads(path.read_text())
    return [one for one in (document["traceEvents"] if isinstance(document, dict) else document) if one["ph"] == "X" and "dur" in one]


def expected(path):
    """Median milliseconds of a step, of its exposed communication and of the rest, counted by tenths of a microsecond."""
    events = events_of(path)
    begin = min(one["ts"] for one in events)
    count = 2 + round(10 * (max(one["ts"] + one["dur"] for one in events) - begin))

    def covered(prefix):
        tenths = np.zeros(count, bool)
        for one in events:
            if one["name"].startswith(prefix):
                at = round(10 * (one["ts"] - begin))
                tenths[at:at + round(10 * one["dur"])] = True
        return tenths

    alone = covered("gloo:") & ~covered("aten::")
    marks = [(round(10 * (one["ts"] - begin)), round(10 * one["dur"])) for one in events if one["name"].startswith("ProfilerStep#")]
    steps = [length / 1e4 for _, length in marks]
    exposed = [alone[at:at + length].sum() / 1e4 for at, length in marks]
    rest = [step - waits for step, waits in zip(steps, exposed)]
    return {"steps": len(marks), "step_ms": statistics.median(steps), "exposed_ms": statistics.median(exposed),
            "compute_ms": statistics.median(rest), "compute_low_ms": min(rest), "compute_high_ms": max(rest)}


def bench(capture, given, folder):
    """Returns what the bench says of its job's traces: the record's part, and the text."""
    from gradtool._program import program
    done = subprocess.run([program(), "bench", capture, "--codec", "int8", "--timing", "isolated", "-n", "1", "--network", "10gbe", "--nodes", "8",
                           "--advise", "--compute-ms", given, "--json", folder / "bench.json"], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads((folder / "bench.json").read_text())["job_trace"], " ".join(done.stdout.split())


def check(found, path):
    """Checks what was read against what is counted here, to the tenths that counting rounds to, and the collectives."""
    counted = expected(path)
    assert found["file"] == str(path)
    assert found["steps"] == counted.pop("steps") == STEPS
    for name, milliseconds in counted.items():
        assert found[name] == pytest.approx(milliseconds, abs=0.02), name
    assert 0 < found["exposed_ms"] < found["step_ms"]
    assert found["most_gain"] == pytest.approx(counted["step_ms"] / counted["compute_ms"], rel=1e-2)
    times = {}
    for one in events_of(path):
        if one["name"] == "gloo:all_reduce" and one["args"].get("Input Dims"):
            times.setdefault(4.0 * np.prod(one["args"]["Input Dims"][0]), []).append(one["dur"] / 1e3)
    assert {one["bytes"]: (one["name"], one["calls"], one["ms"]) for one in found["collectives"]} == {
        size: ("all_reduce", len(each), pytest.approx(statistics.median(each))) for size, each in times.items()}
    return times


@pytest.mark.usefixtures("gradtool_program")
def test_steps_and_exposed_communication_are_those_of_the_trace(traces, capture_file, tmp_path):
    for path in traces:
        found, said = bench(capture_file, str(path), tmp_path)
        sizes = check(found, path)
        assert f"(median of {STEPS} steps in {path})" in said and f"no codec can gain more than {found['most_gain']:.2f} times" in said, said
        # PyTorch that was built without Kineto, as Debian's, has no sizes to show.
        assert ("The trace does not record how large its collectives are" in said) == (not sizes), said


@pytest.mark.usefixtures("gradtool_program")
def test_of_several_ranks_the_one_that_computes_longest_is_read(traces, capture_file, tmp_path):
    found, _ = bench(capture_file, ",".join(map(str, traces)), tmp_path)
    check(found, max(traces, key=lambda path: expected(path)["compute_ms"]))
