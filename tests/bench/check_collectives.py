"""Collectives of bench against NumPy: bfloat16 by alltoall bit for bit on 2 to 64 ranks, shards of reduce-scatter and
all-gather, values of an all-to-all, weights and their differences, two levels, counted bytes by formula.

Usage: check_collectives.py GRADTOOL [MPIEXEC]
"""
import csv
import io
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import h5py
import numpy as np

GRADTOOL = sys.argv[1]
MPIEXEC = sys.argv[2] if len(sys.argv) > 2 else ""
STEPS = 2
SHAPES = {"fc.weight": (37, 53), "fc.bias": (53,)}  # 2014 elements, which few numbers of ranks divide
N = sum(int(np.prod(shape)) for shape in SHAPES.values())


def bfloat16(x):
    """float32 rounded to bfloat16, to nearest even, as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint32)) << 16).view(np.float32)


def write_capture(path, workers, quantity=None, weights=False):
    """Returns the gradients [S, W, N] and the weights [S, N]."""
    rng = np.random.default_rng(workers)
    x = (rng.standard_normal((STEPS, workers, N)) * np.exp(rng.standard_normal(N))).astype("f4")
    w = np.cumsum(rng.standard_normal((STEPS, N)), axis=0).astype("f4")
    with h5py.File(path, "w") as f:
        f.attrs.update(dict(format="gradtool.gradients", schema_version=1, complete=1, producer="test", created="2026-01-01T00:00:00Z",
                            model="synthetic", dataset="none", optimizer="sgd", seed=7, workers=workers, batch_size=1,
                            micro_batches=1, command="check_collectives.py"))
        if quantity:
            f.attrs["quantity"] = quantity
        f["steps/iteration"] = np.arange(STEPS, dtype="i8")
        first = 0
        for i, (name, shape) in enumerate(SHAPES.items()):
            group = f.create_group(f"tensors/{i:04d}")
            group.attrs.update(dict(name=name, kind="other", layout=""))
            group.attrs["shape"] = np.array(shape, dtype="i8")
            n = int(np.prod(shape))
            group["gradient"] = x[:, :, first:first + n]
            if weights:
                group["weight"] = w[:, first:first + n]
            first += n
    return x, w


def bench(capture, *flags, launch=(), reconstruction=True):
    """The isolated row of the codec that is not a baseline, and what it made, [S, N] in the order of the model."""
    out = capture.parent / "result.h5"
    out.unlink(missing_ok=True)
    more = ("--reconstruction", out) if reconstruction else ()
    run = subprocess.run([*launch, GRADTOOL, "bench", capture, "--granularity", "model", "--timing", "isolated", "-n", "1", "--threads", "1",
                          "--csv", "-", *map(str, flags), *map(str, more)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 0, run.stderr
    rows = [r for r in csv.DictReader(io.StringIO(run.stdout)) if r["time_source"] == "measured"]
    wanted = rows[-1] if len(rows) > 2 else rows[0]
    if not reconstruction:
        return wanted, None, rows
    with h5py.File(out) as f:
        y = np.concatenate([f[f"tensors/{i:04d}/gradient"][:, 0, :] for i in range(len(SHAPES))], axis=1)
    return wanted, y, rows


def rows_of(*arguments):
    run = subprocess.run([GRADTOOL, "bench", *map(str, arguments), "-n", "1", "--threads", "1", "--csv", "-"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 0, run.stderr
    return list(csv.DictReader(io.StringIO(run.stdout)))


def refused(*arguments, word):
    run = subprocess.run([GRADTOOL, "bench", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [line for line in run.stderr.splitlines() if not line.startswith("Try ")]
    assert run.returncode == 2 and len(lines) == 1 and word in lines[0], (arguments, run.returncode, run.stderr)


def bounds(n, ranks):
    """Segment i of n elements is [i n / p, (i + 1) n / p), rounded down."""
    return [(n * i // ranks, n * (i + 1) // ranks) for i in range(ranks)]


def check_alltoall(folder):
    for ranks in (2, 3, 7, 16, 64):
        capture = folder / "ranks.h5"
        x, _ = write_capture(capture, ranks)
        row, y, _ = bench(capture, "--codec", "bf16", "--reduce", "alltoall")
        want = np.empty((STEPS, N), "f4")
        for first, last in bounds(N, ranks):
            total = np.zeros((STEPS, last - first), "f4")
            for r in range(ranks):  # in float32, in the order of ranks
                total = total + bfloat16(x[:, r, first:last])
            want[:, first:last] = bfloat16(total * np.float32(1 / ranks))
        assert np.array_equal(y.view("u4"), want.view("u4")), f"{ranks} ranks: alltoall of bf16 differs from NumPy"
        # Every shard but the own one, and the mean of the own one to all others.
        sizes = [last - first for first, last in bounds(N, ranks)]
        largest = max(2 * (N - sizes[r]) + 2 * (N - sizes[(r + 1) % ranks]) for r in range(ranks))
        assert abs(float(row["wire_bytes_per_rank"]) - largest) <= 2 * ranks, (ranks, row["wire_bytes_per_rank"], largest)
        # A rank encodes every shard, its own included, and the mean of its own.
        ratio = 2 * ranks / (ranks + 1)
        assert abs(float(row["payload_ratio"]) / ratio - 1) < 1e-9 and row["aggregation"] == "alltoall", (row, ratio)


def check_errors_against_ranks(folder):
    """The ring rounds at every hop and its error grows; the owner of a shard rounds once."""
    errors = {}
    for ranks in (2, 32):
        capture = folder / "grows.h5"
        write_capture(capture, ranks)
        for way in ("sum", "hop", "alltoall"):
            row, _, _ = bench(capture, "--codec", "bf16", "--reduce", way, reconstruction=False)
            errors[way, ranks] = float(row["nmse"])
    assert errors["alltoall", 32] < 1.5 * errors["alltoall", 2], errors
    assert errors["sum", 32] > 4 * errors["sum", 2] and errors["hop", 32] > 4 * errors["hop", 2], errors


def padded(n, ranks):
    return -(-n // ranks) * ranks


def check_sharded(folder):
    for ranks in (2, 4, 5):
        capture = folder / "sharded.h5"
        x, w = write_capture(capture, ranks, weights=True)
        length = padded(N, ranks)
        shards = bounds(length, ranks)
        # Reduce-scatter of bf16 by alltoall: the owner's float32 sum, which nobody rounds again.
        row, y, _ = bench(capture, "--op", "reduce-scatter", "--codec", "bf16", "--reduce", "alltoall")
        total = np.zeros((STEPS, N), "f4")
        for r in range(ranks):
            total = total + bfloat16(x[:, r])
        assert np.array_equal(y, total * np.float32(1 / ranks)), ranks
        part = length // ranks
        assert float(row["wire_bytes_per_rank"]) == 2 * (length - part) and row["op"] == "reduce-scatter", row
        mean = x.astype("f8").mean(axis=1)
        want = ((y - mean) ** 2).sum() / (mean ** 2).sum()
        assert abs(float(row["nmse"]) - want) <= 1e-6 * want, (row["nmse"], want)
        # Uncompressed: what travels is (p - 1) / p of the padded vector.
        _, _, rows = bench(capture, "--op", "reduce-scatter", "--codec", "bf16", reconstruction=False)
        none = next(r for r in rows if r["codec"] == "none")
        assert float(none["wire_bytes_per_rank"]) == 4 * (length - part), none
        assert float(none["nmse"]) < 1e-12 and abs(float(none["wire_ratio"]) - N / length) < 1e-6, none
        # All-gather: by default of the weights, each rank's shard, rounded once.
        row, y, rows = bench(capture, "--op", "all-gather", "--codec", "bf16")
        assert np.array_equal(y, bfloat16(w)), ranks
        assert float(row["wire_bytes_per_rank"]) == 2 * (length - part) and "weights" in row["message"], row
        none = next(r for r in rows if r["codec"] == "none")
        assert float(none["nmse"]) == 0 and float(none["wire_bytes_per_rank"]) == 4 * (length - part), none
        _, y, _ = bench(capture, "--op", "all-gather", "--codec", "bf16", "--values", "weight-difference")
        assert np.array_equal(y, bfloat16(np.diff(w, axis=0))), ranks
        _, y, _ = bench(capture, "--op", "all-gather", "--codec", "bf16", "--values", "own")
        whole = np.zeros((STEPS, length), "f4")
        for r, (first, last) in enumerate(shards):
            mine = np.zeros((STEPS, length), "f4")
            mine[:, :N] = x[:, r]
            whole[:, first:last] = bfloat16(mine[:, first:last])
        assert np.array_equal(y, whole[:, :N]), ranks
        # All-to-all: every value is rounded once on its way; the error is over all ranks' values.
        row, _, rows = bench(capture, "--op", "all-to-all", "--codec", "bf16", "--values", "own", reconstruction=False)
        want = ((bfloat16(x) - x.astype("f8")) ** 2).sum() / (x.astype("f8") ** 2).sum()
        assert abs(float(row["nmse"]) - want) <= 1e-6 * want and row["cumulative_nmse"] == "", (row["nmse"], want)
        assert float(row["wire_bytes_per_rank"]) == 2 * (length - part), row
        none = next(r for r in rows if r["codec"] == "none")
        assert float(none["nmse"]) == 0, none


def check_levels(folder, launch=(), flags=(), baseline="fp32"):
    capture = folder / "levels.h5"
    ranks, node = 8, 4
    x, _ = write_capture(capture, ranks)
    row, y, _ = bench(capture, "--levels", f"node={node}", "--codec", "bf16", "--reduce", "alltoall", "--baseline-dtype", baseline, *flags,
                      launch=launch)
    machines = ranks // node
    want = np.empty((STEPS, N), "f4")
    inside = across = 0
    for place, (first, last) in enumerate(bounds(N, node)):
        n = last - first
        # The uncompressed reduce-scatter adds on a ring: segment s in the order of ranks s + 1, s + 2, ..., s. In a job of bfloat16 each
        # rank has its share of the mean in that type, and every sum is rounded.
        sums = []
        for machine in range(machines):
            order = [(place + 1 + k) % node for k in range(node)]
            given = x[:, machine * node:(machine + 1) * node, first:last]
            if baseline == "bf16":
                given = bfloat16(given * np.float32(1 / node))
            total = given[:, order[0]]
            for r in order[1:]:
                total = total + given[:, r]
                if baseline == "bf16":
                    total = bfloat16(total)
            sums.append(total if baseline == "bf16" else total * np.float32(1 / node))
        for a, b in bounds(n, machines):
            total = np.zeros((STEPS, b - a), "f4")
            for one in sums:
                total = total + bfloat16(one[:, a:b])
            want[:, first + a:first + b] = bfloat16(total * np.float32(1 / machines))
        inside = max(inside, 2 * (N - n) * (2 if baseline == "bf16" else 4))
        across = max(across, 2 * 2 * (n - n // machines))
    assert np.array_equal(y.view("u4"), want.view("u4")), "two levels differ from NumPy"
    assert row["levels"] == f"node={node}" and row["codec_inner"] == "none", row
    if not launch:  # modelled for as many ranks as were replayed, the bytes are those that were counted
        said = subprocess.run([GRADTOOL, "bench", capture, "--granularity", "model", "--timing", "isolated", "-n", "1", "--levels", f"node={node}", "--codec", "bf16",
                               "--reduce", "alltoall", "--baseline-dtype", baseline, "--network", f"10gbe:node={node},inner=nvlink", "--nodes", str(machines),
                               "--csv", "-"], check=True, stdout=subprocess.PIPE, text=True).stdout
        modelled = next(r for r in csv.DictReader(io.StringIO(said)) if r["time_source"] == "modelled" and r["codec"] == "bf16")
        for column in ("wire_bytes_inside", "wire_bytes_across"):
            assert abs(float(modelled[column]) - float(row[column])) <= 4 * 2 * node, (column, modelled[column], row[column])
    assert abs(float(row["wire_bytes_inside"]) - inside) <= 4 * 2 * node, (row["wire_bytes_inside"], inside)
    assert abs(float(row["wire_bytes_across"]) - across) <= 2 * 2 * machines, (row["wire_bytes_across"], across)
    assert float(row["wire_bytes_per_rank"]) <= float(row["wire_bytes_inside"]) + float(row["wire_bytes_across"]), row
    both, _, _ = bench(capture, "--levels", f"node={node}", "--codec", "qsgd:bits=4", "--codec-inner", "int8", *flags, launch=launch,
                       reconstruction=False)
    assert both["codec_inner"].startswith("int8") and 0 < float(both["nmse"]) < 1, both
    assert baseline == "bf16" or float(both["wire_bytes_inside"]) < 0.3 * inside, both
    return row


def check_qgz(folder, launch=(), flags=()):
    """A codec that brings two levels of its own: the bytes of each, from the sizes of its slices."""
    capture = folder / "qgz.h5"
    ranks, node = 8, 4
    write_capture(capture, ranks)
    groups = -(-N // 32)
    cuts = [min(N, 32 * (groups * s // ranks)) for s in range(ranks + 1)]
    slices = np.diff(cuts)

    def sent(bits, of):
        return sum(4 * -(-slices[s] // 512) + 4 * -(-slices[s] * bits // 32) for s in of)

    inside, across = [], []
    for rank in range(ranks):
        place = rank % node
        mine = range(place, ranks, node)
        # On the ring of the last all-gather a rank hands on every group but that of the rank behind it.
        handed_on = [s for s in range(ranks) if s % node != (place + 1) % node]
        inside.append(sent(4, [s for s in range(ranks) if s % node != place]) + sent(8, handed_on))
        across.append(sent(4, [s for s in mine if s != rank]) + (ranks // node - 1) * sent(8, [rank]))
    row, _, rows = bench(capture, "--codec", f"qgz:node={node}", *flags, launch=launch)
    assert row["levels"] == f"node={node}" and row["codec_inner"] == "", row
    assert float(row["wire_bytes_inside"]) == max(inside) and float(row["wire_bytes_across"]) == max(across), (row, inside, across)
    assert next(r for r in rows if r["codec"] == "none")["levels"] == "", rows
    one, _, _ = bench(capture, "--codec", "qgz:node=8", *flags, launch=launch)
    assert one["levels"] == "" and one["wire_bytes_inside"] == "", one
    return row


def check_model(folder):
    """A network of two levels: inside over the fast links, between over those that the ranks of a machine share."""
    capture = folder / "model.h5"
    write_capture(capture, 8)
    rows = []
    for network, machines in (("10gbe:node=4,inner=nvlink", "2,4"), ("10gbe", "8,16")):
        run = subprocess.run([GRADTOOL, "bench", capture, "--granularity", "model", "--timing", "isolated", "-n", "1", "--codec", "fp16",
                              "--reduce", "alltoall", "--levels", "node=4", "--network", network, "--nodes", machines, "--csv", "-"],
                             check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout
        rows += [r for r in csv.DictReader(io.StringIO(run)) if r["time_source"] == "modelled" and r["codec"] == "fp16"]
    for row in rows:
        machines = int(row["ranks"]) // 4
        across = 2 * 2 * (machines - 1) / machines * N / 4
        inside = 2 * 4 * 3 / 4 * N
        assert abs(float(row["wire_bytes_across"]) - across) <= 0.01 * across, row
        assert abs(float(row["wire_bytes_inside"]) - inside) <= 0.01 * inside, row
    assert {(r["node"], r["ranks"]) for r in rows} == {("4", "8"), ("4", "16"), ("1", "8"), ("1", "16")}, rows


def check_chosen_levels(folder):
    """A network whose machines have several ranks is modelled in two levels unasked, from machines of fewer ranks as from its own."""
    network, rows, said, printed, uncompressed = "slow:alpha=1us,beta=1MBps,node=4,inner=nvlink", {}, {}, {}, {}
    for workers in (4, 8):  # two machines of 2, and of 4
        capture = folder / f"chosen{workers}.h5"
        write_capture(capture, workers)
        run = subprocess.run([GRADTOOL, "bench", capture, "--granularity", "model", "--timing", "isolated", "-n", "3", "--codec", "fp16,int8",
                              "--network", network, "--network", "1gbe", "--nodes", "1,2,8", "--advise", "--max-nmse", "1", "--csv", "-"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert run.returncode == 0, run.stderr
        said[workers] = run.stderr
        every = list(csv.DictReader(io.StringIO(run.stdout)))
        uncompressed[workers] = [r for r in every if r["codec"] == "none"]
        all_rows = printed[workers] = [r for r in every if r["codec"] in ("fp16", "int8")]
        levelled = [r for r in all_rows if r["levels"]]
        replayed = {(r["codec"], r["aggregation"]): r for r in levelled if r["time_source"] == "measured"}
        assert set(replayed) == {("fp16", "sum"), ("int8", "gather"), ("int8", "alltoall")}, replayed.keys()
        assert {r["levels"] for r in replayed.values()} == {f"node={workers // 2}"}, replayed
        modelled = [r for r in levelled if r["time_source"] == "modelled"]
        assert {(r["levels"], r["node"], r["ranks"]) for r in modelled} == {("node=4", "4", "8"), ("node=4", "4", "32")}, modelled
        for row in modelled:
            before = float(replayed[row["codec"], row["aggregation"]]["encode_us_median"])
            assert abs(float(row["encode_us_median"]) / (before * workers / 8) - 1) < 1e-3, (row["encode_us_median"], before)
        rows[workers] = {(r["codec"], r["aggregation"], r["ranks"]): r for r in modelled}
    assert len(rows[4]) == 6 and rows[4].keys() == rows[8].keys(), rows[4].keys()
    for way, row in rows[4].items():
        # Scales of shards and rounded ends differ by some bytes.
        for column in ("comm_us_median", "wire_bytes_inside", "wire_bytes_across"):
            assert abs(float(row[column]) / float(rows[8][way][column]) - 1) < 0.02, (way, column, row[column], rows[8][way][column])
    words = " ".join(said[4].split())
    assert re.search("32 ranks: take int8 by alltoall in two levels[.;]", words) and "HSDP reduces in two levels" in words, words
    flat, none = ([r for r in rows if not r["levels"] and r["time_source"] == "modelled" and r["network"].startswith("slow") and r["ranks"] == "32"]
                  for rows in (printed[4], uncompressed[4]))
    fastest = max(flat, key=lambda r: float(r["speedup_vs_none"]))
    one_level = re.search(r"Where all ranks reduce in one level, as in DDP: (.*?)\. ", words)
    if float(fastest["speedup_vs_none"]) < 1.05:
        assert one_level[1] == "stay uncompressed", (words, fastest)
    else:
        assert f"{fastest['codec']}" in one_level[1], (words, fastest)
    best = min(flat, key=lambda r: float(r["ddp_ms"]))
    if float(none[0]["ddp_ms"]) < 1.05 * float(best["ddp_ms"]):
        assert "; in PyTorch's DDP stay uncompressed." in words and "In PyTorch with DDP:" not in words, (words, best)
    else:
        assert "; in PyTorch's DDP take " in words and "In PyTorch with DDP: " in words, (words, best)
    line = re.search(r"Again: (gradtool bench .*--nodes 8 --reduce alltoall --levels node=2 .*)", said[4])
    assert line, said[4]
    again = subprocess.run([GRADTOOL, *shlex.split(line[1])[1:], "--csv", "-"], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True)
    assert "in one level, as in DDP" not in " ".join(again.stderr.split()), "nothing was replayed in one level"
    again = again.stdout
    again = [r for r in csv.DictReader(io.StringIO(again)) if r["codec"] == "int8" and r["time_source"] == "modelled"]
    first = rows[4]["int8", "alltoall", "32"]
    assert len(again) == 1 and all(again[0][c] == first[c] for c in ("comm_us_median", "nmse", "levels", "ranks", "wire_bytes_across")), (again, first)


def check_payloads_of_two_levels(folder):
    """Codecs whose payloads say how many values they hold, beside an inner codec that works after them."""
    capture = folder / "counted.h5"
    write_capture(capture, 4)
    for spec in ("topk:ratio=0.1", "sidco:ratio=0.1", "exponent", "zstd"):
        for reduce in ("gather", "alltoall"):
            row, _, _ = bench(capture, "--levels", "node=2", "--codec", spec + ("" if spec in ("exponent", "zstd") else ",ef=off"), "--reduce", reduce,
                              "--codec-inner", "bf16", reconstruction=False)
            # Inside a rank encodes a vector for others and its shard for all; between a shard for all, or one and its half for the other.
            dense = N + -(-N // 2) * (1 if reduce == "gather" else 0.5)
            sent = N / float(row["element_ratio"])
            expected = N * 1.5 + (0.1 if "ratio" in spec else 1.0) * N / 2
            assert dense <= sent <= 1.3 * expected, (spec, reduce, sent, expected)
    # Tiny units: shards of one element, and of none.
    synthetic = subprocess.run([GRADTOOL, "bench", "--synthetic", "8:12:+4", "--ranks", "6", "--levels", "node=3", "--reduce", "alltoall",
                                "--codec-inner", "int8", "--codec", "topk:ratio=0.5,sidco,exponent,bf16", "-n", "1", "-w", "0", "--csv", "-"],
                               check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout
    assert all(r["status"] == "ok" for r in csv.DictReader(io.StringIO(synthetic))), synthetic


def check_modelled_decoding(folder):
    """Only payloads of other machines become more with the machines: what is decoded inside stays as long."""
    capture = folder / "decoding.h5"
    write_capture(capture, 8)
    run = subprocess.run([GRADTOOL, "bench", capture, "--granularity", "model", "--timing", "isolated", "-n", "5", "--threads", "1", "--codec",
                          "topk:ratio=0.001", "--levels", "node=4", "--codec-inner", "qsgd", "--network", "10gbe:node=4,inner=nvlink", "--nodes",
                          "2,1024", "--csv", "-"], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout
    rows = [r for r in csv.DictReader(io.StringIO(run)) if r["codec"] == "topk"]
    two, many = ([float(r["decode_us_median"]) for r in rows if r["time_source"] == "modelled" and r["ranks"] == ranks][0] for ranks in ("8", "4096"))
    measured = float(next(r for r in rows if r["time_source"] == "measured")["decode_us_median"])
    assert abs(two - measured) <= 1e-3 * measured, (two, measured)
    assert measured < many < 512 * measured / 2, (measured, many)  # of a decoding that is nearly all inside


def check_targets(folder):
    """Methods whose result is no mean of gradients: no sums over steps, never advised, and the same target when pipelined."""
    capture = folder / "target.h5"
    write_capture(capture, 2)
    out = folder / "target.csv"
    run = subprocess.run([GRADTOOL, "bench", capture, "--codec", "demo:k=4096,beta=0", "--codec", "dion:rank=8", "--codec", "bf16", "--timing", "both", "-n", "1", "-w", "0", "--pipeline",
                          "2", "--granularity", "model", "--network", "1gbe", "--advise", "--max-nmse", "10", "--csv", out],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 0, run.stderr
    with open(out, newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["codec"] in ("demo", "dion")]
    assert len(rows) >= 4 and all(r["cumulative_nmse"] == "" and r["pareto"] != "true" for r in rows), rows
    # demo sends all coefficients of all ranks: only rounding is left, in chunks as in the whole. dion sends eight columns.
    for codec, limit in (("demo", 1e-10), ("dion", 1.0)):
        errors = {r["timing"]: float(r["nmse"]) for r in rows if r["codec"] == codec and r["time_source"] == "measured"}
        assert len(errors) == 2 and max(errors.values()) < limit, (codec, errors)
    assert "not compared, because it is an optimizer of its own and averages no gradients: demo" in " ".join(run.stdout.split()), run.stdout


def check_logged_payloads(folder):
    """--payloads has what ranks put into an all-to-all, and not the room that it might have taken."""
    capture = folder / "logged.h5"
    write_capture(capture, 4)
    payloads = folder / "payloads"
    row, _, _ = bench(capture, "--codec", "topk:ratio=0.1,ef=off", "--reduce", "alltoall", "--payloads", payloads, reconstruction=False)
    with open(payloads / "rank0.csv", newline="") as file:
        logged = [r for r in csv.DictReader(file) if r["codec"] == "topk" and r["step"] == "0"]
    assert [r["call"] for r in logged] == ["all_to_all_v", "all_to_all_v", "all_gather", "all_gather_v"], logged
    sizes, shards, size, mean = (int(r["bytes"]) for r in logged)
    assert sizes == 4 * 8 and size == 8, logged
    # A rank's payload for itself is among what is logged and what is counted.
    encoded = float(row["payload_bytes"])
    assert abs((shards + mean) / encoded - 1) < 0.01, (encoded, shards, mean)


def check_gate(folder):
    """Units below gate= go as none sends them, in the job's type, and are counted so; where all do, the codec was not at work."""
    capture = folder / "gate.h5"
    write_capture(capture, 4)
    columns = ("payload_bytes", "wire_bytes_per_rank", "messages", "nmse")

    def tensors(gate, dtype, *more):
        _, _, rows = bench(capture, "--granularity", "tensor", "--codec", f"fp8:reduce=alltoall{gate}", "--baseline-dtype", dtype, *more,
                           reconstruction=False)
        return [next(r for r in rows if r["codec"] == codec and r["granularity"] == "tensor") for codec in ("fp8", "none")]

    for dtype, size in (("fp32", 4), ("bf16", 2)):
        bias, weight = 53 * size, 37 * 53 * size
        whole, none = tensors("", dtype)
        part, _ = tensors(f",gate={bias + 1}", dtype)
        weights_alone, _ = tensors("", dtype, "--layers", "fc.weight")
        assert float(part["payload_bytes"]) == float(weights_alone["payload_bytes"]) + bias, (dtype, part, weights_alone)
        assert part["reached"] == "true" and "units below the gate went uncompressed" in part["message"], part
        assert 0 < float(part["nmse"]) <= float(whole["nmse"]), (part["nmse"], whole["nmse"])
        same, _ = tensors(f",gate={bias}", dtype)
        assert [same[c] for c in columns] == [whole[c] for c in columns], (dtype, same, whole)
        everything, _ = tensors(f",gate={weight + 1}", dtype)
        assert [everything[c] for c in columns] == [none[c] for c in columns], (dtype, everything, none)
        assert everything["reached"] == "false", everything

    # The gate is for units: chunks of a pipeline are compressed where their unit is, and no codec touches what is below it.
    dataset = pathlib.Path(__file__).parents[2] / "datasets/lenet5-fashion-mnist.h5"
    for gate, is_gated in ((60000, False), (10 ** 9, True)):
        rows = [rows_of(dataset, "--granularity", "model", "--codec", f"fp8{text}", "--timing", "concurrent", "--pipeline", "4")
                for text in ("", f":gate={gate}")]
        plain, gated = (next(r for r in of if r["codec"] == "fp8" and int(r["pipeline"]) > 1) for of in rows)
        whole = next(r for r in rows[1] if r["codec"] == "none")
        like = whole if is_gated else plain
        assert (gated["payload_bytes"], gated["nmse"]) == (like["payload_bytes"], like["nmse"]), (gate, gated, like)
    isolated, _, _ = bench(dataset, "--codec", f"qsgd:gate={10 ** 9}", reconstruction=False)
    assert float(isolated["codec_nmse"]) == 0 and isolated["variance_nmse"] == "", isolated
    # A division of what came takes as long with 256 ranks as with 4.
    modelled = rows_of(capture, "--granularity", "tensor", "--codec", f"topk:ratio=0.01,gate={10 ** 9}", "--timing", "isolated",
                       "--network", "10gbe", "--nodes", "4,256")
    decode = {(r["aggregation"], r["ranks"]): float(r["decode_us_median"]) for r in modelled
              if r["codec"] == "topk" and r["time_source"] == "modelled"}
    for way in {way for way, _ in decode}:
        assert decode[way, "256"] == decode[way, "4"], decode


