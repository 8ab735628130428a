"""The generated table names the codecs that a build without their libraries lacks. Usage: check_left_out.py CMAKE SOURCE_DIR CXX"""
import pathlib
import subprocess
import sys
import tempfile

CMAKE, ROOT, CXX = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
PARTS = ("FFTW", "ZSTD", "ZFP", "CUDA", "MPI", "TORCH")

with tempfile.TemporaryDirectory() as build:
    subprocess.run([CMAKE, "-S", ROOT, "-B", build, f"-DCMAKE_CXX_COMPILER={CXX}", "-DGRADTOOL_TESTS=OFF",
                    *(f"-DGRADTOOL_{part}=OFF" for part in PARTS)], check=True, stdout=subprocess.DEVNULL)
    table = (pathlib.Path(build) / "lib/codecs/method_table.cpp").read_text()
    needs = {path.parent.name: path.read_text().split()[0] for path in (ROOT / "lib/methods").glob("*/needs.txt")}
    assert len(needs) >= 3, needs
    for name, part in needs.items():
        assert f"{name}_codec" not in table, f"{name} is in the table of a build without {part}"
        line = next(line for line in table.splitlines() if f'.name = "{name}"' in line)
        assert f'.part = "{part}"' in line and '.package = "lib' in line, line
    assert "topk_codec" in table and '"topk"' not in table
print("what is left out is named")
