#pragma once

#include <string>

#include "lib/page/bench_figures.hpp"
#include "lib/page/codec_looks.hpp"
#include "lib/page/sources.hpp"

namespace gradtool {

/// Everything that the page says about one command of `gradtool train`: charts, notes, what a sentence can say of each
/// codec, and no verdicts. `suffix` goes behind the charts' ids, `looks` are those of the whole page.
[[nodiscard]] BenchFigures training_figures(const TrainingSource& source, const std::string& suffix, CodecLooks& looks);

}  // namespace gradtool
