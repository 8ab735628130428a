"""Checks the manners of the command line: help that fits, options from a file, colour, Markdown, what is absent, Ctrl-C.

Usage: check_manners.py GRADTOOL SOURCE_DIR
"""
import csv
import io
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import h5py

GRADTOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
SAMPLE = str(ROOT / "datasets/lenet5-fashion-mnist.h5")
COMMANDS = ("capture", "import", "merge", "info", "validate", "analyze", "bench", "tune", "train", "probe", "list", "completion")
MODELLED = ["bench", SAMPLE, "--codec", "fp16,topk", "-n", "5", "--network", "1gbe", "--nodes", "32", "--advise"]
ESCAPE = "\033["


def run(*arguments, **keywords):
    done = subprocess.run([GRADTOOL, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **keywords)
    return done.returncode, done.stdout, done.stderr


def refused(arguments, status, *words):
    code, out, err = run(*arguments)
    assert code == status and out == "", (arguments, code, out[:200], err)
    assert err.startswith("gradtool: ") and len(err.splitlines()) <= 2, (arguments, err)
    for word in words:
        assert word in err, (arguments, word, err)


def on_terminal(*arguments, variables=()):
    """Returns the text that the program writes when standard output and error are a terminal."""
    master, slave = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {"TERM": "xterm"} | dict(variables)
    process = subprocess.Popen([GRADTOOL, *arguments], stdout=slave, stderr=slave, stdin=slave, env=environment)
    os.close(slave)
    out = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        out += piece
    process.wait()
    os.close(master)
    return out.decode()


def check_help():
    for command in ((), *((command,) for command in COMMANDS)):
        code, out, err = run(*command, "--help")
        assert code == 0 and err == "", (command, err)
        for line in out.splitlines():
            assert len(line) <= 80, f"{command}: {len(line)} columns: {line}"
        assert "General:" in out and "xample" in out, (command, out)
    headings = re.findall(r"^(\w[\w ]*):$", run("bench", "--help")[1], re.M)
    for heading in ("Codecs", "Communication", "Timing", "Modelled networks", "Output", "General"):
        assert heading in headings, headings
    assert headings[-1] == "General" or headings[-2:] == ["General", "Examples"], headings


def check_config(folder):
    file = folder / "bench.toml"
    file.write_text('codec = ["qsgd:bits=[2,4]", "topk"]  # in quotes: commas\n[bench]\niters = 3\ntiming = "isolated"\n'
                    "per-tensor = true\n[analyze]\nonly = variance\n")
    code, out, err = run("bench", SAMPLE, "--config", file, "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0, err
    everything = [row for row in rows if row["tensor"] == "all"]
    assert [row["codec"] for row in everything] == ["none", "noop", "qsgd", "qsgd", "topk"], everything
    assert all(row["samples"] == "3" and row["timing"] == "isolated" for row in everything) and len(rows) > len(everything)
    rows = list(csv.DictReader(io.StringIO(run("bench", SAMPLE, "--config", file, "--csv", "-", "-n", "2", "--codec", "fp16")[1])))
    assert {row["codec"] for row in rows} == {"none", "noop", "fp16"}, "the command line counts more"
    assert {row["samples"] for row in rows if row["tensor"] == "all"} == {"2"}
    code, out, err = run("analyze", SAMPLE, "--out", folder / "a", "--config", folder / "none.toml")
    assert code == 3 and "none.toml" in err and not (folder / "a").exists(), (code, err)
    file.write_text("[analyze]\nonly = variance\n")
    assert run("analyze", SAMPLE, "-o", folder / "a", "--config", file)[0] == 0
    assert sorted(os.listdir(folder / "a")) == ["variance.csv"]
    for text, words in (("granularty = model", ("granularty", "did you mean 'granularity'?", "bench.toml")),
                        ("[bnech]\ncodec = topk", ("bnech", "bench")),
                        ("config = other.toml", ("config",)),
                        ("iters = many", ("bench.toml", "many")),
                        ("codec = qsdg", ("did you mean 'qsgd'?",)),
                        ("[bench.more]\ncodec = topk", ("bench.more",))):
        file.write_text(text + "\n")
        refused(["bench", SAMPLE, "--config", file], 2, *words)


def check_color():
    code, out, err = run(*MODELLED)
    assert code == 0 and ESCAPE not in out + err, "colour in a pipe"
    assert ESCAPE in run(*MODELLED, "--color", "always")[1]
    screen = on_terminal(*MODELLED)
    assert "\033[1;32m1gbe, 32 ranks: take " in screen, screen
    plain = re.sub(r"\033\[[0-9;]*[mK]", "", screen)
    taken = re.search(r"take ([\w:=.]+)", plain).group(1).rstrip(".")
    assert re.search(rf"\033\[1;32m{taken} ", screen), "the row of the codec that is taken"
    for arguments, variables in ((["--color", "never"], {}), ([], {"NO_COLOR": "1"}), ([], {"TERM": "dumb"})):
        screen = on_terminal(*MODELLED, *arguments, variables=variables)
        assert not re.search(r"\033\[[0-9;]*m", screen), (arguments, variables)
    assert "\033[1;31mgradtool:" in on_terminal("bench", "/no/such/file.h5")
    assert "\033" not in run("bench", "/no/such/file.h5")[2]
    refused(["bench", SAMPLE, "--color", "sometimes"], 2, "--color")
    with tempfile.NamedTemporaryFile() as table:
        run(*MODELLED, "--color", "always", "--csv", table.name)
        assert b"\033" not in pathlib.Path(table.name).read_bytes(), "colour in a file"


def check_advice_is_offered():
    """Whoever models a network is told that times are not all, once."""
    unadvised = [argument for argument in MODELLED if argument != "--advise"]
    assert run(*unadvised)[1].count("--advise") == 1
    assert "--advise says" not in run(*MODELLED)[1]
    assert "--advise" not in run("bench", SAMPLE, "--codec", "fp16", "-n", "1")[1]


def check_markdown():
    code, out, err = run(*MODELLED, "--markdown")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("### ") and any(line.startswith("**1gbe, 32 ranks: take ") for line in lines), out
    tables = [line for line in lines if line.startswith("|")]
    assert "| codec | ratio | sent | error | accum | enc | dec | pays | +-% |" in tables, tables
    width = None
    for before, line in zip(lines, lines[1:]):
        if not line.startswith("|"):
            continue
        bars = line.replace("\\|", "").count("|")
        if not before.startswith("|"):
            assert before == "", f"a table must follow an empty line: {before!r}"
            width = bars
        assert bars == width, line
    assert sum(line.startswith("| ---") for line in lines) == 2, "the table of codecs and that of ranks"
    assert ESCAPE not in run(*MODELLED, "--markdown", "--color", "always")[1]
    refused([*MODELLED, "--markdown", "--csv", "-"], 2, "--markdown")


def check_names():
    code, out, err = run("bench", SAMPLE, "--codec", "fp16", "-n", "1", "--network", "10GbE", "--network", "10gbe", "--network",
                         "100GBE:node=2,inner=NVLink", "--csv", "-")
    networks = {row["network"] for row in csv.DictReader(io.StringIO(out))}
    assert code == 0 and networks == {"", "10gbe", "100gbe:node=2,inner=NVLink"}, (networks, err)
    for codecs in ("all,topk", "topk,all", "all,topk:ratio=0.01"):
        code, out, err = run("bench", "--synthetic", "4KB", "--ranks", "2", "--codec", codecs, "-n", "1", "-w", "0", "--timing", "isolated", "--csv", "-")
        names = [row["codec"] for row in csv.DictReader(io.StringIO(out))]
        assert code == 0 and names.count("topk") == 1 and names.count("none") == 1, (codecs, names, err)


def check_absent(folder):
    bare = folder / "bare.h5"
    shutil.copy(SAMPLE, bare)
    with h5py.File(bare, "r+") as file:
        for name in ("model", "dataset", "optimizer", "seed", "batch_size", "command", "producer", "created"):
            if name in file.attrs:
                del file.attrs[name]
        for group in file["tensors"].values():
            group.attrs.pop("layout", None)
    info = json.loads(run("info", bare, "--json", "-")[1])
    for name in ("model", "dataset", "optimizer", "seed", "batch_size", "command", "producer", "created"):
        assert info[name] is None, (name, info[name])
    out = run("info", bare)[1]
    assert re.search(r"seed +not stated", out) and "batch size not stated" in out, out
    assert json.loads(run("info", SAMPLE, "--json", "-")[1])["batch_size"] > 0
    with h5py.File(bare, "r+") as file:
        file.attrs["complete"] = 0
    died = run("info", bare)[1] + run("validate", bare)[1]
    assert died.count("the writer died, or has not finished yet, after iteration") == 2 and "before it closed" not in died, died
    with h5py.File(bare, "r+") as file:
        file.attrs["interrupted"] = 1
    stopped = run("info", bare)[1] + run("validate", bare)[1]
    assert stopped.count("the writer was interrupted (Ctrl-C) and closed the file after iteration") == 2, stopped
    assert json.loads(run("info", bare, "--json", "-")[1])["interrupted"] is True


def check_interrupt(folder):
    """However many codecs were not reached, Ctrl-C makes one line of it, and the table has none of them."""
    table = folder / "interrupted.csv"
    process = subprocess.Popen([GRADTOOL, "bench", SAMPLE, "--timeout", "60", "--csv", table], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    while not table.exists():  # until the first codec is done
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, (process.returncode, err)
    lines = [line for line in err.splitlines() if not re.match("wrote|bench: ", line)]
    assert len(lines) == 1 and re.match(r"interrupted: [1-9]\d* rows have no measurement", lines[0]), err
    assert "skipped" not in out and out.startswith("codec "), out


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch).resolve()
    check_help()
    check_config(scratch)
    check_color()
    check_advice_is_offered()
    check_markdown()
    check_names()
    check_absent(scratch)
    check_interrupt(scratch)
print("the command line has manners")
