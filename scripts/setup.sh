#!/usr/bin/env bash
# Installs what the build and its tests need, on Debian 12 or Ubuntu 24.04. Does nothing when all of it is there.
# Usage: scripts/setup.sh [--with-checks]      (--with-checks: also clang-format, clang-tidy and the fuzzer's runtime)
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(build-essential cmake ninja-build git ca-certificates ccache
  libhdf5-dev libcli11-dev libfmt-dev nlohmann-json3-dev zlib1g-dev
  libfftw3-dev libzstd-dev libzfp-dev libboost-dev libboost-context-dev libopenblas-dev liblapack-dev libopenmpi-dev openmpi-bin nftables
  libgtest-dev libgmock-dev libbenchmark-dev libtorch-dev python3-torch dataset-fashion-mnist libns3-dev
  python3 python3-dev python3-venv python3-numpy python3-scipy python3-h5py python3-matplotlib
  python3-pytest python3-pandas chromium)
for argument in "$@"; do
  case "$argument" in
    --with-checks) packages+=(clang clang-format clang-tidy "$(apt-cache depends clang 2>/dev/null |
        sed -n 's/.*Depends: clang-\([0-9]*\)$/libclang-rt-\1-dev/p' | head -n 1)") ;;
    *) echo "setup.sh: unknown argument '$argument'; valid is --with-checks" >&2; exit 2 ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
# Debian has neither the charts' libraries of `gradtool report` nor nanobind, which the Python package is compiled with. They come from
# PyPI, with the bytes that scripts/pypi.txt names, into an environment of their own, which leaves the system's Python alone.
install_from_pypi() {
  local folder=.deps/pypi
  "$folder/bin/python" -c 'import vl_convert, nanobind' 2>/dev/null && return
  echo "installing: $(sed -n 's/==\([^ ]*\) .*/ \1/p' scripts/pypi.txt | paste -sd ,) into $folder" >&2
  { rm -rf "$folder" && /usr/bin/python3 -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r scripts/pypi.txt; } ||
    { rm -rf "$folder"; echo "setup.sh: nothing could be installed from PyPI (no way there?): gradtool report and the Python package are left out" >&2; }
}
[ ${#missing[@]} -eq 0 ] && { install_from_pypi; exit 0; }

if ! command -v apt-get >/dev/null; then
  echo "setup.sh: this is not Debian or Ubuntu; install the equivalents of: ${missing[*]}" >&2
  exit 77
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup.sh: not root and no sudo; as root: apt-get install ${missing[*]}" >&2; exit 77; }
  as_root=(sudo)
fi
echo "installing: ${missing[*]}" >&2
"${as_root[@]}" apt-get update -qq
# A package that the distribution does not have leaves its part of gradtool out; configure says which.
available=()
for package in "${missing[@]}"; do
  if apt-cache show "$package" >/dev/null 2>&1; then available+=("$package"); else echo "setup.sh: no package $package here" >&2; fi
done
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${available[@]}" >/dev/null
install_from_pypi
