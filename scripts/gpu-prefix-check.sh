#!/usr/bin/env bash
# Makes the archive of scripts/gpu-prefix.sh, configures against it and compiles a program with it on what looks like a bare machine with a
# card: in a mount namespace whose /usr has no development package but those of the compilers, without a network, and with an nvidia-smi
# that names a card. Needs root, overlay mounts and nvcc; exits with 77 where these are missing.
#
# Usage: scripts/gpu-prefix-check.sh [STAGES]        (of gpu-check.sh: configure by default; configure,build compiles too)
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "gpu-prefix-check.sh: needs root, for a mount namespace" >&2; exit 77; }
command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || { echo "gpu-prefix-check.sh: no nvcc here" >&2; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/layers" "$work/bin"
printf '#!/bin/sh\ncase "$*" in *compute_cap*) echo 9.0 ;; *) echo "a card" ;; esac\n' >"$work/bin/nvidia-smi"
chmod +x "$work/bin/nvidia-smi"
scripts/gpu-prefix.sh "$work/prefix.tar.xz"
dpkg-query -W -f '${binary:Package}\n' | grep -E -- '-dev(:|$)' | grep -vE '^(libc6|libstdc\+\+-[0-9]+|libgcc-[0-9]+|linux-libc|libcrypt)-dev' | xargs dpkg -L |
  grep -E '^/usr/(include/.*\.|.*\.(so|a|cmake|pc)$)' >"$work/hidden"  # nothing outside of what is mounted over
export work stages=${1:-configure}
unshare -m -n bash -euo pipefail -c '
  mount -t tmpfs tmpfs "$work/layers" && mkdir "$work"/layers/{up,own} &&
    mount -t overlay overlay -o "lowerdir=/usr,upperdir=$work/layers/up,workdir=$work/layers/own" /usr ||
    { echo "gpu-prefix-check.sh: overlay mounts are not allowed here" >&2; exit 77; }
  xargs -d "\n" rm -df <"$work/hidden" 2>/dev/null || true
  rm -f /usr/lib/*/lib{blas,lapack}.so
  [ ! -e /usr/include/nlohmann/json.hpp ] && [ ! -e /usr/include/boost/version.hpp ] || { echo "gpu-prefix-check.sh: headers are not hidden" >&2; exit 1; }
  PATH="$work/bin:$PATH" scripts/gpu-check.sh --prefix "$work/prefix.tar.xz" --build "$work/build" --out "$work/out" --stages "$stages" --minutes 30
  ! grep -E "^(HDF5|FFTW|Boost|GTest|BLAS|LAPACK|nlohmann)[A-Za-z_]*:(FILEPATH|PATH)=/usr/(lib|include)" "$work/build/CMakeCache.txt" ||
    { echo "gpu-prefix-check.sh: these are not the archive'"'"'s" >&2; exit 1; }
  # A program is compiled and linked with what is in the archive; so are the newer headers of CUDA that it brings.
  cmake --build "$work/build" --target io_test apps/microbench/CMakeFiles/gradtool_microbench.dir/cub_topk.cu.o
  grep -q DeviceTopK "$work/build/apps/microbench/CMakeFiles/gradtool_microbench.dir/cub_topk.cu.o" ||
    { echo "gpu-prefix-check.sh: the archive has no cub::DeviceTopK" >&2; exit 1; }
  for name in HDF5 FFTW CUDA NCCL; do grep -E "^--   $name +in" "$work/build/configure.log"; done
'
