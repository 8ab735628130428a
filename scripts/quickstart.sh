#!/usr/bin/env bash
# From nothing to reports about real gradients: sets up, builds, captures ResNet-20 on Fashion-MNIST with 4 workers, studies
# the capture and benches every codec. About ten minutes on two cores the first time.
# Usage: scripts/quickstart.sh [--out DIR] [--captured STEPS] [--timeout SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."

out=reports/quickstart
captured=20
timeout=6
while [ $# -gt 0 ]; do
  case "$1" in
    --out) out=$2; shift 2 ;;
    --captured) captured=$2; shift 2 ;;
    --timeout) timeout=$2; shift 2 ;;
    *) echo "quickstart.sh: unknown argument '$1'; valid are --out, --captured, --timeout" >&2; exit 2 ;;
  esac
done

say() { printf '\n== %s\n' "$*"; }

say "1/5 packages and build"
scripts/setup.sh
scripts/build.sh release -- gradtool | { if [ -t 1 ]; then cat; else grep -vE '^\[[0-9]+/[0-9]+\]' || true; fi; }
gradtool=build/release/bin/gradtool
mkdir -p "$out"
capture=$out/resnet20.h5

say "2/5 capture: ResNet-20 on Fashion-MNIST, 4 workers, every second step until $captured are kept"
rm -f "$capture"
"$gradtool" capture --model resnet20 --dataset fashion-mnist --workers 4 --batch-size 32 --micro-batches 2 \
  --with second_moment --every 2 --end-step $((2 * captured - 1)) --seed 1 --out "$capture"
"$gradtool" info "$capture" --json "$out/info.json" | sed -n '1,/^$/p'

say "3/5 analyze"
"$gradtool" analyze "$capture" --out "$out/analysis"

say "4/5 bench: every codec, one tensor at a time"
"$gradtool" bench "$capture" --codec all --per-tensor --timeout "$timeout" --csv "$out/bench.csv" --json "$out/bench.json"

say "5/5 bench: every codec, the model as one bucket"
"$gradtool" bench "$capture" --codec all --granularity model --timeout "$timeout" \
  --csv "$out/bench-model.csv" --json "$out/bench-model.json"

say "written to $out"
ls "$out" "$out/analysis"
