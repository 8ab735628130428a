"""Codecs and reducers in Python (docs/prototypes.md): the same errors and bytes as their twins in C++, by every way, and sentences."""
import csv
import io
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

program, source, mpiexec = sys.argv[1], pathlib.Path(sys.argv[2]), "".join(sys.argv[3:])  # a build without MPI gives no launcher
capture = str(source / "datasets/lenet5-fashion-mnist.h5")
folder = tempfile.TemporaryDirectory(prefix="gradtool-prototypes-")
os.chdir(folder.name)
environment = {**os.environ, "GRADTOOL_PYTHON": sys.executable, "PYTHONDONTWRITEBYTECODE": "1"}

for name, text in re.findall(r"<!-- (\w+\.py) -->\n```python\n(.*?)```", (source / "docs/prototypes.md").read_text(), re.S):
    pathlib.Path(name).write_text(text)
pathlib.Path("several.py").write_text('''
import zlib
import numpy as np


class TopK:
    error_feedback = True
    search = {"ratio": [0.01, 0.1]}

    def __init__(self, ratio=0.01):
        self.ratio = ratio

    def encode(self, x, ctx):
        kept = np.sort(np.argsort(-np.abs(x), kind="stable")[:max(1, round(self.ratio * x.size))]).astype(np.uint32)
        return x[kept], kept

    def decode(self, payload, n):
        out = np.zeros(n, np.float32)
        out[payload[1]] = payload[0]
        return out


class InPlace:
    """TopK that works in the gradient that it is given, and keeps it"""

    def __init__(self, ratio=0.01):
        self.ratio, self.residual = ratio, 0

    def encode(self, x, ctx):
        x += self.residual
        kept = np.argsort(-np.abs(x), kind="stable")[:max(1, round(self.ratio * x.size))].astype(np.uint32)
        values = x[kept]
        x[kept] = 0
        self.residual = x
        return values, kept

    decode = TopK.decode


class Bits:
    """another type with other parameters"""
    search = {"bits": [8, 16]}

    def __init__(self, bits=8):
        self.bits = bits

    def encode(self, x, ctx):
        top = np.float32(np.abs(x).max() / (2 ** (self.bits - 1) - 1)) or np.float32(1)
        return np.array([top]), np.rint(x / top).astype(f"i{self.bits // 8}")

    def decode(self, payload, n):
        return payload[1] * payload[0][0]


class Half:
    sums = "float16"

    def encode(self, x, ctx):
        print("a word that belongs into no table")
        return x.astype(np.float16)

    def decode(self, payload, n):
        return payload


class Bytes:
    """exact, of a size that the values decide"""

    def encode(self, x, ctx):
        assert x.size == np.prod(ctx.shape) and ctx.tensor and ctx.rank < 2 and ctx.ranks == 1, vars(ctx)
        return zlib.compress(x.tobytes(), 1)

    def decode(self, payload, n):
        return np.frombuffer(zlib.decompress(payload), np.float32)


class Matrix:
    by_layout = True

    def encode(self, x, ctx):
        return x.reshape(ctx.shape if len(ctx.shape) > 1 else (-1, 1))

    def decode(self, payload, n):
        assert payload.ndim >= 2
        return payload.ravel()


class Draws:
    """stochastic rounding to multiples of a step"""

    def encode(self, x, ctx):
        return np.floor(x / np.float32(1e-3) + ctx.rng().random(x.size, np.float32)).astype(np.int16)

    def decode(self, payload, n):
        return payload * np.float32(1e-3)
''')


def run(*arguments, status=0, launcher=()):
    done = subprocess.run([*launcher, program, *map(str, arguments)], capture_output=True, text=True, env=environment, check=False, timeout=600)
    assert done.returncode == status, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def bench(codecs, *options, launcher=(), status=0):
    """The rows of the measured totals, by codec with parameters."""
    text = run("bench", capture, "--codec", codecs, "--iters", "1", "-w", "0", "--csv", "-", *options, launcher=launcher, status=status).stdout
    rows = [row for row in csv.DictReader(io.StringIO(text)) if row["tensor"] == "all" and row["time_source"] == "measured"]
    return {row["codec"] + (":" + row["params"] if row["codec"] == "python" else ""): row for row in rows}


def same_errors(a, b):
    for column in ("nmse", "cumulative_nmse", "worst_nmse", "max_abs_error"):
        assert a[column] == b[column], (column, a[column], b[column])


