"""The command line as a user meets it: help, mistakes, data on stdout, skipped tensors. Usage: check_cli.py GRADTOOL SOURCE_DIR"""
import csv
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import h5py
import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from waiting import until_interruptible  # noqa: E402

GRADTOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
SAMPLE = str(ROOT / "datasets/lenet5-fashion-mnist.h5")


def run(*arguments):
    done = subprocess.run([GRADTOOL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stdout, done.stderr


def one_sentence(arguments, status, *words):
    code, out, err = run(*arguments)
    lines = [line for line in err.splitlines() if not line.startswith("Try ")]
    assert code == status, f"{arguments}: exit {code}, expected {status}: {err}"
    assert len(lines) == 1 and lines[0].startswith("gradtool: "), f"{arguments}: not one sentence: {err!r}"
    assert out == "", f"{arguments}: wrote to stdout: {out[:100]!r}"
    for word in words:
        assert word in err, f"{arguments}: {err!r} does not say {word!r}"


def check_help():
    code, out, _ = run("--help")
    assert code == 0
    for command in ("capture", "info", "validate", "analyze", "bench", "list"):
        assert command in out
        code, text, _ = run(command, "--help")
        assert code == 0 and "xample" in text, f"{command} --help has no example"
        assert max(len(line) for line in text.splitlines()) < 400
    assert run("--version")[0] == 0


def check_mistakes(folder):
    one_sentence(["bench", SAMPLE, "--granularty", "model"], 2, "--granularity")
    one_sentence(["bnech", SAMPLE], 2, "bench")
    one_sentence(["bench"], 2, "file")
    one_sentence([], 2)
    one_sentence(["bench", SAMPLE, "--codec", "qsdg"], 2, "qsgd")
    one_sentence(["bench", SAMPLE, "--codec", "qsgd:bits=99"], 2, "2 to 8")
    one_sentence(["bench", SAMPLE, "--ranks", "3"], 2, "2 workers")
    one_sentence(["bench", SAMPLE, "--device", "gpu"], 2, "cuda:INDEX")
    one_sentence(["bench", SAMPLE, "--device", "cuda", "--comm", "threads"], 2, "loopback")
    one_sentence(["bench", SAMPLE, "--reduce", "sum", "--codec", "qsgd"], 2, "gather")
    one_sentence(["bench", SAMPLE, "--layers", "["], 2, "regular expression")
    one_sentence(["list", "a\nb\x1b[m"], 2, "a\\x0ab\\x1b[m")  # pasted with its line end
    one_sentence(["bench", "/no/such/file.h5"], 3, "/no/such/file.h5")
    one_sentence(["bench", str(ROOT / "README.md")], 3, "README.md")
    one_sentence(["info", str(ROOT / "README.md")], 3, "HDF5")
    one_sentence(["bench", SAMPLE, "-n", "0"], 2, "--iters")
    one_sentence(["bench", SAMPLE, "--max-noise", "nan"], 2, "--max-noise")
    one_sentence(["bench", SAMPLE, "--timeout", "-1"], 2, "--timeout")
    one_sentence(["bench", SAMPLE, "--codec", "none:ef=on"], 2, "none:ef=on", "no parameters")
    one_sentence(["bench", SAMPLE, "--network", "10gbe:alpha=5us,beta=1GBps,alpha=6us"], 2, "alpha is given twice")
    for seconds in ("0", "0.05", "1e9", "inf", "nan"):
        one_sentence(["bench", SAMPLE, "--comm-timeout", seconds], 2, "--comm-timeout", "0.1 to 1000000")
    one_sentence(["bench", SAMPLE, "--seed", "-1"], 2, "--seed")
    one_sentence(["bench", SAMPLE, "--seed", "99999999999999999999"], 2, "--seed")
    one_sentence(["bench", SAMPLE, "--network", "10gb"], 2, "10gbe")
    one_sentence(["bench", SAMPLE, "--network", "10gbe", "--nodes", "4,2"], 2, "ascend")
    one_sentence(["bench", SAMPLE, "--network", "10gbe", "--max-nmse", "-1"], 2, "--max-nmse")
    one_sentence(["bench", SAMPLE, "--advise"], 2, "--network")
    one_sentence(["bench", SAMPLE, "--network", "10gbe", "--max-nmse", "0.5"], 2, "--advise")
    one_sentence(["bench", SAMPLE, "--network", "10gbe:"], 2, "key=value")
    one_sentence(["bench", SAMPLE, "--network", "1gbe,25gbe"], 2, "once for each")
    one_sentence(["bench", SAMPLE, "--network", "10gbe", "--nodes", "2,"], 2, "--nodes '2,'")
    one_sentence(["bench", SAMPLE, "-g", "2"], 2, "--comm nccl")
    one_sentence(["bench", SAMPLE, "-g", "2", "--ranks", "1", "--comm", "nccl", "--device", "cuda"], 2, "--gpus 2 and --ranks 1")
    for chunks in ("0", "-1", "x", "4x", "65", ""):
        one_sentence(["bench", SAMPLE, "--pipeline", chunks], 2, "--pipeline", "1 to 64")
    one_sentence(["bench", SAMPLE, "--pipeline", "2", "--timing", "isolated"], 2, "concurrent")
    one_sentence(["bench", SAMPLE, "--pipeline", "2", "--codec", "topk", "--payloads", folder], 2, "--pipeline")
    one_sentence(["bench", SAMPLE, "--pipeline", "2", "--device", "cuda"], 77, "--pipeline")
    one_sentence(["bench", SAMPLE, "--layers", ""], 2, "--layers ''")
    one_sentence(["bench", SAMPLE, "--network", "10gbe", "--nodes", ""], 2, "--nodes ''")
    for time in ("", "0", "-1", "nan", "12ms"):
        one_sentence(["bench", SAMPLE, "--network", "10gbe", "--compute-ms", time], 2, f"--compute-ms '{time}'")
    one_sentence(["bench", SAMPLE, "--compute-ms", "12"], 2, "--network")
    one_sentence(["bench", SAMPLE, "--network", "10gbe", "--overlap", "none"], 3, "--compute-ms")
    one_sentence(["bench", SAMPLE, "--network", "10gbe", "--compute-ms", "captured"], 3, "/steps/compute_seconds")
    one_sentence(["bench", SAMPLE, "--csv", folder], 4, "folder")
    one_sentence(["bench", SAMPLE, "--config", folder], 3, "is a folder")
    one_sentence(["compare", folder, folder], 3, "is a folder")
    one_sentence(["analyze", SAMPLE, "--measured", folder, "--out", os.path.join(folder, "analysis")], 3, "is a folder")
    one_sentence(["bench", SAMPLE, "--payloads", folder], 2, "exactly one --codec")
    one_sentence(["bench", SAMPLE, "--codec", "dgc:ef=on"], 2, "ef does not apply")
    one_sentence(["bench", SAMPLE, "--codec", "powersgd", "--reduce", "gather"], 2, "auto")
    one_sentence(["bench", SAMPLE, "--csv", "-", "--json", "-"], 2, "standard output")
    one_sentence(["bench", SAMPLE, "--codec", "qsgd", "--reconstruction", os.path.join(folder, "no/such/folder/r.h5")], 4, "r.h5")
    taken = os.path.join(folder, "taken.h5")
    shutil.copy(SAMPLE, taken)
    before = pathlib.Path(taken).read_bytes()
    one_sentence(["bench", SAMPLE, "--codec", "topk", "-n", "1", "--reconstruction", taken], 2, "taken.h5")
    assert pathlib.Path(taken).read_bytes() == before, "a failed command changed a file"


def check_numbers():
    """Decimal, in range, or refused; never wrapped around, and never read as hexadecimal or octal."""
    bench = ["bench", SAMPLE, "--codec", "fp16"]
    for option in ("-w", "--min-samples", "-n", "--ranks", "--threads"):
        for number in ("-1", "99999999999999999999", "0x10", "1e3", "inf", "nan", "3 ", ""):
            one_sentence([*bench, option, number], 2, option.strip("-") if option.startswith("--") else "--")
    for option in ("--max-noise", "--timeout", "--comm-timeout"):
        for number in ("-1", "inf", "nan", "0x10", "1e400", "1,5", ""):
            one_sentence([*bench, option, number], 2, option)
    one_sentence([*bench, "--network", "10gbe", "--advise", "--max-nmse", "inf"], 2, "--max-nmse")
    one_sentence([*bench, "--min-samples", "0"], 2, "--min-samples")
    for number in ("-1", "1e400", "inf", "0x10"):
        for spec in (f"10gbe:alpha={number}us", f"10gbe:beta={number}GBps", f"10gbe:node={number}"):
            one_sentence([*bench, "--network", spec], 2, "network")
        one_sentence([*bench, "--granularity", f"bucket:{number}MB"], 2, "not a size")
        one_sentence(["bench", SAMPLE, "--codec", f"topk:ratio={number}"], 2, "ratio")
    capture = ["capture", "--model", "lenet5", "--data-dir", "/nonexistent", "--out", "/nonexistent/x.h5"]
    for option in ("--seed", "--workers", "--batch-size", "--steps"):
        for number in ("99999999999999999999", "0x10", "1e3", "inf"):
            one_sentence([*capture, option, number], 2, option)
    for codec in ("topk:", "topk:,", "topk:ratio=0.1,", "topk:,ratio=0.1", "topk:ratio=0.1,,ef=on", "none:"):
        one_sentence(["bench", SAMPLE, "--codec", codec], 2, "empty parameter")


def check_long_input():
    """Nobody wants to read 60 kB of what was pasted by mistake, but what would be valid."""
    long = "x" * 60_000
    for arguments in (["bench", SAMPLE, "--codec", long], ["bench", SAMPLE, "--codec", f"topk:{long}=1"], [long],
                      ["bench", SAMPLE, "--layers", "(" * 20_000], ["bench", SAMPLE, "--granularity", long],
                      ["analyze", SAMPLE, "--layers", long], ["bench", SAMPLE, "--seed", long], ["bench", f"--{long}"]):
        one_sentence(arguments, 2, "bytes left out")
        assert len(run(*arguments)[2]) < 600, arguments[0]
    message = run("bench", SAMPLE, "--codec", "é" * 10_000)[2]
    assert "bytes left out" in message, message  # and it could be decoded
    one_sentence(["bench", SAMPLE, "--codec", "none", "--layers", "((((a*)*)*)*)*!"], 2, "matches no tensor")  # ends


def check_data_on_stdout():
    code, out, _ = run("info", SAMPLE, "--json", "-")
    info = json.loads(out)
    assert code == 0 and {"steps", "workers", "tensors", "elements", "complete"} <= set(info)
    assert info["elements"] == 61706
    code, out, _ = run("list", "codecs", "--json", "-")
    for codec in json.loads(out):
        assert {"name", "parameters", "aggregation", "spaces"} <= set(codec)
    code, out, err = run("bench", SAMPLE, "--codec", "qsgd", "--csv", "-", "-n", "2")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and {r["codec"] for r in rows} == {"none", "noop", "qsgd"}, err
    columns = csv.DictReader(io.StringIO(run("list", "columns", "--csv", "-")[1]))
    named, header = [c["column"] for c in columns], out.splitlines()[0].split(",")
    assert named == header[: len(named)], "list columns names those of the CSV"
    assert header[len(named) :] == ["params.bits", "params.bucket", "params.norm", "params.code"], header[len(named) :]
    assert {(r["codec"], r["params.bits"]) for r in rows} == {("none", ""), ("noop", ""), ("qsgd", "4")}
    assert len({tuple(r[c] for c in ("codec", "params", "tensor", "timing")) for r in rows}) == len(rows)
    for row in rows:
        assert None not in row and row["status"] == "ok" and int(row["samples"]) == 2
        assert (row["total_us_median"] == "") == (row["timing"] == "isolated"), "only concurrent rows have a total"
        assert row["nmse"] != "" and row["network"] == ""
    code, out, _ = run("bench", SAMPLE, "--codec", "fp16", "--json", "-", "-n", "3")
    record = json.loads(out)
    assert len(record["file"]["sha256"]) == 64 and record["provenance"]["cores"] > 0
    assert record["provenance"]["communicator"]["name"] == "threads" and record["provenance"]["communicator"]["detail"]
    assert all(len(r["samples_us"]["encode"]) == 3 for r in record["rows"])
    assert all(sum(r["round_samples"]) == 3 for r in record["rows"])
    assert not set(record["provenance"]["environment"]) & {"HOME", "USER", "PATH"}
    code, out, _ = run("bench", SAMPLE, "-n", "1")
    wide = [line for line in out.splitlines() if len(line) > 80]
    assert not wide, f"lines of the table are wider than 80 columns: {wide}"


def check_list_of_models_and_datasets():
    """Checks the list of models and data sets that capture takes, also if capture is not built in."""
    models = json.loads(run("list", "models", "--json", "-")[1])
    assert {"resnet18", "vgg16", "lstm", "gpt2"} <= {model["name"] for model in models}
    assert {m["name"]: m["parameters"] for m in models}["gpt2"] == 124439808
    for what in ("models", "datasets"):
        code, page, err = run("list", what)
        names = [row["name"] for row in csv.DictReader(io.StringIO(run("list", what, "--csv", "-")[1]))]
        assert code == 0 and err == "" and len(names) == len(set(names)), (what, names)
        assert all(any(line.startswith(name + " ") for line in page.splitlines()) for name in names), page
        assert max(map(len, page.splitlines())) <= 80, page
        flag = "--model" if what == "models" else "--dataset"
        for name in names:
            assert name in run("capture", "--help")[1], f"capture {flag} {name}"
    with tempfile.TemporaryDirectory() as folder:
        before = json.loads(subprocess.run([GRADTOOL, "list", "datasets", "--json", "-"], cwd=folder, check=True,
                                           stdout=subprocess.PIPE).stdout)
        assert [row["there"] for row in before if row["name"] == "cifar10"] == [False]
        os.mkdir(os.path.join(folder, "cifar-10-batches-bin"))
        open(os.path.join(folder, "cifar-10-batches-bin", "data_batch_1.bin"), "w").close()
        after = json.loads(subprocess.run([GRADTOOL, "list", "datasets", "--json", "-"], cwd=folder, check=True,
                                          stdout=subprocess.PIPE).stdout)
        assert [row["there"] for row in after if row["name"] == "cifar10"] == [True]
        assert [row["there"] for row in after if row["name"] == "text"] == [None]


def check_list_of_one_codec():
    """Any codec's page, in every form; the names of lists still win."""
    code, page, err = run("list", "qsgd")
    assert code == 0 and "qsgd: " in page and "bits=4 (2 to 8)" in page and "--codec qsgd:bits=4" in page, (page, err)
    assert "Alistarh" in page and max(map(len, page.splitlines())) <= 80, page
    names = [row["name"] for row in csv.DictReader(io.StringIO(run("list", "--csv", "-")[1]))]
    for name in names:
        code, page, _ = run("list", name)
        assert code == 0 and page.startswith(f"{name}: ") and max(map(len, page.splitlines())) <= 80, page
    assert [row["name"] for row in json.loads(run("list", "topk", "--json", "-")[1])] == ["topk"]
    markdown = run("list", "topk", "--markdown")[1]
    assert "\n## topk\n" in markdown and "## qsgd" not in markdown
    one_sentence(["list", "topkk"], 2, "did you mean 'topk'?")
    one_sentence(["list", "colums"], 2, "did you mean 'columns'?")
    one_sentence(["list", "zzzzzzzz"], 2, "codecs, comm, columns, models, datasets, presets or a codec's name")
    one_sentence(["list", "comm", "--markdown"], 2, "--markdown")


def check_pipeline():
    """Concurrent rows overlap chunks and describe what they ran; baselines and isolated rows are as without."""
    flags = ["bench", SAMPLE, "--codec", "topk", "--codec", "powersgd", "--granularity", "model", "--csv", "-", "-n", "2"]
    table = {}
    for pipeline in ("off", "4"):
        code, out, err = run(*flags, "--pipeline", pipeline)
        assert code == 0, err
        table[pipeline] = {(r["codec"], r["timing"]): r for r in csv.DictReader(io.StringIO(out))}
    for (codec, timing), row in table["4"].items():
        off = table["off"][codec, timing]
        cut = timing == "concurrent" and codec in ("topk", "powersgd")
        assert row["pipeline"] == ("4" if cut else "1") and off["pipeline"] == "1" and row["status"] == "ok"
        same = all(row[c] == off[c] for c in ("nmse", "payload_bytes", "wire_bytes_per_rank", "codec_nmse"))
        assert same != cut, f"{codec} {timing}: a row says what it ran"
        assert not cut or row["codec_nmse"] == ""
    code, out, err = run(*flags[:-2], "-n", "1", "--pipeline", "8", "--timing", "concurrent")
    note = {r["codec"]: r["message"] for r in csv.DictReader(io.StringIO(out))}
    assert "of 8 chunks" in note["powersgd"] and "chunks" not in note["topk"], note  # 10 tensors, two of them large


def check_all_reduce():
    """Another order of additions, another count of bytes, and the row says so; the baseline stays what it is."""
    one_sentence(["bench", SAMPLE, "--granularity", "bucket:25"], 2, "lacks a unit")
    one_sentence(["bench", SAMPLE, "--codec", "topk:ratio=[0.1"], 2, "brackets")
    one_sentence(["bench", SAMPLE, "--all-reduce", "tree"], 2, "--all-reduce", "doubling")
    rows = {}
    for word in ("ring", "doubling", "auto"):
        code, out, err = run("bench", SAMPLE, "--codec", "fp16", "--granularity", "model", "--timing", "isolated",
                             "--csv", "-", "-n", "1", "--all-reduce", word)
        assert code == 0, err
        rows[word] = {r["codec"]: r for r in csv.DictReader(io.StringIO(out))}
        assert rows[word]["fp16"]["all_reduce"] == word and rows[word]["none"]["all_reduce"] == "ring"
        assert float(rows[word]["fp16"]["nmse"]) < 1e-5
    sent = {word: float(table["fp16"]["wire_bytes_per_rank"]) for word, table in rows.items()}
    half = float(rows["ring"]["fp16"]["raw_bytes"]) / 2  # 2 ranks: two halves of the ring, or one message of all
    assert sent["doubling"] == half and abs(sent["ring"] - half) <= 4 and sent["auto"] in (sent["ring"], half), sent


def check_all_with_a_scheme():
    """`all` keeps what cannot ride the scheme as skipped rows; a codec asked for by name is refused (above)."""
    code, out, err = run("bench", SAMPLE, "--reduce", "hop", "--csv", "-", "-n", "1")
    status = {r["codec"]: r["status"] for r in csv.DictReader(io.StringIO(out))}
    assert code == 0 and status["topk"] == "skipped" and status["qsgd"] == "ok", (code, status, err)


def check_interrupt():
    """Ctrl-C: the table is whole, what was not reached says so, the status is a shell's."""
    process = subprocess.Popen([GRADTOOL, "bench", SAMPLE, "--timeout", "60", "--csv", "-"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    until_interruptible(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert process.returncode == 130 and "interrupted" in err, (process.returncode, err)
    assert {r["codec"] for r in rows} >= {"none", "noop", "topk"} and any(r["message"] == "interrupted" for r in rows)


def check_same_seed():
    def errors(*flags):
        out = run("bench", SAMPLE, "--codec", "qsgd", "--csv", "-", "-n", "1", "--timing", "isolated", *flags)[1]
        return [r["nmse"] for r in csv.DictReader(io.StringIO(out)) if r["codec"] == "qsgd"]
    assert errors("--seed", "5") == errors("--seed", "5", "--threads", "1") != errors("--seed", "6")


def check_granularities_and_sweeps():
    """Each granularity has its own baselines; lists and values in brackets make one row each, labelled as they were given."""
    code, out, err = run("bench", SAMPLE, "--codec", "topk:ratio=[0.1,0.01],qsgd:bits=4", "--granularity", "tensor", "--granularity",
                         "bucket:25MB", "--granularity", "model", "--timing", "isolated", "-n", "5", "--rounds", "2", "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and len(rows) == 3 * 5, (code, len(rows), err)
    for granularity in ("tensor", "bucket:25MB", "model"):
        here = [r for r in rows if r["granularity"] == granularity]
        assert [r["codec"] for r in here] == ["none", "noop", "topk", "topk", "qsgd"], here
        assert [r["params"].split(",")[0] for r in here if r["codec"] == "topk"] == ["ratio=0.1", "ratio=0.01"]
        for row in here:
            assert row["samples"] == "5" and row["reached"] == "true", row
            low, median, high = (float(row[f"encode_us_{what}"]) for what in ("low", "median", "high"))
            assert low <= median <= high, row
    # LeNet's 247 kB are one bucket of 1 MiB, so all of them in one piece; tensor by tensor there are more messages.
    breakeven = {(r["granularity"], r["codec"]): r["breakeven_gbit_s"] for r in rows}
    assert all((breakeven[g, "none"] == "") and breakeven[g, "qsgd"] for g in ("tensor", "model")), breakeven
    out = run("bench", SAMPLE, "--codec", "topk:ratio=0.01", "--granularity", "tensor", "--granularity", "model", "-n", "2")[1]
    lines = [line.split()[0] for line in out.splitlines() if line]
    assert lines.index("tensor:") < lines.index("topk:ratio=0.01") < lines.index("model:"), out
    assert lines.count("topk:ratio=0.01") == 2 and max(map(len, out.splitlines())) <= 80, out


def check_synthetic():
    """Sizes without a capture: the same sweep in our words and in those of nccl-tests, each size with its own baselines."""
    tables = []
    for sizes in (["--synthetic", "64K:1M:x4"], ["-b", "64K", "-e", "1M", "-f", "4"]):
        code, out, err = run("bench", *sizes, "--codec", "fp16,vgc,iwp", "--ranks", "2", "-n", "1", "--csv", "-", "--network", "10gbe")
        assert code == 0, err
        tables.append(list(csv.DictReader(io.StringIO(out))))
    for rows in tables:
        assert {r["granularity"] for r in rows} == {"size:64KiB", "size:256KiB", "size:1MiB"}
        assert {(r["file"], r["model"], r["ranks"]) for r in rows} == {("synthetic", "synthetic", "2")}
        fp16 = [r for r in rows if r["codec"] == "fp16" and r["timing"] == "isolated" and r["time_source"] == "measured"]
        assert [int(r["raw_bytes"]) for r in fp16] == [65536, 262144, 1048576]
        # A ring of 2 sends (p-1)/p of the vector twice.
        assert [int(r["wire_bytes_per_rank"]) for r in fp16] == [32768, 131072, 524288]
        assert all(0 < float(r["nmse"]) < 1e-6 and r["breakeven_gbit_s"] != "" for r in fp16)
        assert all(r["reached"] == "true" for r in rows if r["codec"] in ("vgc", "iwp") and r["status"] == "ok"), "moments and weights"
    key = ("codec", "granularity", "timing", "payload_bytes", "nmse", "network")
    assert [[r[k] for k in key] for r in tables[0]] == [[r[k] for k in key] for r in tables[1]]
    # Sizes beyond the machine's memory cost their own rows alone.
    code, out, err = run("bench", "-b", "64K", "-e", "1024G", "-f", str(1 << 24), "--ranks", "2", "--codec", "fp16", "-n", "1", "--csv", "-")
    assert code == 4 and {r["granularity"] for r in csv.DictReader(io.StringIO(out))} == {"size:64KiB"}, (code, out, err)
    assert "not benched, size:1024GiB and whatever is as large: 274877906944 elements are reduced at once, which takes 8796 GB at least with 2 ranks" in err, err
    one_sentence(["bench", "--synthetic", "1024G", "--ranks", "2", "--codec", "fp16"], 4, "not benched, size:1024GiB", "this machine")
    code, out, err = run("bench", "--synthetic", "64K:256K", "--codec", "fp16", "-n", "1")
    lines = [line.split() for line in out.splitlines()]
    assert code == 0 and lines[0][-2:] == ["algbw", "busbw"] and max(map(len, out.splitlines())) <= 80, out
    assert sum(line[2:3] == ["fp16"] for line in lines) == 2, "sizes have their unit apart: 65.5 kB fp16"
    record = json.loads(run("bench", "--synthetic", "64K", "--codec", "fp16", "-n", "1", "--json", "-")[1])
    assert record["synthetic_bytes"] == [65536] and "file" not in record
    one_sentence(["bench", "--synthetic", "1MB:2MB:2"], 2, "--synthetic '1MB:2MB:2'", "1MB:1GB:x4")
    one_sentence(["bench", SAMPLE, "--synthetic", "1MB"], 2, "give one of them")
    one_sentence(["bench", "--synthetic", "1MB", "-b", "1M"], 2, "leave those out")
    one_sentence(["bench", "-b", "1M", "-f", "2", "-i", "1M"], 2, "-f", "-i")
    one_sentence(["bench", "--synthetic", "1MB", "--network", "10gbe", "--advise", "--max-nmse", "0.1"], 2, "--max-nmse needs a capture")
    one_sentence(["bench", "--synthetic", "1MB", "--per-tensor"], 2, "--per-tensor")
    one_sentence(["bench"], 2, "gradient file", "--synthetic")


def check_averaged_gradients(folder):
    """Workers with the same gradients: averaged before they were captured. Each command says so before anything else."""
    path = os.path.join(folder, "averaged.h5")
    shutil.copy(SAMPLE, path)
    with h5py.File(path, "r+") as f:
        for group in f["tensors"].values():
            values = group["gradient"][...]
            group["gradient"][...] = values.mean(axis=1, keepdims=True).repeat(values.shape[1], axis=1)
    for command in (["validate", path], ["analyze", path, "--out", os.path.join(folder, "averaged")],
                    ["bench", path, "--codec", "fp16", "-n", "1"]):
        code, out, err = run(*command)
        assert code == 0 and "seem to have been averaged before" in out + err, (command, out, err)
    assert run("validate", path, "--strict")[0] == 1
    assert "averaged" not in "".join(run("validate", SAMPLE)[1:]), "different mini-batches are not the same"
    rows = csv.DictReader(io.StringIO(run("bench", path, "--codec", "fp16", "-n", "1", "--csv", "-")[1]))
    assert all("averaged already" in r["message"] for r in rows)


def check_stated_averaged(folder):
    """The file says that its values were averaged, although they differ: one worker would not show it either."""
    path = os.path.join(folder, "stated.h5")
    shutil.copy(SAMPLE, path)
    with h5py.File(path, "r+") as f:
        f.attrs.update(averaged=1, quantity="pseudo_gradient", inner_steps=500, rank=0, ranks=8)
    for command in (["validate", path], ["analyze", path, "--out", os.path.join(folder, "stated")],
                    ["bench", path, "--codec", "fp16", "-n", "1"]):
        code, out, err = run(*command)
        assert code == 0 and "averaged = 1" in out + err and "mean nothing" in out + err, (command, out, err)
    rows = csv.DictReader(io.StringIO(run("bench", path, "--codec", "fp16", "-n", "1", "--csv", "-")[1]))
    assert all("averaged already" in r["message"] for r in rows)
    text = run("info", path, "--quick")[1]
    assert "pseudo_gradient of 500 local steps, averaged" in text and "rank 0 of a job of 8" in text, text
    info = json.loads(run("info", path, "--quick", "--json", "-")[1])
    assert [info[key] for key in ("quantity", "inner_steps", "averaged", "rank", "ranks")] == \
        ["pseudo_gradient", 500, True, 0, 8]
    info = json.loads(run("info", SAMPLE, "--quick", "--json", "-")[1])
    assert [info[key] for key in ("quantity", "inner_steps", "averaged", "rank", "ranks")] == \
        ["gradient", None, False, None, None]


def check_info_of_large_file(folder):
    """Beyond 2^28 values info reads them only where that is asked for; the file has a hole in the place of its zeros."""
    path, n = os.path.join(folder, "large.h5"), 2**28 + 8
    with h5py.File(path, "w") as f:
        f.attrs.update(format="gradtool.gradients", schema_version=1, complete=1, workers=1)
        f["steps/iteration"] = np.arange(1, dtype="i8")
        group = f.create_group("tensors/0000")
        group.attrs.update(name="large", kind="other", shape=np.array([n], "i8"))
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        h5py.h5d.create(group.id, b"gradient", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((1, 1, n)), creation)
    assert f"not counted: --scan reads all {n} values" in run("info", path)[1]
    assert json.loads(run("info", path, "--json", "-")[1])["non_finite"] is None
    assert json.loads(run("info", path, "--scan", "--json", "-")[1])["non_finite"] == 0
    assert json.loads(run("info", SAMPLE, "--json", "-")[1])["non_finite"] == 0
    code, _, err = run("info", SAMPLE, "--scan", "--quick")
    assert code == 2 and "--quick" in err, (code, err)
    os.remove(path)


def check_overflow(folder):
    """A step that mixed precision threw away is left out of the replay, and the others are replayed in full."""
    path, whole = os.path.join(folder, "overflow.h5"), os.path.join(folder, "whole.h5")
    shutil.copy(SAMPLE, path)
    with h5py.File(path, "r+") as f:
        steps, workers = f["steps/loss"].shape
        overflow = np.zeros((steps, workers), "u1")
        overflow[1, 0] = 1
        f["steps/overflow"] = overflow
        for group in f["tensors"].values():
            group["gradient"][1] = np.inf
    code, out, err = run("bench", path, "--codec", "topk", "-n", "1", "--csv", "-", "--json", os.path.join(folder, "o.json"))
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and "1 step is left out" in err, err
    assert all(r["status"] == "ok" for r in rows), rows
    record = json.load(open(os.path.join(folder, "o.json")))
    assert record["overflowed_steps"] == 1
    assert all(len(r["steps"]) == steps - 1 for r in record["rows"] if "steps" in r)
    code, out, _ = run("validate", path)
    assert code == 0 and f"1 of {steps} steps overflowed" in out, out
    assert "1 overflowed" in run("info", path)[1]
    code, _, err = run("analyze", path, "--out", os.path.join(folder, "of"), "--csv", os.path.join(folder, "of.csv"))
    assert code == 0 and "1 step is left out" in err, err
    with open(os.path.join(folder, "of.csv"), newline="") as table:
        rows = list(csv.DictReader(table))
    assert rows and not any("not finite" in " ".join(map(str, row.values())) for row in rows), rows
    with h5py.File(path, "r+") as f:
        f["steps/overflow"][...] = 1
    one_sentence(["bench", path, "--codec", "topk", "-n", "1"], 3, "/steps/overflow", "every step")
    one_sentence(["analyze", path, "--out", os.path.join(folder, "none")], 3, "/steps/overflow", "every step")


def check_not_finite(folder):
    path = os.path.join(folder, "nan.h5")
    shutil.copy(SAMPLE, path)
    with h5py.File(path, "r+") as f:
        group = f["tensors/0001"]
        name = group.attrs["name"]
        values = group["gradient"][...]
        values[1, 0, 2] = np.nan
        values[2, 1, 0] = np.inf
        group["gradient"][...] = values
    code, out, err = run("bench", path, "--codec", "topk", "--csv", "-", "-n", "1", "--per-tensor")
    rows = list(csv.DictReader(io.StringIO(out)))
    skipped = [r for r in rows if r["status"] == "skipped"]
    assert code == 0, err
    assert {r["tensor"] for r in skipped} == {name} and all("2 values are not finite" in r["message"] for r in skipped)
    assert sorted(r["codec"] for r in skipped) == ["none", "noop", "topk"], "each tensor once for both timings"
    everything = [r for r in rows if r["tensor"] == "all"]
    assert all(r["status"] == "ok" and "left out" in r["message"] for r in everything)
    assert json.loads(run("info", path, "--json", "-")[1])["elements"] == 61706
    assert run("validate", path)[0] == 0 and run("validate", path, "--strict")[0] == 1
    # Finite input whose sum is not, and whose values are beyond the largest of 16 bits.
    with h5py.File(path, "r+") as f:
        for group in f["tensors"].values():
            group["gradient"][...] = np.float32(3e38)
    code, out, err = run("bench", path, "--codec", "fp16", "--csv", "-", "-n", "1", "--per-tensor")
    rows = list(csv.DictReader(io.StringIO(out)))
    status = {(r["codec"], r["tensor"] == "all"): r["status"] for r in rows}
    assert code == 0 and status["fp16", True] == status["fp16", False] == status["none", True] == "not_finite", (status, err)
    assert status["noop", True] == "ok" and all(r["pareto"] != "true" for r in rows if r["status"] != "ok")
    assert all("overflow" in r["message"] for r in rows if r["status"] == "not_finite" and r["tensor"] == "all")


with tempfile.TemporaryDirectory() as scratch:
    check_help()
    check_mistakes(scratch)
    check_numbers()
    check_long_input()
    check_data_on_stdout()
    check_list_of_models_and_datasets()
    check_list_of_one_codec()
    check_pipeline()
    check_all_reduce()
    check_all_with_a_scheme()
    check_interrupt()
    check_same_seed()
    check_granularities_and_sweeps()
    check_synthetic()
    check_averaged_gradients(scratch)
    check_stated_averaged(scratch)
    check_info_of_large_file(scratch)
    check_overflow(scratch)
    check_not_finite(scratch)
print("the command line behaves")
