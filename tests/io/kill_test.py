"""kill_test.py GRADTOOL WRITE_STEPS DIE_AT_WRITE every|random|full: what a killed writer has reported can be read.

every:  the writer dies in place of each of its writes in turn.
random: SIGKILL from outside, 150 times at random moments, into writers of different types and sizes.
full:   the disk is full after ever more bytes; the writer ends with a sentence.
After each death h5py must open the file without ceremony and find every reported step, with the right values; so must
gradtool, unless there is no step yet."""

import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np

GRADTOOL, WRITE_STEPS, DIE_AT_WRITE, MODE = sys.argv[1:5]
FOLDER = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
PATH = os.path.join(FOLDER, "killed.h5")


def check_values(path, reported, workers, dtype):
    """Number of steps in the file: `reported`, or one more where the kill came before the report."""
    with h5py.File(path, "r") as file:
        steps = file["steps/iteration"].shape[0]
        assert reported <= steps <= reported + 1, f"{reported} steps reported, {steps} in the file"
        assert file["steps/iteration"][:].tolist() == [10 * s + 1 for s in range(steps)]
        assert file["steps/loss"][:steps].tolist() == [[s] * workers for s in range(steps)]
        for t, group in enumerate(file["tensors"].values()):
            gradient = group["gradient"]
            assert steps <= gradient.shape[0] <= reported + 1, f"{group.name} has {gradient.shape[0]} steps"
            for s in range(steps):
                x = gradient[s]
                if dtype == "bf16":
                    x = (x.astype(np.uint32) << 16).view(np.float32)
                expected = (7 * s + 3 * np.arange(workers)[:, None] + 5 * t + np.arange(x.shape[1])) % 251 - 125
                assert (x == expected).all(), f"{group.name}: wrong values at step {s}"
                if "weight" in group:
                    assert (group["second_moment"][s] == expected * expected).all()
                    assert (group["weight"][s] == -expected[0]).all()
        return steps, int(file.attrs["complete"])


def check_gradtool(path, steps, complete):
    result = subprocess.run([GRADTOOL, "validate", path], capture_output=True, text=True)
    if steps == 0:
        assert result.returncode == 3 and "no whole step" in result.stderr, result.stderr
        return
    assert result.returncode == 0, result.stderr
    assert f": steps {steps}," in result.stdout, result.stdout
    assert ("not complete" in result.stdout) == (complete == 0), result.stdout


def arguments(steps, workers, dtype, size):
    return [WRITE_STEPS, PATH, str(steps), str(workers), dtype, size]


def every_write():
    steps, workers, dtype = 3, 2, "f32"
    environment = dict(os.environ, LD_PRELOAD=DIE_AT_WRITE, ASAN_OPTIONS="verify_asan_link_order=0:detect_leaks=0")
    seen = set()
    for at in range(10_000):
        if os.path.exists(PATH):
            os.remove(PATH)
        environment["DIE_AT"] = str(at)
        result = subprocess.run(arguments(steps, workers, dtype, "small"), env=environment, capture_output=True, text=True)
        reported = result.stdout.count("step")
        try:
            found = check_values(PATH, reported, workers, dtype)
            if found not in seen or at % 10 == 0:
                check_gradtool(PATH, *found)
        except Exception as error:
            if reported == 0 and not seen:
                continue  # the empty file is still being laid out; nothing was promised yet
            sys.exit(f"killed at write {at} with {reported} steps reported: {error}")
        seen.add(found)
        if result.returncode == 0:
            break
        assert result.returncode == -signal.SIGKILL, result.stderr
    assert seen == {(s, 0) for s in range(steps + 1)} | {(steps, 1)}, f"the deaths left {sorted(seen)}"
    assert at > 60, f"only {at} writes: is the preloaded library in use?"
    print(f"{at} deaths, one at every write; found (steps, complete): {sorted(seen)}")


def random_moments():
    generator = random.Random(11)
    total_reported = killed = 0
    for attempt in range(80):
        if os.path.exists(PATH):
            os.remove(PATH)
        dtype = generator.choice(["f32", "f16", "bf16"])
        workers = generator.choice([1, 2, 5])
        size = "large" if attempt % 10 == 0 else "small"
        writer = subprocess.Popen(arguments(100_000, workers, dtype, size), stdout=subprocess.PIPE, text=True)
        line = writer.stdout.readline()
        time.sleep(generator.uniform(0, 0.02))
        writer.kill()
        rest = writer.stdout.read()
        assert writer.wait() == -signal.SIGKILL, "the writer ended by itself"
        # The last line may be cut by the kill: what was reported is what was reported with a line end.
        reported = (line + rest).count("\n")
        try:
            found = check_values(PATH, reported, workers, dtype)
            check_gradtool(PATH, *found)
        except Exception as error:
            sys.exit(f"attempt {attempt} ({dtype}, {workers} workers, {size}), {reported} steps reported: {error}")
        total_reported += reported
        killed += 1
    print(f"{killed} writers killed; {total_reported} reported steps, all found with the right values")


def full_disk():
    steps, workers, dtype = 2, 2, "f32"
    refused = 0
    for size in list(range(0, 60_000, 1_500)) + list(range(60_000, 900_000, 20_000)):
        if os.path.exists(PATH):
            os.remove(PATH)

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writes fail with EFBIG instead
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        result = subprocess.run(arguments(steps, workers, dtype, "small"), preexec_fn=limit, capture_output=True, text=True)
        reported = result.stdout.count("step")
        assert result.returncode in (0, 1), f"limit {size}: status {result.returncode}"
        if result.returncode == 1:
            refused += 1
            assert "File too large" in result.stderr and result.stderr.count("\n") == 1, result.stderr
        if reported > 0:
            check_gradtool(PATH, *check_values(PATH, reported, workers, dtype))
    assert refused > 40 and result.returncode == 0, f"{refused} refusals, the last status {result.returncode}"
    print(f"{refused} full disks, each with its sentence; what was reported could be read")


try:
    {"every": every_write, "random": random_moments, "full": full_disk}[MODE]()
finally:
    if os.path.exists(PATH):
        os.remove(PATH)
    os.rmdir(FOLDER)
