#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lib/bench/result.hpp"

namespace gradtool {

/// How codecs look on a page: the same codec has the same colour, line and point in every chart of every section.
/// Codecs get their looks in the order in which they are asked for.
class CodecLooks {
 public:
  /// Colours that are told apart with any colour vision; the seventh codec has the first colour again, with a dashed
  /// line and another point.
  static constexpr std::size_t kColours = 6;

  struct Look {
    std::string colour;        ///< "#0072b2"
    std::vector<double> dash;  ///< as Vega takes it, in pixels: drawn, left out
    std::string shape;         ///< of a point
  };
  /// `codec` is a codec with its parameters, as charts name it.
  [[nodiscard]] Look of(const std::string& codec);

 private:
  std::vector<std::string> codecs_;
};

/// The name of a codec that stands alone: with the parameters that were given, and with those in which `rows` of the
/// same codec differ; if there are none, with the one that `gradtool tune` would try first. It is a valid --codec:
/// "randomk:ratio=0.01".
[[nodiscard]] std::string codec_label(const ResultRow& row, const std::vector<ResultRow>& rows);

}  // namespace gradtool
