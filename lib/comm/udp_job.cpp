// Starts jobs whose ranks are processes, over MPI or over the bounded-loss transport.

#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "lib/comm/launch.hpp"
#include "lib/comm/udp/job.hpp"
#include "lib/comm/udp/udp.hpp"
#include "lib/core/parse.hpp"
#include "lib/core/throw_error.hpp"

#ifdef GT_WITH_MPI
#include "lib/comm/mpi.hpp"
#endif

namespace gradtool {
namespace {

using udp::Engine;
using udp::Mesh;

/// The transport of this process, from its first use to the end of the process: connecting anew for each measurement
/// would take as long as many measurements.
std::unique_ptr<Engine> engine;
int ranks_on_machine = 1;

Engine::Options engine_options(const UdpOptions& options, double timeout_seconds) {
  Engine::Options result;
  result.packet_bytes = options.packet;
  result.rate.first = options.first_rate;
  result.rate.most = options.rate;
  result.rate.target_delay = options.delay;
  result.rate.tolerated_loss = options.loss;
  result.timeout_seconds = timeout_seconds;
  return result;
}

Engine& start(Mesh mesh, const UdpOptions& options, double timeout_seconds) {
  ranks_on_machine = mesh.on_machine();
  engine = std::make_unique<Engine>(std::move(mesh), engine_options(options, timeout_seconds));
  return *engine;
}

/// PyTorch's env:// rendezvous uses these names: the address and port of rank 0.
Mesh join_by_environment(const MpiPlace& place, double timeout_seconds) {
  const char* host = std::getenv("MASTER_ADDR");
  const char* port_text = std::getenv("MASTER_PORT");
  const char* secret = std::getenv("GRADTOOL_JOB_KEY");
  const std::string_view digits = port_text == nullptr ? "" : port_text;
  const unsigned port = number_of<unsigned>(digits).value_or(0);
  if (port == 0 || port > 65535) {
    throw_error(Fault::usage,
                "--comm udp: MASTER_PORT is '{}'; set it to the port, 1 to 65535, on which rank 0 is to listen",
                digits);
  }
  if (secret == nullptr) {
    throw Error{Fault::usage,
                "--comm udp: GRADTOOL_JOB_KEY is not set; give all ranks one secret of 16 characters or more, such as "
                "what openssl rand -hex 16 prints, so that nobody else can join or inject"};
  }
  const udp::JobKey key = udp::key_of_secret(secret);
  udp::Socket listener;
  if (place.rank == 0) listener = udp::listen_on(static_cast<std::uint16_t>(port));
  return udp::join_mesh(place.rank, place.size, key, {udp::addresses_of(host), static_cast<std::uint16_t>(port)},
                        std::move(listener), timeout_seconds);
}

#ifdef GT_WITH_MPI
/// Rank 0's message to the others through MPI, which only this job's processes can read.
struct Invitation {
  udp::JobKey key{};
  std::array<in_addr, 16> addresses{};
  std::uint32_t count = 0;
  std::uint32_t port = 0;
};

Mesh join_by_mpi(MpiCommunicator& mpi, double timeout_seconds) {
  Invitation invitation;
  udp::Socket listener;
  if (mpi.rank() == 0) {
    listener = udp::listen_on(0);
    invitation.key = udp::random_key();
    invitation.port = udp::port_of(listener);
    for (const in_addr address : udp::local_addresses()) {
      if (invitation.count < invitation.addresses.size()) invitation.addresses[invitation.count++] = address;
    }
  }
  mpi.share(std::as_writable_bytes(std::span{&invitation, 1}), 0);
  udp::MeetingPoint point{.port = static_cast<std::uint16_t>(invitation.port)};
  point.addresses.assign(invitation.addresses.begin(), invitation.addresses.begin() + invitation.count);
  return udp::join_mesh(mpi.rank(), mpi.size(), invitation.key, point, std::move(listener), timeout_seconds);
}
#endif

void run_on_engine(const std::function<void(Engine&)>& body, double timeout_seconds) {
  engine->set_timeout(timeout_seconds);
  engine->reset_counts();
  try {
    body(*engine);
  } catch (const std::exception& error) {
    engine->fail(error.what());
    if (engine->size() > 1) engine.reset();  // the others are ending, and their messages are out of step
    throw;
  }
}

}  // namespace

void udp::run_engine(const UdpOptions& options, const std::function<void(Engine&)>& body, double timeout_seconds) {
  expect_valid(timeout_seconds > 0, "the timeout of a job is a positive number of seconds");
  const MpiPlace place = mpi_place();
  if (place.by_environment) {
    if (!engine) start(join_by_environment(place, timeout_seconds), options, timeout_seconds);
    return run_on_engine(body, timeout_seconds);
  }
#ifdef GT_WITH_MPI
  run_mpi_job(
      [&](MpiCommunicator& mpi) {
        if (!engine) start(join_by_mpi(mpi, timeout_seconds), options, timeout_seconds);
        run_on_engine(body, timeout_seconds);
      },
      {.stall = timeout_seconds});
#else
  if (place.size > 1) run_mpi([](Communicator<Space::host>&) {}, timeout_seconds);  // says what is missing
  if (!engine) start(udp::join_mesh(0, 1, {}, {}, {}, timeout_seconds), options, timeout_seconds);
  run_on_engine(body, timeout_seconds);
#endif
}

void run_udp(const UdpOptions& options, const HostBody& body, double timeout_seconds) {
  udp::run_engine(
      options,
      [&](Engine& transport) {
        udp::UdpCommunicator communicator{transport, options};
        body(communicator);
      },
      timeout_seconds);
}

void run_processes(const ProcessComm& comm, const HostBody& body, double timeout_seconds) {
  if (comm.name == "udp") return run_udp(comm.udp, body, timeout_seconds);
  run_mpi(body, timeout_seconds);
}

MpiPlace processes_world(const ProcessComm& comm, double timeout_seconds) {
  const MpiPlace place = mpi_place();
#ifdef GT_WITH_MPI
  const bool mpi_knows = !place.by_environment;
#else
  const bool mpi_knows = false;
#endif
  if (comm.name != "udp" || mpi_knows) return mpi_world(timeout_seconds);
  run_udp(
      comm.udp, [](Communicator<Space::host>&) {}, timeout_seconds);
  return {place.rank, place.size, ranks_on_machine, place.by_environment};
}

}  // namespace gradtool
