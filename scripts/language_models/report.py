#!/usr/bin/env python3
"""Replays captures of several models through the codecs that matter, and writes which codec survives which model.

    report.py --gradtool build/release/bin/gradtool --out reports/models gpt=build/gpt.h5 llama=build/llama.h5 ...

Writes errors.csv (a row for each capture and codec) and tensors.csv (a row for each matrix), and the tables between the marks
of README.md there. What `gradtool bench` and `analyze` wrote is kept in --work, and is not measured again while it is newer
than its capture. Needs numpy and h5py.
"""
import argparse
import csv
import os
import pathlib
import subprocess

import h5py
import numpy as np

CODECS = ["bf16", "fp8", "mx", "int8", "qsgd:bits=4", "signsgd", "efsignsgd", "topk:ratio=0.01", "dgc:ratio=0.01", "oktopk",
          "sketch", "powersgd:rank=4", "fft", "gradiveq:lt=4"]
PER_TENSOR = ["fp8", "int8", "topk:ratio=0.01", "powersgd:rank=4"]
LIMIT = 0.1  # of the error, as gradtool bench --advise has it
UNSURE = 0.2  # how far off a break-even may be before it is marked, as in bench's table


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def number(text):
    return float(text) if text else None


def measured(options, name, capture):
    """Runs bench and analyze on a capture unless that was done already; returns the files that they wrote."""
    bench, steps, analysis = options.work / f"{name}.csv", options.work / f"{name}-steps.csv", options.work / name
    for done, command in [(bench, ["bench", capture, "--timing", "isolated", "--per-tensor", "--timeout", options.timeout,
                                   "--csv", bench, "--steps-csv", steps,
                                   *(part for codec in CODECS for part in ("--codec", codec))]),
                          (analysis / "variance.csv", ["analyze", capture, "--only", "variance,noise", "-o", analysis])]:
        if not done.exists() or done.stat().st_mtime < capture.stat().st_mtime:
            subprocess.run([options.gradtool, *map(str, command)], check=True, stdout=subprocess.DEVNULL)
    return rows_of(bench), rows_of(steps), analysis


def is_codec(row, codec):
    name, _, parameters = codec.partition(":")
    return row["codec"] == name and set(filter(None, parameters.split(","))) <= set(row["params"].split(","))


def first_and_last_phase(steps, codec):
    """Mean nmse of the first run of consecutive iterations and of the last; None where all are consecutive."""
    rows = [(int(row["iteration"]), float(row["nmse"])) for row in steps if is_codec(row, codec) and row.get("tensor", "all") == "all"]
    starts = [i for i in range(1, len(rows)) if rows[i][0] != rows[i - 1][0] + 1]
    if not starts:
        return None, None
    return tuple(float(np.mean([nmse for _, nmse in part])) for part in (rows[:starts[0]], rows[starts[-1]:]))


def errors_of(name, bench, steps):
    for codec in CODECS:
        row = next((r for r in bench if r["tensor"] == "all" and is_codec(r, codec)), None)
        if row is None or row["status"] != "ok":
            yield {"capture": name, "codec": codec, "status": row["message"] if row else "not measured"}
            continue
        nmse, total = number(row["nmse"]), number(row["cumulative_nmse"])
        # Values that are held back come later: codecs with a memory are judged by the sum over steps, as bench does.
        judged = total if row["residual_ratio"] else nmse
        pays, low, high = (number(row[f"breakeven_{part}gbit_s"]) for part in ("", "low_", "high_"))
        unsure = bool(pays) and (low is None or high is None or max(pays - low, high - pays) > UNSURE * pays)
        at_work, (first, last) = row["reached"] == "true", first_and_last_phase(steps, codec)
        yield {"capture": name, "codec": codec, "status": "ok" if at_work else "not at work", "model": row["model"],
               "elements": row["elements"], "ranks": row["ranks"], "nmse": nmse, "cumulative_nmse": total, "judged_nmse": judged,
               "nmse_first_phase": first, "nmse_last_phase": last,
               "survives": int(at_work and judged <= LIMIT), "payload_ratio": number(row["payload_ratio"]),
               "breakeven_gbit_s": pays, "breakeven_low_gbit_s": low, "breakeven_high_gbit_s": high, "unsure": int(unsure)}


def energy_of_rank_4(values, shape):
    """Share of the energy of the mean gradient that its four largest singular values hold, as a mean over steps."""
    shares = []
    for step in values.mean(1):
        squares = np.linalg.svd(step.reshape(shape[0], -1), compute_uv=False) ** 2
        shares.append(squares[:4].sum() / squares.sum() if squares.sum() else 1.0)
    return float(np.mean(shares))


