#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/report/table.hpp"
#include "netsim/transport.hpp"

namespace gradtool::netsim {

/// The settings that both commands that simulate a fabric need.
struct Setting {
  FabricOptions fabric;
  Protocol protocol = Protocol::dlcp;
  Routing routing = Routing::spray;
  DlcpOptions dlcp;
  TcpOptions tcp;
  double background = 0.0;  ///< load of other traffic, share of the hosts' links
  std::uint64_t seed = 1;
};

/// Simulated seconds at which the first step begins: connections are open, and other traffic, which begins a little
/// earlier, is what it will be. A simulation of more than the last of them is given up.
constexpr double kStart = 60e-3, kBackgroundStart = 58e-3, kLongest = 100.0;

/// Microseconds in a second, the unit of tables.
inline constexpr double kMicro = 1e6;

[[nodiscard]] double mean(const std::vector<double>& values);

/// Host of rank `rank` of `ranks`: neighbours are on different leaves, which are filled evenly.
[[nodiscard]] int host_of_rank(const FabricOptions& fabric, int rank);

/// Completion times by class. Classes of gradients are thirds of the model by layer class, those of other traffic are
/// sizes; "all" is all of one direction.
class Completions {
 public:
  explicit Completions(const Fabric& fabric) : fabric_{fabric} {}
  void add(const std::string& direction, const Message& message, const Delivery& delivery);
  /// One row for each direction and class, behind the cells in `before`.
  void append_to(Table& table, const std::vector<Cell>& before) const;
  [[nodiscard]] static std::vector<Column> columns();
  [[nodiscard]] double least_delivered() const { return least_; }

 private:
  struct Group {
    std::vector<double> seconds, slowdowns;
    double bytes = 0.0, delivered = 0.0, important = 0.0, important_sent = 0.0, repeated = 0.0, least = 1.0;
  };
  const Fabric& fabric_;
  std::map<std::pair<std::string, std::string>, Group> groups_;
  double least_ = 1.0;
};

/// Nearest rank, `share` from 0 to 1; `sorted` is not empty.
[[nodiscard]] double percentile(const std::vector<double>& sorted, double share);

}  // namespace gradtool::netsim