# Twins: the same values are kept, by gradtool's residual and by one in the class; float16 is added as the codec adds it.
both = "topk,fp16,none,python:several.py,cls=TopK,python:mine.py,python:several.py,cls=Half,python:mean.py,python:several.py,cls=InPlace"
rows = bench(both + ",python:several.py,cls=Bits,bits=[8,16]", "--granularity", "tensor")
threads = rows
own, fed = rows["python:file=mine.py,delays=on,ratio=0.01"], rows["python:file=several.py,cls=TopK,ratio=0.01,ef=on"]
same_errors(rows["topk"], own)
same_errors(rows["topk"], fed)
same_errors(rows["topk"], rows["python:file=several.py,cls=InPlace,delays=on,ratio=0.01"])
coarse, fine = (float(rows[f"python:file=several.py,cls=Bits,bits={bits}"]["nmse"]) for bits in (8, 16))
assert 1e3 * fine < coarse < 1e-2, (coarse, fine)
same_errors(rows["fp16"], rows["python:file=several.py,cls=Half"])
assert rows["fp16"]["payload_bytes"] == rows["python:file=several.py,cls=Half"]["payload_bytes"]
info = json.loads(run("info", capture, "--json", "-").stdout)
shapes = [tensor["shape"] for tensor in info["tensor_list"]]
elements = [math.prod(shape) for shape in shapes]
kept = sum(max(1, round(0.01 * n)) for n in elements)
assert float(own["payload_bytes"]) == float(fed["payload_bytes"]) == 8 * kept, (own["payload_bytes"], kept)
mean = rows["python:file=mean.py"]
assert float(mean["nmse"]) < 1e-13 and float(mean["wire_bytes_per_rank"]) == sum(4 * n for n in elements), mean["wire_bytes_per_rank"]
assert all("times are Python's" in row["message"] for name, row in rows.items() if name.startswith("python"))

# A size that the values decide has 8 bytes more; what is exact stays exact; a matrix keeps its shape.
rows = bench("python:several.py,cls=Bytes,python:several.py,cls=Matrix", "--granularity", "tensor")
assert all(float(row["nmse"]) < 1e-13 for name, row in rows.items() if name != "noop"), rows
assert float(rows["python:file=several.py,cls=Matrix"]["payload_bytes"]) == 4 * sum(elements)
assert 1 < float(rows["python:file=several.py,cls=Bytes"]["payload_ratio"]) < 2

# By other ways; draws repeat with the seed and change with it.
for way in ("alltoall", "hop"):
    rows = bench("fp16,python:several.py,cls=Half,python:several.py,cls=TopK,ef=off", "--reduce", way, "--granularity", "bucket:1MB")
    same_errors(rows["fp16"], rows["python:file=several.py,cls=Half"])
    assert rows["fp16"]["wire_bytes_per_rank"] == rows["python:file=several.py,cls=Half"]["wire_bytes_per_rank"]
first, again, other = (bench("python:several.py,cls=Draws", "--seed", seed) for seed in (1, 1, 2))
assert first.keys() == other.keys()
for name, row in first.items():
    same_errors(row, again[name])
    assert row["nmse"] != other[name]["nmse"] or name == "none" or name == "noop"
# A codec with state is not cut into shards, and a generator is state.
pathlib.Path("drawing.py").write_text("import numpy as np\nclass P:\n    def __init__(self): self.rng = np.random.default_rng(1)\n"
                                      "    def encode(self, x, ctx): return x + self.rng.random(x.size, np.float32) * 0\n    def decode(self, p, n): return p\n")
for name in ("mine.py", "drawing.py"):
    assert "earlier steps" in run("bench", capture, "--codec", f"python:{name}", "--reduce", "alltoall", status=2).stderr

if mpiexec:
    launcher = (mpiexec, "-n", "2", "--oversubscribe")
    for name, row in bench(both, "--comm", "mpi", "--granularity", "tensor", launcher=launcher).items():
        if name != "none":
            same_errors(row, threads[name])

# A record is read without the file; `list` describes the class; `tune` searches what it declares.
run("bench", capture, "--codec", "bf16,python:several.py,cls=TopK,python:mine.py,python:mean.py", "--network", "1gbe", "--nodes", "8", "-n", "1", "-w", "0",
    "--json", "bench.json", "--advise")
parameters = json.loads(run("list", "python:several.py,cls=TopK", "--json", "-").stdout)[0]["parameters"]
assert [row["name"] for row in parameters] == ["file", "cls", "ratio"], parameters
tuned = run("tune", capture, "--codec", "python:several.py,cls=TopK", "--network", "1gbe", "--nodes", "8", "--budget", "3", "--json", "tune.json", "--max-nmse", "0.9")
assert "python:several.py,cls=TopK,ratio=" in tuned.stdout, tuned.stdout
# A record that names a prototype makes nothing run.
pathlib.Path("several.py").rename("moved.py")
for name in ("several.py", "mine.py", "mean.py"):
    pathlib.Path(name).write_text("open('it-ran', 'w')")
