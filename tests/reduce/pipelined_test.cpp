// Chunks of a unit that overlap: what is reduced, in which order ranks communicate, and what a failure does.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>

#include "lib/codecs/pipelined.hpp"
#include "lib/comm/forwarding.hpp"
#include "lib/core/error.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

struct Setup {
  std::string codec;
  int ranks = 3;
  int chunks = 3;
  int threads = 1;
  Scheme scheme = Scheme::automatic;
};

/// One rank's reducer of a unit with its workspace.
class Whole {
 public:
  explicit Whole(std::unique_ptr<Reducer<Space::host>> reducer)
      : reducer_{std::move(reducer)},
        arena_{std::max<std::size_t>(Arena<Space::host>::padded_size(reducer_->workspace_bytes()), 256)},
        workspace_{arena_.take_bytes(reducer_->workspace_bytes())} {}
  Reducer<Space::host>* operator->() { return reducer_.get(); }
  void reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> x,
              const SideInputs<Space::host>& side, const EncodeContext& context) {
    NoClock<Space::host> clock;
    reducer_->reduce(comm, queue, x, side, context, workspace_, clock);
  }

 private:
  std::unique_ptr<Reducer<Space::host>> reducer_;
  Arena<Space::host> arena_;
  HostView<std::byte> workspace_;
};

/// Chunks that overlap against the same chunks one after another, on one rank, over steps with a reset.
void compare_on_rank(const Setup& setup, Communicator<Space::host>& comm, std::vector<std::vector<float>>& results) {
  const auto spec = parse_codec(setup.codec);
  const Layout layout = small_model();
  const std::size_t n = layout.elements;
  TaskPool threads{setup.chunks};
  TaskPool pool{setup.threads};
  const Queue<Space::host> queue{setup.threads > 1 ? &pool : nullptr};
  const auto codec = make_codec<Space::host>(spec, layout);
  const auto make = [&] {
    return make_pipelined_reducer(spec, codec, setup.scheme, layout, comm.size(), queue,
                                  static_cast<std::size_t>(setup.chunks), threads);
  };
  Whole pipelined{make()};
  const auto cut = cut_into_chunks(layout, static_cast<std::size_t>(setup.chunks), spec.descriptor->by_layout);
  ASSERT_EQ(cut.size(), static_cast<std::size_t>(setup.chunks));
  std::vector<std::unique_ptr<Whole>> apart;
  for (const auto& chunk : cut) {
    const auto own = make_codec<Space::host>(spec, chunk.layout);
    apart.push_back(
        std::make_unique<Whole>(make_reducer<Space::host>(spec, own, setup.scheme, chunk.layout, comm.size(), queue)));
  }
  pipelined->prepare(comm);
  const auto weight = model_weight(n);
  for (int step = 0; step < 4; ++step) {
    if (step == 2) {
      pipelined->reset(queue);
      for (auto& one : apart) (*one)->reset(queue);
    }
    if (step == 3) {  // a new one goes on where the old one was
      const auto saved = save_state(*pipelined.operator->());
      pipelined = Whole{make()};
      restore_state(*pipelined.operator->(), saved);
    }
    auto x = model_gradient(n, comm.rank(), step);
    auto y = x;
    const auto moment = model_second_moment(x, 9000U + static_cast<std::uint32_t>(10 * step + comm.rank()));
    const EncodeContext context{.key = {.seed = 9,
                                        .step = static_cast<std::uint32_t>(step),
                                        .rank = static_cast<std::uint32_t>(comm.rank()),
                                        .tensor = 3},
                                .iteration = step};
    comm.reset_traffic();
    pipelined.reduce(comm, queue, {x.data(), n}, {.weight = {weight.data(), n}, .second_moment = {moment.data(), n}},
                     context);
    const Traffic overlapped = comm.traffic();
    comm.reset_traffic();
    std::uint64_t payload = 0;
    std::uint64_t values = 0;
    std::vector<float> residual;
    std::vector<float> target;
    bool reached = false;
    for (std::size_t c = 0; c < cut.size(); ++c) {
      const std::size_t first = cut[c].first;
      const std::size_t count = cut[c].layout.elements;
      apart[c]->reduce(comm, queue, {y.data() + first, count},
                       {.weight = {weight.data() + first, count}, .second_moment = {moment.data() + first, count}},
                       context_of_chunk(context, c));
      payload += (*apart[c])->payload_bytes();
      values += (*apart[c])->values_sent(queue);
      const auto held = (*apart[c])->residual();
      residual.insert(residual.end(), held.data(), held.data() + held.size());
      const auto wanted = (*apart[c])->target(queue);
      target.insert(target.end(), wanted.data(), wanted.data() + wanted.size());
      reached = reached || (*apart[c])->reached();
    }
    EXPECT_EQ(x, y) << "step " << step;
    EXPECT_EQ(pipelined->payload_bytes(), payload);
    EXPECT_EQ(pipelined->values_sent(queue), values);
    const auto held = pipelined->residual();
    EXPECT_EQ((std::vector<float>{held.data(), held.data() + held.size()}), residual);
    const auto wanted = pipelined->target(queue);
    EXPECT_EQ((std::vector<float>{wanted.data(), wanted.data() + wanted.size()}), target);
    EXPECT_EQ(wanted.empty(), spec.descriptor->target.empty()) << "chunks have the method's target";
    EXPECT_EQ(pipelined->reached(), reached);
    EXPECT_EQ(overlapped.bytes_sent, comm.traffic().bytes_sent);
    EXPECT_EQ(overlapped.messages_sent, comm.traffic().messages_sent);
    EXPECT_EQ(overlapped.collectives, comm.traffic().collectives);
    results.push_back(x);
  }
}

