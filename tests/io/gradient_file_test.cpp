#include "lib/io/gradient_file.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <regex>

#include "kernels/float_bits.hpp"
#include "lib/core/error.hpp"
#include "tests/io/sample.hpp"

namespace gradtool {
namespace {

using namespace test;

float rounded(float x, Dtype dtype) {
  switch (dtype) {
    case Dtype::f16:
      return format::f32_from_f16(format::f16_from_f32(x));
    case Dtype::bf16:
      return format::f32_from_bf16(format::bf16_from_f32(x));
    case Dtype::f32:
      break;
  }
  return x;
}

}  // namespace

void PrintTo(Dtype dtype, std::ostream* out) {
  *out << name_of(dtype);
}

namespace {

class RoundTrip : public testing::TestWithParam<Dtype> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, RoundTrip, testing::Values(Dtype::f32, Dtype::f16, Dtype::bf16),
                         [](const auto& info) { return std::string{name_of(info.param)}; });

TEST_P(RoundTrip, KeepsProvenanceAndSteps) {
  TempFile file;
  write_sample(file.path(), GetParam());
  const GradientReader reader{file.path()};
  const FileInfo& info = reader.info();
  EXPECT_TRUE(info.complete);
  EXPECT_EQ(info.schema_version, 1);
  EXPECT_EQ(info.model, "sample");
  EXPECT_EQ(info.command, "gradtool capture \u2026");
  EXPECT_EQ(info.created, "2025-01-02T03:04:05Z");
  EXPECT_TRUE(std::regex_match(info.producer, std::regex{R"(gradtool [\d.]+ \(([\da-f]{7,}(-dirty)?|unknown)\))"}))
      << info.producer;
  EXPECT_EQ(info.seed, -7);
  EXPECT_EQ(info.batch_size, 32);
  EXPECT_EQ(info.micro_batches, 4);
  EXPECT_EQ(reader.workers(), kWorkers);
  EXPECT_EQ(reader.elements(), 1200U + 1U + 70'001U);
  ASSERT_EQ(reader.tensors().size(), 3U);
  EXPECT_EQ(reader.tensors()[0].name, "conv");
  EXPECT_EQ(reader.tensors()[0].shape, (std::vector<std::int64_t>{16, 3, 5, 5}));
  EXPECT_EQ(reader.tensors()[0].layout, "OIHW");
  EXPECT_TRUE(reader.tensors()[1].shape.empty());
  EXPECT_EQ(reader.tensors()[2].kind, "linear");
  EXPECT_EQ(reader.tensors()[2].dtype, GetParam());
  EXPECT_FALSE(reader.tensors()[2].has_weight);
  ASSERT_EQ(reader.steps().size(), kSteps);
  EXPECT_EQ(reader.steps()[3].iteration, 103);
  EXPECT_EQ(reader.steps()[3].epoch, 0.75);
  EXPECT_EQ(reader.steps()[3].loss, std::vector<float>(kWorkers, 0.5F));
}

TEST(GradientFile, KeepsWhatTheValuesAreAndWhichStepsOverflowed) {
  TempFile file;
  WriterOptions options;
  options.info.workers = 2;
  options.info.quantity = "pseudo_gradient";
  options.info.inner_steps = 20;
  options.info.averaged = true;
  options.info.reduce_dtype = Dtype::bf16;
  options.info.rank = 2;
  options.info.ranks = 9;
  options.tensors = {{.name = "a"}};
  options.with_overflow = true;
  GradientWriter writer{file.path(), options};
  for (std::uint8_t s = 0; s < 2; ++s) {
    writer.begin_step({.iteration = s, .overflow = {0, s}});
    for (std::size_t w = 0; w < 2; ++w) writer.put_gradient(0, w, std::vector<float>{1.0F});
    writer.end_step();
  }
  writer.close();
  const GradientReader reader{file.path()};
  EXPECT_EQ(reader.info().quantity, "pseudo_gradient");
  EXPECT_EQ(reader.info().inner_steps, 20);
  EXPECT_TRUE(reader.info().averaged);
  EXPECT_EQ(reader.info().reduce_dtype, Dtype::bf16);
  EXPECT_EQ(reader.info().rank, 2);
  EXPECT_EQ(reader.info().ranks, 9);
  EXPECT_EQ(reader.steps()[1].overflow, (std::vector<std::uint8_t>{0, 1}));
  EXPECT_TRUE(reader.steps()[1].overflowed());
  EXPECT_FALSE(reader.steps()[0].overflowed());
}

TEST_P(RoundTrip, KeepsEveryValue) {
  TempFile file;
  write_sample(file.path(), GetParam());
  const GradientReader reader{file.path()};
  for (std::size_t t = 0; t < 3; ++t) {
    std::vector<float> values(kElements[t]);
    for (std::size_t s = 0; s < kSteps; ++s) {
      for (std::size_t w = 0; w < kWorkers; ++w) {
        reader.read_gradient(t, s, w, values);
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(values[i], rounded(sample_value(t, s, w, i), GetParam())) << t << " " << s << " " << w << " " << i;
        }
      }
    }
  }
  // Second moments and weights stay float32 whatever the gradient is.
  std::vector<float> values(kElements[0]);
  reader.read_second_moment(0, 2, 1, values);
  EXPECT_EQ(values, sample_values(8, 2, 1, kElements[0]));
  reader.read_weight(0, 4, values);
  EXPECT_EQ(values, sample_values(9, 4, 0, kElements[0]));
}

TEST_P(RoundTrip, PartsJoinToTheWhole) {
  TempFile file;
  write_sample(file.path(), GetParam());
  const GradientReader reader{file.path()};
  std::vector<float> whole(kElements[2]), part;
  reader.read_gradient(2, 1, 2, whole);
  for (const std::size_t size : {1, 255, 256, 257, 9999}) {
    for (std::size_t first = 0; first < whole.size(); first += size * 7) {
      part.resize(std::min(size, whole.size() - first));
      reader.read_gradient_part(2, 1, 2, first, part);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(first)));
    }
  }
  std::vector<float> few(10), all(kElements[0]);
  reader.read_second_moment(0, 1, 1, all);
  reader.read_second_moment_part(0, 1, 1, 77, few);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin() + 77));
  reader.read_weight(0, 1, all);
  reader.read_weight_part(0, 1, 1190, few);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin() + 1190));
}

