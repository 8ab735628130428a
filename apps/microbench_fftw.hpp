#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <vector>

#include "lib/core/task_pool.hpp"

namespace gradtool {

/// Benchmark `fftw/forward+inverse`: FFTW alone, there and back, on chunks of 65536 as the fft codec cuts them, with
/// plans that FFTW measured (FFTW_MEASURE; the planning is not timed). What the codec's own speed is judged by.
/// `count` sets the counters of a state.
void register_fftw(const std::vector<float>& x, TaskPool& pool, const std::function<void(benchmark::State&)>& count);

}  // namespace gradtool