void compare(const Setup& setup) {
  SCOPED_TRACE(setup.codec + ", " + std::to_string(setup.ranks) + " ranks, " + std::to_string(setup.chunks) +
               " chunks");
  std::vector<std::vector<std::vector<float>>> results(static_cast<std::size_t>(setup.ranks));
  run_threads(setup.ranks, [&](Communicator<Space::host>& comm) {
    compare_on_rank(setup, comm, results[static_cast<std::size_t>(comm.rank())]);
  });
  for (const auto& rank : results) EXPECT_TRUE(rank == results[0]) << "ranks ended with different bits";
}

class PipelinedCodec : public testing::TestWithParam<std::string> {};

TEST_P(PipelinedCodec, GivesWhatItsChunksGiveOneAfterAnother) {
  compare({.codec = GetParam(), .ranks = 2, .chunks = 4});
  compare({.codec = GetParam(), .ranks = 3, .chunks = 2, .threads = 2});
  compare({.codec = GetParam(), .ranks = 4, .chunks = 1});
  compare({.codec = GetParam(), .ranks = 5, .chunks = 3});
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const auto* codec : codecs()) names.emplace_back(codec->name);
  // Paths with more collectives than the defaults take in four steps.
  for (const char* spec :
       {"gradiveq:lt=2,lc=10,sampling=raw", "gradiveq:lt=2,lc=1", "powersgd:rank=2,start_iteration=0",
        "lhc:density=0.05,ratio=auto", "oktopk:ratio=0.2,period=2,regions=2"})
    names.emplace_back(spec);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Registry, PipelinedCodec, testing::ValuesIn(all_names()),
                         [](const auto& info) { return test_name(info.param); });

TEST(Pipelined, HopsOverlapToo) {
  compare({.codec = "qsgd:bits=4", .chunks = 4, .scheme = Scheme::hop});
}

TEST(Pipelined, TwoLevelsOverlapToo) {
  compare({.codec = "qgz:node=2", .ranks = 4, .chunks = 3, .threads = 2});
}

TEST(Pipelined, ChunksDrawNumbersOfTheirOwn) {
  // Every chunk has the same values, rounded at random: equal draws would give equal chunks.
  const auto spec = parse_codec("qsgd:bits=2");
  const Layout layout = Layout::flat(4096);
  run_threads(1, [&](Communicator<Space::host>& comm) {
    TaskPool threads{4};
    Whole pipelined{make_pipelined_reducer(spec, make_codec<Space::host>(spec, layout), Scheme::automatic, layout, 1,
                                           {}, 4, threads)};
    std::vector<float> x(4096);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 1024) / 1024.0F;
    pipelined.reduce(comm, {}, {x.data(), x.size()}, {}, {.key = {.seed = 5}});
    const auto chunk = [&](std::ptrdiff_t c) {
      return std::vector<float>{x.begin() + 1024 * c, x.begin() + 1024 * (c + 1)};
    };
    for (int a = 0; a < 4; ++a) {
      for (int b = a + 1; b < 4; ++b) EXPECT_NE(chunk(a), chunk(b)) << a << " and " << b;
    }
  });
}

