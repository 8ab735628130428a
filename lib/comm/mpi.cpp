#include "lib/comm/mpi.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/comm/host_sum.hpp"
#include "lib/comm/mpi_check.hpp"
#include "lib/comm/mpi_job.hpp"

namespace gradtool {
namespace {

/// The most that one MPI message carries: counts are int, and a round number of pages keeps the pieces aligned.
constexpr std::size_t kMostPerMessage = std::size_t{1} << 30;
constexpr int kTag = 1;

}  // namespace

MpiCommunicator::MpiCommunicator(const WatchLimits& limits) : MpiCommunicator{start_mpi_job(limits), limits} {}

MpiCommunicator::MpiCommunicator(const MpiPlace& place, const WatchLimits& limits)
    : RingCommunicator{place.rank, place.size}, watch_{mpi_watch()} {
  if (watch_ == nullptr) return;
  watch_->set_limits(limits);
  watch_->set_phase(WatchPhase::in_job);
}

MpiCommunicator::~MpiCommunicator() {
  if (watch_ != nullptr) watch_->set_phase(WatchPhase::between_jobs);
}

std::size_t MpiCommunicator::ring_scratch(std::size_t bytes) const {
  return std::min(bytes, bytes / static_cast<std::size_t>(size()) + sizeof(float));
}

void MpiCommunicator::transfer(Queue<Space::host> /*queue*/, int to, ConstBytes out, int from, Bytes in) {
  const MpiWatch::Call waiting{watch_, current_call(), in.empty() ? to : from};
  std::size_t sent = 0;
  std::size_t received = 0;
  // Piece i of one side meets piece i of the other; a side that has no more pieces has no partner.
  while (sent < out.size() || received < in.size()) {
    const std::size_t send = std::min(kMostPerMessage, out.size() - sent);
    const std::size_t receive = std::min(kMostPerMessage, in.size() - received);
    MPI_Status status;
    GT_MPI(MPI_Sendrecv(out.data() + sent, static_cast<int>(send), MPI_BYTE, send > 0 ? to : MPI_PROC_NULL, kTag,
                        in.data() + received, static_cast<int>(receive), MPI_BYTE, receive > 0 ? from : MPI_PROC_NULL,
                        kTag, MPI_COMM_WORLD, &status));
    int arrived = 0;
    GT_MPI(MPI_Get_count(&status, MPI_BYTE, &arrived));
    if (static_cast<std::size_t>(arrived) != receive) {
      throw Error{Fault::usage,
                  fmt::format("rank {} sent {} bytes to rank {}, which expected {}: the ranks' calls do not "
                              "match",
                              from, arrived, rank(), receive)};
    }
    sent += send;
    received += receive;
  }
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
  check_sum("all_reduce_native", inout, dtype, scratch);
  const std::uint64_t bytes = ring_all_reduce_bytes(inout.size() / sizeof(float), sizeof(float), rank(), size());
  ++traffic_.collectives;
  traffic_.bytes_sent += bytes;
  traffic_.messages_sent += bytes > 0 ? 1 : 0;
  for (std::size_t first = 0; first < inout.size(); first += kMostPerMessage) {
    const MpiWatch::Call waiting{watch_, "all_reduce_native"};
    const std::size_t piece = std::min(kMostPerMessage, inout.size() - first);
    GT_MPI(MPI_Allreduce(MPI_IN_PLACE, inout.data() + first, static_cast<int>(piece / sizeof(float)), MPI_FLOAT,
                         MPI_SUM, MPI_COMM_WORLD));
  }
}

void MpiCommunicator::barrier(Queue<Space::host> /*queue*/) {
  const MpiWatch::Call waiting{watch_, "barrier"};
  GT_MPI(MPI_Barrier(MPI_COMM_WORLD));
}

void MpiCommunicator::agree_max(std::span<double> values) {
  const MpiWatch::Call waiting{watch_, "agree_max"};
  GT_MPI(
      MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD));
}

void MpiCommunicator::share(std::span<std::byte> bytes, int root) {
  const MpiWatch::Call waiting{watch_, "share"};
  GT_MPI(MPI_Bcast(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, root, MPI_COMM_WORLD));
}

int MpiCommunicator::rank_on_node() const {
  const MpiWatch::Call waiting{watch_, "rank_on_node"};
  MPI_Comm node = MPI_COMM_NULL;
  GT_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &node));
  int rank_there = 0;
  GT_MPI(MPI_Comm_rank(node, &rank_there));
  GT_MPI(MPI_Comm_free(&node));
  return rank_there;
}

}  // namespace gradtool
