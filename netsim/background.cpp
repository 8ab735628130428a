#include "netsim/background.hpp"

#include <ns3/simulator.h>

#include <cmath>

namespace gradtool::netsim {
namespace {

struct Point {
  double packets, share;  ///< share of flows that are not larger
};
constexpr double kPacket = 1460.0;  // bytes
constexpr Point kSizes[] = {{1, 0.0},   {6, 0.15},  {13, 0.2},   {19, 0.3},   {33, 0.4},    {53, 0.53},
                            {133, 0.6}, {667, 0.7}, {1333, 0.8}, {3333, 0.9}, {6667, 0.97}, {20000, 1.0}};

}  // namespace

double Background::mean_bytes() {
  double mean = 0.0;
  for (std::size_t i = 1; i < std::size(kSizes); ++i) {
    mean += (kSizes[i].share - kSizes[i - 1].share) * 0.5 * (kSizes[i].packets + kSizes[i - 1].packets) * kPacket;
  }
  return mean;
}

Background::Background(const Fabric& fabric, Transport& transport, double load,
                       std::function<void(const Message&, const Delivery&)> delivered)
    : fabric_{fabric},
      transport_{transport},
      delivered_{std::move(delivered)},
      random_{ns3::CreateObject<ns3::UniformRandomVariable>()} {
  random_->SetStream(kBackgroundStream);
  const double bytes = mean_bytes() * (1.0 + static_cast<double>(kPacketOverhead) / fabric.options().payload);
  mean_gap_ = fabric.serialisation(bytes) / load;
}

void Background::start() {
  for (int h = 0; h < fabric_.hosts(); ++h) schedule(h);
}

std::uint64_t Background::draw_size() {
  const double share = random_->GetValue(0.0, 1.0);
  std::size_t i = 1;
  while (i + 1 < std::size(kSizes) && kSizes[i].share < share) ++i;
  const Point &low = kSizes[i - 1], &high = kSizes[i];
  const double within = (share - low.share) / (high.share - low.share);
  return static_cast<std::uint64_t>(kPacket * (low.packets + within * (high.packets - low.packets)));
}

void Background::schedule(int host) {
  const double gap = -mean_gap_ * std::log(1.0 - random_->GetValue(0.0, 1.0));
  ns3::Simulator::Schedule(ns3::Seconds(gap), [this, host] {
    const int other = static_cast<int>(random_->GetInteger(0, static_cast<std::uint32_t>(fabric_.hosts() - 2)));
    const Message message{.from = host,
                          .to = other < host ? other : other + 1,
                          .bytes = draw_size(),
                          .layer = kLayerClasses / 2,
                          .background = true};
    transport_.send(message, [this, message](const Delivery& delivery) { delivered_(message, delivery); });
    schedule(host);
  });
}

}  // namespace gradtool::netsim
