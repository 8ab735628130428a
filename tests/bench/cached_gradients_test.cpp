#include "lib/bench/cached_gradients.hpp"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "lib/core/error.hpp"
#include "lib/io/usable_steps.hpp"
#include "tests/io/sample.hpp"

namespace gradtool::test {
namespace {

/// Counts what is read of a file.
class CountingSource final : public GradientSource {
 public:
  using Place = std::tuple<char, std::size_t, std::size_t, std::size_t>;  ///< kind of values, tensor, step, worker
  using Counts = std::map<Place, std::uint64_t>;                          ///< values read

  CountingSource(const std::string& path, Counts& counts) : file_{path}, counts_{counts} {}

  const std::string& path() const override { return file_.path(); }
  const FileInfo& info() const override { return file_.info(); }
  const std::vector<TensorInfo>& tensors() const override { return file_.tensors(); }
  const std::vector<StepInfo>& steps() const override { return file_.steps(); }

  void read(const ArrayPart& part, std::span<float> out) const override {
    counts_[{"gmw"[static_cast<std::size_t>(part.of)], part.tensor, part.step, part.worker}] += out.size();
    file_.read(part, out);
  }
  bool only_copies(const ArrayPart& part) const override { return file_.only_copies(part); }

 private:
  GradientReader file_;
  Counts& counts_;
};

/// Everything in a source, read tensor by tensor in two parts each, in the order of the file.
std::vector<float> read_all(const GradientSource& source) {
  std::vector<float> all;
  const auto read = [&all](std::uint64_t elements, auto&& part) {
    const std::size_t before = all.size();
    all.resize(before + elements);
    const auto out = std::span{all}.subspan(before);
    part(elements / 3, out.subspan(elements / 3));
    part(std::uint64_t{0}, out.first(elements / 3));
  };
  for (std::size_t step = 0; step < source.steps().size(); ++step) {
    for (std::size_t t = 0; t < source.tensors().size(); ++t) {
      const TensorInfo& info = source.tensors()[t];
      for (std::size_t worker = 0; worker < source.workers(); ++worker) {
        read(info.elements, [&](std::uint64_t first, std::span<float> out) {
          source.read_gradient_part(t, step, worker, first, out);
        });
        if (!info.has_second_moment) continue;
        read(info.elements, [&](std::uint64_t first, std::span<float> out) {
          source.read_second_moment_part(t, step, worker, first, out);
        });
      }
      if (!info.has_weight) continue;
      read(info.elements,
           [&](std::uint64_t first, std::span<float> out) { source.read_weight_part(t, step, first, out); });
    }
  }
  return all;
}

class CachedGradientsTest : public testing::Test {
 protected:
  void SetUp() override { write_sample(file_.path(), Dtype::f16); }
  [[nodiscard]] CachedGradients cached(std::uint64_t most_bytes) {
    return {std::make_unique<CountingSource>(file_.path(), counts_), most_bytes, true};
  }

  TempFile file_;
  CountingSource::Counts counts_;
};

TEST_F(CachedGradientsTest, ReadsEveryValueOnceWhereAllFits) {
  const auto expected = read_all(GradientReader{file_.path()});
  const CachedGradients source = cached(sizeof(float) * expected.size());
  EXPECT_EQ(read_all(source), expected);
  EXPECT_EQ(read_all(source), expected);
  for (const auto& [place, values] : counts_) EXPECT_EQ(values, source.tensors()[std::get<1>(place)].elements);
}

TEST_F(CachedGradientsTest, KeepsNoMoreThanItMay) {
  const auto expected = read_all(GradientReader{file_.path()});
  for (const std::uint64_t most :
       {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{40'000}, std::uint64_t{1'000'000}}) {
    counts_.clear();
    const CachedGradients source = cached(most);
    EXPECT_EQ(read_all(source), expected);
    counts_.clear();
    EXPECT_EQ(read_all(source), expected);
    std::uint64_t read_again = 0;
    for (const auto& [place, values] : counts_) read_again += values;
    const std::uint64_t kept = sizeof(float) * (expected.size() - read_again);
    EXPECT_LE(kept, most);
    EXPECT_GE(kept + sizeof(float), most / 2) << "room for more was left";
  }
}

TEST_F(CachedGradientsTest, KeepsNoLargeTensorThatIsOnlyCopied) {
  const TempFile plain;
  write_sample(plain.path(), Dtype::f32);
  const auto expected = read_all(GradientReader{plain.path()});
  const auto twice = [&](bool usable, bool system_keeps) {
    counts_.clear();
    std::unique_ptr<GradientSource> file = std::make_unique<CountingSource>(plain.path(), counts_);
    if (usable) file = std::make_unique<UsableSteps>(std::move(file));
    const CachedGradients source{std::move(file), 1 << 30, system_keeps};
    EXPECT_EQ(read_all(source), expected);
    EXPECT_EQ(read_all(source), expected);
    EXPECT_EQ((counts_.at({'g', 0, 1, 2})), kElements[0]) << "a small one is kept";
    return counts_.at({'g', 2, 1, 2});
  };
  EXPECT_EQ(twice(false, true), 2 * kElements[2]);
  EXPECT_EQ(twice(true, true), 2 * kElements[2]);
  EXPECT_EQ(twice(false, false), kElements[2]) << "nobody else has room for it";
  const CachedGradients converted = cached(1 << 30);
  counts_.clear();
  EXPECT_EQ(read_all(converted), read_all(converted));
  EXPECT_EQ((counts_.at({'g', 2, 1, 2})), kElements[2]);
}

TEST_F(CachedGradientsTest, RefusesWhatIsNotThere) {
  const CachedGradients source = cached(1 << 20);
  std::vector<float> out(2);
  EXPECT_THROW(source.read_gradient_part(3, 0, 0, 0, out), Error);
  EXPECT_THROW(source.read_gradient_part(0, kSteps, 0, 0, out), Error);
  EXPECT_THROW(source.read_gradient_part(0, 0, kWorkers, 0, out), Error);
  EXPECT_THROW(source.read_gradient_part(0, 0, 0, 1199, out), Error);
  EXPECT_THROW(source.read_weight_part(2, 0, 0, out), Error) << "this tensor has no weight";
}

}  // namespace
}  // namespace gradtool::test
