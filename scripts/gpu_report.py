#!/usr/bin/env python3
"""Writes README.md of a GPU report from what gpu-check.sh left: a short table of the micro-benchmarks, what the tests and
sanitizers said, and what was not measured. Standard library only.

Usage: gpu_report.py --out DIR --log DIR --seconds N --failed "NAMES" [--quick] -- ELEMENTS...
"""
import argparse
import json
import pathlib
import re
import subprocess

# Share of the copy rate to reach, encode and decode; the rest has no promise on a GPU yet.
TARGETS = {"fp16": 0.8, "bf16": 0.8, "int8": 0.8, "fp8": 0.8, "mx": 0.8, "natural": 0.8, "qsgd": 0.8, "signsgd": 0.8, "terngrad": 0.8,
           "efsignsgd": 0.6, "onebit": 0.6, "vgc": 0.5, "dgc": 0.5, "iwp": 0.5, "topk": 0.3}
CHECKS = ("gpu_codecs", "gpu_reducers", "comm_gpu", "comm_cuda_runtime", "analyze", "bench", "memcheck", "memcheck-reducers",
          "racecheck", "racecheck-reducers", "initcheck", "initcheck-reducers")
# Names of features that no run of this script measures.
NOT_MEASURED = ("NCCL between cards, and anything else with more than one", "`gradtool capture --device cuda` (needs a LibTorch for CUDA)",
                "speed of `gradtool analyze --device cuda` (its tables are checked)",
                "gradiveq's sampling steps and fits", "methods between ranks on more than one card; bench.csv has their times on two ranks of one")


def command(*words):
    try:
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
    except OSError:
        return ""


def rows_of(path):
    """Name of a codec -> its benchmarks: encode and decode, or step and what its library takes alone. With its first
    parameter where there are several of it; the JSON has them all."""
    record = json.loads(path.read_text())
    rows = {}
    for run in record["benchmarks"]:
        if run.get("run_type", "iteration") != "iteration" or run.get("error_occurred"):
            continue
        name, what = re.match(r"cuda/(.*)/([^/]+)$", run["name"].removesuffix("/manual_time")).groups()
        rows.setdefault(name, {})[what] = run
    codecs = [name.split(":")[0] for name in rows]
    return record["context"], {codec if codecs.count(codec) == 1 else name.split(",")[0]: both
                               for codec, (name, both) in zip(codecs, rows.items())}


def share(run):
    """Returns the share of a copy's speed as text; it is empty for a run that moves as many bytes as there are values."""
    return f"{run['of_copy']:.2f}" if "of_copy" in run else ""


def steps(rows):
    """Methods between ranks, of one rank alone."""
    alone = [(name, both["step"]) for name, both in rows.items() if "step" in both and "cublas" not in both]
    if not alone:
        return []
    lines = ["| method, a step of one rank | us | GB/s | of copy | to reach |", "| --- | ---: | ---: | ---: | ---: |"]
    lines += [f"| {name} | {run['real_time']:.1f} | {run['raw'] / 1e9:.0f} | {share(run)} | {TARGETS.get(name, '') if share(run) else ''} |"
              for name, run in ((name.split(":")[0], run) for name, run in alone)]
    return lines + [""]


def against_torch(path, rows):
    """topk's encode against torch.topk of as many values, by the same share and on the same card."""
    own = [both["encode"] for name, both in rows.items() if name.split(":")[0] == "topk" and "encode" in both]
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return ["torch.topk: not measured.", ""]
    if not own:
        return []
    times = record["microseconds"] / own[0]["real_time"]
    return [f"`torch.topk` (PyTorch {record['torch']}), k = {record['k']}: {record['microseconds']:.1f} us, "
            f"{times:.1f} times topk's encode; to reach: 4.", ""]


