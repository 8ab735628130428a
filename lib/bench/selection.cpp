#include "lib/bench/selection.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/error.hpp"
#include "lib/core/text.hpp"

namespace gradtool {

Selection choose_tensors(const GradientReader& reader, const std::string& layers) {
  Selection selection;
  const auto bad = find_non_finite(reader);
  bool any = false;
  for (std::size_t t = 0; t < reader.tensors().size(); ++t) {
    if (!layers.empty() && !matches(layers, reader.tensors()[t].name)) continue;
    any = true;
    const auto found = std::find_if(bad.begin(), bad.end(), [t](const NonFinite& n) { return n.tensor == t; });
    if (found == bad.end())
      selection.tensors.push_back(t);
    else
      selection.skipped.push_back(*found);
  }
  if (!any) throw Error{Fault::usage, fmt::format("--layers '{}' matches no tensor of {}", layers, reader.path())};
  return selection;
}

int choose_ranks(const BenchOptions& options, const ReplayDevice& device, const GradientReader& reader,
                 const MpiPlace& place) {
  const auto workers = static_cast<int>(reader.workers());
  int ranks = options.ranks > 0 ? options.ranks : workers;
  if (device.across_processes) {
    if (options.ranks > 0 && options.ranks != place.size) {
      throw Error{Fault::usage, fmt::format("--ranks {} but mpirun started {} processes; leave --ranks out",
                                            options.ranks, place.size)};
    }
    ranks = place.size;
  }
  if (ranks > workers) {
    throw Error{Fault::usage, fmt::format("{} ranks, but {} has the gradients of {} workers; use at most {}", ranks,
                                          reader.path(), workers, workers)};
  }
  return ranks;
}

std::vector<CodecSpec> with_baselines(const std::vector<CodecSpec>& wanted) {
  std::vector<CodecSpec> specs{parse_codec("none"), parse_codec("noop")};
  for (const auto& spec : wanted) {
    if (spec.descriptor->name == "none" || spec.descriptor->name == "noop") continue;
    const auto same = [&](const CodecSpec& s) {
      return s.name() == spec.name() && s.params_text() == spec.params_text();
    };
    if (std::none_of(specs.begin(), specs.end(), same)) specs.push_back(spec);
  }
  return specs;
}

}  // namespace gradtool
