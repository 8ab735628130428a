"""Runs the fuzz targets over a number of inputs, kills commands, and writes a record of one page. scripts/soak.sh builds
what it needs and calls it.

Usage: run.py TARGET... [--inputs N] [--kills N] [--hours H] [--jobs N] [--fuzzers FOLDER] [--gradtool PROGRAM] [--kill-counts FILE]
              [--record FILE] [--found FOLDER]
"""
import argparse
import collections
import concurrent.futures
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
NIGHTLY_INPUTS, NIGHTLY_KILLS = 10**8, 1000
MOST_FINDINGS = 10  # of one target; whatever else it would find is mostly the same
# Inputs that are lists of decisions: what is longer than any file or command needs is not read.
LENGTHS = {name: ["-max_len=512"] for name in ("fuzz_reducer", "fuzz_gradient_file", "fuzz_command")}
SAMPLE_SECONDS = 5  # long enough to know the speed of a target


class Fuzzing:
    """One target: how many inputs it has run, in how long, what it found."""

    def __init__(self, name, options):
        self.name = name
        self.program = options.fuzzers / name
        self.corpus = ROOT / "tests/fuzz/corpus" / name.removeprefix("fuzz_")
        self.found = options.found / name
        (self.found / "new").mkdir(parents=True, exist_ok=True)
        self.inputs = self.seconds = self.slices = 0
        self.coverage = []  # before, after
        self.findings = []
        self.lock = threading.Lock()

    def run(self, *limits):
        """A libFuzzer process. Its number of inputs."""
        with self.lock:
            self.slices += 1
            number = self.slices
        command = [self.program, "-print_final_stats=1", "-rss_limit_mb=2048", "-timeout=20", "-len_control=0",
                   f"-artifact_prefix={self.found}/", *LENGTHS.get(self.name, []), *limits, self.found / "new", self.corpus]
        # libhdf5 asks for whatever size a file states; a null pointer is the answer it expects.
        environment = dict(os.environ, ASAN_OPTIONS="allocator_may_return_null=1")
        start = time.monotonic()
        log = self.found / f"log{number}"
        with open(log, "w") as out:
            status = subprocess.run(command, env=environment, stdout=out, stderr=subprocess.STDOUT).returncode
        text = log.read_text(errors="replace")
        counted = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
        inputs = int(counted.group(1)) if counted else 0
        coverage = [int(c) for c in re.findall(r"cov: (\d+)", text)]
        with self.lock:
            self.inputs += inputs
            self.seconds += time.monotonic() - start
            self.coverage = (self.coverage or coverage[:1]) + coverage[-1:]
            if status != 0:
                summary = re.search(r"SUMMARY: .*", text)
                self.findings.append(summary.group(0)[:200] if summary else f"exit status {status}, see {log.name}")
        if status == 0:
            log.unlink()
        return inputs

    def run_share(self, inputs, seconds):
        """So many inputs, or for so long, starting again behind a finding."""
        end = time.monotonic() + seconds
        while inputs > 0 and len(self.findings) < MOST_FINDINGS and time.monotonic() < end:
            inputs -= max(1, self.run(f"-runs={inputs}", f"-max_total_time={max(1, int(end - time.monotonic()))}"))


