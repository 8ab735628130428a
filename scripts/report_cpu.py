#!/usr/bin/env python3
"""Times every codec's encode and decode on captured gradients and writes reports/cpu/codecs.md and microbench.json: shares of
its floor, the bytes that it must move at the rate of a copy in the same run, beside the share that the codec is meant to reach.

Usage: scripts/report_cpu.py CAPTURE [--build build/release] [--elements 10485760] [--threads 2] [--out reports/cpu]
"""
import argparse
import json
import os
import platform
import subprocess
import sys

# Share of the floor to reach, of encode and decode; None: nothing was promised; or a library, beside which the codec is timed.
TARGETS = {
    "none": None, "fp16": 0.8, "bf16": 0.8, "int8": 0.8, "fp8": 0.8, "fp8:scale=row": None,
    "mx": 0.8, "mx:format=e2m1": 0.8, "mx:format=e3m0": 0.8, "mx:format=e2m1,scale=unit": 0.8, "signsgd": 0.8, "efsignsgd": 0.8,
    "onebit": 0.5, "qsgd:bits=4,bucket=512": 0.5, "terngrad": 0.5, "natural": 0.5, "topk:ratio=0.01": 0.4,
    "dgc:ratio=0.001": 0.4, "dgc:ratio=0.01": 0.4, "strom": 0.4, "vgc": 0.4, "vgc:tau=0.01": None, "randomk:ratio=0.01": 0.4,
    "sidco": 0.4, "dct": None, "adacomp": None, "thc": None, "fft": "fftw", "powersgd:rank=4": "blas",
    "gradiveq:lambda=0,lt=64": "blas", "iwp": None, "oktopk": None, "sketch": None, "lhc": None, "qgz": None, "sdp4bit": None, "atomo": None,
    "dlcp": None, "optireduce": None, "uint8": 0.5, "nvfp4": 0.5, "nvfp4:hadamard=on,rounding=stochastic": None, "exponent": None,
    "sparseloco": 0.4, "demo": "cosine", "dynamiq": None, "dion": None, "dion2": None, "arctopk": None, "zstd": None, "zfp": None,
}
DRAWS = "Half of encoding draws random numbers, ten rounds of Philox for four of them."
CASTS = ("Bound by the instructions that a number takes (mx: a scale for each 32, signs: a sum in float64 beside the bits), and the more so where registers "
         "have 256 bits.")
# Printed for those that miss it.
REASONS = {
    **dict.fromkeys(("qsgd:bits=4,bucket=512", "natural", "terngrad"), DRAWS),
    **dict.fromkeys(("fp16", "bf16", "int8", "fp8", "mx", "mx:format=e2m1", "mx:format=e3m0", "mx:format=e2m1,scale=unit", "signsgd", "efsignsgd"), CASTS),
    "vgc": "The exponent that words refer to is known only after all of a tensor was tested, so r and v are read and written twice.",
    "dgc:ratio=0.01": "The chosen are looked up again, and at 1 % nearly every second cache line holds one. At the paper's 0.1 % it is reached.",
    "topk:ratio=0.01": "The floor is one read; numbers are read twice, to count and to gather those that reach a bound.",
    "onebit": "Sums of two kinds for each column are kept in float64; means=tensor is faster.",
    "uint8": "Each number is added to one of 256 sums by its code, which vectors cannot do.",
    "randomk:ratio=0.01": "The floor is that of the 1 % of the numbers that are drawn; each of them brings a cache line.",
    "sidco": "Sums for the fit of a distribution come first, and a pass for those that exceed its threshold after them.",
    "sparseloco": "Two passes of a chunk find its largest numbers, and one puts what is left into the residual.",
    "nvfp4": "Two levels of scales are found before the codes.",
}


def reason_of(spec):
    return REASONS.get(spec, "not looked into")


def processor():
    """The name of the processor, and the vector instructions that the codecs choose between."""
    name, flags = platform.machine(), []
    with open("/proc/cpuinfo") as info:
        for line in info:
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() == "flags":
                flags = value.split()
    vectors = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else ""
    return name + (f" with {vectors}" if vectors else "")


