"""Kills commands of gradtool at random moments, and looks at what they leave.

After SIGKILL, SIGINT or SIGTERM: a captured file opens and has every step that was reported, with the values of an
undisturbed capture; an output is the old one or a whole new one; the input is unchanged; no temporary file is left, but
after SIGKILL; no process is left; and the same command, run again, does its work.
Usage: kills.py GRADTOOL KILLS [--seed N] [--hours H] [--only NAME] [--json FILE]
"""
import argparse
import collections
import csv
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/capture"))
from synthetic import check_killed_capture, contents, reported_steps, write_images  # noqa: E402

CAPTURE = ("capture", "--model", "lenet5", "--workers", "2", "--batch-size", "8", "--threads", "1", "--log-steps")
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
TEMPORARY = re.compile(r"\.gradtool-[0-9a-f]{24}")
os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def require(condition, message):
    if not condition:
        raise AssertionError(message)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_csv(path):
    require(path.read_bytes().endswith(b"\n"), f"{path.name}: its last line is cut")
    with open(path, newline="") as file:
        rows = list(csv.reader(file))
    # An interrupted bench has no row of steps.
    require(len({len(row) for row in rows}) == 1, f"{path.name}: rows of different lengths")


def processes_with(word):
    """Processes that have this word in their command line."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            pass  # it has ended
    return [pid for pid in found if pid != os.getpid()]


def old_text(path):
    """Begins as the output does, so that a command replaces it."""
    return {".json": "{}\n", ".html": "<old>\n"}.get(path.suffix, "old,table\n")


class Command:
    """A command whose outputs are replaced as a whole, in a folder of its own."""

    def __init__(self, name, program, arguments, outputs, folder, launcher=()):
        self.name, self.folder, self.launcher = name, folder, list(launcher)
        folder.mkdir()
        self.paths = [folder / output for output in outputs]
        self.command = [*self.launcher, program, *map(str, arguments)]
        start = time.monotonic()
        self.finish()
        self.seconds = time.monotonic() - start
        self.paths = sorted(folder.iterdir())  # whatever else it writes is an output, too
        self.outputs = [path.name for path in self.paths]

    def finish(self):
        done = subprocess.run(self.command, cwd=self.folder, capture_output=True, text=True, timeout=300)
        if done.returncode == 77:
            raise NotImplementedError(done.stderr.splitlines()[0].removeprefix("gradtool: "))
        require(done.returncode == 0, f"undisturbed, it ends with {done.returncode}: {done.stderr[-300:]}")
        for path in self.paths:
            self.check_whole(path)

    @staticmethod
    def check_whole(path):
        if path.suffix == ".csv":
            check_csv(path)
        else:
            json.loads(path.read_text())

    def victim(self, process, chance):
        """Whom the signal hits."""
        if not self.launcher:
            return process.pid
        ranks = [pid for pid in processes_with(str(self.folder)) if pid != process.pid]
        return chance.choice(ranks) if ranks else process.pid

    def trial(self, number, chance):
        for path in self.paths:  # half of the trials replace an old output
            path.unlink(missing_ok=True)
            if chance.random() < 0.5:
                path.write_text(old_text(path))
        process = subprocess.Popen(self.command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(chance.uniform(0, 1.1 * self.seconds))
        try:
            os.kill(self.victim(process, chance), number)
        except ProcessLookupError:
            pass  # it had just ended
        try:
            error = process.communicate(timeout=120)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError("it still runs two minutes later") from None
        status = process.returncode
        if number == signal.SIGKILL or self.launcher:
            require(status != 77 and status != 2, f"exit status {status}: {error[-300:]}")
        else:
            # Killed by the signal itself: it came before the program could catch it.
            require(status in (0, 130, -number), f"exit status {status}: {error[-300:]}")
        deadline = time.monotonic() + 10
        while processes_with(str(self.folder)) and time.monotonic() < deadline:
            time.sleep(0.05)
        require(not processes_with(str(self.folder)), "a process is left")
        for path in self.paths:
            if path.exists() and path.read_text() != old_text(path):
                self.check_whole(path)
        # MPI's launcher kills those ranks that the signal did not hit.
        self.check_leftovers(allowed=number == signal.SIGKILL or bool(self.launcher))
        ended = status == 0
        self.finish()
        return ended

    def check_leftovers(self, allowed):
        for path in self.folder.rglob("*"):
            if TEMPORARY.fullmatch(path.name) and allowed:
                path.unlink()
            elif path.is_file() and path not in self.paths:
                raise AssertionError(f"{path.name} is left")


class Capture:
    name = "capture"

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        folder.mkdir()
        self.data = folder / "data"
        self.data.mkdir()
        write_images(self.data)
        self.out = folder / "captured.h5"
        start = time.monotonic()
        whole = folder / "whole.h5"
        done = self.run("--steps", "40", "--out", whole)
        if done.returncode == 77:
            raise NotImplementedError(done.stderr.splitlines()[0].removeprefix("gradtool: "))
        require(done.returncode == 0, done.stderr)
        self.seconds = time.monotonic() - start
        self.whole = contents(whole)
        whole.unlink()

    def command(self, *arguments):
        return [self.program, *CAPTURE, "--data-dir", str(self.data), *map(str, arguments)]

    def run(self, *arguments):
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=300)

    def trial(self, number, chance):
        log = self.folder / "log"
        with open(log, "w") as errors:
            process = subprocess.Popen(self.command("--steps", "1000000", "--out", self.out), stderr=errors,
                                       stdout=subprocess.DEVNULL)
        time.sleep(chance.uniform(0, 1.1 * self.seconds))
        process.send_signal(number)
        status = process.wait(timeout=120)
        require(status == -number or status == 130 and number != signal.SIGKILL, f"exit status {status}: {log.read_text()[-300:]}")
        steps = reported_steps(log)
        if steps:
            try:
                check_killed_capture(self.program, self.out, steps, self.whole, "the captured file")
            except SystemExit as failure:
                raise AssertionError(failure) from None
        left = sorted(path.name for path in self.folder.iterdir())
        require(set(left) <= {"captured.h5", "data", "log"}, f"it left {left}")
        again = self.run("--steps", "2", "--out", self.out, "--force")
        require(again.returncode == 0, f"the next capture: {again.stderr[-300:]}")
        self.out.unlink()
        return False


def make_victims(program, folder, only):
    """(weight, victim) for the commands asked for that this build and machine have, and the names of what they do not have."""
    sample = folder / "sample.h5"
    shutil.copy(ROOT / "datasets/lenet5-fashion-mnist.h5", sample)
    bench = lambda place: ["bench", sample, "--codec", "fp16,topk", "-n", "3", "--csv", place / "b.csv", "--json",
                           place / "b.json", "--steps-csv", place / "s.csv"]
    written = ["b.csv", "b.json", "s.csv"]
    makers = [
        (4, "bench", lambda place: Command("bench", program, bench(place), written, place)),
        (3, "analyze", lambda place: Command(
            "analyze", program, ["analyze", sample, "--out", place, "--csv", place / "a.csv", "--json", place / "a.json"],
            ["a.csv", "a.json", "spectrum.csv"], place)),
        (2, "capture", lambda place: Capture(program, place)),
    ]
    victims, missing = [], []
    if launcher := shutil.which("mpirun"):
        makers.append((1, "rank of an MPI job", lambda place: Command(
            "rank of an MPI job", program, [*bench(place), "--comm", "mpi"], written, place,
            (launcher, "-n", "2", "--oversubscribe"))))
    else:
        missing.append("rank of an MPI job: no mpirun")
    for weight, name, make in makers:
        if only not in name:
            continue
        try:
            victims.append((weight, make(folder / name.replace(" ", "_"))))
        except NotImplementedError as reason:
            missing.append(f"{name}: {reason}")
    return sample, victims, missing


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--hours", type=float, default=1e3)
    parser.add_argument("--only", default="", help="commands whose name contains this: bench, analyze, capture, MPI")
    parser.add_argument("--json", help="write the counts to this file, also after every trial")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    counts = collections.Counter()
    failures = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        sample, victims, missing = make_victims(os.path.abspath(options.program), folder, options.only)
        before = digest(sample)
        for trial in range(options.kills):
            if time.monotonic() - start > 3600 * options.hours:
                break
            victim = chance.choices([v for _, v in victims], [w for w, _ in victims])[0]
            number = chance.choice(SIGNALS)
            try:
                counts[victim.name, number.name, "too late" if victim.trial(number, chance) else "killed"] += 1
                require(digest(sample) == before, "the input file has changed")
            except AssertionError as failure:
                counts[victim.name, number.name, "failed"] += 1
                failures.append(f"trial {trial} of seed {options.seed}, {number.name} to {victim.name}: {failure}")
                print(failures[-1], file=sys.stderr, flush=True)
            record = {"seed": options.seed, "seconds": time.monotonic() - start, "asked": options.kills,
                      "counts": [[*key, count] for key, count in sorted(counts.items())], "failures": failures,
                      "missing": missing}
            if options.json:
                pathlib.Path(options.json).write_text(json.dumps(record, indent=1) + "\n")
    for key, count in sorted(counts.items()):
        print(*key, count)
    print(f"{sum(counts.values())} kills, {len(failures)} failures; not here: {missing or 'nothing'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
