#pragma once

#include <memory>

#include "lib/codecs/codec.hpp"
#include "lib/codecs/params.hpp"

namespace gradtool {

/// The parameters of qsgd besides its code.
struct QsgdOptions {
  std::uint32_t bits;
  std::size_t bucket;
  bool l2;

  /// Throws Fault::usage for a bucket that is not a multiple of 32.
  explicit QsgdOptions(const Params& params);
  /// The bound for n elements, whichever code is used: an element moves by less than one level.
  [[nodiscard]] ErrorBound bound(std::size_t n) const;
};

/// qsgd with code=elias (elias.cpp, elias.cu).
[[nodiscard]] std::unique_ptr<Codec<Space::host>> make_qsgd_elias(const QsgdOptions& options);
[[nodiscard]] std::unique_ptr<Codec<Space::cuda>> make_gpu_qsgd_elias(const Params& params);

}  // namespace gradtool
