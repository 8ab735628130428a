// Every method that has a CUDA version, against its host version over several steps: reducers of their own, and codecs
// that keep something from step to step, by themselves or through error feedback.
#include <algorithm>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/not_finite.hpp"
#include "tests/codecs/same_bits.hpp"
#include "tests/gpu/cuda_run.hpp"
#include "tests/gpu/model_on_gpu.hpp"

namespace gradtool::test {
namespace {

/// sum (a-b)^2 / sum b^2.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0.0;
  double energy = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    error += difference * difference;
    energy += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return energy > 0.0 ? error / energy : error;
}

class GpuReducer : public NeedsGpu<testing::TestWithParam<std::string>> {};

TEST_P(GpuReducer, IsTheHosts) {
  const bool same_bytes = parse_codec(GetParam()).descriptor->determinism == Determinism::cross_backend;
  std::vector<int> sizes{1, 2, 3};
  if (GetParam().starts_with("qgz:node=2")) sizes.push_back(4);  // two levels
  if (GetParam() == "thc") sizes.push_back(7);                   // sums of two bytes
  for (const int ranks : sizes) {                                // two of them begin anew in between
    const ModelSetup setup{.codec = GetParam(), .ranks = ranks, .steps = 6, .resets_at = ranks == 2 ? 4 : -1};
    const auto host = run_model(setup);
    const auto gpu = run_model_on_gpu(setup);
    EXPECT_EQ(gpu.note, host.note);
    for (std::size_t r = 0; r < gpu.results.size(); ++r) {
      EXPECT_EQ(gpu.payload[r], host.payload[r]) << "rank " << r;
      EXPECT_EQ(gpu.wire[r], host.wire[r]) << "rank " << r;
      EXPECT_EQ(gpu.residuals[r].size(), host.residuals[r].size());
      for (int step = 0; step < setup.steps; ++step) {
        const auto s = static_cast<std::size_t>(step);
        const std::string what = "rank " + std::to_string(r) + " step " + std::to_string(step);
        expect_same(gpu.results[r][s], gpu.results[0][s], what + " against rank 0");
        if (same_bytes) {
          expect_same(gpu.results[r][s], host.results[r][s], what);
          continue;
        }
        // Products add in an order of the library's own, an error of 10^-7 that warm starts and residuals carry on.
        EXPECT_LT(distance(gpu.results[r][s], host.results[r][s]), 1e-6) << what;
        EXPECT_NEAR(model_nmse(gpu, step), model_nmse(host, step), 0.01 * model_nmse(host, step) + 1e-9) << what;
      }
    }
    if (!gpu.residuals[0].empty()) EXPECT_NEAR(largest_loss(gpu), largest_loss(host), 2e-6);
  }
}

std::vector<float> sorted(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  return values;
}

TEST_P(GpuReducer, IsTheHostsForOddUnitsAndGradients) {
  const bool same_bytes = parse_codec(GetParam()).descriptor->determinism == Determinism::cross_backend;
  const auto compare = [&](const ModelSetup& setup, const std::string& what) {
    const auto host = run_model(setup);
    const auto gpu = run_model_on_gpu(setup);
    EXPECT_EQ(gpu.payload[0], host.payload[0]) << what;
    const auto last = static_cast<std::size_t>(setup.steps - 1);
    for (std::size_t r = 0; r < gpu.results.size(); ++r) {
      expect_same(gpu.results[r][last], gpu.results[0][last], what + " against rank 0");
      if (same_bytes) {
        expect_same(gpu.results[r][last], host.results[r][last], what);
      } else {
        // Which of equal rows is chosen rests on the order in which a library adds: the values are then at other
        // places.
        EXPECT_TRUE(
            distance(gpu.results[r][last], host.results[r][last]) < 1e-5 ||
            (what == "constant" && distance(sorted(gpu.results[r][last]), sorted(host.results[r][last])) < 1e-5))
            << what << ", rank " << r;
      }
    }
  };
  for (const std::size_t n : {0, 1, 2, 31, 33, 1000})
    compare({.codec = GetParam(), .ranks = 2, .steps = 2, .layout = Layout::flat(n)}, std::to_string(n) + " elements");
  compare({.codec = GetParam(), .ranks = 2, .steps = 2, .layout = Layout::matrix(40, 33)}, "a matrix");
  compare({.codec = GetParam(), .ranks = 2, .steps = 2, .side_inputs = false}, "no side inputs");
  const std::size_t n = small_model().elements;
  auto outlier = std::vector<float>(n, 1e-6F);
  outlier[n / 2] = 32.0F;
  for (const auto& [what, x] : {std::pair<std::string, std::vector<float>>{"zeros", std::vector<float>(n, 0.0F)},
                                {"constant", std::vector<float>(n, 0.25F)},
                                {"denormal", std::vector<float>(n, 1e-40F)},
                                {"outlier", outlier}})
    compare({.codec = GetParam(), .ranks = 2, .steps = 3, .gradient = [&x = x](int, int) { return x; }}, what);
  compare({.codec = GetParam(),
           .ranks = 3,
           .steps = 3,
           .gradient = [n](int rank,
                           int step) { return rank == 0 ? model_gradient(n, 0, step) : std::vector<float>(n, 0.0F); }},
          "one rank only");
}

/// NaNs that arithmetic of one rank makes, in the middle of three steps.
TEST_P(GpuReducer, IsTheHostsForDegenerateNaNs) {
  if (parse_codec(GetParam()).descriptor->determinism != Determinism::cross_backend) return;
  const Layout layout = Layout::matrix(20, 27);
  for (const auto& [what, odd] : not_finite_gradients(layout.elements)) {
    if (what != "infinities of both signs" && what != "everything") continue;  // each NaN takes a while
    const auto gradient = [&odd = odd](int rank, int step) {
      return step == 1 && rank == 0 ? odd : model_gradient(odd.size(), rank, step);
    };
    const ModelSetup setup{.codec = GetParam(), .ranks = 2, .steps = 3, .layout = layout, .gradient = gradient};
    const auto host = run_model(setup);
    const auto gpu = run_model_on_gpu(setup);
    for (std::size_t r = 0; r < gpu.results.size(); ++r) {
      EXPECT_EQ(gpu.payload[r], host.payload[r]) << what << ", rank " << r;
      for (std::size_t step = 0; step < gpu.results[r].size(); ++step)
        expect_same(gpu.results[r][step], host.results[r][step],
                    what + ", rank " + std::to_string(r) + ", step " + std::to_string(step));
      expect_same(gpu.residuals[r], host.residuals[r], what + ", residual of rank " + std::to_string(r));
    }
  }
}

// Checkpoints are the host's business alone. Silence would lose what a GPU keeps.
TEST_P(GpuReducer, SaysThatItsStateCannotBeSaved) {
  const CodecSpec spec = parse_codec(GetParam());
  const Layout layout = small_model();
  run_loopback(1, 0, [&](Communicator<Space::cuda>& /*comm*/, Queue<Space::cuda> queue) {
    const auto reducer =
        make_reducer<Space::cuda>(spec, make_codec<Space::cuda>(spec, layout), Scheme::automatic, layout, 1, queue);
    try {
      static_cast<void>(save_state(*reducer));
      ADD_FAILURE() << "was saved";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::unavailable) << error.what();
    }
  });
}