// ---- the order of things, with reducers that only take time

using Milliseconds = std::chrono::milliseconds;

/// Begins and ends of phases, in the order in which they happened on one rank.
struct Event {
  std::size_t chunk;
  Phase phase;
  bool begins;
  friend bool operator==(const Event&, const Event&) = default;
};
struct Log {
  std::mutex mutex;
  std::condition_variable grown;
  std::vector<Event> events;
  void add(const Event& event) {
    const std::lock_guard lock{mutex};
    events.push_back(event);
    grown.notify_all();
  }
  /// Until it has happened; gives up after some seconds, for what then comes too late.
  void await(const Event& event) {
    std::unique_lock lock{mutex};
    grown.wait_for(lock, std::chrono::seconds{5},
                   [&] { return std::find(events.begin(), events.end(), event) != events.end(); });
  }
  [[nodiscard]] std::size_t at(const Event& event) const {
    return static_cast<std::size_t>(std::find(events.begin(), events.end(), event) - events.begin());
  }
};

/// Encode, communicate, ... `rounds` times, then decode; its phases last as long as it is told.
class Sleeper final : public Reducer<Space::host> {
 public:
  struct Plan {
    std::size_t chunk = 0;
    int rounds = 1;
    Milliseconds compute{0}, communicate{0};
    int fails_in_round = -1;       ///< while it computes
    std::vector<Event> awaited{};  ///< of other chunks, while it communicates
  };
  Sleeper(Plan plan, Log& log) : plan_{plan}, log_{log} {}
  [[nodiscard]] std::size_t workspace_bytes() const override { return 64 * 8; }
  void reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> /*gradient*/,
              const SideInputs<Space::host>& /*side*/, const EncodeContext& /*context*/, HostView<std::byte> workspace,
              PhaseClock<Space::host>& clock) override {
    const auto all = workspace.first(8 * static_cast<std::size_t>(comm.size()));
    const auto phase = [&](Phase kind, auto&& work) {
      in_phase(clock, kind, queue, [&] {
        log_.add({plan_.chunk, kind, true});
        work();
        log_.add({plan_.chunk, kind, false});
      });
    };
    for (int round = 0; round < plan_.rounds; ++round) {
      phase(Phase::encode, [&] {
        std::this_thread::sleep_for(plan_.compute);
        if (round == plan_.fails_in_round) throw Error{Fault::data, "a chunk that cannot be encoded"};
      });
      phase(Phase::communicate, [&] {
        std::this_thread::sleep_for(plan_.communicate);
        for (const auto& event : plan_.awaited) log_.await(event);
        const auto mine = all.part(8 * static_cast<std::size_t>(comm.rank()), 8);
        const std::uint64_t word = 100 * plan_.chunk + static_cast<std::uint64_t>(round);
        std::memcpy(mine.data(), &word, 8);
        comm.all_gather(queue, mine, all);
        for (std::size_t r = 0; r < all.size() / 8; ++r) {
          std::uint64_t others = 0;
          std::memcpy(&others, all.data() + 8 * r, 8);
          EXPECT_EQ(others, word) << "ranks communicate for different chunks";
        }
      });
    }
    phase(Phase::decode, [&] { std::this_thread::sleep_for(plan_.compute); });
  }
  void reset(Queue<Space::host> /*queue*/) override {}
  [[nodiscard]] std::uint64_t payload_bytes() const override { return 0; }
  [[nodiscard]] std::uint64_t values_sent(Queue<Space::host> /*queue*/) const override { return 0; }

 private:
  Plan plan_;
  Log& log_;
};

void reduce_sleeping(Communicator<Space::host>& comm, const std::vector<Sleeper::Plan>& plans, Log& log) {
  TaskPool threads{static_cast<int>(plans.size())};
  std::vector<PipelinedReducer::Part> parts;
  for (const auto& plan : plans) parts.push_back({plan.chunk, 1, std::make_unique<Sleeper>(plan, log)});
  const std::size_t count = parts.size();
  Whole pipelined{std::make_unique<PipelinedReducer>(std::move(parts), threads, count)};
  std::vector<float> x(count);
  pipelined.reduce(comm, {}, {x.data(), count}, {}, {});
}

