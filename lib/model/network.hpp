#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/model/library.hpp"

namespace gradtool {

/// A link in the alpha-beta model (Hockney 1994): a message of b bytes takes alpha + b / beta.
struct Link {
  double alpha = 0.0;  ///< seconds a message
  double beta = 0.0;   ///< bytes a second, each way, while all ranks send
};

/// The links that join ranks. Flat, or two levels: `node` ranks share the link of their machine, and talk among
/// themselves over `inner`.
struct Network {
  std::string name;
  Link link;
  int node = 1;
  Link inner;
  Library library = Library::best;     ///< that carries the collectives
  Library under_hook = Library::gloo;  ///< gloo or nccl: what carries the messages where `library` is the hook
  double misfit = 0.0;  ///< by how much measured times lie off the link's line, relative, root mean square; 0: not told

  /// "10gbe", "10gbe:node=8,inner=nvlink", or one of your own: "lab:alpha=5us,beta=12.5GBps" (also beta=100Gbps for
  /// bits). With "contention=1.2" that beta is what two ranks have alone, and the link's is beta / 1.2, because in a
  /// collective all of them send. "misfit=0.4" says how far a measured network is off. The names of profiles may be in
  /// any case: 10GbE is 10gbe. Throws Fault::usage naming the valid profiles.
  [[nodiscard]] static Network parse(const std::string& text);

  /// A network as parse() takes it, or one that `gradtool probe` has measured: "net.json", or with the ranks of a
  /// machine "net.json:node=8". Its name is then as one's own, "net:alpha=51.2us,beta=0.94Gbps,contention=1.02", which
  /// parse() takes, with the misfit where the file says that the line does not fit. Throws Fault::data for a file that
  /// cannot be read or is none of a network.
  [[nodiscard]] static Network from_option(const std::string& text);
};

/// The file that an option's value names: the part up to ".json", or an existing file that is no profile's name. Empty
/// where it names none.
[[nodiscard]] std::string network_file(const std::string& text);

/// True for what a network file may be called: letters, digits, dots, hyphens and underscores, 64 at most.
[[nodiscard]] bool valid_network_name(std::string_view name);

/// The schema of the network file, docs/network-model.md.
inline constexpr std::string_view kNetworkFormat = "gradtool.network";
inline constexpr int kNetworkSchema = 1;

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