def powersgd_products(capture, elements, rank, repeats=7):
    """Seconds of the three products M Q, M^T P and P Q^T over the capture's matrices, by NumPy's BLAS."""
    import statistics
    import time

    import h5py
    import numpy as np
    matrices, have, rng = [], 0, np.random.default_rng(1)
    with h5py.File(capture) as file:
        tensors = [file["tensors"][name] for name in sorted(file["tensors"])]
        sizes = [tensor["gradient"].shape[2] for tensor in tensors]
        turn = 0
        while have + min(sizes) <= elements and turn < 10000 * len(tensors):
            tensor = tensors[turn % len(tensors)]
            turn += 1
            if have + tensor["gradient"].shape[2] > elements:
                break
            have += tensor["gradient"].shape[2]
            shape = tuple(tensor.attrs["shape"])
            if len(shape) > 1:
                m = tensor["gradient"][0, 0].reshape(shape[0], -1)
                matrices.append((m, rng.standard_normal((m.shape[1], rank)).astype("f4")))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for m, q in matrices:
            p = m @ q
            back = m.T @ p
            p @ back.T
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("capture")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--elements", type=int, default=10485760)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", default="reports/cpu")
    options = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(options.threads))
    command = [os.path.join(options.build, "bin/gradtool_microbench"), f"--file={options.capture}", f"--elements={options.elements}",
               f"--threads={options.threads}", "--settle=64", *(f"--codec={spec}" for spec in TARGETS), "--benchmark_min_time=0.4",
               "--benchmark_format=json"]
    record = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    by_name = {b["name"]: b for b in record["benchmarks"]}
    names = list(by_name)

    def find(prefix, phase):
        rows = [n for n in names if f"/{phase}" in n and (n.split("/")[0] == prefix or n.split("/")[0].startswith(prefix + ":"))]
        return by_name[rows[0]] if rows else None

    fftw = {n.split("/")[1]: b["real_time"] for n, b in by_name.items() if n.startswith("fftw/")}
    blas = sum(b["real_time"] for n, b in by_name.items() if n.startswith("gradiveq_products_by_blas"))
    powersgd = powersgd_products(options.capture, options.elements, 4) * 1e3
    lines, short = [], []
    position = {}  # codecs with several specifications come in the order they were asked for
    for spec, target in TARGETS.items():
        codec = spec.split(":")[0]
        rows = {phase: [by_name[n] for n in names if n.split("/")[0].split(":")[0] == codec and f"/{phase}" in n]
                for phase in ("encode", "decode")}
        at = position.setdefault(codec, 0)
        position[codec] += 1
        if len(rows["encode"]) <= at:
            lines.append(f"| {spec} | | | | | | | not in this build |")
            continue
        encode, decode = rows["encode"][at], rows["decode"][at]
        verdict = ""
        if isinstance(target, float):
            # A floor of no bytes has no share: decoding of what sends little is free.
            missed = [phase for phase, b in (("encode", encode), ("decode", decode)) if 0 < b.get("of_floor", 0) < target]
            verdict = f"{target} of the floor: " + ("reached" if not missed else "missed by " + " and ".join(missed))
        elif target == "fftw" and fftw:
            alone = fftw["forward+inverse"]
            ratios = [b["real_time"] / alone for b in (encode, decode)]
            verdict = f"{ratios[0]:.2f} and {ratios[1]:.2f} x FFTW's forward + inverse ({alone:.1f} ms); 1.5 promised{': missed' if max(ratios) > 1.5 else ''}"
        elif target == "cosine" and fftw:
            alone = [fftw["cosine_forward"], fftw["cosine_inverse"]]
            ratios = [b["real_time"] / a for b, a in zip((encode, decode), alone)]
            verdict = (f"{ratios[0]:.2f} and {ratios[1]:.2f} x FFTW's cosine transforms of 64 x 64 there and back ({alone[0]:.1f} and {alone[1]:.1f} ms); "
                       f"1.5 promised" + ("" if max(ratios) <= 1.5 else ": missed"))
        elif target == "blas":
            alone = powersgd if codec == "powersgd" else blas
            ratio = (encode["real_time"] + decode["real_time"]) / alone if alone > 0.01 else 0.0
            verdict = (f"{ratio:.2f} x its BLAS products alone ({alone:.1f} ms); 1.4 promised{': missed' if ratio > 1.4 else ''}" if ratio else
                       "not measured: no tensor of this capture is compressed, or this build has no BLAS")
        if "missed" in verdict:
            short.append(spec)
        shares = [f"{b[of]:.2f}" if 0 < b.get(of, 0) < 1000 else "" for of in ("of_floor", "of_memcpy") for b in (encode, decode)]
        lines.append(f"| {spec} | {encode['real_time']:.2f} | {decode['real_time']:.2f} | {' | '.join(shares)} | {verdict} |")
    context = record["context"]
    version = subprocess.run([os.path.join(options.build, "bin/gradtool"), "--version"], check=True, stdout=subprocess.PIPE,
                             text=True).stdout.strip()
    cpu = processor()
    os.makedirs(options.out, exist_ok=True)
    for key in ("host_name", "executable"):
        context.pop(key, None)
    context["gradients"] = os.path.basename(options.capture)
    with open(os.path.join(options.out, "microbench.json"), "w") as file:
        json.dump(record, file, indent=1)
    print(f"""# Every codec's encode and decode on the CPU

{version}; {cpu}, {os.cpu_count()} processors, {options.threads} threads. Captured gradients, {options.elements} elements
({options.elements * 4 / 1e6:.0f} MB); memcpy of the same size in the same run: {context['memcpy_gbps']} GB/s. Full record: `microbench.json`.

```sh
scripts/report_cpu.py CAPTURE --elements {options.elements} --threads {options.threads}
```

The floor of encode and decode is the bytes that they must read and write, whatever the implementation (`gradtool list NAME`), at the
rate of memcpy; the share of memcpy is raw bytes a second over its bytes a second. Shares carry between machines of one instruction set, times do not.
Methods between ranks are timed on one rank, which neither votes nor merges.

| codec | encode ms | decode ms | encode of floor | decode of floor | encode of memcpy | decode of memcpy | to reach |
| --- | --- | --- | --- | --- | --- | --- | --- |
""" + "\n".join(lines) + "".join(["\n\nShort of what was promised:\n"] if short else []) +
          "".join(f"\n- {', '.join(f'`{spec}`' for spec in short if reason_of(spec) == reason)}: {reason}"
                  for reason in dict.fromkeys(map(reason_of, short))), file=open(os.path.join(options.out, "codecs.md"), "w"))
    print(f"wrote {options.out}/codecs.md and microbench.json; short of what was promised: {', '.join(short) or 'none'}", file=sys.stderr)


if __name__ == "__main__":
    main()
