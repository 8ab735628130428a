#include "lib/comm/mpi.hpp"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "lib/comm/host_sum.hpp"
#include "lib/comm/launch.hpp"

namespace gradtool {
namespace {

/// The most that one MPI message carries: counts are int, and a round number of pages keeps the pieces aligned.
constexpr std::size_t kMostPerMessage = std::size_t{1} << 30;
constexpr int kTag = 1;
/// How long a process that ends in failure waits for the others to end too, before it ends them.
constexpr std::chrono::seconds kGrace{10};

void check(int code, const char* call, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error{Fault::backend, fmt::format("MPI: {} failed: {}", call, text), file, line};
}
#define GT_MPI(call) check(call, #call)

/// Waits until every process of the job gets here; at most `patience`, false then.
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

/// MPI_Finalize waits for all processes. One that ends because it failed must not wait for ever for others that wait
/// for it.
void finalize_at_exit(int status, void* /*unused*/) {
  int finalized = 0;
  if (MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
  const auto patience = status == 0 ? std::chrono::steady_clock::duration::max() : kGrace;
  if (!all_are_leaving(patience) && status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
}

void initialize_once() {
  int initialized = 0;
  GT_MPI(MPI_Initialized(&initialized));
  if (initialized != 0) return;
  int provided = 0;
  GT_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
  if (provided < MPI_THREAD_SERIALIZED) {
    throw Error{
        Fault::backend,
        fmt::format("{} cannot be called from more than one thread (MPI_THREAD_SERIALIZED), which gradtool needs",
                    mpi_library_version())};
  }
  GT_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  on_exit(finalize_at_exit, nullptr);
}

int initialized_rank() {
  initialize_once();
  int rank = 0;
  GT_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  return rank;
}

int world_size() {
  int size = 1;
  GT_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
  return size;
}

}  // namespace

MpiCommunicator::MpiCommunicator() : RingCommunicator{initialized_rank(), world_size()} {}

std::size_t MpiCommunicator::ring_scratch(std::size_t bytes) const {
  return std::min(bytes, bytes / static_cast<std::size_t>(size()) + sizeof(float));
}

void MpiCommunicator::transfer(Queue<Space::host> /*queue*/, int to, ConstBytes out, int from, Bytes in) {
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
    const std::size_t piece = std::min(kMostPerMessage, inout.size() - first);
    GT_MPI(MPI_Allreduce(MPI_IN_PLACE, inout.data() + first, static_cast<int>(piece / sizeof(float)), MPI_FLOAT,
                         MPI_SUM, MPI_COMM_WORLD));
  }
}

void MpiCommunicator::barrier(Queue<Space::host> /*queue*/) {
  GT_MPI(MPI_Barrier(MPI_COMM_WORLD));
}

void MpiCommunicator::agree_max(std::span<double> values) {
  GT_MPI(
      MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD));
}

void MpiCommunicator::share(std::span<std::byte> bytes, int root) {
  GT_MPI(MPI_Bcast(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, root, MPI_COMM_WORLD));
}

int MpiCommunicator::rank_on_node() const {
  MPI_Comm node = MPI_COMM_NULL;
  GT_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &node));
  int rank_there = 0;
  GT_MPI(MPI_Comm_rank(node, &rank_there));
  GT_MPI(MPI_Comm_free(&node));
  return rank_there;
}

void abort_mpi_job(int status) {
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

}  // namespace gradtool
