// GradiVeQ on a GPU: moves of taps and the vote on the loss give what the CPU gives, and where a rank's bases differ,
// as they may on GPUs of different kinds, rank 0's replace them.
#include <cmath>

#include "lib/comm/forwarding.hpp"
#include "lib/methods/gradiveq/gpu.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/gpu/cuda_run.hpp"
#include "tests/gpu/model_on_gpu.hpp"

namespace gradtool::test {
namespace {

using TapMoves = gradiveq::TapMoves<Space::cuda>;
using gradiveq::TapRange;

class GpuTapMoves : public NeedsGpu<testing::Test> {};

/// Ranges that lie behind each other in a row, of layers with gaps between them in the gradient.
struct Model {
  void add(std::size_t filters, std::size_t taps, std::size_t first_tap, std::size_t last_tap, std::size_t mean_taps,
           std::size_t gap) {
    ranges.push_back({.first = elements + gap,
                      .filters = filters,
                      .taps = taps,
                      .first_tap = first_tap,
                      .last_tap = last_tap,
                      .row_first = length,
                      .mean_taps = mean_taps});
    elements += gap + filters * taps;
    length += ranges.back().count();
  }
  Model() {
    add(700, 9, 0, 9, 0, 0);     // two tiles of whole filters
    add(0, 9, 0, 9, 0, 0);       // nothing
    add(5, 1, 0, 1, 0, 3);       // one tap; from here on nothing is 16-byte aligned
    add(1027, 9, 0, 9, 3, 0);    // three tiles; means repeat every three taps
    add(40, 9, 0, 8, 2, 2);      // all but one of the taps
    add(40, 9, 8, 9, 0, 1);      // the tap that the range before leaves
    add(33, 16, 0, 16, 0, 0);    // an even number of taps
    add(13, 121, 0, 121, 0, 5);  // more taps than a tile
    add(9000, 1, 0, 1, 0, 0);    // a tensor as it is
    add(3, 49, 7, 7, 0, 0);      // no taps of a tensor
    add(64, 3, 1, 3, 0, 1);
    elements += 7;
  }
  std::vector<TapRange> ranges;
  std::size_t elements = 0, length = 0;
};

/// Index of the mean of every element of the row.
std::vector<std::size_t> mean_places(const Model& model, std::span<const TapRange> ranges) {
  std::vector<std::size_t> places(model.length);
  for (const TapRange& range : ranges) {
    for (std::size_t k = 0; k < range.count(); ++k) {
      const std::size_t tap = k / range.filters;
      places[range.row_first + k] =
          range.row_first + (range.mean_taps == 0 ? tap : tap % range.mean_taps) * range.filters + k % range.filters;
    }
  }
  return places;
}

TEST_F(GpuTapMoves, AreTheHosts) {
  const Model model;
  const cuda::Stream stream;
  const auto queue = stream.queue();
  TapMoves moves{model.ranges};
  const auto x = gradient_like(model.elements, 1);
  const auto row = gradient_like(model.length, 2);
  const auto means = gradient_like(model.length, 3);
  const Guarded on_means{queue, bytes_of(means)};
  std::vector<TapRange> every_other;
  for (std::size_t i = 0; i < model.ranges.size(); i += 2) every_other.push_back(model.ranges[i]);
  // All, then fewer, then none: what is not chosen stays as it is.
  for (const auto& ranges : {model.ranges, every_other, {}}) {
    moves.choose(queue, ranges);
    gradiveq::TapMoves<Space::host> host{ranges};
    host.choose({}, ranges);
    const auto places = mean_places(model, ranges);
    for (const std::size_t shift : {std::size_t{0}, std::size_t{4}}) {
      const Guarded on_x{queue, bytes_of(x), shift};
      const Guarded on_row{queue, bytes_of(row), shift};
      auto expected = row;
      host.gather({}, x.data(), expected.data());
      moves.gather(queue, on_x.as<float>().data(), on_row.as<float>().data());
      EXPECT_EQ(on_row.download_floats(), expected) << ranges.size();
      for (const TapRange& range : ranges) {
        for (std::size_t k = range.row_first; k < range.row_first + range.count(); ++k) expected[k] -= means[places[k]];
      }
      on_row.upload(bytes_of(row));
      const Guarded norms{queue, 16 * moves.tiles()};
      moves.gather_centred(queue, on_x.as<float>().data(), on_means.as<float>().data(), on_row.as<float>().data(),
                           norms.as<double>().data());
      EXPECT_EQ(on_row.download_floats(), expected) << ranges.size();

      auto back = x;
      on_row.upload(bytes_of(row));
      host.scatter({}, row.data(), 0.3F, back.data());
      moves.scatter(queue, on_row.as<float>().data(), 0.3F, on_x.as<float>().data());
      EXPECT_EQ(on_x.download_floats(), back) << ranges.size();
      auto with_means = row;
      for (const TapRange& range : ranges) {
        for (std::size_t k = range.row_first; k < range.row_first + range.count(); ++k)
          with_means[k] += means[places[k]];
      }
      host.scatter({}, with_means.data(), 1.0F, back.data());
      moves.scatter_centred(queue, on_row.as<float>().data(), on_means.as<float>().data(), on_x.as<float>().data());
      EXPECT_EQ(on_x.download_floats(), back) << ranges.size();
    }
  }
}

TEST_F(GpuTapMoves, MoreThanPlannedIsRefused) {
  const Model model;
  const cuda::Stream stream;
  TapMoves moves{std::span{model.ranges}.first(3)};
  EXPECT_THROW(moves.choose(stream.queue(), model.ranges), Error);
}

/// The vote turns at the loss that norms on the CPU give.
TEST_F(GpuTapMoves, VotesOnTheLossOfAllLayers) {
  const Model model;
  const cuda::Stream stream;
  const auto queue = stream.queue();
  TapMoves moves{model.ranges};
  moves.choose(queue, model.ranges);
  const auto x = gradient_like(model.elements, 1);
  const auto means = gradient_like(model.length, 3);
  const auto y = gradient_like(900, 4);
  const auto places = mean_places(model, model.ranges);
  std::vector<float> row(model.length);
  for (const TapRange& range : model.ranges) gradiveq::gather_taps({}, range, x.data(), row.data());
  double energy = 0.0;
  double left = 0.0;
  for (std::size_t k = 0; k < row.size(); ++k) {
    const auto centred = static_cast<double>(row[k] - means[places[k]]);
    energy += static_cast<double>(row[k]) * static_cast<double>(row[k]);
    left += centred * centred;
  }
  for (const float value : y) left -= static_cast<double>(value) * static_cast<double>(value);
  ASSERT_GT(left, 0.0);
  const double loss = std::sqrt(left / energy);

  const Guarded on_x{queue, bytes_of(x)};
  const Guarded on_means{queue, bytes_of(means)};
  const Guarded on_y{queue, bytes_of(y)};
  const Guarded on_row{queue, 4 * model.length};
  const Guarded norms{queue, 16 * moves.tiles()};
  const Guarded kept{queue, 16};
  const Guarded vote{queue, 4};
  moves.gather_centred(queue, on_x.as<float>().data(), on_means.as<float>().data(), on_row.as<float>().data(),
                       norms.as<double>().data());
  auto* coefficients = on_y.as<float>().data();
  const std::vector<cuda::Unit> units{{nullptr, coefficients, 17}, {nullptr, coefficients + 17, y.size() - 17}};
  gradiveq::sum_squares(queue, units, kept.as<double>().data());
  for (const double worst : {0.999999 * loss, 1.000001 * loss}) {
    gradiveq::vote_on_loss(queue, norms.as<double>().data(), moves.tiles(), kept.as<double>().data(), units.size(),
                           worst, vote.as<float>().data());
    EXPECT_EQ(vote.download_floats()[0], worst < loss ? 1.0F : 0.0F);
  }
  static_cast<void>(norms.download());
  static_cast<void>(kept.download());
}

class GpuGradiVeq : public NeedsGpu<testing::Test> {};

/// Makes rank 1's digest a lie, and forgets what it holds when it is told anew.
class Lying final : public ForwardingCommunicator<Space::cuda> {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  void all_gather(Queue<Space::cuda> queue, ConstBytes mine, Bytes all) override {
    if (rank() == 1) cuda::fill(queue, all.part(8, 1), 0x5A);
    inner().all_gather(queue, mine, all);
  }
  void broadcast(Queue<Space::cuda> queue, Bytes view, int root) override {
    if (rank() == 1) cuda::fill(queue, view, 0xA5);
    inner().broadcast(queue, view, root);
    ++broadcasts;
  }

