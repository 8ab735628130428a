#include "lib/comm/udp/liveness.hpp"

#include <algorithm>
#include <chrono>

#include "lib/core/throw_error.hpp"

namespace gradtool::udp {
namespace {

/// A rank that waits says so once a second; one that has said so within this time is alive.
constexpr double kTell = 1.0;
constexpr double kAlive = 3.0;

}  // namespace

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Liveness::Liveness(Mesh& mesh, double timeout_seconds)
    : mesh_{mesh}, timeout_seconds_{timeout_seconds}, peers_(static_cast<std::size_t>(mesh.size)), last_look_{now()} {}

double Liveness::begin() {
  waited_ = 0.0;
  moved_ = true;
  return last_look_ = now();
}

void Liveness::check(int awaited) {
  const double time = now();
  waited_ = moved_ ? 0.0 : waited_ + std::min(time - last_look_, 1.0);
  last_look_ = time;
  moved_ = false;
  if (awaited < 0) return;
  if (peer(awaited).left)
    throw_error(Fault::backend, "rank {} has ended, but rank {} waits for it", awaited, mesh_.rank);
  if (waited_ > kTell && time - last_told_ > kTell) {
    last_told_ = time;
    const std::int32_t number = awaited;
    for (ControlLine& line : mesh_.lines) line.send(FrameType::waiting, 0, bytes_of(number));
  }
  if (waited_ > timeout_seconds_) blame(awaited);
}

void Liveness::take(int from, const Frame& frame) {
  Peer& sender = peers_[static_cast<std::size_t>(from)];
  if (frame.type == FrameType::leaving) sender.left = true;
  if (frame.type == FrameType::waiting) {
    if (const auto other = value_in<std::int32_t>(frame.body)) {
      sender.told_waiting = now();
      sender.waits_for = *other;
    }
  }
  if (frame.type == FrameType::failed) {
    failed_rank_ = static_cast<int>(frame.message);
    failure_.assign(reinterpret_cast<const char*>(frame.body.data()), frame.body.size());
    throw_error(Fault::backend, "rank {} failed: {}", failed_rank_, failure_);
  }
}

void Liveness::expect_left(int other) const {
  if (peer(other).left) return;
  throw_error(Fault::backend, "rank {} is gone: its connection to rank {} has closed", other, mesh_.rank);
}

/// A rank that waits itself is not to blame, but the one that it waits for.
void Liveness::blame(int other) const {
  int culprit = other;
  for (int step = 0; step < mesh_.size; ++step) {
    const Peer& one = peer(culprit);
    if (now() - one.told_waiting > kAlive || one.waits_for < 0 || one.waits_for >= mesh_.size) break;
    if (one.waits_for == mesh_.rank) {
      throw_error(Fault::backend, "ranks {} and {} wait for each other: the ranks' calls do not match", mesh_.rank,
                  culprit);
    }
    culprit = one.waits_for;
  }
  throw_error(Fault::backend, "rank {} has waited {:g} s for rank {}", mesh_.rank, timeout_seconds_, culprit);
}

void Liveness::fail(const std::string& what) noexcept {
  try {
    // Who ends because another rank has failed names that one.
    const int origin = failed_rank_ >= 0 ? failed_rank_ : mesh_.rank;
    const std::string& text = failed_rank_ >= 0 ? failure_ : what;
    for (ControlLine& line : mesh_.lines)
      line.send(FrameType::failed, static_cast<std::uint64_t>(origin), std::as_bytes(std::span{text}));
  } catch (...) {  // without memory the connections just close, which ends the others too
  }
}

}  // namespace gradtool::udp
