#!/usr/bin/env python3
"""Writes README.md of a GPU report from what gpu-check.sh left: a short table of the micro-benchmarks, what the tests and
sanitizers said, what Nsight Compute counted, the card's clocks, and what was not measured. Standard library only.

Usage: gpu_report.py --out DIR --log DIR --card NAME --seconds N --failed "NAMES" --unfinished "NAMES" [--command TEXT] -- ELEMENTS...
"""
import argparse
import csv
import json
import pathlib
import re
import subprocess

# Share of the copy rate to reach, encode and decode; the rest has no promise on a GPU yet.
TARGETS = {"fp16": 0.8, "bf16": 0.8, "int8": 0.8, "fp8": 0.8, "mx": 0.8, "natural": 0.8, "qsgd": 0.8, "signsgd": 0.8, "terngrad": 0.8,
           "efsignsgd": 0.6, "onebit": 0.6, "vgc": 0.5, "dgc": 0.5, "iwp": 0.5, "topk": 0.3}
# A check's logs are NAME.log and those of its shards, NAME.0.log and so on.
CHECKS = ("gpu_codecs-edges", "gpu_codecs", "gpu_methods-edges", "gpu_methods", "gpu_reducers-edges", "gpu_reducers", "comm_gpu", "comm_cuda_runtime",
          "analyze", "bench-resnet50", "bench-gpt2", "memcheck", "memcheck-reducers", "racecheck", "racecheck-reducers", "initcheck", "initcheck-reducers")
# Names of features that no run of this script measures.
NOT_MEASURED = ("NCCL between cards, and anything else with more than one", "`gradtool capture --device cuda` (needs a LibTorch for CUDA)",
                "speed of `gradtool analyze --device cuda` (its tables are checked)",
                "gradiveq's sampling steps and fits", "methods between ranks on more than one card")


def command(*words):
    try:
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
    except OSError:
        return ""


def record_of(path):
    """Reads a record of Google Benchmark as far as it came: the file is closed when all have run. Throws ValueError where not even the context is whole."""
    text = path.read_text()
    try:
        return json.loads(text)
    except ValueError:
        runs = text.index("[", text.index('"benchmarks"')) + 1
        whole = text.rfind("\n    }", runs)  # the end of a run, as it is indented
        return json.loads(text[:runs if whole < 0 else whole + len("\n    }")] + "]}")


def parts_of(run):
    """"cuda/topk:ratio=0.01/encode/iterations:1/manual_time" as (cuda, topk:ratio=0.01, encode)."""
    return re.match(r"([^/]+)/(.*?)/((?:[^/]+/)?[^/]+)$", re.sub(r"(/iterations:\d+)?(/manual_time)?$", "", run["name"])).groups()


def shortened(names):
    """"codec:key=value,..." -> as little of it as tells it from the others: the codec, or its first parameter too. The JSON has them whole."""
    codecs = [name.split(":")[0] for name in names]
    return {name: codec if codecs.count(codec) == 1 else name.split(",")[0] for codec, name in zip(codecs, names)}


def rows_of(path):
    """Context, and shortened name of a codec -> its benchmarks: encode and decode, or step and what its library takes alone; of a model's tensors
    one_by_one/encode and so on."""
    record = record_of(path)
    rows = {}
    for run in record["benchmarks"]:
        if run.get("run_type", "iteration") != "iteration" or run.get("error_occurred"):
            continue
        _, name, form = parts_of(run)
        rows.setdefault(name, {})[form] = run
    short = shortened(list(rows))
    return record["context"], {short[name]: both for name, both in rows.items()}


def errors_of(path):
    """Benchmarks that ended with an error, and its words."""
    failed = [run for run in record_of(path)["benchmarks"] if run.get("error_occurred")]
    return [f"* not timed: {'/'.join(parts_of(run)[1:])}: {run.get('error_message', '?')}" for run in failed] + ([""] if failed else [])


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


def beside_torch(folder, elements, rows):
    """PyTorch's own operations on as many values, and topk's encode over its topk."""
    try:
        record = json.loads((folder / "torch.json").read_text())
        anchors = next(row for row in record["microseconds"] if row["elements"] == elements)
    except (OSError, ValueError, StopIteration):
        return ["PyTorch beside it: not measured.", ""]
    us = {name: f"{value:.1f}" for name, value in anchors.items() if isinstance(value, float)}
    cold = f"; on a cold card {us['cold_copy']}" if "cold_copy" in us else ""
    lines = [f"PyTorch {record['torch']} on as many values, us: copy {us['copy']} ({8 * elements / anchors['copy'] / 1e6:.2f} TB/s read and written{cold}), "
             f"fill {us['fill']}, one read (sum) {us['read']}, to binary16 {us['half']}, topk of magnitudes, k = "
             f"{anchors['k']}: {us['topk']}, their whole sort {us['sort']}."]
    own = [both["encode"]["real_time"] for name, both in rows.items() if name.split(":")[0] == "topk" and "encode" in both]
    if own:
        lines[0] += f" torch.topk takes {anchors['topk'] / own[0]:.1f} times topk's encode (to reach: 4), which takes {own[0] / anchors['read']:.1f} times one read."
    return lines + [""]


