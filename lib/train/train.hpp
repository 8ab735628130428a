#pragma once

#include "lib/train/result.hpp"

namespace gradtool {

/// Trains the model once for every codec and seed, one run after the other: all codecs with the first seed, then with
/// the second, and so on. In the folder options.out, whose parents are made: settings.json (what decides the numbers),
/// checkpoints/, and train.csv, which is written again after every epoch. Shows progress on stderr. On Ctrl-C the run
/// is saved, and the report says so.
///
/// `facts` := facts_of(). Throws Fault::usage for a folder that is there and neither to be resumed nor replaced, or
/// that another command made, Fault::unavailable without LibTorch, Fault::data for a bad data set or checkpoint,
/// Fault::check when ranks end with different numbers.
[[nodiscard]] TrainReport run_train(const TrainOptions& options, std::vector<Fact>& facts);

}  // namespace gradtool
