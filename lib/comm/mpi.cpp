#include "lib/comm/mpi.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "lib/comm/host_sum.hpp"
#include "lib/comm/launch.hpp"
#include "lib/comm/mpi_check.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

/// How long a process that ends in failure waits for the others to end too, before it ends them.
constexpr std::chrono::seconds kGrace{10};
/// Seconds that MPI_Finalize may take once every process has called it.
constexpr double kFinalizeSeconds = 60.0;
/// Seconds that MPI_Abort may take before the process ends by itself.
constexpr double kAbortSeconds = 3.0;

/// The most bytes that one MPI message carries: counts are int, and a round number of pages keeps the pieces aligned.
constexpr std::size_t kMostPerMessage = std::size_t{1} << 30;
constexpr int kTag = 1;

MpiWatch* watch = nullptr;  // Deleted by finalize_at_exit; after an abort it is never deleted.
std::atomic<bool> aborting{false};

/// Waits until every process of the job has called it. Returns false when that takes longer than `patience`.
bool all_are_leaving(std::chrono::steady_clock::duration patience) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS) return false;
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    int done = 0;
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    if (done != 0) return true;
    if (std::chrono::steady_clock::now() - start > patience) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
}

/// Finalises MPI when the process exits with `status`. MPI_Finalize waits for all processes, and a process that has
/// failed must not wait for ever for others that wait for it, so after kGrace it aborts the job.
void finalize_at_exit(int status, void* /*unused*/) {
  int finalized = 0;
  if (aborting || MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
  if (watch != nullptr) watch->set_phase(status == 0 ? WatchPhase::ended : WatchPhase::failed);
  const auto patience = status == 0 ? std::chrono::steady_clock::duration::max() : kGrace;
  if (!all_are_leaving(patience) && status != 0) abort_mpi_job(status);
  const ExitTimer timer{kFinalizeSeconds, "MPI does not end, though every process has come to its end"};
  delete watch;
  watch = nullptr;
  MPI_Finalize();
}

/// Compares the number of processes that the launcher started with the number that MPI sees. A launcher that does not
/// speak this MPI's protocol starts many jobs of one process each, all of which would work as rank 0.
void compare_with_launcher(const MpiPlace& mpi) {
  const MpiPlace launcher = mpi_place();
  if (launcher.size == 1 || launcher.size == mpi.size) return;
  throw_error(Fault::backend,
              "the launcher started {} processes, but {} sees {}: it does not speak that launcher's "
              "protocol; use the mpirun of that MPI, or with Slurm srun --mpi=pmix (srun --mpi=list)",
              launcher.size, mpi_library_version(), mpi.size);
}

MpiPlace world() {
  MpiPlace place;
  GT_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &place.rank));
  GT_MPI(MPI_Comm_size(MPI_COMM_WORLD, &place.size));
  return place;
}

}  // namespace

void check_mpi(int code, const char* call, const char* file, int line) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error{Fault::backend, fmt::format("MPI: {} failed: {}", call, text), file, line};
}

MpiPlace start_mpi_job(const WatchLimits& limits) {
  int initialized = 0;
  GT_MPI(MPI_Initialized(&initialized));
  if (initialized != 0) return world();
  const double patience = 10.0 * limits.stall;
  const ExitTimer timer{
      patience,
      fmt::format("rank {} has waited {:.0f} s for all {} processes to start MPI; one of them did not get there",
                  mpi_place().rank, patience, mpi_place().size)};
  int provided = 0;
  GT_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
  on_exit(finalize_at_exit, nullptr);
  if (provided < MPI_THREAD_SERIALIZED) {
    throw_error(Fault::backend,
                "{} cannot be called from more than one thread (MPI_THREAD_SERIALIZED), which gradtool needs",
                mpi_library_version());
  }
  GT_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  const MpiPlace place = world();
  compare_with_launcher(place);
  if (place.size == 1) return place;
  if (provided == MPI_THREAD_MULTIPLE) {
    watch = new MpiWatch;
    watch->set_limits(limits);
  } else if (place.rank == 0) {
    fmt::print(stderr,
               "gradtool: {} was built without MPI_THREAD_MULTIPLE: a process that stalls will not be noticed\n",
               mpi_library_version());
  }
  return place;
}

MpiWatch* mpi_watch() noexcept {
  return watch;
}

void abort_mpi_job(int status) {
  if (aborting.exchange(true)) {
    // Another thread is already aborting, which ends this process too.
    for (;;) std::this_thread::sleep_for(std::chrono::seconds{1});
  }
  const ExitTimer timer{kAbortSeconds, {}, status};
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

std::string mpi_library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  GT_MPI(MPI_Get_library_version(text, &length));
  const std::string version{text};
  return version.substr(0, version.find_first_of(",\n"));
}

/// The ranks of a communicator, and MPI's handle of them: first, first + stride, and so on of the job.
struct MpiCommunicator::Members {
  MPI_Comm comm = MPI_COMM_WORLD;
  int first = 0;
  int stride = 1;
  MpiPlace place = {};