def tensors_of(name, capture, bench, analysis):
    tables = {table: {row["tensor"]: row for row in rows_of(analysis / f"{table}.csv")} for table in ("variance", "noise")}
    with h5py.File(capture) as file:
        for key in sorted(file["tensors"], key=int):
            group = file["tensors"][key]
            shape, tensor, data = tuple(group.attrs["shape"]), group.attrs["name"], group["gradient"]
            if len(shape) < 2:
                continue
            values = data[:]
            if data.attrs.get("dtype") == "bfloat16":
                values = (values.astype(np.uint32) << 16).view(np.float32)
            whole = values.reshape(*values.shape[:2], shape[0], -1)
            norm = [float(tables["variance"][of]["l2_norm_rms"]) for of in (tensor, "all")]
            row = {"capture": name, "tensor": tensor, "kind": group.attrs["kind"], "shape": "x".join(map(str, shape)),
                   "energy": (norm[0] / norm[1]) ** 2, "zero_rows": float((~whole.any(-1)).mean()),
                   "zero_rows_of_mean": float((~whole.any((1, 3))).mean()),
                   "excess_kurtosis": number(tables["variance"][tensor]["excess_kurtosis"]),
                   "noise_scale": number(tables["noise"][tensor]["noise_scale"]),
                   "rank_4_energy": energy_of_rank_4(values.astype(np.float64), shape)}
            for codec in PER_TENSOR:
                found = next((r for r in bench if r["tensor"] == tensor and is_codec(r, codec)), {"nmse": ""})
                row["nmse " + codec] = number(found["nmse"])
            yield row


def write(path, rows):
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: f"{cell:.4g}" if isinstance(cell, float) else cell for key, cell in row.items()})


def table(captures, rows, cell):
    lines = ["| codec | " + " | ".join(captures) + " |", "|" + " --- |" * (len(captures) + 1)]
    for codec in CODECS:
        of = {row["capture"]: row for row in rows if row["codec"] == codec}
        lines.append(f"| `{codec}` | " + " | ".join(cell(of[name]) for name in captures) + " |")
    return "\n".join(lines)


def error_cell(row):
    if row["status"] != "ok":
        return row["status"]
    text = f"{row['nmse']:.2g}"
    if row["judged_nmse"] != row["nmse"]:
        text += f" ({row['cumulative_nmse']:.2g})"
    return f"**{text}**" if row["survives"] else text


def late_cell(row):
    late = row.get("nmse_last_phase")
    return f"{row['nmse'] if late is None else late:.2g}" if row["status"] == "ok" else row["status"]


def pays_cell(row):
    if row["status"] != "ok" or row["breakeven_gbit_s"] is None:
        return row["status"] if row["status"] != "ok" else "never"
    pays = row["breakeven_gbit_s"]
    return f"{row['payload_ratio']:.3g}, {'!' if row['unsure'] else ''}{pays:.{1 if pays < 10 else 0}f}"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("captures", nargs="+", metavar="NAME=FILE", help="gradient files, and what to call them")
    parser.add_argument("--gradtool", default="build/release/bin/gradtool", help="program to drive")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("reports/models"), help="folder of the report")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/models"), help="folder for what is kept between runs")
    parser.add_argument("--timeout", type=float, default=1.0, help="seconds of sampling for a codec at most")
    options = parser.parse_args(arguments)
    captures = {}
    for text in options.captures:
        name, _, path = text.partition("=")
        if not name or not os.path.isfile(path):
            parser.error(f"'{text}' is no capture; valid is NAME=FILE with a file that is there")
        captures[name] = pathlib.Path(path)
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    errors, tensors = [], []
    for name, capture in captures.items():
        bench, steps, analysis = measured(options, name, capture)
        errors += errors_of(name, bench, steps)
        tensors += tensors_of(name, capture, bench, analysis)
        print(f"{name}: {sum(row.get('survives', 0) for row in errors if row['capture'] == name)} codecs survive", flush=True)
    write(options.out / "errors.csv", errors)
    write(options.out / "tensors.csv", tensors)
    page = options.out / "README.md"
    if page.exists():
        text = page.read_text(encoding="utf-8")
        for mark, cell in (("errors", error_cell), ("late", late_cell), ("pays", pays_cell)):
            before, begin, rest = text.partition(f"<!-- {mark} -->\n")
            after = rest.partition("<!-- end -->")
            if begin and after[1]:
                text = before + begin + table(captures, errors, cell) + "\n" + after[1] + after[2]
        page.write_text(text, encoding="utf-8")
    print(f"wrote errors.csv, tensors.csv and the tables of README.md in {options.out}")


if __name__ == "__main__":
    main()