def fuzz(options, deadline):
    """Every target gets the same time: of all inputs, its share is its speed over the sum of speeds."""
    targets = [Fuzzing(name, options) for name in options.targets]
    for target in targets:
        target.run(f"-max_total_time={SAMPLE_SECONDS}")
    speed = {t.name: max(t.inputs, 1) for t in targets}
    left = max(0, options.inputs - sum(t.inputs for t in targets))
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        shares = [(t, left * speed[t.name] // sum(speed.values()) // options.jobs + 1) for t in targets for _ in range(options.jobs)]
        seconds = max(0, deadline - time.monotonic()) / len(targets)
        list(pool.map(lambda share: share[0].run_share(share[1], seconds), shares))
    return targets


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*: (.*)", text)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{name.group(1) if name else 'processor without a name'}, {os.cpu_count()} processors, {memory:.0f} GiB of memory, Linux"


def output_of(*command):
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def share(part, whole):
    return f"{100 * part / whole:.2g} %"


def fuzz_lines(targets):
    yield "| target | inputs | seconds | inputs a second | coverage before | after | findings |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for t in targets:
        before, after = (t.coverage[0], max(t.coverage)) if t.coverage else (0, 0)
        yield (f"| `{t.name}` | {t.inputs:,} | {t.seconds:.0f} | {t.inputs / max(t.seconds, 1e-9):.0f} | {before:,} | {after:,} | "
               f"{len(t.findings)} |")


def kill_lines(kills):
    table = collections.defaultdict(collections.Counter)
    for victim, number, outcome, count in kills["counts"]:
        table[victim][number] += count
        table[victim][outcome] += count
    columns = ("SIGKILL", "SIGINT", "SIGTERM", "too late", "failed")
    yield "| command | " + " | ".join(columns) + " |"
    yield "| --- |" + " --- |" * len(columns)
    for victim, counts in sorted(table.items()):
        yield f"| {victim} | " + " | ".join(str(counts[c]) for c in columns) + " |"


def record(options, targets, kills, hours):
    inputs = sum(t.inputs for t in targets)
    killed = sum(count for *_, count in kills["counts"])
    version = output_of(str(options.gradtool), "--version") if killed else "none"
    yield "# Soak: hostile inputs and sudden deaths"
    yield ""
    yield (f"{datetime.date.today()}; fuzz targets of commit {output_of('git', 'describe', '--always', '--dirty')}, killed "
           f"program {version}; {machine()}. {hours:.2f} hours, {options.jobs} fuzzer{'s' if options.jobs > 1 else ''} at a time.")
    yield ""
    yield (f"**{inputs:,} inputs, {share(inputs, NIGHTLY_INPUTS)} of a night's {NIGHTLY_INPUTS:,}; {killed:,} kills, "
           f"{share(killed, NIGHTLY_KILLS)} of a night's {NIGHTLY_KILLS:,}; {sum(len(t.findings) for t in targets)} findings, "
           f"{len(kills['failures'])} failures.**")
    yield ""
    yield "```sh"
    yield "scripts/soak.sh        # a night; --inputs, --kills and --hours make it shorter"
    yield "```"
    yield ""
    yield "## Inputs"
    yield ""
    yield ("Under the address and undefined-behaviour sanitizers, with libFuzzer's limits of 20 seconds and 2 GiB for an input. "
           "Coverage is libFuzzer's count of edges, before and after.")
    yield ""
    yield from fuzz_lines(targets)
    yield ""
    findings = sorted({f"`{t.name}`: {finding}" for t in targets for finding in t.findings})
    yield from ([f"- {finding}" for finding in findings] or ["No input broke a promise of [SECURITY.md](../../SECURITY.md)."])
    yield ""
    yield "## Kills"
    yield ""
    yield ("At random moments of the command's time. Afterwards the captured file opens and has every step that was reported, "
           "each output is the old one or a whole new one, the input is unchanged, nothing temporary is left but after SIGKILL, no "
           "process is left, and the next run works. Too late: the command had ended.")
    yield ""
    yield from kill_lines(kills)
    yield ""
    yield from ([f"- {failure}" for failure in kills["failures"]] or ["None left anything behind that it should not have."])
    yield from [f"- Not run here: {reason}" for reason in kills["missing"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--inputs", type=int, default=NIGHTLY_INPUTS)
    parser.add_argument("--kills", type=int, default=NIGHTLY_KILLS)
    parser.add_argument("--hours", type=float, default=10.0, help="ends after so long, whatever is left")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--fuzzers", type=pathlib.Path, default=ROOT / "build/asan/tests/fuzz")
    parser.add_argument("--gradtool", type=pathlib.Path, default=ROOT / "build/release/bin/gradtool")
    parser.add_argument("--kill-counts", type=pathlib.Path, help="what kills.py --json wrote, instead of killing now")
    parser.add_argument("--record", type=pathlib.Path, default=ROOT / "reports/reliability/README.md")
    parser.add_argument("--found", type=pathlib.Path, default=ROOT / "build/soak/found", help="inputs that break a promise")
    options = parser.parse_args()
    start = time.monotonic()
    deadline = start + 3600 * options.hours
    counts = options.kill_counts or options.found.parent / "kills.json"
    counts.parent.mkdir(parents=True, exist_ok=True)
    if not options.kill_counts:  # first, and alone: how long a command takes decides when it is killed
        counts.write_text(json.dumps({"counts": [], "failures": [], "missing": []}))
        if options.kills > 0:
            subprocess.run([sys.executable, ROOT / "scripts/soak/kills.py", options.gradtool, str(options.kills), "--hours",
                            str(options.hours / 2), "--json", counts])
    targets = fuzz(options, deadline)
    kills = json.loads(counts.read_text())
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.write_text("\n".join(record(options, targets, kills, (time.monotonic() - start) / 3600)) + "\n")
    print(f"wrote {options.record}")
    return 1 if kills["failures"] or any(t.findings for t in targets) else 0


if __name__ == "__main__":
    sys.exit(main())