  Members() = default;
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;
  ~Members() {
    int finalized = 0;
    if (comm != MPI_COMM_WORLD && MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0) MPI_Comm_free(&comm);
  }
};

MpiCommunicator::MpiCommunicator(const WatchLimits& limits) : MpiCommunicator{start_mpi_job(limits), limits} {}

MpiCommunicator::MpiCommunicator(const MpiPlace& place, const WatchLimits& limits)
    : RingCommunicator{place.rank, place.size}, watch_{mpi_watch()}, members_{std::make_unique<Members>()} {
  if (watch_ == nullptr) return;
  watch_->set_limits(limits);
  watch_->set_phase(WatchPhase::in_job);
}

MpiCommunicator::MpiCommunicator(std::unique_ptr<Members> members, MpiWatch* watch)
    : RingCommunicator{members->place.rank, members->place.size}, watch_{watch}, members_{std::move(members)} {}

MpiCommunicator::~MpiCommunicator() {
  if (watch_ != nullptr && members_->comm == MPI_COMM_WORLD) watch_->set_phase(WatchPhase::between_jobs);
}

void MpiCommunicator::set_levels(int node) {
  expects(node >= 1 && size() % node == 0, "machines share the ranks evenly");
  const MpiWatch::Call waiting{watch_, "set_levels"};
  const auto split = [&](int color, int first, int stride) {
    auto members = std::make_unique<Members>();
    members->first = first;
    members->stride = stride;
    GT_MPI(MPI_Comm_split(members_->comm, color, rank(), &members->comm));
    GT_MPI(MPI_Comm_set_errhandler(members->comm, MPI_ERRORS_RETURN));
    GT_MPI(MPI_Comm_rank(members->comm, &members->place.rank));
    GT_MPI(MPI_Comm_size(members->comm, &members->place.size));
    return std::unique_ptr<MpiCommunicator>{new MpiCommunicator{std::move(members), watch_}};
  };
  const int machine = rank() / node;
  inside_ = split(machine, machine * node, 1);
  across_ = split(rank() % node, rank() % node, node);
  set_all_reduce(algorithm());
}

int MpiCommunicator::rank_in_job(int rank) const {
  return rank < 0 ? rank : members_->first + rank * members_->stride;
}

std::size_t MpiCommunicator::ring_scratch(std::size_t bytes) const {
  return std::min(bytes, bytes / static_cast<std::size_t>(size()) + sizeof(float));
}

void MpiCommunicator::transfer(Queue<Space::host> /*queue*/, int to, ConstBytes out, int from, Bytes in) {
  const MpiWatch::Call waiting{watch_, current_call(), rank_in_job(in.empty() ? to : from)};
  std::size_t sent = 0;
  std::size_t received = 0;
  // Piece i that one rank sends is piece i that the other receives. A side without further pieces has MPI_PROC_NULL.
  while (sent < out.size() || received < in.size()) {
    const std::size_t send = std::min(kMostPerMessage, out.size() - sent);
    const std::size_t receive = std::min(kMostPerMessage, in.size() - received);
    MPI_Status status;
    GT_MPI(MPI_Sendrecv(out.data() + sent, static_cast<int>(send), MPI_BYTE, send > 0 ? to : MPI_PROC_NULL, kTag,
                        in.data() + received, static_cast<int>(receive), MPI_BYTE, receive > 0 ? from : MPI_PROC_NULL,
                        kTag, members_->comm, &status));
    int arrived = 0;
    GT_MPI(MPI_Get_count(&status, MPI_BYTE, &arrived));
    if (static_cast<std::size_t>(arrived) != receive) {
      throw_error(Fault::usage, "rank {} sent {} bytes to rank {}, which expected {}: the ranks' calls do not match",
                  from, arrived, rank(), receive);
    }
    sent += send;
    received += receive;
  }
}

