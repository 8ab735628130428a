#!/usr/bin/env bash
# A night of hostile inputs and sudden deaths: the tests that depend on the clock (tests/soak), both sanitizers over the emulated GPU, of
# which CI has time for one, 10^8 inputs for the fuzz targets, and a thousand commands killed at random moments. Writes a page about inputs and kills,
# reports/reliability/README.md, and keeps inputs that break a promise in build/soak/found. Exit status 1 if a test failed, if there were
# such inputs, or if a killed command left what it should not have.
# Usage: scripts/soak.sh [--inputs N] [--kills N] [--hours H] [--jobs N]
set -euo pipefail
cd "$(dirname "$0")/.."

targets=(fuzz_chunk fuzz_import fuzz_packet fuzz_codec_spec fuzz_payload fuzz_reducer fuzz_gradient_file fuzz_command)
scripts/build.sh asan -- "${targets[@]}" | tail -n 1
scripts/build.sh release -- gradtool comm_mpi | tail -n 1
status=0
ctest --preset release -C soak -L soak || status=1
scripts/sanitize-gpu.sh address || status=1
scripts/sanitize-gpu.sh thread || status=1
/usr/bin/python3 scripts/soak/run.py "${targets[@]}" "$@" || status=$?
exit "$status"