def table(path, elements):
    try:
        context, rows = rows_of(path)
    except ValueError:  # cut short
        return [f"### {4 * elements / 1e6:.0f} MB: cut short", ""]
    lines = [f"### {4 * elements / 1e6:.0f} MB", "",
             f"Device-to-device copy in the same run: {context['copy_gbps']} GB/s (each byte read and written).", "",
             "| codec | encode, us | GB/s | of copy | decode_add, us | GB/s | of copy | to reach |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for name, both in rows.items():
        if not {"encode", "decode"} & both.keys():
            continue
        target = TARGETS.get(name.split(":")[0])
        cells = []
        for what in ("encode", "decode"):
            run = both.get(what)
            cells += [f"{run['real_time']:.1f}", f"{run['raw'] / 1e9:.0f}", share(run)] if run else [""] * 3
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {'' if target is None else target} |")
    lines += ["", "One flat tensor, default parameters. atomo sends such a vector whole: no decomposition is in its times."]
    return lines + [""] + beside_libraries(rows) + steps(rows) + against_torch(path.with_name(f"torch-topk-{elements}.json"), rows)


def beside_libraries(rows):
    """Methods that are little but a library's work, and that work alone in the same run."""
    pairs = [(f"{name}, a {'compressed ' if name.startswith('gradiveq') else ''}step", both["step"]["real_time"], both["cublas"]["real_time"], 1.3)
             for name, both in rows.items() if {"step", "cublas"} <= both.keys()]
    alone = rows.get("cufft", {}).get("forward+inverse")
    pairs += [(f"{name}, encode and decode_add", both["encode"]["real_time"] + both["decode"]["real_time"], alone["real_time"], 1.4)
              for name, both in rows.items() if alone and name.split(":")[0] == "fft" and {"encode", "decode"} <= both.keys()]
    if not pairs:
        return []
    lines = ["| method | us | its library alone, us | times | to reach |", "| --- | ---: | ---: | ---: | ---: |"]
    lines += [f"| {what} | {own:.1f} | {library:.1f} | {own / library:.2f} | {target} |" for what, own, library, target in pairs]
    return lines + [""]


def tensors(path):
    """A ResNet-50's tensors: how many times as long as one tensor of all their elements they take."""
    try:
        runs = json.loads(path.read_text())["benchmarks"]
    except (OSError, ValueError):
        return ["### A ResNet-50's tensors: not measured", ""]
    rows = {}
    for run in runs:
        if run.get("run_type", "iteration") == "iteration" and not run.get("error_occurred"):
            name, form = re.match(r"resnet50/(.*)/([^/]+/[^/]+)$", run["name"].removesuffix("/manual_time")).groups()
            rows.setdefault(name, {})[form] = run
    forms = list(dict.fromkeys(form for row in rows.values() for form in row))
    lines = ["### A ResNet-50's tensors", "", "All of them, us, and times the fused time; to reach: 1.5.", "",
             "| codec | " + " | ".join(forms) + " |", "| --- |" + " ---: |" * len(forms)]
    for name, row in rows.items():
        cells = [f"{row[f]['real_time']:.1f}" + (f" ({row[f]['times_fused']:.2f})" if "times_fused" in row[f] else "") if f in row else ""
                 for f in forms]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines + [""]


def tests_of(log):
    text = log.read_text(errors="replace") if log.exists() else ""
    counts = [f"{n} {what.lower()}" for what in ("PASSED", "SKIPPED", "FAILED")
              for n in re.findall(rf"\[  {what} +\] (\d+) test", text)]
    errors = re.findall(r"ERROR SUMMARY: (\d+) error", text)
    return ", ".join(counts + [f"{n} errors" for n in errors]) or (text.split("\n")[-2] if "\n" in text else "no summary")[:160]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--log", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--failed", default="")
    parser.add_argument("--unfinished", default="", help="checks that were cut short, or not begun")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("elements", type=int, nargs="*")
    options = parser.parse_args()
    card = command("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem",
                   "--format=csv,noheader", "-i", "0")
    nvcc = re.search(r"release ([\d.]+)", command(options.nvcc, "--version") or "")
    commit = command("git", "rev-parse", "--short=12", "HEAD")
    lines = [f"# {card.split(',')[0]}", "",
             f"{'Commit ' + commit + '; ' if commit else ''}{card}; CUDA {nvcc.group(1) if nvcc else '?'}. "
             f"Command: `scripts/gpu-check.sh{' --quick' if options.quick else ''}`, {options.seconds} s.", "",
             f"**Failed: {options.failed}**" if options.failed else "No check failed.", "", "## Checks", ""]
    unfinished = options.unfinished.split()
    for name in CHECKS:
        log = options.log / f"{name}.log"
        said = tests_of(log) if log.exists() else "not run"
        lines.append(f"* {name}: {'cut short for lack of time; ' if name in unfinished else ''}{said}")
    lines += ["", "## Speed", "",
              "CUDA events, two inputs in turn (before a step of one rank the L2 cache is overwritten), mean of a run of Google Benchmark. GB/s are of raw float32 gradient. Of copy: the "
              "codec's minimum traffic (encode: gradient, payload, and what it remembers, read and written; decode_add: payload, "
              "output read and written, nothing for sparse codecs) at the rate of the copy, over the time it took.", ""]
    for elements in options.elements:
        path = options.out / f"microbench-{elements}.json"
        lines += table(path, elements) if path.exists() else [f"### {4 * elements / 1e6:.0f} MB: not measured", ""]
    lines += tensors(options.out / "microbench-resnet50.json")
    lines += ["## Not measured", ""] + [f"* {what}" for what in NOT_MEASURED]
    (options.out / "README.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
