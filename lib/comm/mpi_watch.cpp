#include "lib/comm/mpi_watch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "lib/comm/mpi.hpp"
#include "lib/comm/mpi_check.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {

constexpr int kWatchTag = 7;
constexpr int kStatus = static_cast<int>(Fault::backend);
/// How long a process that is told to stop waits to be ended by the abort, before it ends on its own.
constexpr double kStopSeconds = 1.5;

/// `seconds` as a duration to wait for. The clock counts nanoseconds in 64 bits, which 300 years overflow, so that an
/// infinite wait would end in the past; longer waits are therefore cut to three years.
std::chrono::milliseconds wait_of(double seconds) {
  constexpr double kLongest = 1e8;  // seconds, about three years
  return std::chrono::milliseconds{static_cast<std::int64_t>(1e3 * std::clamp(seconds, 0.0, kLongest))};
}

/// Writes a line to stderr without using a stream, because another thread of the process may be stuck while it holds
/// the stream's lock.
void say(const std::string& text) {
  const std::string line = "gradtool: " + text + "\n";
  static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
}

}  // namespace

/// The messages between rank 0 and the other ranks. Errors of MPI are ignored here: a dead peer is recognised by its
/// silence, whatever MPI returns.
struct MpiWatch::Lines {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::vector<int> peers;  ///< rank 0 talks to all, the others to rank 0
  std::vector<WatchReport> in, out;
  std::vector<MPI_Request> receives, sends;

  Lines() {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    for (int r = 0; r < size; ++r) {
      if ((rank == 0) != (r == 0)) peers.push_back(r);
    }
    in.resize(peers.size());
    out.resize(peers.size());
    receives.resize(peers.size(), MPI_REQUEST_NULL);
    sends.resize(peers.size(), MPI_REQUEST_NULL);
    for (std::size_t i = 0; i < peers.size(); ++i) post(i);
  }

  void post(std::size_t i) { MPI_Irecv(&in[i], sizeof in[i], MPI_BYTE, peers[i], kWatchTag, comm, &receives[i]); }

  /// Takes the reports that have arrived. No further report is awaited from a peer after its last one.
  void receive(std::vector<WatchedRank>& ranks) {
    for (std::size_t i = 0; i < peers.size(); ++i) {
      for (int arrived = 1; receives[i] != MPI_REQUEST_NULL;) {
        if (MPI_Test(&receives[i], &arrived, MPI_STATUS_IGNORE) != MPI_SUCCESS || arrived == 0) break;
        WatchedRank& peer = ranks[static_cast<std::size_t>(peers[i])];
        peer = {in[i], 0.0, peer.reports + 1};
        if (!in[i].last) post(i);
      }
    }
  }

  /// Sends `report` to every peer, except to one that has not received the report before this one yet.
  void send(const WatchReport& report) {
    for (std::size_t i = 0; i < peers.size(); ++i) {
      if (sends[i] != MPI_REQUEST_NULL || out[i].last) continue;
      out[i] = report;
      MPI_Isend(&out[i], sizeof out[i], MPI_BYTE, peers[i], kWatchTag, comm, &sends[i]);
    }
  }
  void clear_sent() {
    for (auto& request : sends) {
      int sent = 0;
      if (request != MPI_REQUEST_NULL) static_cast<void>(MPI_Test(&request, &sent, MPI_STATUS_IGNORE));
    }
  }
  [[nodiscard]] bool all_sent() const {
    const auto done = [](MPI_Request request) { return request == MPI_REQUEST_NULL; };
    return std::all_of(sends.begin(), sends.end(), done) && std::all_of(receives.begin(), receives.end(), done) &&
           std::all_of(out.begin(), out.end(), [](const WatchReport& report) { return report.last; });
  }
};

MpiWatch::MpiWatch()
    : lines_{std::make_unique<Lines>()}, stalls_{lines_->rank}, ranks_(static_cast<std::size_t>(lines_->size)) {
  thread_ = std::thread{[this] { run(); }};
}

