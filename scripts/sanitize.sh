#!/usr/bin/env bash
# One of four parts of the tests under sanitizers, each with a build of its own. Usage: scripts/sanitize.sh cpu|gpu|thread|races
#   cpu: addresses and undefined behaviour in the whole suite, and the fuzzers for 15 s each
#   gpu: the same in codecs, reducers, analyses, a bench and micro-benchmarks on the emulated GPU, by all of scripts/gpu-check.sh
#   thread: races in communicators, reducers and methods on threads of the CPU
#   races: races between the threads and the blocks of kernels on the emulated GPU
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1-}" in
  cpu)
    # Tests that drive a browser, shells or other processes, or catch each page fault, say nothing more about memory than those beside them.
    scripts/test.sh asan -LE slow -E '^(memory_passes\..*|report_browser|report_pictures|cli_kills|cli_completion|cli_manners|compare|netsim|netsim_units\.(Queue|Replay))$'
    scripts/fuzz.sh 15
    ;;
  gpu)
    # With g++: clang 14's address sanitizer takes ten times as long over the emulator's fibers.
    scripts/build.sh asan-gpu -- gpu_codecs gpu_methods gpu_reducers comm_gpu gradtool gradtool_microbench | tail -n 2
    ctest --preset asan-gpu -R '^gpu_(codecs|methods|reducers)\.|^(analysis_gpu|bench_cuda|gpu_report)$' -j "$(nproc)"
    ;;
  thread)
    scripts/build.sh tsan -- comm_threads reduce methods reduce_conformance | tail -n 2
    ctest --preset tsan -R '^(comm_threads|reduce|methods)\.' -j "$(nproc)"
    build/tsan/tests/reduce/reduce_conformance --gtest_brief=1 --gtest_filter='*EveryRankEnds*:*DoesNotDependOnThreads*'
    ;;
  races)
    scripts/build.sh tsan -- emulated_races gpu_codecs gpu_reducers gpu_methods | tail -n 2
    # Races between blocks take as long again as those between threads, and are looked for where methods have kernels of their own.
    ctest --preset tsan -R '^emulated_races\.|^gpu_races\..*_threads|^gpu_races.gpu_methods_blocks' -j "$(nproc)"
    ;;
  *)
    echo "sanitize.sh: write cpu, gpu, thread or races" >&2
    exit 2
    ;;
esac
