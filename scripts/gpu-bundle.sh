#!/usr/bin/env bash
# Packs what gpu-check.sh runs, for a machine with a card that has neither the libraries nor the time to compile: the programs of a build
# with CUDA and the shared libraries that they need, without those of CUDA and of the C and C++ runtimes, which are the other machine's own.
# About 30 MB for one architecture.
#
# Usage: scripts/gpu-bundle.sh BUILD ARCHIVE.tar.xz      (BUILD: a folder in which the targets of gpu-check.sh were built, on a machine
#                                                         with a C library no newer than the other's)
set -euo pipefail
command -v patchelf >/dev/null || { echo "gpu-bundle.sh: patchelf is missing (Debian: apt-get install patchelf)" >&2; exit 77; }
[ $# -eq 2 ] || { echo "usage: scripts/gpu-bundle.sh BUILD ARCHIVE.tar.xz" >&2; exit 2; }
build=$1 archive=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$work/tests" "$work/lib"
programs=()
for name in gradtool gradtool_microbench gpu_codecs gpu_methods gpu_reducers comm_gpu comm_cuda_runtime; do
  program=$(find "$build/bin" "$build/tests" -type f -name "$name" -perm -u+x | head -n 1)
  [ -n "$program" ] || { echo "gpu-bundle.sh: '$build' has no program $name: cmake --build '$build' --target $name" >&2; exit 1; }
  case $name in gradtool*) to=$work/bin/$name ;; *) to=$work/tests/$name ;; esac
  strip -o "$to" "$program"
  patchelf --force-rpath --set-rpath '$ORIGIN/../lib' "$to"  # for these programs alone: others there have libraries of their own
  programs+=("$program")
done
missing=$(ldd "${programs[@]}" | awk '/not found/ {print $1}' | sort -u | paste -sd ' ')
[ -z "$missing" ] || echo "gpu-bundle.sh: not here, so not in the archive: $missing" >&2
ldd "${programs[@]}" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
  grep -vE '/(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s|cuda|cudart|cufft|cublas|cublasLt|cusolver|cusparse|nccl|nvJitLink|nvrtc)\.so.*)$' | while read -r library; do
  cp -L "$library" "$work/lib/"
done
"$build/bin/gradtool" --version | grep -oE '[0-9a-f]{12}(-dirty)?' | head -n 1 >"$work/commit" || true
mkdir -p "$(dirname "$archive")"
tar -C "$work" -c bin tests lib commit | xz -T0 -6 >"$archive"
du -h "$archive" | sed 's/\t.*/ in the archive/'