MpiWatch::~MpiWatch() {
  {
    const std::lock_guard lock{mutex_};
    leaving_ = true;
  }
  changed_.notify_all();
  thread_.join();
  MPI_Comm_free(&lines_->comm);
}

void MpiWatch::set_limits(const WatchLimits& limits) {
  {
    const std::lock_guard lock{mutex_};
    limits_ = limits;
  }
  changed_.notify_all();
}

WatchLimits MpiWatch::limits() const {
  const std::lock_guard lock{mutex_};
  return limits_;
}

/// Waits for `seconds` or until the watch is told something. Returns true when the process wants to leave.
bool MpiWatch::sleep(double seconds) {
  std::unique_lock lock{mutex_};
  if (!leaving_) {
    changed_.wait_for(lock, wait_of(seconds));
    return leaving_;
  }
  lock.unlock();
  std::this_thread::sleep_for(std::chrono::milliseconds{1});
  return true;
}

void MpiWatch::run() {
  auto before = Clock::now();
  for (bool leaving = false;;) {
    const WatchLimits current = limits();
    leaving = sleep(current.period);
    const auto now = Clock::now();
    const double elapsed = std::chrono::duration<double>(now - before).count();
    before = now;
    observe_self(std::min(elapsed, 2.0 * current.period));
    lines_->receive(ranks_);
    lines_->clear_sent();
    if (lines_->rank != 0 && ranks_[0].report.stop) {
      // Rank 0 has printed the reason and is ending the job.
      std::this_thread::sleep_for(std::chrono::duration<double>{kStopSeconds});
      std::_Exit(kStatus);
    }
    if (leaving && lines_->all_sent()) return;
    if (const auto reason = judge()) end_job(*reason);
    WatchReport report = ranks_[static_cast<std::size_t>(lines_->rank)].report;
    report.last = leaving;
    lines_->send(report);
  }
}

void MpiWatch::observe_self(double elapsed) {
  for (auto& rank : ranks_) rank.silent += elapsed;
  WatchReport& self = ranks_[static_cast<std::size_t>(lines_->rank)].report;
  const std::uint64_t moves = moves_.load(std::memory_order_acquire);
  self.unmoved = moves == self.moves ? self.unmoved + elapsed : 0.0;
  self.moves = moves;
  self.awaits = awaits_.load(std::memory_order_relaxed);
  self.phase = phase_.load(std::memory_order_relaxed);
  self.call = {};
  std::strncpy(self.call.data(), call_.load(std::memory_order_relaxed), self.call.size() - 1);
}

std::optional<std::string> MpiWatch::judge() {
  const WatchLimits current = limits();
  if (lines_->rank == 0) {
    if (auto reason = judge_silence(ranks_, 0, current.silence)) return reason;
    return stalls_.judge(ranks_, current);
  }
  // The ranks judge one after the other, half a second apart, so that only one prints the line unless it cannot.
  const double later = 0.5 * std::min(lines_->rank - 1, 6);
  return judge_silence({ranks_.data(), 1}, lines_->rank, current.silence + later);
}

void MpiWatch::end_job(const std::string& reason) {
  say(reason);
  if (lines_->rank == 0) {
    WatchReport report = ranks_[0].report;
    report.stop = true;
    lines_->send(report);
    lines_->clear_sent();
  }
  abort_mpi_job(kStatus);
}

ExitTimer::ExitTimer(double seconds, std::string reason, int status) {
  thread_ = std::thread{[this, seconds, reason = std::move(reason), status] {
    std::unique_lock lock{mutex_};
    if (changed_.wait_for(lock, wait_of(seconds), [this] { return done_; })) return;
    if (!reason.empty()) say(reason);
    std::_Exit(status);
  }};
}

ExitTimer::~ExitTimer() {
  {
    const std::lock_guard lock{mutex_};
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace gradtool
