"""No instruction in the device code that would give other bits than the CPU: no contracted multiply-add, no approximate
division, square root or reciprocal, no flush of subnormal numbers to zero. Reads the PTX out of the built libraries, so it
needs no GPU. What is explicitly wanted (fma in an accurate division, which the compiler writes as div.rn) does not appear
in PTX.

Usage: check_ptx.py LIBRARY...
"""
import pathlib
import re
import sys

FORBIDDEN = {r"\bfma\.r[nzmp](?:\.ftz)?\.f(?:16|32|64)": "contracted multiply-add",
             r"\bmad\.r[nzmp](?:\.ftz)?\.f(?:32|64)": "contracted multiply-add",
             r"\bdiv\.(?:approx|full)": "approximate division",
             r"\b(?:rcp|sqrt|rsqrt|sin|cos|lg2|ex2|tanh)\.approx": "approximate function",
             r"\b[a-z0-9.]+\.ftz\b": "subnormals flushed to zero"}

# Part of the name of a kernel or function: why a library function, which has multiply-adds of its own, may be in it.
ALLOWED = {"bands_kernel": "analyze's logarithms, which agree with the CPU's to 1e-5 and are not part of a payload",
           "sidco_": "logarithms and exponentials of a fit, in a codec that promises equal bytes from run to run only",
           "__internal_lgamma": "CUDA's log of the gamma function, which only sidco calls",
           "draw_columns_kernel": "powersgd's random start, whose logarithm and cosine reach no payload: the ranks of a"
                                  " run draw the same columns because they run the same code",
           "__internal_trig_reduction_slowpathd": "what CUDA's sine and cosine call in that kernel"}

data = b"".join(pathlib.Path(path).read_bytes() for path in sys.argv[1:])
modules = [part.decode("ascii", "replace") for part in re.findall(rb"\.version \d+\.\d+\s[^\0]*", data)]
kernels, bad = [], []
for module in modules:
    name = "?"
    for line in module.splitlines():
        entry = re.search(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([A-Za-z_0-9$]+)", line)
        if entry:
            name = entry.group(1)
            kernels.append(name)
        for pattern, what in FORBIDDEN.items():
            if re.search(pattern, line) and not any(part in name for part in ALLOWED):
                bad.append(f"{what} in {name}: {line.strip()}")
floats = sum(len(re.findall(r"\b(?:mul|add|sub|div)\.(?:rn\.)?f32", module)) for module in modules)
assert len(modules) >= 8, f"only {len(modules)} modules of PTX in the library: is it compressed? (--no-compress)"
assert len(kernels) >= 20 and floats >= 100, (len(kernels), floats)
assert not bad, "\n".join(bad[:20])
print(f"{len(modules)} modules, {len(kernels)} kernels, {floats} float operations: none of them contracted or approximate")