void MpiCommunicator::transfer_many(Queue<Space::host> /*queue*/, std::span<const Outgoing> out,
                                    std::span<const Incoming> in) {
  const MpiWatch::Call waiting{watch_, current_call(), in.empty() ? -1 : rank_in_job(in.front().from)};
  static std::vector<MPI_Request> requests;  // kept, so that calls do not allocate; one thread at a time is here
  requests.clear();
  // A message above kMostPerMessage goes in pieces, which MPI keeps in order.
  const auto pieces = [](std::size_t bytes, auto&& start) {
    for (std::size_t first = 0; first < bytes; first += kMostPerMessage) {
      start(first, static_cast<int>(std::min(kMostPerMessage, bytes - first)),
            &requests.emplace_back(MPI_REQUEST_NULL));
    }
  };
  for (const Incoming& one : in) {
    pieces(one.bytes.size(), [&](std::size_t first, int count, MPI_Request* request) {
      GT_MPI(MPI_Irecv(one.bytes.data() + first, count, MPI_BYTE, one.from, kTag, members_->comm, request));
    });
  }
  for (const Outgoing& one : out) {
    pieces(one.bytes.size(), [&](std::size_t first, int count, MPI_Request* request) {
      GT_MPI(MPI_Isend(one.bytes.data() + first, count, MPI_BYTE, one.to, kTag, members_->comm, request));
    });
  }
  GT_MPI(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
}

void MpiCommunicator::transfer_sum(Queue<Space::host> queue, int to, ConstBytes out, int from, Bytes inout, Dtype dtype,
                                   Bytes scratch) {
  const Bytes arrived = scratch.first(inout.size());
  transfer(queue, to, out, from, arrived);
  sum_into(queue, inout, arrived, dtype);
}

void MpiCommunicator::copy_local(Queue<Space::host> queue, Bytes to, ConstBytes from) {
  copy_into(queue, to, from);
}

void MpiCommunicator::sum_local(Queue<Space::host> queue, Bytes sum, ConstBytes addend, Dtype dtype) {
  sum_into(queue, sum, addend, dtype);
}

void MpiCommunicator::all_reduce_native(Queue<Space::host> queue, Bytes inout, Dtype dtype, Bytes scratch) {
  if (dtype != Dtype::f32) return RingCommunicator::all_reduce_native(queue, inout, dtype, scratch);
  check_sum(inout, dtype, scratch);
  const std::uint64_t bytes = ring_all_reduce_bytes(inout.size() / sizeof(float), sizeof(float), rank(), size());
  ++traffic_.collectives;
  traffic_.bytes_sent += bytes;
  traffic_.messages_sent += bytes > 0 ? 1 : 0;
  for (std::size_t first = 0; first < inout.size(); first += kMostPerMessage) {
    const MpiWatch::Call waiting{watch_, "all_reduce_native"};
    const std::size_t piece = std::min(kMostPerMessage, inout.size() - first);
    GT_MPI(MPI_Allreduce(MPI_IN_PLACE, inout.data() + first, static_cast<int>(piece / sizeof(float)), MPI_FLOAT,
                         MPI_SUM, members_->comm));
  }
}

void MpiCommunicator::barrier(Queue<Space::host> /*queue*/) {
  const MpiWatch::Call waiting{watch_, "barrier"};
  GT_MPI(MPI_Barrier(members_->comm));
}

void MpiCommunicator::agree_max(std::span<double> values) {
  const MpiWatch::Call waiting{watch_, "agree_max"};
  GT_MPI(
      MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX, members_->comm));
}

void MpiCommunicator::share(std::span<std::byte> bytes, int root) {
  const MpiWatch::Call waiting{watch_, "share"};
  GT_MPI(MPI_Bcast(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, root, members_->comm));
}

int MpiCommunicator::rank_on_node() const {
  const MpiWatch::Call waiting{watch_, "rank_on_node"};
  MPI_Comm node = MPI_COMM_NULL;
  GT_MPI(MPI_Comm_split_type(members_->comm, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &node));
  int rank_there = 0;
  GT_MPI(MPI_Comm_rank(node, &rank_there));
  GT_MPI(MPI_Comm_free(&node));
  return rank_there;
}

void run_mpi_job(const std::function<void(MpiCommunicator&)>& body, const WatchLimits& limits) {
  MpiCommunicator communicator{limits};
  const auto end_job = [&](const char* what, int status) {
    // Not fmt::print, which throws when standard error cannot be written.
    std::fputs(fmt::format("gradtool: rank {}: {}\n", communicator.rank(), what).c_str(), stderr);
    std::fflush(nullptr);
    abort_mpi_job(status);
  };
  try {
    body(communicator);
  } catch (const Error& error) {
    if (communicator.size() == 1) throw;
    end_job(error.what(), exit_status(error.fault()));
  } catch (const std::exception& error) {
    if (communicator.size() == 1) throw;
    end_job(error.what(), static_cast<int>(Fault::backend));
  } catch (...) {
    if (communicator.size() == 1) throw;
    end_job("an exception of an unknown type", static_cast<int>(Fault::backend));
  }
}

void run_mpi(const HostBody& body, double timeout_seconds) {
  expect_valid(timeout_seconds > 0, "the timeout of an MPI job is a positive number of seconds");
  run_mpi_job(body, {.stall = timeout_seconds});
}

bool mpi_started() noexcept {
  int initialized = 0;
  return MPI_Initialized(&initialized) == MPI_SUCCESS && initialized != 0;
}

MpiPlace mpi_world(double timeout_seconds) {
  MpiPlace place = start_mpi_job({.stall = timeout_seconds});
  MPI_Comm machine = MPI_COMM_NULL;
  GT_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine));
  GT_MPI(MPI_Comm_size(machine, &place.on_machine));
  GT_MPI(MPI_Comm_free(&machine));
  return place;
}

}  // namespace gradtool