for command in (("compare", "bench.json", "bench.json"), ("report", "bench.json", "-o", "bench.html"),
                ("bench", capture, "--codec", "bf16", "--codec-speed", "bench.json", "--network", "1gbe", "--nodes", "8", "-n", "1")):
    done = subprocess.run([program, *command], capture_output=True, text=True, env=environment, check=False, timeout=600)
    assert done.returncode in (0, 77), done.stderr  # 77: built without the libraries of the page
assert not pathlib.Path("it-ran").exists()

compared = run("compare", "bench.json", "bench.json")
assert "python" in compared.stdout, compared.stdout

# Mistakes end in one sentence that names the file; nothing hangs, and rows before are kept.
NOTHING = "import numpy as np\nclass P:\n    def encode(self, x, ctx): return {}\n    def decode(self, payload, n): return {}\n"
for text, status, expected in [
        (None, 3, "No such file"),
        ("def encode(: pass", 3, "line 1"),
        ("x = 1", 3, "no class with encode and decode"),
        ("import nothing_of_that_name", 3, "ModuleNotFoundError"),
        (NOTHING.format("x", "1 / 0"), 3, "ZeroDivisionError"),
        (NOTHING.format("'text'", "payload"), 3, "encode returned a str"),
        (NOTHING.format("x", "payload[:3]"), 3, "decode returned 3 values"),
        ("class P:\n    def __init__(self, a): pass\n    def encode(self, x, ctx): return x\n    def decode(self, p, n): return p", 3, "has no default"),
        ("class P:\n    sums = 'int8'\n    def encode(self, x, ctx): return x\n    def decode(self, p, n): return p", 3, "valid are None, 'float32'"),
        ("import os\nos._exit(3)", 3, "ended with status 3"),
        ("import os\nos.kill(os.getpid(), 9)", 3, "ended by signal 9")]:
    if text is not None:
        pathlib.Path("bad.py").write_text(text)
    said = run("bench", capture, "--codec", "python:bad.py", status=status).stderr
    assert expected in said and "python:bad.py" in said and said.count("\n") <= 1, (text, said)
run("bench", capture, "--codec", "python", status=2)
pathlib.Path("mine.py").write_text(NOTHING.format("x", "payload"))  # a name of the only class is one too many, and is right
assert bench("python:mine.py,cls=P")["python:file=mine.py,cls=P"]["status"] == "ok"
run("bench", capture, "--codec", "python:mine.py,rato=1", status=2)
assert "choose one with cls=" in run("bench", capture, "--codec", "python:moved.py", status=3).stderr
environment["GRADTOOL_PYTHON"] = "/nothing/python3"
assert "GRADTOOL_PYTHON" in run("bench", capture, "--codec", "python:mine.py", status=77).stderr
environment["GRADTOOL_PYTHON"] = sys.executable
for encode, expected in [("x if ctx.step < 1 else 1 / 0", "ZeroDivisionError"), ("x if ctx.step < 1 else x[:3]", "fixed_size = False"),
                         ("(setattr(self, 'a', ctx.step), x)[1] if ctx.step else x", "memory = True"),
                         ("x if ctx.step < 1 else __import__('os')._exit(5)", "ended with status 5")]:
    pathlib.Path("bad.py").write_text(NOTHING.format(encode, "payload"))
    failed = bench("bf16,python:bad.py", status=1)
    row = failed["python:file=bad.py"]
    assert row["status"] == "failed" and expected in row["message"], row["message"]
    assert failed["bf16"]["status"] == "ok"

# A reducer whose ranks send different numbers of bytes is counted; too many are refused.
REDUCER = "class R:\n    def reduce(self, gradients, ctx): return sum(gradients) / ctx.ranks, {}\n"
pathlib.Path("odd.py").write_text(REDUCER.format("1000 * (ctx.rank + 1)"))
odd = bench("python:odd.py", "--granularity", "tensor")["python:file=odd.py"]
assert float(odd["wire_bytes_per_rank"]) == 2000 * len(elements), odd["wire_bytes_per_rank"]
pathlib.Path("odd.py").write_text(REDUCER.format("10 ** 13"))
assert "64 times" in bench("bf16,python:odd.py", status=1)["python:file=odd.py"]["message"]

# Code that never returns ends with the program, which Ctrl-C ends.
pathlib.Path("loop.py").write_text(NOTHING.format("x if ctx.step < 1 else print(__import__('os').getpid(), flush=True) or [None for _ in iter(int, 1)]", "payload"))
process = subprocess.Popen([program, "bench", capture, "--codec", "python:loop.py"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
children = [int(process.stderr.readline())]
process.send_signal(signal.SIGINT)
process.stderr.read()
assert process.wait(60) != 0
for child in children:
    while pathlib.Path(f"/proc/{child}").exists() and "zombie" not in pathlib.Path(f"/proc/{child}/status").read_text():
        time.sleep(0.05)
