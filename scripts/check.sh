#!/usr/bin/env bash
# Format and lint. CI demands the format; clang-tidy takes some ten minutes and is run before a change goes in. Usage: scripts/check.sh [format|tidy|all]      (default: all)
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:-all}
files() { git ls-files '*.cpp' '*.hpp' '*.cu' '*.cuh' '*.h'; }

if [ "$what" = format ] || [ "$what" = all ]; then
  # Newer versions break some lines differently, so the version is part of the rule.
  tool=$(command -v clang-format-14 || command -v clang-format || true)
  if [ -z "$tool" ]; then echo "check.sh: clang-format is not installed (scripts/setup.sh --with-checks)" >&2; exit 77; fi
  case "$("$tool" --version)" in *"version 14."*) ;; *) echo "check.sh: clang-format 14 is wanted, this is $("$tool" --version)" >&2; exit 77 ;; esac
  files | xargs "$tool" --dry-run --Werror
  echo "format: ok"
fi
if [ "$what" = tidy ] || [ "$what" = all ]; then
  command -v clang-tidy >/dev/null || { echo "check.sh: clang-tidy is not installed (scripts/setup.sh --with-checks)" >&2; exit 77; }
  scripts/build.sh tidy -DGRADTOOL_TESTS=OFF
  echo "tidy: ok"
fi
