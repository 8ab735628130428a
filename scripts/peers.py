#!/usr/bin/env python3
"""Times gradtool's CPU codecs beside what else a user would take for the same, on the same captured gradients and in one run: the
methods written in PyTorch operations as their authors and GRACE write them, the operators of PyTorch's own communication hooks,
NumPy, and the libraries zfp, zstd and bitshuffle. Encode, decode, and the error of the peer.

Usage: scripts/peers.py CAPTURE [--build build/release] [--elements 10485760] [--threads 2] [--csv FILE] [--markdown FILE]
Needs PyTorch (Debian: python3-torch), numpy, h5py; from PyPI zfpy, zstandard and bitshuffle, without which their rows are left out by
name. Times are medians in milliseconds.
"""
import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time

from report_cpu import processor

try:
    import h5py
    import numpy as np
    import torch
except ImportError as missing:
    print(f"peers.py: {missing}; it needs PyTorch, numpy and h5py", file=sys.stderr)
    sys.exit(77)


def gradients(path, elements):
    """Gradients of a capture one behind the other until there are enough, as gradtool_microbench reads them, and the shapes of those
    that fit as a whole."""
    parts, shapes, have = [], [], 0
    with h5py.File(path) as file:
        tensors = [(file["tensors"][name]["gradient"], file["tensors"][name].attrs["shape"]) for name in sorted(file["tensors"])]
        steps, workers = tensors[0][0].shape[:2]
        turn = 0
        while have < elements:
            for tensor, shape in tensors:
                parts.append(tensor[turn // workers % steps, turn % workers].astype("f4"))
                have += parts[-1].size
                if have <= elements:
                    shapes.append(tuple(int(extent) for extent in shape))
            turn += 1
    return torch.from_numpy(np.concatenate(parts)[:elements].copy()), shapes


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


def per_channel(block):
    """The operator that PyTorch's quantization hook calls, which takes scales and zero points, on blocks."""
    def encode(x):
        rows = torch.nn.functional.pad(x, (0, -x.numel() % block)).view(-1, block)
        scale = (rows.abs().amax(dim=1) / 127).clamp(min=1e-30)
        return torch.quantize_per_channel(rows, scale, torch.zeros(len(rows), dtype=torch.int64), 0, torch.qint8)
    return encode, lambda sent, n: sent.dequantize().view(-1)[:n]


def powersgd_hook(rank, shapes):
    """One power iteration as PyTorch's PowerSGD hook does it, of one rank, with matrices of one shape in a batch: two products and a QR
    decomposition. `shapes`: of the tensors one behind the other; vectors are sent as they are."""
    places, start = {}, 0
    for shape in shapes:
        size = int(np.prod(shape))
        if len(shape) > 1:
            places.setdefault((shape[0], size // shape[0]), []).append(start)
        start += size

    def encode(x):
        sent = []
        for (rows, columns), starts in places.items():
            matrices = torch.stack([x[at:at + rows * columns].view(rows, columns) for at in starts])
            p, _ = torch.linalg.qr(matrices @ torch.randn(len(starts), columns, min(rank, rows, columns)))
            sent.append((p, matrices.transpose(1, 2) @ p))
        return x, sent

    def decode(sent, n):
        out = sent[0].clone()
        for ((rows, columns), starts), (p, q) in zip(places.items(), sent[1]):
            for at, product in zip(starts, p @ q.transpose(1, 2)):
                out[at:at + rows * columns] = product.view(-1)
        return out
    return encode, decode


def numpy_cast():
    def encode(x):
        return x.numpy().astype(np.float16)
    return encode, lambda sent, n: torch.from_numpy(sent.astype(np.float32))


def numpy_topk(ratio):
    def encode(x):
        values = x.numpy()
        k = max(1, round(ratio * values.size))
        where = np.argpartition(np.abs(values), values.size - k)[values.size - k:]
        return values[where], where

    def decode(sent, n):
        out = np.zeros(n, np.float32)
        out[sent[1]] = sent[0]
        return torch.from_numpy(out)
    return encode, decode


def zfp_library():
    import zfpy
    return (lambda x: zfpy.compress_numpy(x.numpy(), rate=8), lambda sent, n: torch.from_numpy(zfpy.decompress_numpy(sent)))


def zstd_library():
    import zstandard
    return (lambda x: zstandard.ZstdCompressor(level=1).compress(x.numpy()),
            lambda sent, n: torch.from_numpy(np.frombuffer(zstandard.ZstdDecompressor().decompress(sent), np.float32).copy()))


def bitshuffle_zstd():
    """Bits sorted by their place, then zstd: the lossless filter that HDF5 files of measurements are written with."""
    import bitshuffle
    import zstandard

    def encode(x):
        return zstandard.ZstdCompressor(level=1).compress(bitshuffle.bitshuffle(x.numpy()))

    def decode(sent, n):
        sorted_bits = np.frombuffer(zstandard.ZstdDecompressor().decompress(sent), np.float32)
        return torch.from_numpy(bitshuffle.bitunshuffle(sorted_bits.copy()))
    return encode, decode


# The peer, the specification that does the same here, and what makes its two functions.
def libraries(shapes):
    return [
        ("torch.quantize_per_channel", "int8:block=2048", lambda: per_channel(2048)),
        ("the operators of PyTorch's PowerSGD hook", "powersgd:rank=4", lambda: powersgd_hook(4, shapes)),
        ("NumPy astype(float16)", "fp16", numpy_cast),
        ("NumPy argpartition", "topk:ratio=0.01", lambda: numpy_topk(0.01)),
        ("zfpy", "zfp:rate=8", zfp_library),
        ("zstandard", "zstd:level=1", zstd_library),
        ("bitshuffle + zstandard", "zstd:level=1", bitshuffle_zstd),
    ]


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


def compared(peer, spec, encode, decode, x, ours_ms):
    """A row: the peer's medians, ours beside them, and what the peer loses."""
    encode_ms, sent = timed(lambda: encode(x), 5)
    decode_ms, y = timed(lambda: decode(sent, x.numel()), 5)
    nmse = float(((x - y).double() ** 2).sum() / (x.double() ** 2).sum())
    return {"codec": spec, "peer": peer, "peer_encode_ms": round(encode_ms, 2), "peer_decode_ms": round(decode_ms, 2),
            "gradtool_encode_ms": round(ours_ms[0], 2), "gradtool_decode_ms": round(ours_ms[1], 2),
            "encode_speedup": round(encode_ms / ours_ms[0], 1), "decode_speedup": round(decode_ms / ours_ms[1], 1),
            "both_speedup": round((encode_ms + decode_ms) / sum(ours_ms), 1), "peer_nmse": f"{nmse:.3g}"}


def markdown(rows, options):
    """The page of a run."""
    lines = ["# CPU codecs beside their peers", "",
             f"Written by `scripts/peers.py {os.path.basename(options.capture)} --elements {options.elements} --threads {options.threads}`, PyTorch "
             f"{torch.__version__}, NumPy {np.__version__}, on {processor()}, {os.cpu_count()} processors. Medians in milliseconds of one run, peer / gradtool;",
             "the columns behind them say how many times as fast gradtool is. A method in PyTorch's operations is written as its authors and GRACE write it: its",
             "codes take a byte each and its positions eight, where gradtool packs both to their bits. The last column is the peer's own error.", "",
             "| codec | peer | encode | decode | encode | decode | both | error of the peer |", "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        lines.append(f"| `{row['codec']}` | {row['peer']} | {row['peer_encode_ms']} / {row['gradtool_encode_ms']} | {row['peer_decode_ms']} / "
                     f"{row['gradtool_decode_ms']} | {row['encode_speedup']} | {row['decode_speedup']} | {row['both_speedup']} | {row['peer_nmse']} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("capture")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--elements", type=int, default=10485760)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--csv")
    parser.add_argument("--markdown", help="write the rows as a page")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    x, shapes = gradients(options.capture, options.elements)
    peers = [("PyTorch's operators", spec, lambda functions=functions: functions) for spec, functions in METHODS.items()] + libraries(shapes)
    measured = ours(options.build, options.capture, options.elements, options.threads, dict.fromkeys(spec for _, spec, _ in peers))
    rows = []
    for peer, spec, make in peers:
        try:
            encode, decode = make()
        except ImportError as missing:
            print(f"left out: {peer}: {missing}", file=sys.stderr)
            continue
        if spec not in measured:
            print(f"left out: {peer}: this build has no {spec.split(':')[0]}", file=sys.stderr)
            continue
        rows.append(compared(peer, spec, encode, decode, x, measured[spec]))
        print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    if options.csv and rows:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        print(f"wrote {options.csv}", file=sys.stderr)
    if options.markdown and rows:
        with open(options.markdown, "w") as file:
            file.write(markdown(rows, options))
        print(f"wrote {options.markdown}", file=sys.stderr)


if __name__ == "__main__":
    main()
