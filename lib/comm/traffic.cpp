#include "lib/comm/traffic.hpp"

#include <fmt/format.h>

namespace gradtool {
namespace {

void check_inside(const char* call, const char* view, const Parts& parts, std::size_t bytes, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  if (parts.sizes.size() != ranks || parts.offsets.size() != ranks) {
    throw Error{Fault::usage, fmt::format("{}: one size and one offset of `{}` for every rank", call, view)};
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    if (parts.offsets[r] <= bytes && parts.sizes[r] <= bytes - parts.offsets[r]) continue;
    throw Error{Fault::usage, fmt::format("{}: part {} of {} bytes at {} lies outside of `{}`, which has {} bytes",
                                          call, r, parts.sizes[r], parts.offsets[r], view, bytes)};
  }
}

}  // namespace

void check_parts(std::size_t mine, const Parts& parts, std::size_t all, int rank, int size) {
  check_inside("all_gather_v", "all", parts, all, size);
  expects(parts.sizes[static_cast<std::size_t>(rank)] == mine,
          "all_gather_v: this rank's size is not that of its view");
}

void check_all_to_all(std::size_t out, const Parts& out_parts, std::size_t in, const Parts& in_parts, int rank,
                      int size) {
  check_inside("all_to_all_v", "out", out_parts, out, size);
  check_inside("all_to_all_v", "in", in_parts, in, size);
  const auto self = static_cast<std::size_t>(rank);
  expects(out_parts.sizes[self] == in_parts.sizes[self],
          "all_to_all_v: a rank's part for itself has one size on both sides");
}

}  // namespace gradtool
