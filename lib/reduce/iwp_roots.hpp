#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lib/codecs/codec.hpp"

namespace gradtool {

/// The ranks that broadcast a mask in a step: the first of a Fisher-Yates shuffle of all, drawn alike everywhere.
class IwpRoots {
 public:
  IwpRoots(std::size_t roots, std::size_t ranks) : roots_(roots < ranks ? roots : ranks), left_(ranks) {}

  void draw(const EncodeContext& context) {
    const auto key = law::shared_by_ranks(context.key);
    for (std::size_t r = 0; r < left_.size(); ++r) left_[r] = r;
    law::Draws draws{};
    for (std::size_t j = 0; j < roots_.size(); ++j) {
      if (j % 4 == 0) draws = law::draw4(key, j / 4);
      std::swap(left_[j], left_[j + static_cast<std::size_t>(draws.bits[j % 4] * (left_.size() - j) >> 32)]);
      roots_[j] = left_[j];
    }
  }
  [[nodiscard]] std::size_t count() const { return roots_.size(); }
  [[nodiscard]] std::size_t rank_of(std::size_t slot) const { return roots_[slot]; }
  /// The slot of a rank; count() when it has none.
  [[nodiscard]] std::size_t slot_of(std::size_t rank) const {
    std::size_t slot = 0;
    while (slot < roots_.size() && roots_[slot] != rank) ++slot;
    return slot;
  }

 private:
  std::vector<std::size_t> roots_, left_;
};

}  // namespace gradtool
