#!/usr/bin/env bash
# Makes the captures that the other scripts of this folder replay, with fixed seeds, into a folder that git ignores. What is
# there already is kept.
#
# Usage: scripts/reproduce/captures.sh [--gradtool build/release/bin/gradtool] [--out build/reproduce] [--cifar10 FOLDER]
#                                      [--fashion-mnist FOLDER]
#
#   lenet5.h5       LeNet-5 on Fashion-MNIST, 16 workers of 8 micro-batches, 12 steps from iteration 100, with weights and second
#                   moments: for methods whose traffic depends on the number of ranks. Ten seconds, 0.1 GB.
#   lenet5-late.h5  the same from iteration 1500. A minute, 0.1 GB.
#   resnet32.h5     ResNet-32 on CIFAR-10, 4 workers, 124 steps from iteration 100: GradiVeQ's 100 sampling steps and 24 more, with
#                   weights. Three minutes on two cores, 1.2 GB. A part of CIFAR-10 will do (datasets/README.md).
#
# A gradtool with LibTorch is needed (exit status 77 without).
set -euo pipefail
gradtool=build/release/bin/gradtool
out=build/reproduce
cifar10=cifar-10-batches-bin
fashion_mnist=/usr/share/datasets/fashion-mnist
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || { echo "captures.sh: $1 needs a value" >&2; exit 2; }
  case "$1" in
    --gradtool) gradtool=$2 ;;
    --out) out=$2 ;;
    --cifar10) cifar10=$2 ;;
    --fashion-mnist) fashion_mnist=$2 ;;
    *) echo "captures.sh: unknown option '$1'; valid are --gradtool, --out, --cifar10, --fashion-mnist" >&2; exit 2 ;;
  esac
  shift 2
done
[ -x "$gradtool" ] || { echo "captures.sh: no program at $gradtool; build it or name it with --gradtool" >&2; exit 2; }
mkdir -p "$out"

capture() { # name options...
  local file=$out/$1.h5
  shift
  if [ -e "$file" ]; then
    echo "kept $file" >&2
    return
  fi
  "$gradtool" capture "$@" --seed 1 --out "$file.part" --force
  mv "$file.part" "$file"
}
lenet5=(--model lenet5 --dataset fashion-mnist --data-dir "$fashion_mnist" --workers 16 --batch-size 32 --micro-batches 8
  --with "weight,second_moment")
capture lenet5 "${lenet5[@]}" --start-step 100 --end-step 112
capture lenet5-late "${lenet5[@]}" --start-step 1500 --end-step 1512
capture resnet32 --model resnet32 --dataset cifar10 --data-dir "$cifar10" --workers 4 --batch-size 32 --with weight \
  --start-step 100 --end-step 224
