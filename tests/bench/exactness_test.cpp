// Ranks that end with different bits are found in every step, the timed ones too.
#include <gtest/gtest.h>

#include "lib/bench/rank_replay.hpp"
#include "lib/comm/forwarding.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/error.hpp"
#include "tests/io/sample.hpp"

namespace gradtool::test {
namespace {

/// Flips a bit of what one collective brings to rank 1.
class FlippingCommunicator final : public ForwardingCommunicator<Space::host> {
 public:
  /// `call`: which of the sums or gathers, from 0.
  FlippingCommunicator(Communicator<Space::host>& inner, int call) : ForwardingCommunicator{inner}, left_{call} {}

  void all_reduce_native(Queue<Space::host> queue, Bytes inout, Dtype dtype, Bytes scratch) override {
    inner().all_reduce_native(queue, inout, dtype, scratch);
    flip(inout);
  }
  void all_gather_v(Queue<Space::host> queue, ConstBytes mine, std::span<const std::uint64_t> sizes,
                    std::span<const std::uint64_t> offsets, Bytes all) override {
    inner().all_gather_v(queue, mine, sizes, offsets, all);
    flip(all);
  }

 private:
  void flip(Bytes bytes) {
    if (rank() == 1 && left_-- == 0) bytes.data()[0] ^= std::byte{1};
  }

  int left_;
};

/// How a codec ends with two samples on two ranks when what collective number `call` brings is another on rank 1;
/// empty: well.
std::string failure_at(const char* codec, int call, bool check) {
  TempFile file;
  constexpr std::size_t kElementsEach = 37;
  constexpr std::size_t kStepsWritten = 2;
  {
    WriterOptions options = sample_options(Dtype::f32);
    options.info.workers = 2;
    options.tensors = {{.name = "w", .shape = {kElementsEach}, .kind = "linear", .dtype = Dtype::f32}};
    options.with_loss = false;
    GradientWriter writer{file.path(), options};
    for (std::size_t step = 0; step < kStepsWritten; ++step) {
      writer.begin_step({.iteration = static_cast<std::int64_t>(step)});
      for (std::size_t worker = 0; worker < 2; ++worker) {
        writer.put_gradient(0, worker, sample_values(0, step, worker, kElementsEach));
      }
      writer.end_step();
    }
    writer.close();
  }
  const GradientReader reader{file.path()};
  const auto units = make_units(reader.tensors(), {0}, Granularity{});
  BenchOptions options;
  options.check = check;
  const ReplayPlan plan{.options = options,
                        .reader = reader,
                        .units = units,
                        .codec = parse_codec(codec),
                        .ranks = 2,
                        .stop = {.min_samples = 2, .max_noise = 1e300, .timeout_seconds = 1e9}};
  StepLoader loader{reader, 2, kElementsEach, {}};
  std::array<ReplayResult, 2> results;
  try {
    run_threads(2, [&](Communicator<Space::host>& comm) {
      FlippingCommunicator flipping{comm, call};
      replay_rank(plan, flipping, loader, true, results[static_cast<std::size_t>(comm.rank())]);
    });
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::check);
    return error.what();
  }
  return {};
}

TEST(Exactness, RanksAreComparedAfterEveryStep) {
  // Two steps for the errors, then two that are timed.
  for (int call = 0; call < 4; ++call) {
    // int8's payloads are gathered, and rank 1 does not decode them: they are compared instead of results.
    for (const char* codec : {"none", "int8"}) {
      EXPECT_NE(
          failure_at(codec, call, true).find("ranks ended with different results at step " + std::to_string(call % 2)),
          std::string::npos)
          << codec << " " << call;
      EXPECT_EQ(failure_at(codec, call, false), "") << codec << " " << call;
    }
  }
  for (const char* codec : {"none", "int8"}) EXPECT_EQ(failure_at(codec, 4, true), "") << "there are four collectives";
}

TEST(Exactness, AFingerprintSeesEveryBitAndPlace) {
  for (const std::size_t n : {1, 7, 8, 9, 37, 64}) {
    const std::vector<float> values(n, 1.5F);
    const auto print = fingerprint(values);
    EXPECT_EQ(print, fingerprint(std::vector<float>(n, 1.5F)));
    EXPECT_NE(print, fingerprint(std::vector<float>(n + 1, 1.5F)));
    for (std::size_t i = 0; i < n; ++i) {
      auto other = values;
      other[i] = std::nextafter(other[i], 2.0F);
      const auto changed = fingerprint(other);
      EXPECT_NE(print, changed) << i;
      for (std::size_t j = 0; j < i; ++j) {
        // A change at another place, and two signs, must not cancel.
        auto moved = values;
        moved[j] = other[i];
        EXPECT_NE(changed, fingerprint(moved)) << i << " " << j;
        auto signs = values;
        signs[i] = signs[j] = -1.5F;
        EXPECT_NE(print, fingerprint(signs)) << i << " " << j;
      }
    }
  }
}

}  // namespace
}  // namespace gradtool::test
