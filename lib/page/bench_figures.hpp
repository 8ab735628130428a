#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/advice/advice.hpp"
#include "lib/advice/reproduce.hpp"
#include "lib/advice/terminal.hpp"
#include "lib/page/chart.hpp"
#include "lib/page/codec_looks.hpp"
#include "lib/page/sources.hpp"

namespace gradtool {

/// The command line's options for modelled networks; empty lists: as in the record, or 1gbe, 10gbe and 100gbe with 32
/// nodes if it has none.
struct FigureOptions {
  Acceptance acceptance;
  std::vector<Network> networks;
  std::vector<int> nodes;
};

/// The advice for one network, as the page shows it.
struct NetworkVerdict {
  std::string network;
  std::string meaning;  ///< of a profile's name: "10 Gbit/s Ethernet, TCP: 30 us, 94 %"
  int ranks = 0;
  std::string answer;    ///< as the terminal says it: "take bf16"
  std::string codec;     ///< to take; empty: stay uncompressed
  double speedup = 1.0;  ///< of that
  std::string reasons;
  InPyTorch in_pytorch = {};  ///< of the codec to take
  std::vector<std::string> others;
};

/// Everything that the page says about one run of the bench.
struct BenchFigures {
  std::string title;                     ///< "resnet20, 4 ranks, resnet20.h5"
  std::vector<NetworkVerdict> verdicts;  ///< one for each network and number of ranks
  std::vector<std::string> job;    ///< what stands before any verdict: what a trace of the user's job and --trained say
  std::string by_speed;            ///< one sentence on all speeds; empty where that cannot be modelled
  std::vector<std::string> basis;  ///< what the verdicts rest on
  AdviceText text;                 ///< the verdicts and what they rest on, as bench --advise prints them
  std::vector<std::string> notes;  ///< rows that are not ok, codecs that are not known here
  std::vector<Chart> charts;
  std::vector<MissingChart> missing;
};

/// `suffix` goes behind the charts' ids, `looks` are those of the whole page. All modelled numbers come from the
/// bench's own cost model: rows of the record where it has them for the networks that are asked for, add_modelled()
/// else.
[[nodiscard]] BenchFigures bench_figures(const BenchSource& source, const FigureOptions& options,
                                         const std::string& suffix, CodecLooks& looks);

}  // namespace gradtool