def table(path, elements):
    try:
        context, rows = rows_of(path)
    except (ValueError, KeyError):  # cut short before the first row
        return [f"### {4 * elements / 1e6:.0f} MB: cut short", ""]
    again = rows.pop("copy", {}).get("again")
    spread = max((run.get("spread", 0.0), f"{name}/{form}") for name, both in rows.items() for form, run in both.items()) if rows else (0.0, "")
    lines = [f"### {4 * elements / 1e6:.0f} MB", "",
             f"Device-to-device copy in the same run: {context['copy_gbps']} GB/s before, {'%.1f GB/s after' % (again['raw'] / 1e9) if again else 'cut short: not measured after'} "
             f"(each byte read and written). Largest spread of five batches: {100 * spread[0]:.0f} % ({spread[1]}).", "",
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
    return lines + ["", *errors_of(path)] + beside_libraries(rows) + steps(rows) + beside_torch(path.parent, elements, rows)


def beside_libraries(rows):
    """Methods that are little but a library's work, and that work alone in the same run."""
    pairs = [(f"{name}, a {'compressed ' if name.startswith('gradiveq') else ''}step", both["step"]["real_time"], both["cublas"]["real_time"], 1.3)
             for name, both in rows.items() if {"step", "cublas"} <= both.keys()]
    selection = rows.get("cub", {}).get("topk")
    pairs += [(f"{name}, encode", both["encode"]["real_time"], selection["real_time"], 1)
              for name, both in rows.items() if selection and name.split(":")[0] == "topk" and "encode" in both]
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
        rows = rows_of(path)[1]
    except (OSError, ValueError):
        return ["### A ResNet-50's tensors: not measured", ""]
    forms = list(dict.fromkeys(form for row in rows.values() for form in row))
    lines = ["### A ResNet-50's tensors", "", "All of them, us, and times the fused time; to reach: 1.5.", "",
             "| codec | " + " | ".join(forms) + " |", "| --- |" + " ---: |" * len(forms)]
    for name, row in rows.items():
        cells = [f"{row[f]['real_time']:.1f}" + (f" ({row[f]['times_fused']:.2f})" if "times_fused" in row[f] else "") if f in row else ""
                 for f in forms]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines + [""]


def tests_of(logs):
    """Sums up the shards of a check: counts of GoogleTest and of a sanitizer, else the last line."""
    texts = [log.read_text(errors="replace") for log in logs]
    counts = {}
    for text in texts:
        for what in ("PASSED", "SKIPPED", "FAILED"):
            for n in re.findall(rf"\[  {what} +\] (\d+) test", text):
                counts[what.lower()] = counts.get(what.lower(), 0) + int(n)
        for n in re.findall(r"(?:ERROR SUMMARY: |RACECHECK SUMMARY: )(\d+)", text):
            counts["errors"] = counts.get("errors", 0) + int(n)
    said = ", ".join(f"{n} {what}" for what, n in counts.items())
    return said or next((line for text in texts for line in reversed(text.splitlines()) if line.strip()), "no summary")[:160]


def launches_of(path):
    """Yields codec, name and metrics of each launch that Nsight Compute counted. The file has a line "# CODEC" before the rows of each."""
    codec, header, launch, number = "", None, {}, None
    for line in [*path.read_text(errors="replace").splitlines(), "# end"]:
        cells = next(csv.reader([line])) if line.startswith('"') else None
        row = dict(zip(header, cells)) if cells and header and cells[0] != "ID" else None
        if launch and (row is None or row["ID"] != number):
            yield codec, launch.pop("name"), launch
            launch = {}
        if line.startswith("# "):
            codec = line[2:]
        elif cells and cells[0] == "ID":
            header = cells
        elif row:
            number = row["ID"]
            launch["name"] = re.sub(r"\(.*|^void ", "", re.sub(r"gradtool::|cuda::|format::|\(anonymous namespace\)::|<unnamed>::", "", row["Kernel Name"]))
            try:
                launch[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
            except ValueError:
                pass


def kernels(path):
    """Nsight Compute's rows: of each codec's kernels the longest launch."""
    time = "gpu__time_duration.sum"
    longest = {}
    try:
        for codec, name, launch in launches_of(path):
            if name != "read_kernel" and launch.get(time, 0.0) > longest.get((codec, name), {}).get(time, 0.0):
                longest[codec, name] = launch
    except OSError:
        pass
    if not longest:
        return ["Not measured.", ""]
    columns = ((time, 1e-3), ("dram__bytes_read.sum", 1e-6), ("dram__bytes_write.sum", 1e-6), ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1.0),
               ("sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active", 1.0), ("smsp__issue_active.avg.pct_of_peak_sustained_active", 1.0),
               ("sm__warps_active.avg.pct_of_peak_sustained_active", 1.0))
    lines = ["| codec | kernel, its longest launch | us | read, MB | written, MB | memory, % of peak | ALU pipe, % | issue, % | warps, % |",
             "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for (codec, name), launch in longest.items():
        lines.append(f"| {codec} | `{name[:60]}` | " + " | ".join(f"{launch.get(metric, float('nan')) * scale:.1f}" for metric, scale in columns) + " |")
    return lines + [""]


def clocks(path):
    """The card's clock while it worked, as nvidia-smi gave it once a second."""
    rows = []
    try:
        for line in path.read_text().splitlines():
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) == 7 and cells[6].isdigit() and int(cells[6]) > 0:
                rows.append((float(cells[1]), float(cells[3]), float(cells[4]), int(cells[5], 16)))
    except (OSError, ValueError):
        pass
    if not rows:
        return "Clocks were not watched."
    speeds = sorted(row[0] for row in rows)
    slowed = sum(1 for row in rows if row[3] & ~0x1 & ~0x4)  # neither idle nor the power cap, which every loaded card meets
    return (f"While it worked ({len(rows)} samples, once a second) its SM clock was {speeds[0]:.0f} to {speeds[-1]:.0f} MHz (median {speeds[len(speeds) // 2]:.0f}), "
            f"up to {max(row[1] for row in rows):.0f} C and {max(row[2] for row in rows):.0f} W; {slowed} samples name a reason to run slower.")


def bench(path):
    """Phases of each codec in `gradtool bench`, of one rank of two on the card."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return [f"### {path.stem}: not measured", ""]
    rows = [row for row in record["rows"] if row["time_source"] == "measured" and row["tensor"] == "all" and row["status"] == "ok"]
    lines = [f"### {path.stem}: {rows[0]['model'] if rows else 'no rows'}", "",
             "| codec | ratio | nmse | encode, us | all-reduce, us | decode, us | noise of encode, % |", "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    names = [row["codec"] if row["params"] in ("", "default") else f"{row['codec']}:{row['params']}" for row in rows]
    short = shortened(list(dict.fromkeys(names)))
    for name, row in zip(names, rows):
        name = short[name] + (f" by {row['aggregation']}" if names.count(name) > 1 else "")
        numbers = (row["payload_ratio"], row["nmse"], *(row[f"{phase}_us_median"] for phase in ("encode", "comm", "decode")), 100 * (row["encode_noise"] or 0.0))
        lines.append(f"| {name} | " + " | ".join("" if n is None else f"{n:.4g}" if i < 2 else f"{n:.1f}" for i, n in enumerate(numbers)) + " |")
    return lines + [""]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--log", type=pathlib.Path, required=True)
    parser.add_argument("--card", required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--command", default="gpu-check.sh")
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--failed", default="")
    parser.add_argument("--unfinished", default="", help="checks that were cut short, or not begun")
    parser.add_argument("elements", type=int, nargs="*")
    options = parser.parse_args()
    card = command("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem",
                   "--format=csv,noheader", "-i", "0") or options.card
    nvcc = re.search(r"release ([\d.]+)", command(options.nvcc, "--version") or "")
    lines = [f"# {options.card}", "",
             f"{'Commit ' + options.commit + '; ' if options.commit else ''}{card}; CUDA {nvcc.group(1) if nvcc else '?'}. "
             f"Command: `scripts/{options.command}`, {options.seconds} s. {clocks(options.log / 'clocks.csv')}", "",
             f"**Failed: {options.failed}**" if options.failed else "No check failed.", "",
             *([f"Cut short or not begun for lack of time: {options.unfinished}.", ""] if options.unfinished else []), "## Checks", ""]
    unfinished = {name.split(".")[0] for name in options.unfinished.split()}
    for name in CHECKS:
        logs = [log for log in (options.log / f"{name}.log", *sorted(options.log.glob(f"{name}.[0-9]*.log"))) if log.exists()]
        lines.append(f"* {name}: {'cut short for lack of time; ' if name in unfinished else ''}{tests_of(logs) if logs else 'not run'}")
    lines += ["", "## Speed", "",
              "CUDA events, the L2 cache flushed before each execution, launches hidden behind the flush, median of five batches; codecs, whole steps and "
              "libraries alike (apps/microbench/device_timer.hpp). GB/s are of raw float32 gradient. Of copy: the "
              "codec's minimum traffic (encode: gradient, payload, and what it remembers, read and written; decode_add: payload, "
              "output read and written, nothing for sparse codecs) at the rate of the copy, over the time it took.", ""]
    for elements in options.elements:
        path = options.out / f"microbench-{elements}.json"
        lines += table(path, elements) if path.exists() else [f"### {4 * elements / 1e6:.0f} MB: not measured", ""]
    lines += tensors(options.out / "microbench-resnet50.json")
    lines += ["## gradtool bench, buckets of 25 MB, two ranks on the card", "", *bench(options.out / "bench-resnet50.json"), *bench(options.out / "bench-gpt2.json")]
    lines += ["## Kernels, counted by Nsight Compute (100 MB)", "", *kernels(options.log / "ncu.csv")]
    lines += ["## Not measured", ""] + [f"* {what}" for what in NOT_MEASURED]
    (options.out / "README.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
