// Every method that has a CUDA version, against its host version over several steps: reducers of their own, and codecs
// that keep something from step to step, by themselves or through error feedback.
#include "tests/codecs/codec_run.hpp"
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
        EXPECT_LT(distance(gpu.results[r][last], host.results[r][last]), 1e-5) << what;
      }
    }
  };
  for (const std::size_t n : {1, 2, 31, 33, 1000})
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

std::vector<std::string> cuda_reducers() {
  std::vector<std::string> specs;
  for (const auto& spec : own_specs()) {
    if (parse_codec(spec).descriptor->gpu.reducer) specs.push_back(spec);
  }
  for (const auto& spec : specs_to_test()) {
    const CodecSpec parsed = parse_codec(spec);
    const CodecDescriptor& codec = *parsed.descriptor;
    if (codec.aggregation == Aggregation::own || codec.gpu.codec == nullptr) continue;
    if (codec.memory || parsed.error_feedback) specs.push_back(spec);
  }
  return specs;
}
INSTANTIATE_TEST_SUITE_P(Registry, GpuReducer, testing::ValuesIn(cuda_reducers()),
                         [](const auto& info) { return test_name(info.param); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuReducer);

}  // namespace
}  // namespace gradtool::test
