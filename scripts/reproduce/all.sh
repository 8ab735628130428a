#!/usr/bin/env bash
# Runs every experiment of this folder and writes reports/reproduce/. Captures are made first where they are missing, which
# needs a gradtool with LibTorch. Measuring on the shaped cluster needs root; without, those tables are left out. Ten minutes
# on two idle cores.
#
# Usage: scripts/reproduce/all.sh [--gradtool PROGRAM] [--cifar10 FOLDER] [--quick] [--no-cluster] [--note TEXT]
set -euo pipefail
cd "$(dirname "$0")/../.."
gradtool=build/release/bin/gradtool
captures=()
options=()
while [ $# -gt 0 ]; do
  case "$1" in
    --gradtool) gradtool=$2; shift 2 ;;
    --cifar10) captures+=(--cifar10 "$2"); shift 2 ;;
    --note) options+=(--note "$2"); shift 2 ;;
    --quick | --no-cluster) options+=("$1"); shift ;;
    *) echo "all.sh: unknown option '$1'; valid are --gradtool, --cifar10, --quick, --no-cluster, --note" >&2; exit 2 ;;
  esac
done
scripts/reproduce/captures.sh --gradtool "$gradtool" "${captures[@]}"
python=$(command -v /usr/bin/python3 || command -v python3)
for experiment in gradiveq fft vgc iwp dlcp; do
  echo "== $experiment" >&2
  "$python" "scripts/reproduce/$experiment.py" --gradtool "$gradtool" "${options[@]}"
done