TEST_P(RoundTrip, KeepsSpecialValues) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> specials{0.0F,  -0.0F, kInf,     -kInf, std::numeric_limits<float>::quiet_NaN(),
                                    1e-8F, 6e-5F, 65504.0F, 1e6F,  std::numeric_limits<float>::denorm_min()};
  TempFile file;
  WriterOptions options;
  options.info.workers = 1;
  options.tensors = {{.name = "x", .shape = {10}, .dtype = GetParam()}};
  GradientWriter writer{file.path(), options};
  writer.begin_step({});
  writer.put_gradient(0, 0, specials);
  writer.end_step();
  writer.close();
  const GradientReader reader{file.path()};
  std::vector<float> values(10);
  reader.read_gradient(0, 0, 0, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(rounded(specials[i], GetParam())));
  }
  EXPECT_TRUE(std::isnan(reader.steps()[0].epoch.value()));
  EXPECT_TRUE(std::isnan(reader.steps()[0].loss.at(0)));
}

TEST_P(RoundTrip, AFileOfOneStepHasTheSameValuesAndNoSecondStep) {
  TempFile file, growing;
  WriterOptions options = sample_options(GetParam());
  {
    GradientWriter writer{growing.path(), options};
    write_sample_step(writer, 0);
    writer.close();
    options.one_step = true;
    GradientWriter one{file.path(), options};
    write_sample_step(one, 0);
    EXPECT_THROW(one.begin_step({.iteration = 101, .loss = std::vector<float>(kWorkers, 0.5F)}), Error);
    one.close();
  }
  const GradientReader reader{file.path()}, expected{growing.path()};
  ASSERT_EQ(reader.steps().size(), 1U);
  EXPECT_EQ(reader.steps()[0].loss, expected.steps()[0].loss);
  for (std::size_t t = 0; t < reader.tensors().size(); ++t) {
    EXPECT_EQ(reader.tensors()[t].dtype, expected.tensors()[t].dtype);
    std::vector<float> values(kElements[t]), wanted(kElements[t]);
    for (std::size_t w = 0; w < kWorkers; ++w) {
      reader.read_gradient(t, 0, w, values);
      expected.read_gradient(t, 0, w, wanted);
      EXPECT_EQ(values, wanted) << t << " " << w;
      if (!reader.tensors()[t].has_second_moment) continue;
      reader.read_second_moment(t, 0, w, values);
      expected.read_second_moment(t, 0, w, wanted);
      EXPECT_EQ(values, wanted) << t << " " << w;
    }
    if (!reader.tensors()[t].has_weight) continue;
    reader.read_weight(t, 0, values);
    expected.read_weight(t, 0, wanted);
    EXPECT_EQ(values, wanted) << t;
  }
}

