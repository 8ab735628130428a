#!/usr/bin/env bash
# From nothing to an answer about real gradients: sets up, builds, captures ResNet-20 on Fashion-MNIST with 4 workers, studies the
# capture, benches every codec, trains with what is worth a trial, says which to take on three networks and what the trial says of it, and
# draws it all on one page. About twelve minutes on two cores the first time.
# Usage: scripts/quickstart.sh [--out DIR] [--captured STEPS] [--timeout SECONDS] [--trial-steps STEPS]
#   --captured: in all three windows of the training together, which have 3 steps each at least    --timeout: of sampling, for each row
#   --trial-steps: of each run of the trial, 120
set -euo pipefail
cd "$(dirname "$0")/.."

out=reports/quickstart
captured=21
timeout=
trial_steps=120
while [ $# -gt 0 ]; do
  case "$1" in
    --out) out=$2; shift 2 ;;
    --captured) captured=$2; shift 2 ;;
    --timeout) timeout=$2; shift 2 ;;
    --trial-steps) trial_steps=$2; shift 2 ;;
    *) echo "quickstart.sh: unknown argument '$1'; valid are --out, --captured, --timeout, --trial-steps" >&2; exit 2 ;;
  esac
done

say() { printf '\n== %s\n' "$*"; }

say "1/7 packages and build"
scripts/setup.sh
# CUDA takes longer to compile than all the rest: not where there is no GPU, unless the build that is there has it already.
without_gpu=()
[ -e build/release/CMakeCache.txt ] || [ -e /dev/nvidiactl ] || without_gpu=(-DGRADTOOL_CUDA=OFF)
scripts/build.sh release "${without_gpu[@]}" -- gradtool | { if [ -t 1 ]; then cat; else grep -vE '^\[[0-9]+/[0-9]+\]' || true; fi; }
gradtool=build/release/bin/gradtool
mkdir -p "$out"
capture=$out/resnet20.h5

window=$((captured / 3 > 3 ? captured / 3 : 3))
say "2/7 capture: ResNet-20 on Fashion-MNIST, 4 workers, $window steps early, midway and late in a short training"
rm -f "$capture"
"$gradtool" capture --model resnet20 --dataset fashion-mnist --workers 4 --batch-size 32 --micro-batches 2 \
  --with second_moment,weight --steps $((6 * window)) --windows 3 --window-steps "$window" --seed 1 --out "$capture"
"$gradtool" info "$capture" --json "$out/info.json" | sed -n '1,/^$/p'

say "3/7 analyze"
"$gradtool" analyze "$capture" --out "$out/analysis" --json "$out/analyze.json"

# Half of a window's steps are gradiveq's samples, so that the other half is compressed; its default cycle is longer than a window.
say "4/7 bench: every codec, in DDP's buckets of 25 MB; three networks with 32 nodes each"
"$gradtool" bench "$capture" --codec "all,gradiveq:lt=$((window / 2 > 2 ? window / 2 : 2))" --per-tensor \
  ${timeout:+--timeout "$timeout"} --network 1gbe --network 10gbe --network 100gbe --nodes 32 --advise \
  --csv "$out/bench.csv" --json "$out/bench.json" >"$out/bench.txt"

# The trial stays within two minutes: batches of 8, where the capture had 32. Three seeds, because the interval of two is three times as wide.
rm -rf "$out"/trial-*
trained=()
/usr/bin/python3 scripts/quickstart_candidates.py "$out/bench.json" >"$out/candidates.txt"
say "5/7 trial: $trial_steps steps with what is worth one, and uncompressed, 4 workers, 3 seeds"
while read -r way names; do
  codecs=()
  for name in $names; do codecs+=(--codec "$name"); done
  "$gradtool" train --model resnet20 --dataset fashion-mnist --workers 4 --batch-size 8 --steps "$trial_steps" --lr-schedule cosine \
    --seeds 1,2,3 --test-images 2000 --reduce "$way" "${codecs[@]}" --out "$out/trial-$way" </dev/null
  trained+=(--trained "$out/trial-$way")
done <"$out/candidates.txt"
[ ${#trained[@]} -gt 0 ] || echo "No codec shortens what any of the networks takes, so none is worth a trial."

say "6/7 what to take"
status=0
"$gradtool" report "$out/bench.json" ${trained[@]+"${trained[@]}"} --format text >"$out/advice.txt" || status=$?
case "$status" in
  0) sed '/^$/,$d' "$out/advice.txt" ;;
  77) sed '/^$/,$d' "$out/bench.txt" ;;  # built without report: the advice before the trial, whose table stands above
  *) exit "$status" ;;
esac

say "7/7 report: all of it as charts on one page"
report=$out/report.html
status=0
"$gradtool" report "$out" ${trained[@]+"${trained[@]}"} -o "$report" || status=$?
case "$status" in
  0) page="
Open $report in a browser: the same answer with its charts. It needs no network." ;;
  77) page="" ;;  # built without the charts' libraries, as gradtool has just said
  *) exit "$status" ;;
esac

say "written to $out"
ls "$out" "$out/analysis"
printf '\nThe table of all codecs is in %s. Next, with your own capture (docs/gradient-file.md), or for machines that compute faster:\n' "$out/bench.txt"
printf '  %s bench %s --network 10gbe --nodes 8,16,...,256 --compute-ms 20 --advise%s\n' "$gradtool" "$capture" "${trained[*]:+ ${trained[*]}}"
[ -z "$page" ] || printf '%s\n' "$page"