def check_refusals(folder):
    capture = folder / "refused.h5"
    write_capture(capture, 4)
    refused(capture, "--op", "all-to-all", "--codec", "topk", word="add ef=off")
    refused(capture, "--op", "reduce-scatter", "--codec", "powersgd", word="has no reduce-scatter")
    refused(capture, "--op", "reduce-scatter", "--codec", "bf16", "--reduce", "gather", word="hop or alltoall")
    refused(capture, "--op", "all-gather", "--codec", "bf16", "--pipeline", "4", word="--pipeline")
    refused(capture, "--levels", "node=3", "--codec", "bf16", word="node=3")
    refused(capture, "--levels", "node=4", "--codec", "bf16", word="two machines at least")
    refused(capture, "--levels", "4", "--codec", "bf16", word="node=8")
    refused(capture, "--codec-inner", "bf16", "--codec", "bf16", word="--levels")
    refused(capture, "--levels", "node=2", "--codec", "bf16", "--codec-inner", "bf16:gate=100", word="leave it out of --codec-inner")
    for codec in ("dgc:momentum=0.9,gate=100", "dion2:gate=100", "demo:gate=100", "dion:gate=100"):
        refused(capture, "--codec", codec, word="leave gate= out")
    refused(capture, "--levels", "node=2", "--codec", "powersgd", word="way of its own")
    refused(capture, "--levels", "node=2", "--codec", "oktopk", word="way of its own")
    refused(capture, "--levels", "node=2", "--codec", "qgz", word="qgz:node=")
    refused(capture, "--levels", "node=2", "--codec", "bf16", "--codec-inner", "powersgd", word="--codec-inner")
    refused(capture, "--levels", "node=2", "--codec", "none", word="none and noop")
    refused(capture, "--levels", "node=2", "--codec", "bf16", "--network", "10gbe", "--nodes", "3", word="two machines")
    refused(capture, "--values", "weight", "--codec", "bf16", word="no weights")
    write_capture(capture, 4, weights=True)
    refused(capture, "--op", "all-gather", "--codec", "topk", word="weight-difference")
    refused(capture, "--op", "all-gather", "--codec", "bf16", "--compute-ms", "5", "--network", "10gbe", word="--compute-ms")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_alltoall(folder)
        check_errors_against_ranks(folder)
        check_sharded(folder)
        threads = check_levels(folder)
        check_levels(folder, baseline="bf16")
        qgz = check_qgz(folder)
        check_model(folder)
        check_chosen_levels(folder)
        check_payloads_of_two_levels(folder)
        check_modelled_decoding(folder)
        check_targets(folder)
        check_logged_payloads(folder)
        check_gate(folder)
        check_refusals(folder)
        listed = subprocess.run([GRADTOOL, "list", "comm", "--csv", "-"], check=True, stdout=subprocess.PIPE, text=True).stdout
        if MPIEXEC and any(r["name"] == "mpi" and r["available"] == "true" for r in csv.DictReader(io.StringIO(listed))):
            version = subprocess.run([MPIEXEC, "--version"], stdout=subprocess.PIPE, text=True).stdout
            more = ["--oversubscribe"] if "Open MPI" in version or "OpenRTE" in version else []
            mpi = check_levels(folder, [MPIEXEC, "-n", "8", *more], ["--comm", "mpi"])
            mpi_qgz = check_qgz(folder, [MPIEXEC, "-n", "8", *more], ["--comm", "mpi"])
            for column in ("wire_bytes_inside", "wire_bytes_across", "wire_bytes_per_rank", "nmse"):
                assert mpi[column] == threads[column], (column, mpi[column], threads[column])
                assert mpi_qgz[column] == qgz[column], (column, mpi_qgz[column], qgz[column])
            print("two levels: also on 8 MPI processes")


main()
