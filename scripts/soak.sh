#!/usr/bin/env bash
# A night of hostile inputs and sudden deaths: the tests that depend on the clock (tests/soak), all sanitizers, of which CI runs a quarter,
# the Python package on the emulated GPU, 10^8 inputs for the fuzz targets, and a thousand commands killed at random moments. Writes a page
# about inputs and kills, reports/reliability/README.md, and keeps inputs that break a promise in build/soak/found. Exit status 1 if a test
# failed, if there were such inputs, or if a killed command left what it should not have.
# Usage: scripts/soak.sh [--inputs N] [--kills N] [--hours H] [--jobs N]
set -euo pipefail
cd "$(dirname "$0")/.."

targets=(fuzz_chunk fuzz_import fuzz_packet fuzz_codec_spec fuzz_payload fuzz_reducer fuzz_gradient_file fuzz_command)
scripts/build.sh asan -- "${targets[@]}" | tail -n 1
scripts/build.sh release -- gradtool comm_mpi | tail -n 1
status=0
ctest --preset release -C soak -L soak || status=1
for part in cpu gpu thread races; do scripts/sanitize.sh "$part" || status=1; done
scripts/build.sh emulated -- gradtool_python_package | tail -n 1
PYTHONPATH=build/emulated/python /usr/bin/python3 -m pytest -p no:cacheprovider -q python/tests/test_emulated_gpu.py || status=1
/usr/bin/python3 scripts/soak/run.py "${targets[@]}" "$@" || status=$?
exit "$status"
