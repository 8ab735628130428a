#!/usr/bin/env python3
"""gradtool_netsim as a user meets it: tables, determinism by seed, plausible times, refusals. Usage: check_netsim.py NETSIM GRADTOOL ROOT"""
import csv
import io
import pathlib
import subprocess
import sys
import tempfile

netsim, gradtool, root = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
capture = str(root / "datasets/lenet5-fashion-mnist.h5")
small = ["--leaves", "4", "--spines", "2", "--hosts-per-leaf", "4", "--payload", "4096"]
tiny = ["--leaves", "2", "--spines", "2", "--hosts-per-leaf", "2", "--payload", "4096"]


def run(*words, status=0):
    done = subprocess.run([netsim, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == status, f"{words}: status {done.returncode}, expected {status}\n{done.stderr}"
    return done


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def iterations(folder, name, *words):
    """Completion and iteration rows, and the two files' bytes."""
    paths = [folder / f"{name}-{kind}.csv" for kind in ("completions", "iterations")]
    run("iterations", capture, *small, *words, "--csv", paths[0], "--iterations-csv", paths[1])
    texts = [path.read_text() for path in paths]
    return [rows(text) for text in texts], texts


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)

    # A small configuration with all transports: nothing is faster than the links, DLCP's bound holds, others deliver all.
    words = ["--iterations", 2, "--scale", 0.25, "--transport", "dlcp,dctcp,tcp,pfabric", "--bound", 0.1, "--pull-bound", 0.02]
    (completions, times), texts = iterations(folder, "first", *words)
    assert len(times) == 8, times
    for row in times:
        assert float(row["iteration_us_min"]) >= float(row["least_us"]), row
        assert float(row["iteration_us_min"]) <= float(row["iteration_us_mean"]) <= float(row["iteration_us_max"]), row
        assert float(row["delivered_min"]) >= (0.9 if row["transport"] == "dlcp" else 1.0), row
    dropped = {(row["pattern"], row["transport"]): int(row["dropped"]) for row in times}
    assert dropped["ps", "dlcp"] > 0, "an incast of 15 workers drops packets, or the bound was not tested"
    for row in completions:
        assert float(row["mean_us"]) <= float(row["max_us"]) and float(row["p50_us"]) <= float(row["p99_us"]) <= float(row["max_us"]), row
        if row["transport"] != "dlcp":
            assert float(row["delivered"]) == 1.0, row
        elif row["direction"] == "pull":
            assert float(row["delivered_min"]) >= 0.98, row
        if row["class"] == "all" and row["direction"] in ("push", "pull"):
            assert int(row["messages"]) == 2 * 15 * 10, row  # iterations, workers, LeNet-5's tensors

    # Compute time adds up to what communication cannot hide, and hides some of it.
    (_, computing), _ = iterations(folder, "computing", *words[:4], "--transport", "dlcp", "--pattern", "ps", "--compute-us", 2000)
    alone = next(row for row in times if (row["pattern"], row["transport"]) == ("ps", "dlcp"))
    with_compute = float(computing[0]["iteration_us_mean"])
    assert 2000 < with_compute < 2000 + 1.1 * float(alone["iteration_us_mean"]), (with_compute, alone)

    # One seed gives the same bytes twice, and another seed gives others.
    loaded = ["--iterations", 1, "--pattern", "ps", "--scale", 0.1, "--background", 0.05]
    three = [*loaded, "--transport", "dlcp,dctcp,pfabric"]
    (first, _), texts = iterations(folder, "first", *three, "--seed", 5)
    assert iterations(folder, "again", *three, "--seed", 5)[1] == texts, "two runs with one seed differ"
    (other, _), _ = iterations(folder, "other", *loaded, "--transport", "dlcp", "--seed", 6)
    assert [row for row in first if row["transport"] == "dlcp"] != other, "the seed changes nothing"
    background = [row for row in first if row["direction"] == "background"]
    assert background and all(row["class"] in ("all", "small", "medium", "large") for row in background), background

    # The simulator replays what bench recorded, on the idle fabric in about the modelled time, on a busy one in more.
    for codec in ("none", "topk:ratio=0.01", "powersgd", "terngrad"):
        subprocess.run([gradtool, "bench", capture, "--codec", codec, "--payloads", folder / codec.split(":")[0], "--iters", "2"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folders = [folder / codec for codec in ("none", "topk", "powersgd", "terngrad")]
    table = rows(run("replay", *folders, *tiny, "--scale", 10, "--steps", 2, "--transport", "tcp", "--background", "0,0.3", "--csv", "-").stdout)
    assert [row["codec"] for row in table] == 2 * ["none", "topk", "powersgd", "terngrad"], table
    idle, busy = table[:4], table[4:]
    # A ring of some MB is what the model models, once the first step has opened TCP's windows.
    assert 0.95 < float(idle[0]["step_us_p50"]) / float(idle[0]["model_us"]) < 1.1, idle[0]
    for quiet, loud in zip(idle, busy):
        assert float(quiet["wire_bytes"]) == float(loud["wire_bytes"]) > 0
        assert float(loud["model_us"]) == float(quiet["model_us"])
        assert 0.5 < float(quiet["ratio"]) < 4, quiet
    assert float(busy[0]["step_us_mean"]) > 1.1 * float(idle[0]["step_us_mean"]), (idle[0], busy[0])
    assert float(idle[1]["wire_bytes"]) < 0.1 * float(idle[0]["wire_bytes"])

    # Queueing theory.
    queue = rows(run("queue", "--load", "0.3,0.7", "--packets", 10000, "--csv", "-").stdout)
    assert [row["load"] for row in queue] == ["0.3", "0.7"]
    assert all(0.8 < float(row["ratio"]) < 1.2 for row in queue), queue

    # Refusals: one sentence that names what is wrong, and status 2; bad files 3.
    (folder / "broken").mkdir()
    for rank in (0, 1):
        (folder / "broken" / f"rank{rank}.csv").write_text("codec,params,step,unit,call,bytes\ntopk,,0,0,teleport,5\n")
    (folder / "uneven").mkdir()
    for rank in (0, 1):
        (folder / "uneven" / f"rank{rank}.csv").write_text(
            "codec,params,step,unit,call,bytes\n" + "topk,,0,0,all_gather,5\n" * (rank + 1))
    (folder / "three").mkdir()
    for rank in range(3):
        (folder / "three" / f"rank{rank}.csv").write_text("codec,params,step,unit,call,bytes\ntopk,,0,0,all_gather,5\n")
    refusals = [
        (["iterations", capture, "--bound", 1.5], 2, "--bound"), (["iterations", capture, "--transport", "rdma"], 2, "rdma"),
        (["iterations", capture, "--pattern", "tree"], 2, "tree"), (["iterations", capture, "--workers", 200], 2, "200 workers"),
        (["iterations", capture, "--threshold", "2MB"], 2, "--threshold"), (["iterations", capture, "--buffer", "10"], 2, "--buffer"),
        (["iterations", capture, "--payload", 1001], 2, "--payload"), (["iterations", capture, "--seed", "-1"], 2, "--seed"),
        (["iterations", capture, "--background", 1], 2, "--background"), (["iterations", capture, "--step", 999], 2, "--step"),
        (["iterations", capture, "--scale", 0], 2, "--scale"), (["iterations", capture, "--nonsense"], 2, "--nonsense"),
        (["iterations", capture, "--csv", capture], 2, "--csv"), (["iterations", folder / "none.h5"], 3, "none.h5"),
        (["queue", "--load", 1], 2, "--load"), (["queue", "--leaves", 0], 2, "--leaves"), ([], 2, "subcommand"),
        (["replay", folder], 2, "rank0.csv"), (["replay", folder / "broken"], 3, "teleport"),
        (["replay", folder / "uneven"], 3, "rank1.csv"), (["replay", folder / "topk", "--network", "fast"], 2, "fast"),
        (["replay", folder / "three", "--leaves", 1, "--hosts-per-leaf", 2, "--spines", 1, "--network", "wan"], 2, "3 ranks")]
    for words, status, mention in refusals:
        error = run(*words, status=status).stderr.strip().splitlines()[-1]
        assert error.startswith("gradtool_netsim: ") and mention in error, (words, error)

    # The page explains every column.
    page = (root / "docs/netsim.md").read_text()
    for column in {*completions[0], *times[0], *table[0], *queue[0]}:
        assert f"`{column}`" in page, f"docs/netsim.md does not explain {column}"

    # Help fits a terminal.
    for words in ([], ["iterations"], ["replay"], ["queue"]):
        text = run(*words, "--help").stdout
        assert text and max(map(len, text.splitlines())) <= 80, text
