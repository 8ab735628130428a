"""Little address space, as batch systems give it by `ulimit -v`: every command ends, with its result or with a sentence. OpenBLAS tries
for ever to get its buffers, and begins to when it is loaded.

Usage: check_address_space.py GRADTOOL SOURCE_DIR
"""
import pathlib
import resource
import subprocess
import sys
import tempfile

GRADTOOL, SAMPLE = sys.argv[1], str(pathlib.Path(sys.argv[2]) / "datasets/lenet5-fashion-mnist.h5")
COMMANDS = [["bench", SAMPLE, "--codec", "atomo,powersgd,gradiveq,bf16", "-n", "1"],
            ["analyze", SAMPLE, "--only", "correlation,gradiveq,low_rank"]]

with tempfile.TemporaryDirectory() as folder:
    results = set()
    for command in COMMANDS:
        for mebibytes in (64, 160, 240, 280, 320, 400, 520, 640, 800, 1000, 4000):
            limit = mebibytes << 20
            done = subprocess.run([GRADTOOL, *command], capture_output=True, text=True, cwd=folder, timeout=600,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
            if done.returncode == 127:  # the loader itself has no room
                continue
            what = f"{command[0]} with {mebibytes} MiB: {done.returncode}, {done.stderr[-300:]}"
            assert done.returncode in (0, 1, 4), what
            assert done.returncode == 0 or "out of memory" in done.stderr or "refuses a thread" in done.stderr, what
            results.add((command[0], done.returncode == 0))
    assert {("bench", True), ("analyze", True)} <= results, f"nothing ended well: {results}"
print("all ended")