std::vector<std::string> own_cuda_reducers() {
  std::vector<std::string> specs;
  for (const auto& spec : own_specs()) {
    if (parse_codec(spec).descriptor->gpu.reducer) specs.push_back(spec);
  }
  return specs;
}
/// Codecs' own kernels, which residuals go through.
std::vector<std::string> feedback_on_cuda() {
  std::vector<std::string> specs;
  for (const auto& spec : specs_to_test()) {
    const CodecSpec parsed = parse_codec(spec);
    const CodecDescriptor& codec = *parsed.descriptor;
    if (codec.aggregation == Aggregation::own || codec.gpu.codec == nullptr) continue;
    if (codec.memory || parsed.error_feedback) specs.push_back(spec);
  }
  for (const char* spec : {"topk:ratio=0.1,ef=ef21", "fp16:ef=ef21", "exponent:ef=ef21", "topk:ratio=0.1,ef=ef21m",
                           "fp16:ef=ef21m,eta=0.5"})
    specs.emplace_back(spec);
  return specs;
}
INSTANTIATE_TEST_SUITE_P(Own, GpuReducer, testing::ValuesIn(own_cuda_reducers()),
                         [](const auto& info) { return test_name(info.param); });
INSTANTIATE_TEST_SUITE_P(Feedback, GpuReducer, testing::ValuesIn(feedback_on_cuda()),
                         [](const auto& info) { return test_name(info.param); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuReducer);

/// The other collectives, --reduce alltoall and two levels, with codecs of the same bytes on both processors.
class GpuCollective : public NeedsGpu<testing::TestWithParam<const char*>> {
 protected:
  static void compare(const ModelSetup& setup, const std::string& what) {
    const auto host = run_model(setup);
    const auto gpu = run_model_on_gpu(setup);
    for (std::size_t r = 0; r < gpu.results.size(); ++r) {
      EXPECT_EQ(gpu.payload[r], host.payload[r]) << what << ", rank " << r;
      EXPECT_EQ(gpu.wire[r], host.wire[r]) << what << ", rank " << r;
      for (std::size_t step = 0; step < gpu.results[r].size(); ++step) {
        auto got = gpu.results[r][step];
        auto wanted = host.results[r][step];
        if (setup.op == Collective::reduce_scatter) {  // the other shards are left unspecified
          const Segment own = ring_segment(got.size(), static_cast<int>(r), setup.ranks);
          const auto cut = [own](std::vector<float>& x) {
            const auto first = x.begin() + static_cast<std::ptrdiff_t>(own.first);
            x = std::vector<float>(first, first + static_cast<std::ptrdiff_t>(own.count));
          };
          cut(got);
          cut(wanted);
        }
        expect_same(got, wanted, what + ", rank " + std::to_string(r) + ", step " + std::to_string(step));
      }
    }
  }
};

TEST_P(GpuCollective, IsTheHosts) {
  const std::string codec = GetParam();
  const bool keeps = parse_codec(codec).error_feedback;
  for (const int ranks : {1, 2, 4}) {
    ModelSetup setup{.codec = codec, .ranks = ranks, .steps = 2, .layout = Layout::flat(4020)};
    setup.scheme = Scheme::alltoall;
    compare(setup, codec + " alltoall");
    setup.layout = Layout::flat(4019);
    compare(setup, codec + " alltoall of shards of two lengths");
    setup.layout = Layout::flat(4020);
    setup.op = Collective::reduce_scatter;
    compare(setup, codec + " reduce-scatter by alltoall");
    setup.scheme = Scheme::automatic;
    compare(setup, codec + " reduce-scatter");
    setup.op = Collective::all_gather;
    compare(setup, codec + " all-gather");
    setup.op = Collective::all_to_all;
    if (!keeps) compare(setup, codec + " all-to-all");
  }
  ModelSetup levels{.codec = codec, .ranks = 4, .steps = 2, .layout = Layout::flat(4021)};
  levels.node = 2;
  compare(levels, codec + " between machines");
  levels.inner = "bf16";
  compare(levels, codec + " between machines, bf16 inside");
}
INSTANTIATE_TEST_SUITE_P(Plain, GpuCollective,
                         testing::Values("none", "bf16", "fp16", "fp8", "qsgd:bits=4", "topk", "topk:ef=off",
                                         "fp8:reduce=alltoall,own=exact,segment=512", "randomk"),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace gradtool::test
