"""Reads the resources that every kernel takes of a multiprocessor from the built library's machine code: no GPU is needed. A kernel with a
stack spills registers or indexes an array that should live in registers; each byte of it is traffic that no model of the kernel counts.
Such kernels fail the test, unless ALLOWED says why. With --table FILE the whole list is written, with the share of a multiprocessor's
threads that can be resident (occupancy) with blocks of 256 threads, or of the kernel's own bound.

Usage: check_resources.py LIBRARY... [--table FILE]
"""
import pathlib
import struct
import subprocess
import sys

# Part of a kernel's name: reason.
ALLOWED = {"draw_columns_kernel": "powersgd draws its start matrix once; CUDA's sine keeps the digits of 2/pi in an array of 40 bytes"}
EM_CUDA = 190
MAX_THREADS, FRAME_SIZE, REGISTER_COUNT = 0x05, 0x11, 0x2F  # attributes in .nv.info
REGISTERS, SHARED, THREADS = 65536, 227 * 1024, 2048  # of a multiprocessor, compute capability 9.0


def name_at(table, offset):
    return table[offset:table.index(b"\0", offset)].decode()


def cubins(data):
    at = data.find(b"\x7fELF")
    while at >= 0:
        if struct.unpack_from("<H", data, at + 18)[0] == EM_CUDA:
            yield at
        at = data.find(b"\x7fELF", at + 4)


def attributes(section):
    """(attribute, payload) of a .nv.info section: a format byte, an attribute byte, then a size or a value of 2 bytes."""
    at = 0
    while at + 4 <= len(section):
        form, attribute, size = struct.unpack_from("<BBH", section, at)
        payload = section[at + 4:at + 4 + size] if form == 4 else b""
        yield attribute, payload
        at += 4 + len(payload)


def kernels_of(data, base):
    header = struct.unpack_from("<QQQIHHHHHH", data, base + 24)
    section_offset, section_size, count, name_index = header[2], header[7], header[8], header[9]
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, base + section_offset + i * section_size) for i in range(count)]
    content = [data[base + s[4]:base + s[4] + s[5]] if s[1] != 8 else b"" for s in sections]
    names = [name_at(content[name_index], s[0]) for s in sections]
    found = {name[9:]: {"registers": 0, "shared": 0, "stack": 0, "threads": 256}
             for name in names if name.startswith(".nv.info.")}
    symbols = {}
    for name, section, bytes_ in zip(names, sections, content):
        if section[1] == 2:
            for i in range(len(bytes_) // 24):
                symbols[i] = name_at(content[section[6]], struct.unpack_from("<I", bytes_, 24 * i)[0])
    for name, section, bytes_ in zip(names, sections, content):
        if name.startswith(".nv.shared.") and name[11:] in found:
            found[name[11:]]["shared"] = section[5]
        if name == ".nv.info":
            for attribute, payload in attributes(bytes_):
                if attribute in (FRAME_SIZE, REGISTER_COUNT):
                    symbol, value = struct.unpack("<II", payload)
                    if symbols.get(symbol) in found:
                        found[symbols[symbol]]["stack" if attribute == FRAME_SIZE else "registers"] = value
        elif name.startswith(".nv.info.") and name[9:] in found:
            for attribute, payload in attributes(bytes_):
                if attribute == MAX_THREADS:
                    x, y, z = struct.unpack("<III", payload)
                    found[name[9:]]["threads"] = min(256, x * y * z)
    return found


def occupancy(kernel):
    warps = (kernel["threads"] + 31) // 32
    by_registers = REGISTERS // ((kernel["registers"] + 7) // 8 * 8 * 32 * warps)
    by_shared = SHARED // (kernel["shared"] + 1024)  # one KiB of every block is the system's
    blocks = min(by_registers, by_shared, THREADS // (32 * warps), 32)
    return 32 * warps * blocks / THREADS


libraries = sys.argv[1:sys.argv.index("--table")] if "--table" in sys.argv else sys.argv[1:]
data = b"".join(pathlib.Path(path).read_bytes() for path in libraries)
kernels = {}
for base in cubins(data):
    kernels.update(kernels_of(data, base))
# Kernels that come from CUB are not ours to judge.
ours = {name: kernel for name, kernel in kernels.items() if "gradtool" in name and not name.startswith("_ZN3cub")}
assert len(ours) >= 20, f"only {len(ours)} kernels of gradtool in the library"
plain = subprocess.run(["c++filt"], input="\n".join(ours), capture_output=True, text=True, check=True).stdout.split("\n")
rows = sorted(zip(plain, ours.values()), key=lambda row: row[0])
if "--table" in sys.argv:
    with open(sys.argv[sys.argv.index("--table") + 1], "w", encoding="utf-8") as table:
        table.write("kernel,registers,shared_bytes,stack_bytes,threads,occupancy\n")
        for name, k in rows:
            name = name.replace("gradtool::cuda::", "").replace("(anonymous namespace)::", "").split("(")[0].replace("void ", "")
            table.write(f'"{name}",{k["registers"]},{k["shared"]},{k["stack"]},{k["threads"]},{occupancy(k):.2f}\n')
bad = [f"{name}: a stack of {k['stack']} bytes" for name, k in rows
       if k["stack"] and not any(part in name for part in ALLOWED)]
assert not bad, "kernels that spill or keep arrays in memory:\n" + "\n".join(bad)
print(f"{len(ours)} kernels, at most {max(k['registers'] for k in ours.values())} registers, none with a stack")
