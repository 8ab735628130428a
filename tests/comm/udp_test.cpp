// The bounded-loss transport between threads, over the loopback interface: the collectives' contract, and what it
// promises where datagrams are lost, damaged or somebody else's.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <latch>
#include <numeric>
#include <thread>

#include "lib/comm/udp/datagrams.hpp"
#include "lib/comm/udp/udp.hpp"
#include "lib/core/error.hpp"
#include "tests/comm/collectives.hpp"
#include "tests/comm/rank_memory.hpp"
#include "tests/comm/udp_ranks.hpp"

namespace gradtool::test {
namespace {

using udp::Engine;

class Udp : public testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(Udp, Collectives) {
  const int ranks = std::get<0>(GetParam());
  const std::string& name = std::get<1>(GetParam());
  for (const auto& one : collective_cases<Space::host>()) {
    if (one.name != name) continue;
    run_engines(ranks, {}, [&](Engine& engine) {
      udp::UdpCommunicator comm{engine, {}};
      require(comm.name() == "udp" && comm.size() == ranks, "not the communicator that was asked for");
      one.run(comm, {});
    });
    return;
  }
  FAIL() << "no such case: " << name;
}

INSTANTIATE_TEST_SUITE_P(Ranks, Udp, testing::Combine(testing::Values(1, 2, 3, 4, 7), testing::ValuesIn(case_names())),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
                         });

std::vector<std::byte> numbered(std::size_t bytes, int seed) {
  std::vector<std::byte> data(bytes);
  std::uint32_t state = 2654435761U * static_cast<std::uint32_t>(seed + 1);
  for (std::byte& one : data) {
    state = state * 1664525U + 1013904223U;
    one = static_cast<std::byte>(state >> 24);
  }
  return data;
}

// The numbers of messages are 32 bits on the wire and 64 in the tags: nothing happens when they wrap around.
TEST(UdpEngine, MessageNumbersWrapAround) {
  Engine::Options options;
  options.first_message = 0xfffffffdULL;
  run_engines(2, options, [](Engine& engine) {
    const int other = 1 - engine.rank();
    for (int step = 0; step < 8; ++step) {
      const auto out = numbered(10'000, 10 * step + engine.rank());
      std::vector<std::byte> in(10'000);
      const udp::TensorPart part{.bytes = 10'000};
      const Engine::Sending sending{other, out, {&part, 1}, {}};
      const Engine::Receiving receiving{other, in, {&part, 1}};
      engine.exchange({&sending, 1}, {&receiving, 1});
      require(in == numbered(10'000, 10 * step + other), "wrong bytes around the wrap");
    }
  });
}

TEST(UdpEngine, SizesThatDisagreeAreNamed) {
  try {
    run_engines(2, {}, [](Engine& engine) {
      const std::size_t bytes = engine.rank() == 0 ? 96 : 100;
      std::vector<std::byte> memory(bytes);
      const udp::TensorPart part{.bytes = bytes};
      const Engine::Sending sending{1, memory, {&part, 1}, {}};
      const Engine::Receiving receiving{0, memory, {&part, 1}};
      if (engine.rank() == 0) engine.exchange({&sending, 1}, {});
      if (engine.rank() == 1) engine.exchange({}, {&receiving, 1});
    });
    FAIL() << "sizes that disagree went through";
  } catch (const Error& error) {
    EXPECT_NE(std::string{error.what()}.find("rank 0 sent 96 bytes to rank 1, which expected 100"), std::string::npos)
        << error.what();
  }
}

/// All-reduces of 4 ranks over a network that loses 5 %, where `options` allow some of it. Each rank's elements are 1,
/// so that a sum tells how many ranks are in it.
struct LossyRun {
  LossyRun(AllReduce algorithm, const UdpOptions& options) {
    LossyNetwork network{kRanks, 0.05};
    std::vector<std::vector<float>> results(kRanks);
    std::vector<double> least(kRanks, 1.0);
    Engine::Options transport;
    transport.packet_bytes = 256;
    run_engines(
        kRanks, transport,
        [&](Engine& engine) {
          UdpOptions mine = options;
          mine.packet = transport.packet_bytes;
          udp::UdpCommunicator comm{engine, mine};
          comm.set_all_reduce(algorithm);
          const std::vector<SummedTensor> tensors{{1000, 0.0}, {kElements - 1000, 0.1}};
          comm.describe(tensors);
          for (int step = 0; step < 3; ++step) {
            std::vector<float> values(kElements, 1.0F);
            std::vector<float> scratch(kElements);
            comm.all_reduce_sum({}, as_writable_bytes(HostView<float>{values}), Dtype::f32,
                                as_writable_bytes(HostView<float>{scratch}));
            auto& mine_all = results[static_cast<std::size_t>(engine.rank())];
            mine_all.insert(mine_all.end(), values.begin(), values.end());
          }
          least[static_cast<std::size_t>(engine.rank())] = engine.counts().least_delivered;
        },
        &network);
    for (const auto& other : results) agree = agree && other == results.front();
    for (const float value : results.front()) {
      valid = valid && value >= 0.0F && value <= kRanks && value == std::floor(value);
      missing += (kRanks - static_cast<double>(value)) / kRanks / static_cast<double>(results.front().size());
    }
    least_delivered = *std::min_element(least.begin(), least.end());
    lost = network.lost();
  }
  static constexpr int kRanks = 4;
  static constexpr std::size_t kElements = 20'000;
  bool agree = true, valid = true;
  double missing = 0.0;  ///< share of all contributions that are in no sum
  double least_delivered = 1.0;
  std::uint64_t lost = 0;
};

TEST(UdpLossy, WithoutATolerationEverythingArrives) {
  for (const AllReduce algorithm : {AllReduce::ring, AllReduce::doubling, AllReduce::server, AllReduce::transpose}) {
    const LossyRun run{algorithm, {}};
    EXPECT_GT(run.lost, 20U);
    EXPECT_TRUE(run.agree && run.valid);
    EXPECT_EQ(run.missing, 0.0);
    EXPECT_EQ(run.least_delivered, 1.0);
  }
}

TEST(UdpLossy, SumsLoseWithinTheBoundAndAllRanksAgree) {
  for (const AllReduce algorithm : {AllReduce::ring, AllReduce::server, AllReduce::transpose}) {
    UdpOptions options;
    options.loss = 0.1;
    const LossyRun run{algorithm, options};
    EXPECT_TRUE(run.agree && run.valid);
    EXPECT_GT(run.missing, 0.0) << "a network that loses 5 % has lost nothing";
    EXPECT_LE(run.missing, 0.1);
    const double bound = udp::loss_of_hop(0.1, algorithm == AllReduce::ring ? LossyRun::kRanks - 1 : 1);
    EXPECT_GE(run.least_delivered, 1.0 - bound);
    EXPECT_LT(run.least_delivered, 1.0);
  }
}

// Tensors in the last third of the model may have a bound of their own. A receiver that is not scheduled in time has
// everything repeated, in which little gets lost, so that one sum alone may be whole by accident.
TEST(UdpLossy, BackLayersKeepTheirOwnBound) {
  constexpr int kSums = 20;
  LossyNetwork network{2, 0.1};
  Engine::Options transport;
  transport.packet_bytes = 256;
  std::vector<std::vector<float>> sums;
  run_engines(
      2, transport,
      [&](Engine& engine) {
        UdpOptions options;
        options.loss = 0.3;
        options.loss_back = 0.0;
        options.packet = transport.packet_bytes;
        udp::UdpCommunicator comm{engine, options};
        const std::vector<SummedTensor> tensors{{10'000, 0.0}, {10'000, 0.7}};
        comm.describe(tensors);
        for (int sum = 0; sum < kSums; ++sum) {
          std::vector<float> values(20'000, 1.0F), scratch(20'000);
          comm.all_reduce_sum({}, as_writable_bytes(HostView<float>{values}), Dtype::f32,
                              as_writable_bytes(HostView<float>{scratch}));
          if (engine.rank() == 0) sums.push_back(values);
        }
      },
      &network);
  std::ptrdiff_t least_in_front = 10'000;
  for (const std::vector<float>& sum : sums) {
    const auto front = std::count(sum.begin(), sum.begin() + 10'000, 2.0F);
    EXPECT_GE(front, 7'000);
    EXPECT_EQ(std::count(sum.begin() + 10'000, sum.end(), 2.0F), 10'000);
    least_in_front = std::min(least_in_front, front);
  }
  EXPECT_LT(least_in_front, 10'000) << "a network that loses 10 % has lost nothing";
}

// Views that are too small for a server, and reduce-scatters, go around the ring, where each link has a smaller bound.
TEST(UdpLossy, TheBoundIsThatOfTheWayThatIsTaken) {
  LossyNetwork network{4, 0.3};
  Engine::Options transport;
  transport.packet_bytes = 64;
  std::vector<double> least(4, 1.0);
  run_engines(
      4, transport,
      [&](Engine& engine) {
        UdpOptions options;
        options.loss = 0.2;
        options.packet = transport.packet_bytes;
        udp::UdpCommunicator comm{engine, options};
        comm.set_all_reduce(AllReduce::server);
        std::vector<float> values(4000, 1.0F), scratch(4000);
        comm.reduce_scatter_sum({}, as_writable_bytes(HostView<float>{values}), Dtype::f32,
                                as_writable_bytes(HostView<float>{scratch}));
        least[static_cast<std::size_t>(engine.rank())] = engine.counts().least_delivered;
      },
      &network);
  for (const double share : least) EXPECT_GE(share, 1.0 - udp::loss_of_hop(0.2, 3));
}

TEST(UdpLossy, DoublingLosesNothing) {
  UdpOptions options;
  options.loss = 0.1;
  const LossyRun run{AllReduce::doubling, options};
  EXPECT_TRUE(run.agree && run.valid);
  EXPECT_EQ(run.missing, 0.0);
}

TEST(UdpLossy, SumsOnTheirWayBackAreLostOnlyWhereThatIsAllowed) {
  UdpOptions options;
  options.loss_sums = 0.1;
  const LossyRun run{AllReduce::transpose, options};
  EXPECT_TRUE(run.valid);
  EXPECT_FALSE(run.agree) << "ranks lose different packets";
  EXPECT_LE(run.missing, 0.1 + 1e-9);
}

/// A time-out that a test does not live to see: who should end at once and does not is ended by CTest.
constexpr double kForever = 1e6;

/// The errors that the ranks throw.
std::vector<std::string> errors_of(int ranks, double timeout, const std::function<void(Engine&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  Engine::Options options;
  options.timeout_seconds = timeout;
  run_engines(ranks, options, [&](Engine& engine) {
    try {
      body(engine);
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(engine.rank())] = error.what();
      engine.fail(error.what());
    }
  });
  return errors;
}

void receive_from(Engine& engine, int from, std::size_t bytes = 5000) {
  std::vector<std::byte> memory(bytes);
  const udp::TensorPart part{.bytes = memory.size()};
  const Engine::Receiving receiving{from, memory, {&part, 1}};
  engine.exchange({}, {&receiving, 1});
}

// Rank 0 waits for 1, and 1 for 2, which does not come: 2 is to blame, whoever notices first.
TEST(UdpEngine, ARankThatDoesNotComeIsNamedThroughAChain) {
  std::latch given_up{2};
  const auto errors = errors_of(3, 4.0, [&](Engine& engine) {
    if (engine.rank() == 2) {
      given_up.wait();
      return;
    }
    try {
      receive_from(engine, engine.rank() + 1);
    } catch (const Error& error) {
      engine.fail(error.what());
      given_up.count_down();
      throw;
    }
  });
  for (const int rank : {0, 1})
    EXPECT_TRUE(errors[static_cast<std::size_t>(rank)].ends_with(" has waited 4 s for rank 2"))
        << errors[static_cast<std::size_t>(rank)];
}

TEST(UdpEngine, ARankThatHasLeftIsNamedAtOnce) {
  const auto errors = errors_of(2, kForever, [](Engine& engine) {
    if (engine.rank() == 0) receive_from(engine, 1);
  });
  EXPECT_EQ(errors[0], "rank 1 has ended, but rank 0 waits for it");
}

// The last frame that a rank needs may be there together with the end of the connection, and what it sends itself may
// meet an end that is closed already.
TEST(UdpEngine, TheLastMessageEndsWhoeverLeavesFirst) {
  for (int round = 0; round < 200; ++round) {
    run_engines(2, {}, [](Engine& engine) {
      std::vector<std::byte> memory(3000);
      const udp::TensorPart part{.bytes = memory.size()};
      const Engine::Sending sending{1, memory, {&part, 1}, {}};
      if (engine.rank() == 0) engine.exchange({&sending, 1}, {});
      if (engine.rank() == 1) receive_from(engine, 0, memory.size());
    });
  }
}

TEST(UdpEngine, AFailureReachesEveryRank) {
  const auto errors = errors_of(3, kForever, [](Engine& engine) {
    if (engine.rank() == 2) {
      engine.fail("out of paper");
    } else {
      receive_from(engine, 2);
    }
  });
  EXPECT_EQ(errors[0], "rank 2 failed: out of paper");
  EXPECT_EQ(errors[1], "rank 2 failed: out of paper");
}

/// Sends datagrams that are none of the job's to a port until it is destroyed.
class Stranger {
 public:
  explicit Stranger(std::uint16_t port)
      : thread_{[this, port] {
          const udp::Socket socket{::socket(AF_INET, SOCK_DGRAM, 0)};
          const sockaddr_in to = loopback_address(port);
          std::uint32_t n = 0;
          while (!stop_) {
            // Random bytes; a header without a key; one under another key; of all messages and packets there may be.
            auto bytes = numbered(n % 1500, static_cast<int>(n));
            udp::PacketHeader header;
            header.message = n % 5;
            header.packet = n % 9;
            header.packets = 8;
            header.bytes = 1424;
            header.from = static_cast<std::uint16_t>(n % 3);
            header.to = static_cast<std::uint16_t>(n % 2);
            if (n % 2 == 1) {
              bytes = numbered(sizeof(header) + 1424, static_cast<int>(n));
              udp::seal(header, {1, 2}, header.message, std::span{bytes}.subspan(sizeof(header)));
              std::memcpy(bytes.data(), &header, sizeof(header));
            }
            ::sendto(socket.fd(), bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
            ++n;
          }
        }} {}
  ~Stranger() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(UdpEngine, StrangersDatagramsAreCountedAndChangeNothing) {
  run_engines(2, {}, [](Engine& engine) {
    const Stranger stranger{engine.port()};
    const int other = 1 - engine.rank();
    for (int step = 0; step < 300; ++step) {
      const std::size_t bytes = 8 * 1424;
      const auto out = numbered(bytes, 10 * step + engine.rank());
      std::vector<std::byte> in(bytes);
      const udp::TensorPart part{.bytes = bytes};
      const Engine::Sending sending{other, out, {&part, 1}, {}};
      const Engine::Receiving receiving{other, in, {&part, 1}};
      engine.exchange({&sending, 1}, {&receiving, 1});
      require(in == numbered(bytes, 10 * step + other), "a stranger changed what arrived");
    }
    const TransportCounts& counts = engine.counts();
    require(counts.misfits > 0 && counts.stale > 0, "what strangers sent was not counted");
    require(counts.expected == 300 * 8 && counts.missing_bytes == 0, "a stranger's datagram was taken for one of ours");
  });
}

TEST(UdpEngine, StrangersConnectionsAreRefusedAndDisturbNobody) {
  udp::Socket listener = udp::listen_on(0);
  const in_addr here = loopback_address(0).sin_addr;
  const udp::MeetingPoint point{{here}, udp::port_of(listener)};
  const udp::JobKey key = udp::random_key();
  const udp::JobKey other_key = udp::random_key();
  const sockaddr_in to = loopback_address(point.port);
  // One that says nothing, one that says nonsense, and a rank of another job, before the right one comes.
  const udp::Socket silent{::socket(AF_INET, SOCK_STREAM, 0)};
  ASSERT_EQ(::connect(silent.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  const udp::Socket loud{::socket(AF_INET, SOCK_STREAM, 0)};
  ASSERT_EQ(::connect(loud.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  const auto nonsense = numbered(4096, 1);
  ASSERT_GT(::send(loud.fd(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL), 0);
  std::string refused;
  std::thread stranger{[&] {
    try {
      static_cast<void>(udp::join_mesh(1, 2, other_key, point, {}, 2.0));
    } catch (const Error& error) {
      refused = error.what();
    }
  }};
  std::uint64_t refusals = 0;
  std::thread right{[&] {
    stranger.join();
    static_cast<void>(udp::join_mesh(1, 2, key, point, {}, kForever));
  }};
  refusals = udp::join_mesh(0, 2, key, point, std::move(listener), kForever).refused;
  right.join();
  EXPECT_GE(refusals, 2U);
  EXPECT_NE(refused.find("does not have this job's key"), std::string::npos) << refused;
}

TEST(UdpEngine, JobsOfOneSecretHaveKeysOfTheirOwn) {
  // The second job refuses datagrams recorded in the first, because none is sealed under the second's key.
  const udp::JobKey secret = udp::key_of_secret("0123456789abcdef");
  std::array<std::array<udp::JobKey, 3>, 2> keys{};
  for (auto& of_job : keys) {
    udp::Socket listener = udp::listen_on(0);
    const udp::MeetingPoint point{{loopback_address(0).sin_addr}, udp::port_of(listener)};
    std::vector<std::thread> others;
    for (int rank = 1; rank < 3; ++rank) {
      others.emplace_back([&of_job, &point, &secret, rank] {
        of_job[static_cast<std::size_t>(rank)] = udp::join_mesh(rank, 3, secret, point, {}, kForever).key;
      });
    }
    of_job[0] = udp::join_mesh(0, 3, secret, point, std::move(listener), kForever).key;
    for (auto& other : others) other.join();
    EXPECT_EQ(of_job[0], of_job[1]);
    EXPECT_EQ(of_job[0], of_job[2]);
    EXPECT_NE(of_job[0], secret);
  }
  EXPECT_NE(keys[0], keys[1]);
}

TEST(UdpEngine, AMissingRankIsNamedAtTheStart) {
  udp::Socket listener = udp::listen_on(0);
  try {
    static_cast<void>(udp::join_mesh(0, 3, udp::random_key(), {}, std::move(listener), 0.3));
    FAIL() << "a job of three started with one";
  } catch (const Error& error) {
    EXPECT_NE(std::string{error.what()}.find("1, 2 missing"), std::string::npos) << error.what();
  }
}

TEST(UdpOptions, AreParsedAndRefused) {
  const UdpOptions options =
      parse_udp_options("loss=0.01,important=0,sums=0.001,mark=off,packet=8192,rate=1Gbps,delay=2ms");
  EXPECT_EQ(options.loss, 0.01);
  EXPECT_EQ(options.loss_important, 0.0);
  EXPECT_EQ(options.loss_sums, 0.001);
  EXPECT_FALSE(options.marks());
  EXPECT_EQ(options.packet, 8192U);
  EXPECT_EQ(options.rate, 1.25e8);
  EXPECT_EQ(options.delay, 2e-3);
  EXPECT_TRUE(parse_udp_options("loss=0.5").marks());
  EXPECT_FALSE(parse_udp_options("").marks());
  for (const char* wrong :
       {"loss", "loss=", "loss=2", "loss=-0.1", "loss=nan", "loss=1%", "los=0.1", "packet=3", "packet=6",
        "packet=70000", "rate=1", "rate=0Gbps", "rate=-1Gbps", "delay=1", "delay=0ms", "mark=yes", ",", "loss=0.1,,"}) {
    try {
      static_cast<void>(parse_udp_options(wrong));
      ADD_FAILURE() << wrong << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::usage) << wrong;
    }
  }
}

}  // namespace
}  // namespace gradtool::test
