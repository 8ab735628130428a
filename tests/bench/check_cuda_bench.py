"""`bench --device cuda` says what `--device cpu` says: the same errors and bytes for every codec that declares equal bytes on all
backends, the same within rounding for the others; also on one rank, with every scheme, in models and in written payloads.

Usage: check_cuda_bench.py GRADTOOL CAPTURE
"""
import csv
import io
import json
import math
import pathlib
import subprocess
import sys
import tempfile

gradtool, capture = sys.argv[1:]
COUNTS = ["elements", "raw_bytes", "payload_bytes", "wire_bytes_per_rank", "element_ratio", "payload_ratio", "wire_ratio",
          "bits_per_element"]
ERRORS = ["nmse", "cosine", "relative_bias", "max_abs_error", "sign_agreement", "zeroed_fraction", "cumulative_nmse",
          "residual_ratio", "codec_nmse", "bias_nmse", "variance_nmse"]
QUICK = ["-n", "1", "--layers", "conv2|fc3", "--csv", "-"]


def run(*arguments, status=0):
    done = subprocess.run([gradtool, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == status, (arguments, done.returncode, done.stderr)
    return done


def rows(device, *arguments):
    table = csv.DictReader(io.StringIO(run("bench", capture, "--device", device, *QUICK, *arguments).stdout))
    return {(r["codec"], r["params"], r["timing"], r["network"], r["ranks"], r["aggregation"]): r for r in table}


def same(name, exact, found, expected, columns, rounding):
    for column in columns:
        a, b = found[column], expected[column]
        if a == b:
            continue
        near = not exact and a and b and math.isclose(float(a), float(b), rel_tol=rounding, abs_tol=1e-9)
        assert near, f"{name} {found['params']}: {column} is {a} on the GPU and {b} on the CPU"


backends = json.loads(run("list", "comm", "--json", "-").stdout)
loopback, nccl = (next(b for b in backends if b["name"] == name) for name in ("loopback", "nccl"))
if not loopback["available"]:
    print("skipped, needs a CUDA GPU:", loopback["detail"])
    sys.exit(77)
codecs = {c["name"]: c for c in json.loads(run("list", "codecs", "--json", "-").stdout)}
on_gpu = [name for name, codec in codecs.items() if "cuda" in codec["spaces"]]
assert {"none", "noop", "qsgd", "fp16"} <= set(on_gpu), on_gpu
generic = [c for c in ("qsgd:bits=6", "topk:ratio=0.1", "fft") if c.split(":")[0] in on_gpu]

without_residual = ["topk:ratio=0.1,ef=off" if spec.startswith("topk") else spec for spec in generic]


def flags(specs):
    return [word for spec in specs for word in ("--codec", spec)]


compared = 0
for choice in (flags(on_gpu) + ["--timing", "concurrent"], flags(on_gpu) + ["--ranks", "1", "--timing", "isolated"],
               flags(generic) + ["--reduce", "gather", "--granularity", "model"], flags(without_residual) + ["--reduce", "hop"]):
    expected = rows("cpu", *choice)
    for key, row in rows("cuda", *choice).items():
        assert row["status"] == "ok", (key, row["message"])
        assert float(row["comm_us_median"]) >= 0.0 and int(row["samples"]) == 1, key
        exact = codecs[key[0]]["determinism"] == "cross_backend"
        same(key[0], exact, row, expected[key], COUNTS, 0.02)
        same(key[0], exact, row, expected[key], ERRORS, 1e-3)
        compared += 1

# The GPU casts as the CPU does, by every collective, when a job sends 16 bits uncompressed, and its ring adds in the same way.
for dtype in "bf16", "fp16":
    for op in "all-reduce", "reduce-scatter", "all-gather", "all-to-all":
        choice = ["--codec", "none", "--baseline-dtype", dtype, "--op", op, "--values", "own"]
        expected = rows("cpu", *choice)
        for key, row in rows("cuda", *choice).items():
            assert row["status"] == "ok" and (key[0] == "noop" or float(row["nmse"]) > 0), (key, row["message"])
            same(key[0], True, row, expected[key], COUNTS + ERRORS, 0.0)
            compared += 1

# A codec without a CUDA version is skipped with a reason; the other rows are measured.
without_cuda = [row for row in rows("cuda", *flags(["dlcp"])).values() if row["codec"] == "dlcp"]
assert without_cuda and all(row["status"] == "skipped" and "no CUDA version" in row["message"] for row in without_cuda), without_cuda

# Collectives are counted on the GPU as on the CPU, so models send as much, and as many values, also where a payload of a size that the GPU
# alone knows lies in a longer room, as shards do.
sized = ["sidco", "strom", "exponent"]
assert set(sized) <= set(on_gpu), on_gpu
network = flags(generic + sized) + ["--timing", "isolated", "--network", "10gbe", "--nodes", "2,8", "--compute-ms", "5"]
expected = {key: row for key, row in rows("cpu", *network).items() if row["time_source"] == "modelled"}
found = {key: row for key, row in rows("cuda", *network).items() if row["time_source"] == "modelled"}
assert expected.keys() == found.keys() and len(found) == 2 * (2 + 2 * len(generic + sized)), (expected.keys(), found.keys())  # by gather and by alltoall
for key, row in found.items():
    same(key[0], codecs[key[0]]["determinism"] == "cross_backend", row, expected[key],
         ["wire_bytes_per_rank", "comm_us_median", "element_ratio"], 0.02)
    assert float(row["iteration_ms"]) >= 5.0 and row["device"] == "cuda", row

# The recorded payloads are those that were sent.
for codec in generic:
    with tempfile.TemporaryDirectory() as folder:
        log = {device: pathlib.Path(folder) / device for device in ("cpu", "cuda")}
        for device, path in log.items():
            rows(device, *flags([codec]), "--timing", "isolated", "--payloads", str(path))
        for table in sorted(log["cpu"].glob("rank*")):
            if codecs[codec.split(":")[0]]["determinism"] == "cross_backend" or table.suffix == ".csv":
                assert table.read_bytes() == (log["cuda"] / table.name).read_bytes(), (codec, table.name)

for device, status, says in (("cuda:x", 2, "write cpu, cuda or cuda:INDEX"), ("cuda:", 2, "cuda:INDEX"), ("cuda:-1", 2, "cuda:INDEX"),
                             ("gpu", 2, "cuda:INDEX"), ("cuda:4096", 77, "GPU 4096")):
    message = run("bench", capture, "--device", device, "--codec", "fp16", status=status).stderr
    assert says in message and message.count("\n") == 1, message
message = run("bench", capture, "--device", "cuda:1", "--comm", "nccl", status=2 if nccl["available"] else 77).stderr
assert ("write --device cuda" if nccl["available"] else nccl["detail"]) in message, message
assert "nccl" in run("bench", capture, "--device", "cuda", "--comm", "threads", status=2).stderr
print(f"{compared} rows of {len(on_gpu)} codecs are the CPU's")
