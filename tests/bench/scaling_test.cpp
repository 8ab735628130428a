// Tests that the model turns a replay on few ranks into what a replay on more ranks sends: bytes, for every codec and
// scheme.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lib/codecs/reducer.hpp"
#include "lib/comm/launch.hpp"
#include "lib/comm/recording.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/model/cost_model.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

constexpr std::size_t kRows = 96, kColumns = 512;
constexpr std::size_t kScalingSteps = 3;

Layout one_matrix() {
  Layout layout;
  layout.elements = kRows * kColumns;
  layout.tensors.push_back({.name = "fc.weight",
                            .shape = {kRows, kColumns},
                            .kind = "linear",
                            .layout = "OI",
                            .first = 0,
                            .elements = layout.elements});
  return layout;
}

struct Sent {
  CollectiveUses uses = no_uses();  ///< rank 0's, mean over steps
  double bytes = 0.0;               ///< counted, mean over steps and ranks
};

Sent replay(const CodecSpec& spec, Scheme scheme, int ranks) {
  const Layout layout = one_matrix();
  const std::size_t n = layout.elements;
  Sent sent;
  std::vector<double> bytes(static_cast<std::size_t>(ranks));
  run_threads(ranks, [&](Communicator<Space::host>& comm) {
    const auto rank = static_cast<std::uint32_t>(comm.rank());
    TaskPool pool{1};
    const Queue<Space::host> queue{&pool};
    const auto reducer =
        make_reducer<Space::host>(spec, make_codec<Space::host>(spec, layout), scheme, layout, ranks, queue);
    Arena<Space::host> arena{Arena<Space::host>::padded_size(reducer->workspace_bytes())};
    const auto workspace = arena.take_bytes(reducer->workspace_bytes());
    const auto weight = gradient_like(n, 99);
    NoClock<Space::host> clock;
    reducer->prepare(comm);
    comm.reset_traffic();
    RecordingCommunicator<Space::host> recording{comm, [&](const RecordingCommunicator<Space::host>::Call& call) {
                                                   const auto pattern = reducer->pattern(call.level);
                                                   if (rank == 0)
                                                     add_use(sent.uses, call.name, call.mean_bytes, pattern.shards,
                                                             pattern.ring, call.level, call.node);
                                                 }};
    for (std::uint32_t step = 0; step < kScalingSteps; ++step) {
      auto x = gradient_like(n, 100 * step + 1);  // what the ranks share, and what is each one's own
      const auto own = gradient_like(n, 100 * step + 2 + rank);
      for (std::size_t i = 0; i < n; ++i) x[i] = 0.5F * (x[i] + own[i]);
      std::vector<float> moment(n);
      for (std::size_t i = 0; i < n; ++i) moment[i] = 0.5F * x[i] * x[i];
      reducer->reduce(recording, queue, {x.data(), n},
                      {.weight = {weight.data(), n}, .second_moment = {moment.data(), n}},
                      {.key = {.seed = 1, .step = step, .rank = rank}, .iteration = step}, workspace, clock);
    }
    bytes[rank] = static_cast<double>(comm.traffic().bytes_sent) / kScalingSteps;
  });
  for (auto& use : sent.uses) {
    use.calls /= kScalingSteps;
    use.bytes /= kScalingSteps;
  }
  for (const double one : bytes) sent.bytes += one / ranks;
  return sent;
}

struct Case {
  std::string codec;
  Scheme scheme = Scheme::automatic;

  friend void PrintTo(const Case& one, std::ostream* out) { *out << one.codec << " " << name_of(one.scheme); }
};

class Scaling : public testing::TestWithParam<Case> {};

/// Modelled from 2 and from 4 ranks, against what 4 and 8 count.
TEST_P(Scaling, BytesOfMoreRanksAreWhatMoreRanksSend) {
  const CodecSpec spec = parse_codec(GetParam().codec);
  Network network = Network::parse("1gbe");
  network.library = Library::gloo;  // its all-reduces are rings, as those of these ranks are
  std::vector<Sent> counted;
  for (const int ranks : {2, 4, 8}) counted.push_back(replay(spec, GetParam().scheme, ranks));
  for (const std::size_t from : {0, 1}) {
    const int measured = 2 << from;
    const double modelled = model_step(counted[from].uses, network, measured, 2 * measured).wire_bytes;
    const double should = counted[from + 1].bytes;
    const double tolerance = test::has_trait(GetParam().codec, "draws") ? 0.3 : 0.1;
    EXPECT_NEAR(modelled, should, tolerance * should + 64.0) << "from " << measured << " ranks";
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const CodecDescriptor* codec : codecs()) {
    if (!test::has_trait(std::string{codec->name}, "by-ranks")) all.push_back({std::string{codec->name}});
  }
  for (const char* codec : {"qsgd", "int8", "natural"}) all.push_back({codec, Scheme::hop});
  for (const char* codec : {"qgz:node=2", "iwp:roots=2,density=0.05", "gradiveq:lt=2,lc=2,slice=32"})
    all.push_back({codec});
  return all;
}

INSTANTIATE_TEST_SUITE_P(EveryCodec, Scaling, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& info) { return fmt::format("{}", info.index); });

}  // namespace
}  // namespace gradtool::test
