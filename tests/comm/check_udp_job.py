"""Jobs over the bounded-loss transport without MPI: what the ranks compute, who is named when one dies, stops or fails, and that two
jobs on one machine and strangers do not disturb each other.

Usage: check_udp_job.py GRADTOOL SOURCE_DIR
"""
import csv
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from waiting import until_worked  # noqa: E402

GRADTOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
SAMPLE = str(ROOT / "datasets/lenet5-fashion-mnist.h5")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(ranks, *arguments, port=None, key="0123456789abcdef", only=None, **changes):
    port = port or free_port()
    processes = []
    for rank in range(ranks) if only is None else only:
        place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GRADTOOL_JOB_KEY": key}
        environment = {**os.environ, **place, **changes}
        environment = {name: value for name, value in environment.items() if value is not None}
        processes.append(subprocess.Popen([GRADTOOL, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                          env=environment))
    return processes


def ends(processes, seconds=200):
    """(status, output, errors) of each."""
    deadline = time.monotonic() + seconds
    found = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
            raise AssertionError(f"still running after {seconds} s")
        found.append((process.returncode, out, err))
    return found


def errors_in(path):
    with open(path, newline="") as file:
        return {row["codec"]: (row["status"], row["nmse"], row["wire_bytes_per_rank"]) for row in csv.DictReader(file)
                if row["timing"] == "isolated"}


CODECS = ["--codec", "fp16", "--codec", "topk:ratio=0.01", "--codec", "powersgd", "--codec", "thc", "-n", "1", "-w", "0", "--timing", "isolated"]


def with_threads(folder):
    alone = subprocess.run([GRADTOOL, "bench", SAMPLE, *CODECS, "--csv", folder / "threads.csv"], capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr
    return errors_in(folder / "threads.csv")


def same_results(folder, expected):
    # Two jobs at a time, one of which would be disturbed if they heard each other.
    jobs = [start(2, "bench", SAMPLE, "--comm", "udp", *CODECS, "--csv", folder / f"udp{job}.csv") for job in range(2)]
    for job, processes in enumerate(jobs):
        for status, _, err in ends(processes):
            assert status == 0, err
        assert errors_in(folder / f"udp{job}.csv") == expected, job


def refusals():
    for changes, word in (({"GRADTOOL_JOB_KEY": None}, "GRADTOOL_JOB_KEY is not set"), ({"MASTER_PORT": "0"}, "MASTER_PORT is '0'"),
                          ({"MASTER_PORT": None}, "MASTER_PORT is ''"), ({"GRADTOOL_JOB_KEY": "short"}, "fewer than 16 characters")):
        status, _, err = ends(start(2, "bench", SAMPLE, "--comm", "udp", only=[0], **changes))[0]
        assert status == 2 and word in err and len(err.splitlines()) == 1, (changes, err)
    status, _, err = ends(start(2, "bench", SAMPLE, "--comm", "udp", "--comm-timeout", "1", only=[0]))[0]
    assert status == 4 and "has waited 1 s for 1 of 2 ranks to connect: 1 missing" in err, err
    status, _, err = ends(start(2, "bench", SAMPLE, "--comm", "udp", "--codec", "fp16", "-n", "1", only=[0], RANK=None))[0]
    assert status == 0, err  # a job of one


def wrong_key():
    """A rank of another job comes to this job's port."""
    port = free_port()
    right = start(2, "bench", SAMPLE, "--comm", "udp", "--codec", "fp16", "-n", "1", port=port, only=[0])
    wrong = start(2, "bench", SAMPLE, "--comm", "udp", "--codec", "fp16", "-n", "1", "--comm-timeout", "2", port=port, key="another key of a job", only=[1])
    status, _, err = ends(wrong)[0]
    assert status == 4 and "does not have this job's key" in err, err
    right += start(2, "bench", SAMPLE, "--comm", "udp", "--codec", "fp16", "-n", "1", port=port, only=[1])
    assert all(status == 0 for status, _, _ in ends(right))


def dead_rank(how, timeout):
    """The ranks measure for long; one is killed or stopped in the middle. All others end and name it."""
    processes = start(3, "bench", "--synthetic", "8MB", "--ranks", "3", "--comm", "udp", "--comm-timeout", timeout, "--codec", "fp16",
                      "--timeout", "600", "--max-noise", "1e-9")
    for process in processes:
        until_worked(process, 1.0)  # waiting for the others takes no processor time, and what comes before it less
    processes[2].send_signal(how)
    try:
        for status, _, err in ends(processes[:2], timeout + 100):
            assert status == 4 and "rank 2" in err, (how, status, err)
    finally:
        processes[2].kill()
        processes[2].communicate()


def strangers(stop, ports):
    """Throws what it likes at every UDP port of this machine that somebody listens on, such as a gradtool's."""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while not stop.wait(0.001):  # a thousand times a second, and not as often as a processor can
        with open("/proc/net/udp") as table:
            ports = [int(line.split()[1].split(":")[1], 16) for line in table.readlines()[1:]]
        for port in ports:
            for size in (0, 4, 48, 1472):
                try:
                    sender.sendto(b"ULP1" + os.urandom(size), ("127.0.0.1", port))
                except OSError:
                    pass


def under_fire(folder, expected):
    stop = threading.Event()
    thread = threading.Thread(target=strangers, args=(stop, []))
    thread.start()
    try:
        same_results(folder, expected)
    finally:
        stop.set()
        thread.join()


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    expected = with_threads(scratch)
    same_results(scratch, expected)
    under_fire(scratch, expected)
refusals()
wrong_key()
dead_rank(signal.SIGKILL, 30)
dead_rank(signal.SIGSTOP, 5)
print("jobs over udp compute what threads do, and end when a rank does")