TEST(Pipelined, OneChunkComputesWhileAnotherCommunicates) {
  std::vector<Log> logs(2);
  run_threads(2, [&](Communicator<Space::host>& comm) {
    std::vector<Sleeper::Plan> plans;
    for (std::size_t c = 0; c < 4; ++c) {
      plans.push_back({.chunk = c});
      if (c < 3) plans[c].awaited = {{c + 1, Phase::encode, true}};
    }
    plans[3].awaited = {{0, Phase::decode, true}, {1, Phase::decode, true}, {2, Phase::decode, true}};
    reduce_sleeping(comm, plans, logs[static_cast<std::size_t>(comm.rank())]);
  });
  for (const auto& log : logs) {
    int computing = 0;
    int communicating = 0;
    for (const auto& event : log.events) {
      (event.phase == Phase::communicate ? communicating : computing) += event.begins ? 1 : -1;
      ASSERT_LE(computing, 1) << "one compute engine";
      ASSERT_LE(communicating, 1) << "one network";
    }
    for (std::size_t c = 0; c + 1 < 4; ++c) {
      EXPECT_LT(log.at({c + 1, Phase::encode, true}), log.at({c, Phase::communicate, false})) << c;
      EXPECT_LT(log.at({c, Phase::decode, true}), log.at({3, Phase::communicate, false})) << c;
    }
  }
}

TEST(Pipelined, RoundsOfAllChunksInterleaveInOneOrderOnEveryRank) {
  // Chunks of 1 to 3 rounds; ranks are slow at different things, so that who is ready first differs.
  std::vector<Log> logs(4);
  run_threads(4, [&](Communicator<Space::host>& comm) {
    std::vector<Sleeper::Plan> plans;
    for (std::size_t c = 0; c < 4; ++c) {
      const auto slow = static_cast<int>((c + static_cast<std::size_t>(comm.rank())) % 4);
      plans.push_back({c, c == 1 ? 1 : c == 2 ? 3 : 2, Milliseconds{2 * slow}, Milliseconds{3 - slow}});
    }
    reduce_sleeping(comm, plans, logs[static_cast<std::size_t>(comm.rank())]);
  });
  for (const auto& log : logs) {
    std::vector<std::size_t> order;
    for (const auto& event : log.events) {
      if (event.phase == Phase::communicate && event.begins) order.push_back(event.chunk);
    }
    EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 3, 0, 2, 3, 2}));
  }
}

TEST(Pipelined, AChunkThatFailsOnOneRankEndsAllOfThem) {
  for (const int round : {0, 1}) {
    std::vector<Log> logs(3);
    try {
      run_threads(
          3,
          [&](Communicator<Space::host>& comm) {
            std::vector<Sleeper::Plan> plans;
            for (std::size_t c = 0; c < 4; ++c) {
              plans.push_back({c, 2, Milliseconds{1}, Milliseconds{1}});
              if (c == 1 && comm.rank() == 1) plans.back().fails_in_round = round;
            }
            reduce_sleeping(comm, plans, logs[static_cast<std::size_t>(comm.rank())]);
          },
          1e6);  // who waits in vain is ended by CTest
      FAIL() << "the failure was lost";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::data);
      EXPECT_NE(std::string{error.what()}.find("cannot be encoded"), std::string::npos) << error.what();
    }
  }
}

/// Fails at its n-th call.
class FailingCommunicator final : public ForwardingCommunicator<Space::host> {
 public:
  FailingCommunicator(Communicator<Space::host>& inner, int calls) : ForwardingCommunicator{inner}, left_{calls} {}

 protected:
  Queue<Space::host> entering(Queue<Space::host> queue) override {
    if (left_-- == 0) throw Error{Fault::backend, "the link is down"};
    return queue;
  }

 private:
  int left_;
};

TEST(Pipelined, ACommunicatorThatFailsEndsAllChunks) {
  for (const int calls : {0, 1, 5}) {
    try {
      run_threads(
          2,
          [&](Communicator<Space::host>& comm) {
            Log log;
            FailingCommunicator failing{comm, comm.rank() == 0 ? calls : 1000};
            std::vector<Sleeper::Plan> plans;
            for (std::size_t c = 0; c < 3; ++c) plans.push_back({c, 2});
            reduce_sleeping(failing, plans, log);
          },
          30.0);
      FAIL() << "the failure was lost";
    } catch (const Error& error) {
      EXPECT_NE(std::string{error.what()}.find("the link is down"), std::string::npos) << error.what();
    }
  }
}

