#!/usr/bin/env bash
# Format and lint. CI demands the format, comments that begin with their subject, and clang-tidy on the sources that
# changed; clang-tidy on everything takes some ten minutes and is run before a large change goes in.
# Usage: scripts/check.sh [format|comments|budget|tidy|all] (default: all)
#        scripts/check.sh tidy-changed [COMMIT]      sources that differ from COMMIT (default: four commits ago) alone
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:-all}
# New files count before they are added, too, and those that were removed do not.
files() {
  git ls-files --cached --others --exclude-standard '*.cpp' '*.hpp' '*.cu' '*.cuh' '*.h' "$@" | sort -u | while read -r file; do
    [ ! -f "$file" ] || echo "$file"
  done
}

if [ "$what" = format ] || [ "$what" = all ]; then
  # Newer versions break some lines differently, so the version is part of the rule.
  tool=$(command -v clang-format-14 || command -v clang-format || true)
  if [ -z "$tool" ]; then echo "check.sh: clang-format is not installed (scripts/setup.sh --with-checks)" >&2; exit 77; fi
  case "$("$tool" --version)" in *"version 14."*) ;; *) echo "check.sh: clang-format 14 is wanted, this is $("$tool" --version)" >&2; exit 77 ;; esac
  files | xargs "$tool" --dry-run --Werror
  echo "format: ok"
fi
if [ "$what" = comments ] || [ "$what" = all ]; then
  files '*.py' '*.sh' '*.cmake' '*.in' '*CMakeLists.txt' | xargs scripts/check_comments.py
  echo "comments: ok"
fi
if [ "$what" = budget ] || [ "$what" = all ]; then
  # Lines of the product, tests left out, room by room: a number in .ci/budget is raised by the commit that needs it, with the reason.
  over=0
  while read -r room most why; do
    lines=$(files | grep "^$room/" | grep -v '_test\.' | xargs cat | wc -l)
    if [ "$lines" -gt "$most" ]; then
      echo "check.sh: $room has $lines lines, and .ci/budget allows $most ($why): remove some, or raise the number there with the reason" >&2
      over=1
    elif [ "$lines" -lt "$most" ]; then
      echo "$room has $lines lines: lower its number in .ci/budget, which is $most"
    fi
  done < <(grep -v '^#' .ci/budget)
  unnamed=$(files | grep -E '^(apps|kernels|lib|netsim)/' | grep -vE "^($(grep -v '^#' .ci/budget | cut -d ' ' -f 1 | paste -sd '|'))/" || true)
  if [ -n "$unnamed" ]; then echo "check.sh: .ci/budget has no room for $unnamed" >&2; over=1; fi
  [ "$over" = 0 ] || exit 1
  echo "budget: ok"
fi
if [ "$what" = tidy-changed ]; then
  command -v clang-tidy >/dev/null || { echo "check.sh: clang-tidy is not installed (scripts/setup.sh --with-checks)" >&2; exit 77; }
  since=${2:-$(git rev-parse -q --verify HEAD~4 || git rev-list --max-parents=0 HEAD | tail -n 1)}
  # A build with clang, without precompiled headers, says how each source is compiled; those that it leaves out (CUDA, MPI, LibTorch)
  # are not looked at.
  cmake --preset tidy -DGRADTOOL_TESTS=OFF >/dev/null
  cmake --build build/tidy --target gradtool_version >/dev/null
  sources=()
  while read -r file; do
    if grep -qF "\"$PWD/$file\"" build/tidy/compile_commands.json; then sources+=("$file"); else echo "not looked at: $file"; fi
  done < <(git diff --numstat --diff-filter=d "$since" -- 'apps/*.cpp' 'netsim/*.cpp' 'lib/*.cpp' 'kernels/*.cpp' | sort -rn | cut -f 3 | grep -v '_test\.cpp$')
  # A file takes some ten seconds. After a change of the whole tree the most changed ones must do; `check.sh tidy` looks at all.
  most=30
  for file in "${sources[@]:$most}"; do echo "not looked at, beyond the $most that changed most: $file"; done
  sources=("${sources[@]:0:$most}")
  [ ${#sources[@]} -eq 0 ] || printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy -p build/tidy --quiet
  echo "tidy: ${#sources[@]} sources that changed since $(git rev-parse --short "$since"): ok"
fi
if [ "$what" = tidy ] || [ "$what" = all ]; then
  command -v clang-tidy >/dev/null || { echo "check.sh: clang-tidy is not installed (scripts/setup.sh --with-checks)" >&2; exit 77; }
  scripts/build.sh tidy -DGRADTOOL_TESTS=OFF
  echo "tidy: ok"
fi
