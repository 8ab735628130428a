#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "lib/model/cost_model.hpp"

namespace gradtool {

/// Who sends to whom in one row of a probe.
enum class Pattern : std::uint8_t {
  pair,             ///< two neighbours send to and fro while all others are silent; the time is that of one way
  sendrecv,         ///< every rank sends to the next one while it receives from the one before
  all_reduce,       ///< the library's own, which `none` rides in bench
  all_reduce_ring,  ///< gradtool's, which codecs that sum ride
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
};

struct PatternInfo {
  Pattern pattern;
  std::string_view name;
  std::string_view meaning;
};
[[nodiscard]] std::span<const PatternInfo> patterns();
[[nodiscard]] std::string_view name_of(Pattern pattern);

/// The bytes that move when `bytes` are asked for among p ranks: as many, or the next larger number that every rank has
/// an equal part of, in whole float32. Sizes are those of nccl-tests: of a message, of the vector that is summed, of
/// all parts together.
[[nodiscard]] std::uint64_t size_for(Pattern pattern, std::uint64_t bytes, int ranks);

/// Bus bandwidth / algorithm bandwidth, as nccl-tests define them: the share of `bytes` that crosses each link.
[[nodiscard]] double bus_factor(Pattern pattern, int ranks);

/// Seconds that the model of bench (cost_model.hpp) gives one such operation on this link.
[[nodiscard]] double modelled_seconds(Pattern pattern, double bytes, int ranks, const Link& link);

}  // namespace gradtool
