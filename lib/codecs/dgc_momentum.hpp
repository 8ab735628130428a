#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/law/dgc.hpp"
#include "lib/codecs/dgc_runs.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// What a step does to a rank's velocity u and accumulated velocity v before anything is chosen: local clipping and
/// momentum correction (Lin et al., ICLR 2018, sections 3.2 and 3.3). Parameters are those of codec dgc.
class DgcMomentum {
 public:
  explicit DgcMomentum(const Params& params);

  /// What the reader of a row must know.
  [[nodiscard]] std::string note() const {
    if (momentum_ == 0.0F) return {};
    return "what is sent carries momentum, so errors against plain gradients are large; momentum=0 compares";
  }
  /// With a scale of 1.
  [[nodiscard]] law::Dgc law() const { return {momentum_, 1.0F, nesterov_}; }
  [[nodiscard]] bool clips() const { return clip_ > 0.0; }
  /// The norm that a rank's gradient may have (section 3.3): its share of the global one.
  [[nodiscard]] double limit(int ranks) const { return clip_ / std::sqrt(static_cast<double>(ranks)); }
  [[nodiscard]] static std::size_t scratch_bytes(std::size_t n) { return 8 * host::pieces_of(n); }

  /// u and v := what they are after `gradient`, one of `ranks`. maxima := the largest pattern of |v| in each block of
  /// the pieces. Elements that go whole leave v alone; `dense` := what they send, run after run.
  void accumulate(Queue<Space::host> queue, const DgcRuns& runs, HostView<const float> gradient, int ranks, float* u,
                  float* v, std::uint32_t* maxima, float* dense, HostView<std::byte> scratch) const;

 private:
  [[nodiscard]] float clip_scale(Queue<Space::host> queue, HostView<const float> gradient, int ranks,
                                 HostView<std::byte> scratch) const;

  float momentum_;
  bool nesterov_;
  double clip_;
};

}  // namespace gradtool
