#!/usr/bin/env bash
# The CUDA sources on the emulated GPU, under a sanitizer. Usage: scripts/sanitize-gpu.sh address|thread|races
#   address: addresses and undefined behaviour in codecs, reducers, analyses, a bench and micro-benchmarks, by all of scripts/gpu-check.sh
#   thread: communicators, reducers and methods on threads of the CPU
#   races: between the threads and the blocks of kernels
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1-}" in
  address)
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
    echo "sanitize-gpu.sh: write address, thread or races" >&2
    exit 2
    ;;
esac