TEST(GradientFile, ColumnsAreOptional) {
  TempFile file;
  WriterOptions options = sample_options(Dtype::f32);
  options.with_epoch = options.with_learning_rate = options.with_loss = false;
  {
    GradientWriter writer{file.path(), options};
    write_sample_step(writer, 0);
    writer.close();
  }
  const GradientReader reader{file.path()};
  EXPECT_FALSE(reader.steps()[0].epoch.has_value());
  EXPECT_FALSE(reader.steps()[0].learning_rate.has_value());
  EXPECT_TRUE(reader.steps()[0].loss.empty());
  EXPECT_TRUE(reader.steps()[0].compute_seconds.empty());
}

TEST(GradientFile, KeepsTheTimeThatEachWorkerComputed) {
  TempFile file;
  WriterOptions options = sample_options(Dtype::f32);
  options.tensors = {{.name = "x", .shape = {1}}};
  options.with_compute_seconds = true;
  GradientWriter writer{file.path(), options};
  for (const std::vector<double>& seconds : {std::vector{0.25, 0.5, 1e-9}, std::vector<double>{}}) {
    writer.begin_step({.compute_seconds = seconds});
    for (std::size_t w = 0; w < kWorkers; ++w) writer.put_gradient(0, w, std::vector{1.0F});
    writer.end_step();
  }
  writer.close();
  const GradientReader reader{file.path()};
  EXPECT_EQ(reader.steps()[0].compute_seconds, (std::vector{0.25, 0.5, 1e-9}));
  for (const double seconds : reader.steps()[1].compute_seconds) EXPECT_TRUE(std::isnan(seconds));
  EXPECT_EQ(reader.steps()[1].compute_seconds.size(), kWorkers);
}

TEST(GradientFile, KeepsWhenGradientsAreReady) {
  TempFile file;
  WriterOptions options = sample_options(Dtype::f32);
  options.with_readiness = true;
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  const Readiness readiness{.ready = {1.0, 0.5, 0.25, 1.0, 0.75, 0.0, unknown, unknown, unknown},
                            .backward_share = {0.6, 1.0, unknown}};
  {
    GradientWriter writer{file.path(), options};
    write_sample_step(writer, 0);
    {
      const GradientReader reader{file.path()};  // while it is written
      ASSERT_TRUE(reader.readiness().has_value());
      for (const double share : reader.readiness()->ready) EXPECT_TRUE(std::isnan(share));
      for (const double share : reader.readiness()->backward_share) EXPECT_TRUE(std::isnan(share));
    }
    writer.put_readiness({.ready = std::vector<double>(9, 0.125), .backward_share = std::vector<double>(3, 0.5)});
    writer.put_readiness(readiness);
    EXPECT_THROW(writer.put_readiness({.ready = {1.0}, .backward_share = {1.0}}), Error);
    writer.close();
  }
  const GradientReader reader{file.path()};
  ASSERT_TRUE(reader.readiness().has_value());
  const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  EXPECT_TRUE(std::equal(readiness.ready.begin(), readiness.ready.end(), reader.readiness()->ready.begin(), same));
  EXPECT_TRUE(std::equal(readiness.backward_share.begin(), readiness.backward_share.end(),
                         reader.readiness()->backward_share.begin(), same));
}

TEST(GradientFile, HasNoReadinessUnlessThatWasAskedFor) {
  TempFile file;
  GradientWriter writer{file.path(), sample_options(Dtype::f32)};
  write_sample_step(writer, 0);
  EXPECT_THROW(writer.put_readiness({}), Error);
  writer.close();
  EXPECT_FALSE(GradientReader{file.path()}.readiness().has_value());
}

