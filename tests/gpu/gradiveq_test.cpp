// GradiVeQ where a rank's bases differ, as they may on GPUs of different kinds: rank 0's replace them.
#include "lib/comm/forwarding.hpp"
#include "tests/gpu/cuda_run.hpp"
#include "tests/gpu/model_on_gpu.hpp"

namespace gradtool::test {
namespace {

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
