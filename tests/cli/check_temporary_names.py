"""Checks file systems without unnamed files: an output there has a temporary name until it is whole. Nobody else's file is touched for it,
the old output stays until the new one is whole, and the name goes on every way out but SIGKILL.

Usage: check_temporary_names.py GRADTOOL NO_TMPFILE SOURCE_DIR
"""
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

GRADTOOL, NO_TMPFILE, ROOT = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
SAMPLE = ROOT / "datasets/lenet5-fashion-mnist.h5"
TEMPORARY = re.compile(r"\.gradtool-[0-9a-f]{24}")
ENVIRONMENT = dict(os.environ, LD_PRELOAD=NO_TMPFILE, ASAN_OPTIONS="verify_asan_link_order=0:detect_leaks=0")


def run(*words, happening="", victim="", **keywords):
    environment = ENVIRONMENT | {"TEMPORARY_NAME": happening, "VICTIM": str(victim)}
    return subprocess.run([GRADTOOL, *map(str, words)], env=environment, capture_output=True, text=True, timeout=600, **keywords)


def refused(done, *words):
    assert done.returncode == 4, f"{done.args}: exit {done.returncode}: {done.stderr}"
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("gradtool: "), f"{done.args}: not one sentence: {done.stderr!r}"
    for word in ("out.csv", "cannot be written", *words):
        assert word in done.stderr, f"{done.args}: {done.stderr!r} does not say {word!r}"


def temporary_names(folder):
    # A folder that was made for files of which none came to be is taken away again.
    return [name for name in os.listdir(folder) if TEMPORARY.fullmatch(name)] if os.path.isdir(folder) else []


def check_success(folder):
    out = folder / "out.csv"
    for _ in range(2):  # also over the file of before
        done = run("info", SAMPLE, "--csv", out)
        assert done.returncode == 0, done.stderr
        assert os.listdir(folder) == ["out.csv"], os.listdir(folder)
    nameless = subprocess.run([GRADTOOL, "info", SAMPLE, "--csv", "-"], capture_output=True, text=True)
    assert out.read_text() == nameless.stdout, "the two ways write different bytes"
    out.chmod(0o600)
    assert run("info", SAMPLE, "--csv", out).returncode == 0
    assert out.stat().st_mode & 0o777 == 0o600, "a private file became readable for others"


def check_planted_link(folder):
    """A link where the temporary name would be is not followed, and stays: it is somebody else's."""
    victim, out = folder / "victim", folder / "out.csv"
    victim.write_text("precious")
    out.write_text("old,table")
    for target in (victim, folder / "absent"):
        refused(run("info", SAMPLE, "--csv", out, happening="symlink", victim=target), "File exists")
        assert victim.read_text() == "precious" and out.read_text() == "old,table" and not (folder / "absent").exists()
        left = temporary_names(folder)
        assert len(left) == 1 and (folder / left[0]).is_symlink(), f"not ours to remove: {left}"
        os.remove(folder / left[0])


def check_name_taken(folder):
    out = folder / "out.csv"
    out.write_text("old,table")
    refused(run("info", SAMPLE, "--csv", out, happening="file"), "File exists")
    left = temporary_names(folder)
    assert len(left) == 1 and out.read_text() == "old,table", f"not ours to remove: {left}"


def check_failures(folder):
    out = folder / "out.csv"
    out.write_text("old,table")

    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))

    refused(run("info", SAMPLE, "--csv", out, preexec_fn=little_room), "File too large")
    refused(run("info", SAMPLE, "--csv", out, happening="rename"), "Input/output error")
    refused(run("info", SAMPLE, "--csv", out, happening="close"), "No space left")
    # Refused after the outputs were found to be writable.
    done = run("bench", SAMPLE, "--codec", "fp16", "--csv", out, "--layers", "matches nothing")
    assert done.returncode == 2, done.stderr
    assert os.listdir(folder) == ["out.csv"] and out.read_text() == "old,table", os.listdir(folder)


def check_full_disk(folder):
    """A disk with room for nothing. Only root can make one."""
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True).returncode != 0:
        print("not checked: a full disk, because no file system can be mounted here")
        return
    try:
        out = folder / "out.csv"
        out.write_text("old,table")
        filler = folder / "filler"
        with open(filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        refused(run("info", SAMPLE, "--csv", out), "No space left")
        assert sorted(os.listdir(folder)) == ["filler", "out.csv"] and out.read_text() == "old,table", os.listdir(folder)
        os.remove(filler)
        assert run("info", SAMPLE, "--csv", out).returncode == 0, "the next run works"
        assert os.listdir(folder) == ["out.csv"]
    finally:
        subprocess.run(["umount", folder], check=True)


def check_signals(folder):
    """SIGINT and SIGTERM while `bench` has a file for each rank open: they are removed, or whole."""
    for number in (signal.SIGINT, signal.SIGTERM):
        payloads = folder / number.name
        bench = subprocess.Popen([GRADTOOL, "bench", SAMPLE, "--codec", "topk:ratio=0.9", "--payloads", payloads],
                                 env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not (payloads.exists() and temporary_names(payloads)) and bench.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        assert bench.poll() is None and temporary_names(payloads), "the payloads have no temporary name"
        bench.send_signal(number)
        assert bench.wait(timeout=600) == 130, f"{number.name}: exit {bench.returncode}"
        assert not temporary_names(payloads), f"{number.name} left {os.listdir(payloads)}"


def check_kill(folder):
    """The one way out on which the name stays. The output is the old one, and the next run is not hindered."""
    out = folder / "out.csv"
    out.write_text("old,table")
    assert run("info", SAMPLE, "--csv", out, happening="kill").returncode == -signal.SIGKILL
    assert out.read_text() == "old,table" and len(temporary_names(folder)) == 1, os.listdir(folder)
    assert run("info", SAMPLE, "--csv", out).returncode == 0 and out.read_text() != "old,table"
    assert len(os.listdir(folder)) == 2


for check in (check_success, check_planted_link, check_name_taken, check_failures, check_full_disk, check_signals, check_kill):
    with tempfile.TemporaryDirectory() as scratch:
        try:
            check(pathlib.Path(scratch))
        except AssertionError as failure:
            sys.exit(f"{check.__name__}: {failure}")
print("ok")