TEST(GradientFile, AnIterationComputesAsLongAsItsSlowestWorker) {
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  std::optional<ComputeTime> time;
  const auto captured = [&time](std::vector<std::vector<double>> seconds) {
    std::vector<StepInfo> steps;
    for (auto& one : seconds) steps.push_back({.compute_seconds = std::move(one)});
    time = captured_compute_time(steps);
    return time ? std::optional{time->seconds} : std::nullopt;
  };
  EXPECT_EQ(captured({{0.25, 0.5, 0.1}, {}, {0.25, 0.25, 0.125}, {4.0, unknown, 1.0}}), 0.5);
  EXPECT_EQ(time->low, 0.25);
  EXPECT_EQ(time->high, 4.0);
  EXPECT_EQ(captured({{0.25, 0.5}, {0.75, 1.0}}), 0.75);
  EXPECT_EQ(captured({{unknown, 0.0}, {}}), std::nullopt);
}

TEST(GradientFile, IsReadableWhileItIsWrittenAndIncompleteWhenAbandoned) {
  TempFile file;
  {
    GradientWriter writer{file.path(), sample_options(Dtype::f32)};
    EXPECT_THROW(GradientReader{file.path()}, Error);  // no step yet
    for (std::size_t s = 0; s < kSteps; ++s) {
      write_sample_step(writer, s);
      std::filesystem::copy_file(file.path(), file.path() + ".copy", std::filesystem::copy_options::overwrite_existing);
      const GradientReader reader{file.path() + ".copy"};
      ASSERT_EQ(reader.steps().size(), s + 1);
      std::vector<float> values(kElements[2]);
      reader.read_gradient(2, s, 1, values);
      EXPECT_EQ(values, sample_values(2, s, 1, kElements[2]));
    }
    // A step that is begun and not ended does not count.
    writer.begin_step({});
    writer.put_gradient(0, 0, sample_values(0, 9, 9, kElements[0]));
  }
  std::filesystem::remove(file.path() + ".copy");
  const GradientReader reader{file.path()};
  EXPECT_FALSE(reader.info().complete);
  EXPECT_EQ(reader.steps().size(), kSteps);
}

TEST(GradientFile, TellsAWriterThatWasInterruptedFromOneThatDied) {
  TempFile stopped, died, whole, empty;
  {
    GradientWriter writer{stopped.path(), sample_options(Dtype::f32)};
    write_sample_step(writer, 0);
    write_sample_step(writer, 1);
    writer.close_early();
    GradientWriter other{died.path(), sample_options(Dtype::f32)};
    write_sample_step(other, 0);
    GradientWriter none{empty.path(), sample_options(Dtype::f32)};
    none.close_early();
  }
  write_sample(whole.path(), Dtype::f32);
  const GradientReader interrupted{stopped.path()}, dead{died.path()}, complete{whole.path()};
  EXPECT_TRUE(interrupted.info().interrupted);
  EXPECT_FALSE(interrupted.info().complete);
  EXPECT_EQ(
      why_incomplete(interrupted),
      "the writer was interrupted (Ctrl-C) and closed the file after iteration 101; its 2 whole steps can be used");
  EXPECT_FALSE(dead.info().interrupted);
  EXPECT_EQ(why_incomplete(dead),
            "the writer died, or has not finished yet, after iteration 100; its one whole step can be used");
  EXPECT_TRUE(complete.info().complete);
  EXPECT_FALSE(complete.info().interrupted);
  EXPECT_FALSE(std::filesystem::exists(empty.path())) << "without a whole step there is no file";
}

TEST(GradientFile, ManyStepsKeepTheirPlaces) {
  // Far beyond the first blocks of HDF5's chunk index, and across many shared chunks.
  constexpr std::size_t kMany = 1500;
  TempFile file;
  WriterOptions options;
  options.info.workers = 2;
  options.tensors = {{.name = "a", .shape = {5}}, {.name = "b", .shape = {300}, .dtype = Dtype::f16}};
  {
    GradientWriter writer{file.path(), options};
    for (std::size_t s = 0; s < kMany; ++s) {
      writer.begin_step({.iteration = static_cast<std::int64_t>(s)});
      for (std::size_t w = 0; w < 2; ++w) {
        writer.put_gradient(0, w, std::vector<float>(5, static_cast<float>(s * 2 + w)));
        writer.put_gradient(1, w, std::vector<float>(300, static_cast<float>(s % 1000 + w)));
      }
      writer.end_step();
    }
    EXPECT_EQ(writer.steps(), kMany);
    EXPECT_EQ(writer.bytes_written(), kMany * 2 * (5 + 300) * 4);
    writer.close();
  }
  const GradientReader reader{file.path()};
  ASSERT_EQ(reader.steps().size(), kMany);
  std::vector<float> a(5), b(300);
  for (std::size_t s = 0; s < kMany; ++s) {
    EXPECT_EQ(reader.steps()[s].iteration, static_cast<std::int64_t>(s));
    reader.read_gradient(0, s, 1, a);
    reader.read_gradient(1, s, 0, b);
    ASSERT_EQ(a, std::vector<float>(5, static_cast<float>(s * 2 + 1)));
    ASSERT_EQ(b, std::vector<float>(300, static_cast<float>(s % 1000)));
  }
}

