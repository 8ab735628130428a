"""Which shared libraries the program opens: none from the working directory, no training module of another build.

Usage: check_libraries.py GRADTOOL
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

GRADTOOL = pathlib.Path(sys.argv[1]).resolve()
MODULE = GRADTOOL.parent.parent / "lib/gradtool/libgradtool_torch.so"

for binary in filter(pathlib.Path.exists, (GRADTOOL, MODULE)):
    if shutil.which("readelf"):
        entries = subprocess.run(["readelf", "-d", binary], check=True, stdout=subprocess.PIPE, text=True).stdout
        for path in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", entries):
            folders = path.split(":")
            assert all(f.startswith(("/", "$ORIGIN")) for f in folders), f"{binary.name} searches libraries in {folders}"
    else:
        print("not checked: search paths, for want of readelf")

with tempfile.TemporaryDirectory() as scratch:
    program, module = pathlib.Path(scratch, "bin/gradtool"), pathlib.Path(scratch, "lib/gradtool", MODULE.name)
    program.parent.mkdir()
    module.parent.mkdir(parents=True)
    shutil.copy(GRADTOOL, program)

    def capture():
        done = subprocess.run([program, "capture", "--model", "lenet5"], stderr=subprocess.PIPE, text=True)
        assert done.stderr.count("\n") == 1, done.stderr
        return done.returncode, done.stderr

    status, message = capture()
    assert status == 77, (status, message)
    if "built without" in message:
        print("not checked: the training module, which this build lacks")
        sys.exit(0)
    assert str(module) in message, message
    if not MODULE.exists():
        sys.exit(77)
    ours = MODULE.read_bytes()
    stamp = re.search(rb"gradtool training module, version [0-9.]+\0", ours).group()
    # That it is not opened shows in the message: the loader would complain of what is no library at all.
    for other in (b"", b"no library", stamp[:-2] + b"\0", ours.replace(stamp, stamp[:-1] + b"1")):
        module.write_bytes(other)
        status, message = capture()
        assert status == 4 and "another version" in message, (status, message)
    module.write_bytes(ours)
    status, message = capture()
    assert status == 2 and "--out" in message, (status, message)
print("only our own libraries are opened")
