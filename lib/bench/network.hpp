#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradtool {

/// A link in the alpha-beta model (Hockney 1994): a message of b bytes takes alpha + b / beta.
struct Link {
  double alpha = 0.0;  ///< seconds a message
  double beta = 0.0;   ///< bytes a second, each way
};

/// What ranks are joined by. Flat, or two levels: `node` ranks share the link of their machine, and talk among
/// themselves over `inner`.
struct Network {
  std::string name;
  Link link;
  int node = 1;
  Link inner;

  /// "10gbe", "10gbe:node=8,inner=nvlink", or one of your own: "lab:alpha=5us,beta=12.5GBps" (also beta=100Gbps for
  /// bits). The names of profiles may be in any case: 10GbE is 10gbe. Throws Fault::usage naming the valid profiles.
  [[nodiscard]] static Network parse(const std::string& text);
};

/// A profile that `parse` knows.
struct NetworkProfile {
  std::string_view name;
  Link link;
  std::string_view meaning;
};
[[nodiscard]] std::span<const NetworkProfile> network_profiles();

/// "2,4,8" or "2,4,...,4096" (doubling) as numbers. Throws Fault::usage.
[[nodiscard]] std::vector<int> parse_node_counts(const std::string& text);

}  // namespace gradtool
