#include "netsim/results.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace gradtool::netsim {

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

namespace {

std::string class_of(const Message& message) {
  constexpr std::uint64_t kSmall = 100'000, kLarge = 10'000'000;  // the sizes that pFabric's authors tell apart
  if (message.background) return message.bytes <= kSmall ? "small" : message.bytes < kLarge ? "medium" : "large";
  return 3 * message.layer < kLayerClasses ? "front" : 3 * message.layer < 2 * kLayerClasses ? "middle" : "back";
}

Cell share(double part, double whole) {
  return whole > 0.0 ? Cell{part / whole} : Cell{};
}

}  // namespace

int host_of_rank(const FabricOptions& fabric, int rank) {
  return rank % fabric.leaves * fabric.hosts_per_leaf + rank / fabric.leaves;
}

double percentile(const std::vector<double>& sorted, double share) {
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::max<std::size_t>(rank, 1) - 1];
}

void Completions::add(const std::string& direction, const Message& message, const Delivery& delivery) {
  const double ideal =
      fabric_.ideal_seconds(static_cast<double>(message.bytes), fabric_.across(message.from, message.to));
  const double arrived = static_cast<double>(delivery.bytes) / static_cast<double>(message.bytes);
  for (const std::string& name : {std::string{"all"}, class_of(message)}) {
    Group& group = groups_[{direction, name}];
    group.seconds.push_back(delivery.seconds);
    group.slowdowns.push_back(delivery.seconds / ideal);
    group.bytes += static_cast<double>(message.bytes);
    group.delivered += static_cast<double>(delivery.bytes);
    group.important += static_cast<double>(delivery.important);
    group.important_sent += static_cast<double>(delivery.important_sent);
    group.repeated += static_cast<double>(delivery.repeated);
    group.least = std::min(group.least, arrived);
  }
  if (!message.background) least_ = std::min(least_, arrived);
}

std::vector<Column> Completions::columns() {
  return {{"direction", "push, pull (parameter server), hop (ring), background"},
          {"class",
           "front, middle, back third of the layers; sizes of background flows: small to 100 kB, large from 10 MB"},
          {"messages", "that arrived"},
          {"bytes_mean", "of a message"},
          {"mean_us", "from sending until the receiver could go on: mean"},
          {"p50_us", "median"},
          {"p99_us", "99th percentile, nearest rank"},
          {"max_us", "longest"},
          {"slowdown_mean", "time over that of the same message alone on the idle fabric: mean"},
          {"slowdown_p99", "99th percentile"},
          {"delivered_min", "smallest share of a message's bytes that had arrived"},
          {"delivered", "share of all bytes that had arrived"},
          {"delivered_important", "the same of important packets"},
          {"delivered_droppable", "the same of the others"},
          {"repeated", "bytes sent again over all bytes; TCP's are not known"}};
}

void Completions::append_to(Table& table, const std::vector<Cell>& before) const {
  for (const auto& [key, group] : groups_) {
    std::vector<double> seconds = group.seconds, slowdowns = group.slowdowns;
    std::sort(seconds.begin(), seconds.end());
    std::sort(slowdowns.begin(), slowdowns.end());
    std::vector<Cell> row = before;
    row.insert(
        row.end(),
        {key.first, key.second, static_cast<std::int64_t>(seconds.size()),
         group.bytes / static_cast<double>(seconds.size()), kMicro * mean(seconds), kMicro * percentile(seconds, 0.5),
         kMicro * percentile(seconds, 0.99), kMicro * seconds.back(), mean(slowdowns), percentile(slowdowns, 0.99),
         group.least, group.delivered / group.bytes, share(group.important, group.important_sent),
         share(group.delivered - group.important, group.bytes - group.important_sent), group.repeated / group.bytes});
    table.add(std::move(row));
  }
}

}  // namespace gradtool::netsim
