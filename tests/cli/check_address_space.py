"""Little address space, as batch systems give it by `ulimit -v`: every command ends, with its result or with a sentence. OpenBLAS tries
for ever to get its buffers, and begins to when it is loaded.

Usage: check_address_space.py GRADTOOL SOURCE_DIR
"""
import errno
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

GRADTOOL, SAMPLE = sys.argv[1], str(pathlib.Path(sys.argv[2]) / "datasets/lenet5-fashion-mnist.h5")
COMMANDS = [["bench", SAMPLE, "--codec", "atomo,powersgd,gradiveq,bf16", "-n", "1"],
            ["analyze", SAMPLE, "--only", "correlation,gradiveq,low_rank"]]
NAME = "OPENBLAS_NUM_THREADS"
FREE = {name: value for name, value in os.environ.items() if name != NAME}


def tried(command, mebibytes, environment):
    """True where the command had its result, False where it said what it lacks, None where there was no room to start it."""
    limit = mebibytes << 20
    try:
        done = subprocess.run([GRADTOOL, *command], capture_output=True, text=True, cwd=folder, env=environment, timeout=300,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    except OSError as error:
        assert error.errno == errno.ENOMEM, error
        return None
    if done.returncode == 127 or (done.returncode < 0 and not done.stderr):  # by the loader, or the kernel
        assert mebibytes < 600, f"{command[0]} with {mebibytes} MiB does not start: {done.returncode}"
        return None
    what = f"{command[0]} with {mebibytes} MiB: {done.returncode}, {done.stderr[-300:]}"
    assert done.returncode in (0, 1, 4), what
    assert done.returncode == 0 or "out of memory" in done.stderr or "refuses a thread" in done.stderr, what
    return done.returncode == 0


with tempfile.TemporaryDirectory() as folder:
    for command in COMMANDS:
        for mebibytes in (64, 160, 240, 280, 320, 400, 520, 640, 800, 1000):
            tried(command, mebibytes, FREE)
        tried(command, 520, FREE | {NAME: "64"})  # which OpenBLAS would start
        assert tried(command, 4000, FREE), f"{command[0]} fails with 4000 MiB"
print("all ended")