  int broadcasts = 0;
};

TEST_F(GpuGradiVeq, BasesThatDifferAreReplacedByRankZeros) {
  const ModelSetup setup{.codec = "gradiveq:lt=3,lc=4", .ranks = 3, .steps = 5};
  const auto expected = run_model_on_gpu(setup);
  const auto spec = parse_codec(setup.codec);
  std::vector<std::vector<float>> results(3);
  run_loopback(3, 0, [&](Communicator<Space::cuda>& loopback, Queue<Space::cuda> queue) {
    Lying comm{loopback};
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto reducer = make_reducer<Space::cuda>(spec, nullptr, Scheme::automatic, setup.layout, 3, queue);
    Arena<Space::cuda> arena{reducer->workspace_bytes()};
    const auto workspace = arena.take_bytes(reducer->workspace_bytes());
    NoClock<Space::cuda> clock;
    for (int step = 0; step < setup.steps; ++step) {
      const auto x = model_gradient(setup.layout.elements, comm.rank(), step);
      const Guarded gradient{queue, bytes_of(x)};
      reducer->reduce(
          comm, queue, gradient.as<float>(), {},
          {.key = {.seed = 9, .step = static_cast<std::uint32_t>(step), .rank = static_cast<std::uint32_t>(me)},
           .iteration = step},
          workspace, clock);
      results[me] = gradient.download_floats();
    }
    EXPECT_EQ(comm.broadcasts, 5);  // counts, three bases, means
    EXPECT_NE(reducer->note().find("rank 0's bases broadcast 1 times"), std::string::npos) << reducer->note();
  });
  for (const auto& result : results) EXPECT_EQ(result, expected.results[0][4]);
}

}  // namespace
}  // namespace gradtool::test
