#!/usr/bin/env bash
# Makes the Python package's wheel, installs it into an empty virtual environment, as a user would, and runs its tests there.
# Usage: scripts/python.sh [--torch REQUIREMENT] [PYTEST_ARGUMENT...]
#   --torch: also install this PyTorch from PyPI (torch, torch==2.8.0; some gigabytes), without which tests of captures are skipped.
# GRADTOOL_CUDA=AUTO compiles the CUDA side, too. The program, which some tests ask, is that of the build tree.
set -euo pipefail
cd "$(dirname "$0")/.."

torch=()
[ "${1-}" != --torch ] || { torch=("$2"); shift 2; }
scripts/setup.sh
[ -x build/release/bin/gradtool ] || scripts/build.sh release "-DGRADTOOL_CUDA=${GRADTOOL_CUDA-OFF}" -- gradtool | tail -n 2
program=$PWD/build/release/bin
environment=build/python-environment
rm -rf "$environment"
/usr/bin/python3 -m venv "$environment"
[ ${#torch[@]} -eq 0 ] || "$environment/bin/pip" install --quiet --disable-pip-version-check "${torch[@]}"
"$environment/bin/pip" install --quiet --disable-pip-version-check "$(scripts/wheel.sh build/wheels)[test]"

# From another folder, so that nothing is imported from the checkout.
cd "$environment"
PATH=$PWD/bin:$program:$PATH
gradtool --version
GRADTOOL_TESTS_NEED_ALL=1 python -m pytest -p no:cacheprovider ../../python/tests "$@"