TEST(GradientFile, AStepOfManyTensorsReachesTheFileInParts) {
  // One flush of all of them would take a time that grows with the square of their number.
  constexpr std::size_t kMany = 2500;
  TempFile file, copy;
  WriterOptions options;
  options.info.workers = 1;
  for (std::size_t t = 0; t < kMany; ++t) options.tensors.push_back({.name = "t" + std::to_string(t), .shape = {3}});
  GradientWriter writer{file.path(), options};
  const auto put = [&](std::size_t step, std::size_t first, std::size_t last) {
    for (std::size_t t = first; t < last; ++t)
      writer.put_gradient(t, 0, std::vector<float>(3, static_cast<float>(step * kMany + t)));
  };
  std::vector<float> values(3);
  writer.begin_step({.iteration = 7});
  const auto before = std::filesystem::file_size(file.path());
  put(0, 0, 2400);
  EXPECT_GT(std::filesystem::file_size(file.path()), before + 2000 * 3 * sizeof(float));
  put(0, 2400, kMany);
  writer.end_step();
  // The second step is in the file but for its end: it does not count.
  writer.begin_step({.iteration = 8});
  put(1, 0, 2400);
  std::filesystem::copy_file(file.path(), copy.path(), std::filesystem::copy_options::overwrite_existing);
  {
    const GradientReader reader{copy.path()};
    ASSERT_EQ(reader.steps().size(), 1u);
    reader.read_gradient(2399, 0, 0, values);
    EXPECT_EQ(values, std::vector<float>(3, 2399.0F));
  }
  put(1, 2400, kMany);
  writer.end_step();
  writer.close();
  const GradientReader reader{file.path()};
  ASSERT_EQ(reader.steps().size(), 2u);
  reader.read_gradient(5, 1, 0, values);
  EXPECT_EQ(values, std::vector<float>(3, static_cast<float>(kMany + 5)));
}

TEST(GradientFile, NonFiniteValuesAreFound) {
  TempFile file;
  WriterOptions options;
  options.info.workers = 2;
  options.tensors = {{.name = "clean", .shape = {3}}, {.name = "bad", .shape = {4}}};
  options.tensors[1].has_weight = true;
  {
    GradientWriter writer{file.path(), options};
    for (int s = 0; s < 3; ++s) {
      writer.begin_step({.iteration = s});
      for (std::size_t w = 0; w < 2; ++w) {
        writer.put_gradient(0, w, std::vector<float>(3, 1.0F));
        std::vector<float> x(4, std::numeric_limits<float>::max());
        if (s == 1 && w == 1) x = {0.0F, INFINITY, NAN, -INFINITY};
        if (s == 2) x[3] = NAN;
        writer.put_gradient(1, w, x);
      }
      writer.put_weight(1, std::vector<float>{0.0F, 0.0F, s == 0 ? NAN : 1.0F, 0.0F});
      writer.end_step();
    }
    writer.close();
  }
  const GradientReader reader{file.path()};
  std::uint64_t last = 0, whole = 0;
  const auto found =
      find_non_finite(reader, [&](std::uint64_t done, std::uint64_t total) { last = done, whole = total; });
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].tensor, 1U);
  EXPECT_EQ(found[0].count, 5U);
  EXPECT_EQ(found[0].first_step, 1U);
  EXPECT_EQ(found[0].first_worker, 1U);
  EXPECT_EQ(last, 42U);
  EXPECT_EQ(whole, 42U);
  EXPECT_EQ(count_non_finite_state(reader), 1U);
}

}  // namespace
}  // namespace gradtool