/// Makes a collective that its clock does not hear of.
class Careless final : public Reducer<Space::host> {
 public:
  [[nodiscard]] std::size_t workspace_bytes() const override { return 64; }
  void reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> /*gradient*/,
              const SideInputs<Space::host>& /*side*/, const EncodeContext& /*context*/, HostView<std::byte> workspace,
              PhaseClock<Space::host>& /*clock*/) override {
    comm.all_gather(queue, workspace.first(8), workspace.first(8));
  }
  void reset(Queue<Space::host> /*queue*/) override {}
  [[nodiscard]] std::uint64_t payload_bytes() const override { return 0; }
  [[nodiscard]] std::uint64_t values_sent(Queue<Space::host> /*queue*/) const override { return 0; }
};

TEST(Pipelined, ACollectiveOutsideACommunicatingPhaseIsRefused) {
  run_threads(1, [](Communicator<Space::host>& comm) {
    TaskPool threads{2};
    std::vector<PipelinedReducer::Part> parts;
    for (std::size_t c = 0; c < 2; ++c) parts.push_back({c, 1, std::make_unique<Careless>()});
    Whole pipelined{std::make_unique<PipelinedReducer>(std::move(parts), threads, 2)};
    std::vector<float> x(2);
    EXPECT_THROW(pipelined.reduce(comm, {}, {x.data(), 2}, {}, {}), std::logic_error);
  });
}

// ---- how units are cut

std::vector<std::size_t> starts(const std::vector<ChunkOfUnit>& chunks) {
  std::vector<std::size_t> firsts;
  for (const auto& chunk : chunks) firsts.push_back(chunk.first);
  return firsts;
}

TEST(CutIntoChunks, CoversTheUnitAtBordersOfBlocks) {
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{1023}, std::size_t{5000},
                              std::size_t{1} << 20, std::size_t{3333333}}) {
    for (const std::size_t most : {1U, 2U, 3U, 7U, 64U}) {
      const auto chunks = cut_into_chunks(Layout::flat(n), most, false);
      EXPECT_EQ(chunks.size(), std::clamp<std::size_t>(n / 1024, 1, most)) << n;
      std::size_t next = 0;
      for (const auto& chunk : chunks) {
        EXPECT_EQ(chunk.first, next);
        next += chunk.layout.elements;
        EXPECT_EQ(chunk.layout.tensors.size(), 1U);
        if (n >= 4 * 65536 * most) EXPECT_EQ(chunk.first % 65536, 0U) << n << " in " << most;
      }
      EXPECT_EQ(next, n);
    }
  }
}

TEST(CutIntoChunks, KeepsTensorsWhole) {
  const Layout layout = small_model();
  EXPECT_EQ(starts(cut_into_chunks(layout, 4, true)), (std::vector<std::size_t>{0, 464, 2768, 3280}));
  for (const std::size_t most : {2U, 3U, 4U}) {
    std::size_t tensors = 0;
    for (const auto& chunk : cut_into_chunks(layout, most, true)) {
      std::size_t next = 0;
      for (const auto& tensor : chunk.layout.tensors) {
        EXPECT_EQ(tensor.first, next);
        EXPECT_EQ(tensor.name, layout.tensors[tensors].name);
        EXPECT_EQ(tensor.depth, layout.tensors[tensors].depth);
        ++tensors;
        next += tensor.elements;
      }
      EXPECT_EQ(next, chunk.layout.elements);
    }
    EXPECT_EQ(tensors, layout.tensors.size());
  }
}

TEST(CutIntoChunks, LeavesATensorThatIsNeededWholeInOneChunkAndSaysSo) {
  const Layout matrix = Layout::matrix(100, 100);
  EXPECT_EQ(cut_into_chunks(matrix, 4, true).size(), 1U);
  const auto spec = parse_codec("powersgd");
  TaskPool threads{4};
  const auto reducer = make_pipelined_reducer(spec, nullptr, Scheme::automatic, matrix, 2, {}, 4, threads);
  EXPECT_NE(reducer->note().find("cut into 1 of 4 chunks"), std::string::npos) << reducer->note();
}

}  // namespace
}  // namespace gradtool::test
