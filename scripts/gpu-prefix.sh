#!/usr/bin/env bash
# Makes the prefix that gpu-check.sh --prefix takes, for a machine with a card that can install nothing: the libraries
# that gradtool needs beside CUDA, out of Debian's or Ubuntu's packages, extracted and not installed. Without static
# libraries that have a shared one beside them, documents, sanitizers, and the C and C++ runtimes, which are the other machine's own.
# Some 20 MB. Where the other machine can run what is compiled here, scripts/gpu-bundle.sh saves it the compilation.
#
# Usage: scripts/gpu-prefix.sh ARCHIVE.tar.xz        (on a machine with apt-get, no newer than the other one)
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: scripts/gpu-prefix.sh ARCHIVE.tar.xz" >&2; exit 2; }
command -v apt-get >/dev/null || { echo "gpu-prefix.sh: this is not Debian or Ubuntu: no apt-get" >&2; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
prefix=$work/prefix
mkdir "$prefix"

wanted=(libhdf5-dev libcli11-dev libfmt-dev nlohmann-json3-dev zlib1g-dev libfftw3-dev libboost-dev liblapack-dev libblas-dev
  libgtest-dev libgmock-dev libbenchmark-dev)
# The plan holds what a machine with nothing on it would install for these packages: libraries, and headers of nothing else.
plan=$(apt-get --simulate -o Dir::State::status=/dev/null install --no-install-recommends "${wanted[@]}") ||
  { echo "gpu-prefix.sh: apt-get finds no way to install ${wanted[*]} (is there a list of packages? apt-get update)" >&2; exit 1; }
mapfile -t packages < <(printf '%s\n' "$plan" |
  awk '/^Inst lib|^Inst zlib/ {print $2}' | grep -vE -- '-dev$|^(libc6|libc-bin|libcrypt1|libgcc-s1|libstdc\+\+6|lib[a-z]+san[0-9]+)$')
# Headers of Boost are in a package named after its version, of which libboost-dev is only a name.
packages+=("${wanted[@]}" $(printf '%s\n' "$plan" | awk '/^Inst libboost[0-9.]+-dev/ {print $2}'))

(cd "$work" && apt-get download -qq "${packages[@]}" >/dev/null 2>&1) ||
  { echo "gpu-prefix.sh: apt-get cannot download all of: ${packages[*]}" >&2; exit 1; }
for deb in "$work"/*.deb; do dpkg -x "$deb" "$prefix"; done

rm -rf "$prefix"/usr/share/{doc,man,lintian,locale,bug,doc-base,info} "$prefix"/etc "$prefix"/var
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || gcc -print-multiarch)
libraries=$prefix/usr/lib/$multiarch
# Links to places of an installed system stay within the prefix.
find "$prefix" -type l -lname '/*' | while read -r link; do ln -sfr "$prefix$(readlink "$link")" "$link"; done
find "$prefix" -name '*.a' | while read -r archive; do
  [ ! -e "${archive%.a}.so" ] || rm "$archive"
done
rm -f "$libraries"/liblapack_pic.a "$libraries"/libhdf5*_{cpp,hl_cpp,fortran,hl_fortran}* "$libraries"/libfftw3l* "$libraries"/libfftw3q*
# Alternatives are links that an installation would make.
for name in blas lapack; do
  for file in "$libraries/$name/lib$name.so"*; do [ ! -e "$file" ] || ln -sf "$name/$(basename "$file")" "$libraries/"; done
done
find "$prefix" -xtype l -delete
# Boost has 160 MB of headers, of which the sources include 6 MB.
sources=$(dirname "$(readlink -f "$0")")/..
headers=$(grep -rhoE '#include <boost/[^>]+>' "$sources"/{apps,kernels,lib,tests} --include='*.[ch]pp' --include='*.cu' | sort -u |
  g++ -std=c++20 -M -isystem "$prefix/usr/include" -x c++ - | tr ' \\' '\n\n' | sort -u)
used=$(grep -F "$prefix/usr/include/boost/" <<<"$headers") ||
  { echo "gpu-prefix.sh: the packages have no headers of Boost.Math: ${packages[*]}" >&2; exit 1; }
mv "$prefix/usr/include/boost" "$work/boost"
while read -r header; do
  mkdir -p "$(dirname "$header")" && cp "$work/boost/${header#"$prefix/usr/include/boost/"}" "$header"
done <<<"$used"
cp "$work/boost/version.hpp" "$prefix/usr/include/boost/"  # find_package(Boost) looks for it
# CUDA 13.0 has no cub::DeviceTopK, beside which gradtool_microbench times topk's selection.
cccl=nvidia-cuda-cccl==13.3.5.0.6
if python3 -m pip download --quiet --no-deps --dest "$work" "$cccl" >/dev/null 2>&1; then
  python3 -m zipfile -e "$work"/nvidia_cuda_cccl-*.whl "$work/wheel"
  mv "$work"/wheel/nvidia/*/include/cccl "$prefix/usr/cccl"
else
  echo "gpu-prefix.sh: pip cannot download $cccl: the archive has no cub::DeviceTopK to compare with" >&2
fi
mkdir -p "$(dirname "$1")"
tar -C "$prefix" -c . | xz -T0 -6 >"$1"
echo "$(du -sh "$prefix" | cut -f1) in the prefix, $(du -h "$1" | cut -f1) in the archive"
