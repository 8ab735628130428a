#!/usr/bin/env python3
"""Times gradtool's CPU codecs against the same methods written in PyTorch operations, the way the field's libraries do
it, on the same captured gradients: encode, decode, and the error of both.

Usage: scripts/compare_with_pytorch.py CAPTURE [--build build/release] [--elements 10485760] [--threads 2] [--csv FILE]
Needs PyTorch (Debian: python3-torch), numpy, h5py. Times are medians in milliseconds, from one run.
"""
import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time

try:
    import h5py
    import numpy as np
    import torch
except ImportError as missing:
    print(f"compare_with_pytorch.py: {missing}; it needs PyTorch, numpy and h5py", file=sys.stderr)
    sys.exit(77)


def gradients(path, elements):
    """Gradients of a capture one behind the other until there are enough, as gradtool_microbench reads them."""
    parts, have = [], 0
    with h5py.File(path) as file:
        tensors = [file["tensors"][name]["gradient"] for name in sorted(file["tensors"])]
        steps, workers = tensors[0].shape[:2]
        turn = 0
        while have < elements:
            for tensor in tensors:
                parts.append(tensor[turn // workers % steps, turn % workers].astype("f4"))
                have += parts[-1].size
            turn += 1
    return torch.from_numpy(np.concatenate(parts)[:elements].copy())


# Each method: encode(x) -> what would be sent; decode(sent, n) -> n values.
def topk(ratio):
    def encode(x):
        _, where = torch.topk(x.abs(), max(1, round(ratio * x.numel())), sorted=False)
        return x[where], where

    def decode(sent, n):
        return torch.zeros(n).scatter_(0, sent[1], sent[0])
    return encode, decode


def randomk(ratio):
    def encode(x):
        where = torch.randperm(x.numel())[:max(1, round(ratio * x.numel()))]
        return x[where], where
    return encode, topk(ratio)[1]


def qsgd(bits, bucket):
    levels = 2 ** (bits - 1) - 1

    def encode(x):
        rows = torch.nn.functional.pad(x, (0, -x.numel() % bucket)).view(-1, bucket)
        norm = rows.abs().amax(dim=1, keepdim=True)
        level = rows.abs() / norm * levels
        low = level.floor()
        low += torch.rand_like(low) < level - low
        return (low * rows.sign()).to(torch.int8), norm

    def decode(sent, n):
        return (sent[0].float() * (sent[1] / levels)).view(-1)[:n]
    return encode, decode


def terngrad():
    def encode(x):
        limit = 2.5 * x.std()
        clipped = x.clamp(-limit, limit)
        scale = clipped.abs().max()
        kept = torch.rand_like(x) * scale < clipped.abs()
        return (clipped.sign() * kept).to(torch.int8), scale
    return encode, lambda sent, n: sent[0].float() * sent[1]


def natural():
    def encode(x):
        mantissa, exponent = torch.frexp(x)
        up = torch.rand_like(x) < 2 * mantissa.abs() - 1
        code = (exponent + up).clamp(-63, 63).to(torch.int8)
        return torch.where(x == 0, torch.full_like(code, -64), code), x < 0

    def decode(sent, n):
        value = torch.ldexp(torch.full((n,), 0.5), sent[0].int())
        value[sent[0] == -64] = 0
        return torch.where(sent[1], -value, value)
    return encode, decode


def signsgd():
    return lambda x: (x >= 0).to(torch.uint8), lambda sent, n: sent.float() * 2 - 1


def efsignsgd():
    return (lambda x: ((x >= 0).to(torch.uint8), x.abs().mean()),
            lambda sent, n: (sent[0].float() * 2 - 1) * sent[1])


def onebit():
    def encode(x):
        negative = x < 0
        return negative.to(torch.uint8), x[~negative].mean(), x[negative].mean()

    def decode(sent, n):
        flags = sent[0].float()
        return flags * sent[2] + (1 - flags) * sent[1]
    return encode, decode


def dgc(ratio):
    def encode(x):
        k = max(1, round(ratio * x.numel()))
        sample = x[torch.randint(0, x.numel(), (max(1, x.numel() // 100),))].abs()
        threshold = torch.topk(sample, max(1, round(ratio * sample.numel())))[0].min()
        for _ in range(10):
            selected = (x.abs() >= threshold).sum().item()
            if selected > 1.3 * k:
                threshold = threshold * 1.3
            elif selected < 0.8 * k:
                threshold = threshold * 0.8
            else:
                break
        where = (x.abs() >= threshold).nonzero().view(-1)
        return x[where], where
    return encode, topk(ratio)[1]


def strom(tau):
    def encode(x):
        where = (x.abs() > tau).nonzero().view(-1)
        return x[where].sign().to(torch.int8), where

    def decode(sent, n):
        return torch.zeros(n).scatter_(0, sent[1], sent[0].float() * tau)
    return encode, decode


def cast(dtype):
    return lambda x: x.to(dtype), lambda sent, n: sent.float()


def int8(block):
    def encode(x):
        rows = torch.nn.functional.pad(x, (0, -x.numel() % block)).view(-1, block)
        scale = rows.abs().amax(dim=1, keepdim=True) / 127
        return (rows / scale).round().to(torch.int8), scale
    return encode, lambda sent, n: (sent[0].float() * sent[1]).view(-1)[:n]


def fft(theta):
    def encode(x):
        spectrum = torch.fft.rfft(x)
        _, where = torch.topk(spectrum.abs(), max(1, round((1 - theta) * spectrum.numel())), sorted=False)
        return spectrum[where].to(torch.complex64), where

    def decode(sent, n):
        spectrum = torch.zeros(n // 2 + 1, dtype=torch.complex64)
        spectrum[sent[1]] = sent[0]
        return torch.fft.irfft(spectrum, n)
    return encode, decode


METHODS = {
    "fp16": cast(torch.float16), "bf16": cast(torch.bfloat16), "int8": int8(2048), "topk:ratio=0.01": topk(0.01),
    "randomk:ratio=0.01": randomk(0.01), "dgc:ratio=0.01": dgc(0.01), "qsgd:bits=4,bucket=512": qsgd(4, 512),
    "terngrad": terngrad(), "natural": natural(), "signsgd": signsgd(), "efsignsgd": efsignsgd(), "onebit": onebit(),
    "strom:tau=0.001": strom(0.001), "fft:theta=0.85,bits=10": fft(0.85),
}


def timed(work, repeats):
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times), result


def ours(build, capture, elements, threads, specs):
    """(encode ms, decode ms) of gradtool_microbench by specification; absent where there is no such codec."""
    names = {codec["name"] for codec in json.loads(subprocess.run(
        [os.path.join(build, "bin/gradtool"), "list", "codecs", "--json", "-"], check=True, stdout=subprocess.PIPE).stdout)}
    found = {}
    for spec in specs:
        if spec.split(":")[0] not in names:
            continue
        run = subprocess.run([os.path.join(build, "bin/gradtool_microbench"), f"--file={capture}", f"--elements={elements}",
                              f"--threads={threads}", f"--codec={spec}", "--benchmark_format=json",
                              "--benchmark_repetitions=3", "--benchmark_report_aggregates_only=true"],
                             check=True, stdout=subprocess.PIPE).stdout
        medians = {b["run_name"]: b["real_time"] for b in json.loads(run)["benchmarks"] if b["aggregate_name"] == "median"}
        pick = {kind: [t for name, t in medians.items() if f"/{kind}" in name] for kind in ("encode", "decode")}
        if pick["encode"] and pick["decode"]:
            found[spec] = (pick["encode"][0], pick["decode"][0])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("capture")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--elements", type=int, default=10485760)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--csv")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    x = gradients(options.capture, options.elements)
    measured = ours(options.build, options.capture, options.elements, options.threads, METHODS)
    rows = []
    for spec, (encode, decode) in METHODS.items():
        if spec not in measured:
            continue
        encode_ms, sent = timed(lambda: encode(x), 5)
        decode_ms, y = timed(lambda: decode(sent, x.numel()), 5)
        nmse = float(((x - y).double() ** 2).sum() / (x.double() ** 2).sum())
        rows.append({"codec": spec, "pytorch_encode_ms": round(encode_ms, 2), "pytorch_decode_ms": round(decode_ms, 2),
                     "gradtool_encode_ms": round(measured[spec][0], 2), "gradtool_decode_ms": round(measured[spec][1], 2),
                     "encode_speedup": round(encode_ms / measured[spec][0], 1),
                     "decode_speedup": round(decode_ms / measured[spec][1], 1),
                     "both_speedup": round((encode_ms + decode_ms) / sum(measured[spec]), 1), "pytorch_nmse": f"{nmse:.4g}"})
        print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    if options.csv and rows:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        print(f"wrote {options.csv}", file=sys.stderr)


if __name__ == "__main__":
    main()
