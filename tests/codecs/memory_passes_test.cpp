// Holds what methods declare of their passes over memory (MemoryPasses) against the pages that their implementations
// touch.
#include "lib/codecs/memory_passes.hpp"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "lib/codecs/reducer.hpp"
#include "lib/comm/launch.hpp"
#include "tests/codecs/encoder_run.hpp"
#include "tests/codecs/page_cache.hpp"

namespace gradtool::test {
namespace {

constexpr std::size_t kRows = 1024, kColumns = 256, kElements = kRows * kColumns;
/// Half a megabyte: two chunks of the methods that cut gradients into chunks of 65536 elements, and half of the
/// gradient.
constexpr std::size_t kCachePages = 128;

Layout one_matrix(std::size_t rows, std::size_t columns) {
  Layout layout;
  layout.elements = rows * columns;
  layout.tensors.push_back({.name = "fc.weight",
                            .shape = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)},
                            .kind = "linear",
                            .layout = "OI",
                            .first = 0,
                            .elements = layout.elements});
  return layout;
}

/// Implementations that read the gradient more often than their definition asks for, and why. What they declare is a
/// bound from below all the same.
const std::map<std::string, std::string>& reads_more() {
  static const std::map<std::string, std::string> all{
      {"atomo", "products with single vectors, one after the other"},
      {"dlcp", "a pass for the packets' means, and again what was lost"},
      {"exponent", "all chunks are measured before the first is written"},
      {"sidco", "a pass for each fit, one that counts and one that selects"},
      {"strom", "what passes is counted before it is written"},
      {"topk", "the threshold is found before what reaches it is written"},
      {"zfp", "a pass that looks for values that are not finite"},
  };
  return all;
}

using Regions = std::vector<std::size_t>;
/// The share of a gradient that lies in pages at its ends, which are not whole, and at the borders of chunks, which are
/// loaded again.
constexpr double kEdge = 0.02;

/// All that a method keeps between steps in pieces of many pages, watched by a cache.
class WatchState final : public StateVisitor {
 public:
  explicit WatchState(PageCache& cache) : cache_{cache} {}
  void block(std::string_view /*name*/, HostView<std::byte> bytes) override {
    if (bytes.size() >= 2 * kElements) regions.push_back(cache_.watch(bytes.data(), bytes.size()));
  }
  [[nodiscard]] bool restores() const override { return false; }
  Regions regions;

 private:
  PageCache& cache_;
};

/// Pages that `count` counted in all of the regions, over those of a gradient.
double passes_over(const PageCache& cache, const Regions& regions, std::size_t (PageCache::*count)(std::size_t) const) {
  std::size_t pages = 0;
  for (const std::size_t region : regions) pages += (cache.*count)(region);
  return static_cast<double>(pages) / (4.0 * kElements / PageCache::kPage);
}

/// A gradient and side inputs, each in memory of its own.
struct Inputs {
  std::vector<float> gradient = gradient_like(kElements), weight = gradient_like(kElements, 8),
                     moment = noisy_moment(gradient, 9);
  [[nodiscard]] SideInputs<Space::host> side() const {
    return {.weight = {weight.data(), kElements}, .second_moment = {moment.data(), kElements}};
  }
};

class MemoryPassesOf : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!PageCache::usable()) GTEST_SKIP() << "this system's pages are not those of 4096 bytes that are counted";
  }
};

TEST_P(MemoryPassesOf, EncodingReadsWhatIsDeclared) {
  const CodecSpec spec = parse_codec(GetParam());
  const MemoryPasses passes = memory_passes(*spec.descriptor, spec.params);
  const auto codec = spec.descriptor->make_host(spec.params, one_matrix(kRows, kColumns));
  const Footprint plan = codec->plan(kElements);
  Arena<Space::host> payload_memory{plan.payload_bytes + 512}, scratch_memory{plan.scratch_bytes + 512};
  const auto payload = payload_memory.take_bytes(plan.payload_bytes);
  const auto scratch = scratch_memory.take_bytes(plan.scratch_bytes);
  const auto encoder = codec->make_encoder(kElements, 1, {});
  const Inputs in;
  const HostView<const float> gradient{in.gradient.data(), kElements};
  const auto encode = [&](std::uint32_t step) {
    const EncodeContext context{.key = {.seed = 1, .step = step}, .iteration = step};
    if (encoder == nullptr) return codec->encode({}, gradient, context, payload, scratch);
    encoder->encode({}, gradient, in.side(), context, payload, scratch);
  };
  encode(0);
  PageCache cache{kCachePages};
  const Regions input{cache.watch(in.gradient.data(), 4 * kElements)};
  const Regions side{cache.watch(in.weight.data(), 4 * kElements), cache.watch(in.moment.data(), 4 * kElements)};
  Regions made;
  if (passes.again != ReadAgain::never) made.push_back(cache.watch(scratch.data(), scratch.size()));
  const std::size_t output = cache.watch(payload.data(), payload.size());
  WatchState state{cache};
  if (encoder != nullptr) encoder->visit_state(state);
  cache.start();
  encode(1);
  cache.stop();

  const double expected = passes.reads + (passes.again == ReadAgain::never ? 0.0 : 1.0);
  const double reads = passes_over(cache, input, &PageCache::loaded);
  const double with_made = reads + passes_over(cache, made, &PageCache::loaded);
  EXPECT_GE(reads, std::min(1.0, passes.reads) - kEdge);
  EXPECT_GE(with_made, expected - kEdge) << "it declares more than it reads of the gradient or what it made of that";
  if (passes.reads < 1.0) {
    EXPECT_LE(static_cast<double>(cache.loaded(input[0])), passes.reads * kElements + 1.0) << "a page for each element";
  } else if (!reads_more().contains(spec.name())) {
    EXPECT_LE(reads, expected + kEdge) << "it reads more than it declares";
  } else if (GetParam() == spec.name()) {
    EXPECT_GT(reads, expected + kEdge) << "reads_more() need not name it";
  }
  if (encoder != nullptr) {
    EXPECT_GE(passes_over(cache, state.regions, &PageCache::loaded), passes.kept - kEdge);
    EXPECT_GE(passes_over(cache, state.regions, &PageCache::written_back), passes.kept - kEdge);
    EXPECT_EQ(passes.kept, state.regions.size());
  }
  EXPECT_NEAR(passes_over(cache, side, &PageCache::loaded), passes.side, kEdge);
  std::uint64_t bytes = plan.payload_bytes;
  if (!plan.exact) std::memcpy(&bytes, payload.data(), sizeof bytes);
  EXPECT_GE(cache.written_back(output) + 2, bytes / PageCache::kPage) << "the payload is written";
}

TEST_P(MemoryPassesOf, DecodingTouchesWhatIsDeclared) {
  const CodecSpec spec = parse_codec(GetParam());
  const MemoryPasses passes = memory_passes(*spec.descriptor, spec.params);
  const Layout layout = one_matrix(kRows, kColumns);
  const Inputs in;
  CodecRun run{GetParam(), layout};
  const bool remembers = run.codec().make_encoder(kElements, 1, {}) != nullptr;
  const auto payload =
      remembers ? EncoderRun{GetParam(), layout}.encode(in.gradient, in.side()) : run.encode(in.gradient);
  // Added to -0, every value but -0 is seen, also where it is 0.
  std::vector<float> out(kElements, -0.0F);
  PageCache cache{kCachePages};
  const std::size_t input = cache.watch(payload.data(), payload.size());
  const Regions output{cache.watch(out.data(), 4 * kElements)};
  cache.start();
  run.codec().decode_add({}, {payload.data(), payload.size()}, 1.0F, {out.data(), out.size()}, run.scratch());
  cache.stop();
  EXPECT_GE(cache.loaded(input), cache.pages(input)) << "the payload is read";
  if (!passes.scatters) {
    EXPECT_GE(passes_over(cache, output, &PageCache::loaded), 1.0 - kEdge) << "it is added to what is there";
    EXPECT_GE(passes_over(cache, output, &PageCache::written_back), 1.0 - kEdge);
    return;
  }
  const auto touched = std::count_if(out.begin(), out.end(), [](float v) { return v != 0.0F || !std::signbit(v); });
  EXPECT_LE(static_cast<std::size_t>(touched), run.codec().values_in({payload.data(), payload.size()}, kElements));
}

/// The payload of a small gradient, encoded by a new codec.
std::vector<std::byte> payload_of(const std::string& spec, const std::vector<float>& gradient) {
  constexpr std::size_t kSmallRows = 64;
  const Layout layout = one_matrix(kSmallRows, gradient.size() / kSmallRows);
  CodecRun run{spec, layout};
  if (run.codec().make_encoder(gradient.size(), 1, {}) == nullptr) return run.encode(gradient);
  const auto moment = noisy_moment(gradient, 9);
  EncoderRun own{spec, layout};
  return own.encode(gradient, {.weight = {}, .second_moment = {moment.data(), moment.size()}});
}

/// That a page is touched does not say that every element in it is needed: this does.
TEST_P(MemoryPassesOf, EveryElementThatIsReadMatters) {
  const CodecSpec spec = parse_codec(GetParam());
  const MemoryPasses passes = memory_passes(*spec.descriptor, spec.params);
  constexpr std::size_t n = 4096;
  auto x = gradient_like(n);
  if (CodecRun{GetParam(), one_matrix(64, 64)}.codec().values_sent(n) == 0) GTEST_SKIP() << "it sends nothing";
  const auto payload = payload_of(GetParam(), x);
  std::size_t unseen = 0;
  constexpr std::size_t kPlaces = 128;
  for (std::size_t i = 0; i < kPlaces; ++i) {
    const std::size_t place = 32 * i + 7 * i % 32;
    const float value = std::exchange(x[place], x[place] > 0.0F ? -3.0F : 3.0F);
    unseen += payload_of(GetParam(), x) == payload ? 1 : 0;
    x[place] = value;
  }
  if (passes.reads == 1.0) {
    EXPECT_EQ(unseen, 0U) << "of " << kPlaces << " elements that it says it reads";
  } else {
    // Four deviations of a binomial distribution.
    const double wanted = (1.0 - passes.reads) * kPlaces;
    EXPECT_NEAR(static_cast<double>(unseen), wanted, 4.0 * std::sqrt(wanted * passes.reads));
  }
}

std::vector<std::string> specs_with_codec() {
  std::vector<std::string> specs = specs_to_test();
  specs.emplace_back("randomk:ratio=0.0001");  // fewer elements than pages
  return specs;
}
INSTANTIATE_TEST_SUITE_P(Registry, MemoryPassesOf, testing::ValuesIn(specs_with_codec()),
                         [](const auto& info) { return test_name(info.param); });

class ReadsTwice : public testing::TestWithParam<std::string> {};

/// The reason for a second read: no code is known before the last element is.
TEST_P(ReadsTwice, TheLastElementDecidesAllCodes) {
  constexpr std::size_t n = 4096;
  auto x = gradient_like(n);
  const auto before = payload_of(GetParam(), x);
  x.back() = 3.0F;
  const auto after = payload_of(GetParam(), x);
  if (before.size() != after.size()) return;
  const std::size_t half = before.size() / 2;
  std::size_t changed = 0;
  for (std::size_t i = 0; i < half; ++i) changed += before[i] != after[i] ? 1 : 0;
  EXPECT_GT(static_cast<double>(changed) / static_cast<double>(half), 0.2);
}

std::vector<std::string> specs_that_read_twice() {
  std::vector<std::string> specs = specs_to_test();
  std::erase_if(specs, [](const std::string& text) {
    const CodecSpec spec = parse_codec(text);
    return memory_passes(*spec.descriptor, spec.params).again == ReadAgain::never;
  });
  return specs;
}
INSTANTIATE_TEST_SUITE_P(Registry, ReadsTwice, testing::ValuesIn(specs_that_read_twice()),
                         [](const auto& info) { return test_name(info.param); });

/// Counts what is loaded and written back while a reducer encodes.
class EncodeClock final : public PhaseClock<Space::host> {
 public:
  explicit EncodeClock(PageCache& cache) : cache_{cache} {}
  void begin(Phase phase, Queue<Space::host> /*queue*/) override {
    if (phase == Phase::encode) cache_.start();
  }
  void end(Phase phase, Queue<Space::host> /*queue*/) override {
    if (phase == Phase::encode) cache_.stop();
  }

 private:
  PageCache& cache_;
};

class MemoryPassesBetweenRanks : public testing::TestWithParam<std::string> {};

/// The gradient plus what is kept may lie in the gradient's own memory, in the workspace or in the state: together they
/// are loaded and written as often as declared, or more.
TEST_P(MemoryPassesBetweenRanks, EncodingReadsWhatIsDeclared) {
  if (!PageCache::usable()) GTEST_SKIP() << "this system's pages are not those of 4096 bytes that are counted";
  const CodecSpec spec = parse_codec(GetParam());
  MemoryPasses passes = memory_passes(*spec.descriptor, spec.params);
  run_threads(1, [&](Communicator<Space::host>& comm) {
    TaskPool pool{1};
    const Queue<Space::host> queue{&pool};
    const Layout layout = one_matrix(kRows, kColumns);
    const auto reducer =
        make_reducer<Space::host>(spec, make_codec<Space::host>(spec, layout), Scheme::automatic, layout, 1, queue);
    Arena<Space::host> arena{Arena<Space::host>::padded_size(reducer->workspace_bytes())};
    const auto workspace = arena.take_bytes(reducer->workspace_bytes());
    reducer->prepare(comm);
    Inputs in;
    const auto step = [&](std::uint32_t number, PhaseClock<Space::host>& clock) {
      const auto values = gradient_like(kElements, 7 + number);
      std::copy(values.begin(), values.end(), in.gradient.begin());
      reducer->reduce(comm, queue, {in.gradient.data(), kElements}, in.side(),
                      {.key = {.seed = 1, .step = number}, .iteration = number}, workspace, clock);
    };
    NoClock<Space::host> none;
    for (std::uint32_t number = 0; number < 3; ++number) step(number, none);
    PageCache cache{kCachePages};
    Regions all{cache.watch(in.gradient.data(), 4 * kElements), cache.watch(workspace.data(), workspace.size())};
    const Regions side{cache.watch(in.weight.data(), 4 * kElements), cache.watch(in.moment.data(), 4 * kElements)};
    WatchState state{cache};
    reducer->visit_state(state);
    all.insert(all.end(), state.regions.begin(), state.regions.end());
    EncodeClock clock{cache};
    step(3, clock);
    if (!reducer->reached()) {  // it sends such gradients as they are, because nothing in them repeats
      EXPECT_EQ(spec.name(), "gradiveq");
      return;
    }
    if (spec.feedback() != Feedback::off) ++passes.kept, passes.reads = 1.0;
    const double loaded = passes_over(cache, all, &PageCache::loaded);
    const double written = passes_over(cache, all, &PageCache::written_back);
    EXPECT_GE(loaded, passes.reads + (passes.again == ReadAgain::never ? 0 : 1) + passes.kept - kEdge);
    EXPECT_GE(written, passes.kept - kEdge);
    EXPECT_EQ(passes.kept, state.regions.size());
    const double aside = passes_over(cache, side, &PageCache::loaded);
    EXPECT_GE(aside, passes.side - kEdge);
    EXPECT_EQ(aside > 0.0, passes.side > 0);
  });
}

/// With the defaults, with the other choice of error feedback, and the variants that declare something else.
std::vector<std::string> specs_between_ranks() {
  std::vector<std::string> specs;
  for (const CodecDescriptor* codec : codecs()) {
    if (codec->make_host_reducer == nullptr) continue;
    const std::string name{codec->name};
    specs.push_back(name);
    if (!codec->memory) specs.push_back(name + (codec->error_feedback ? ":ef=off" : ":ef=on"));
    const auto kept = [](const std::string& spec) {
      const CodecSpec parsed = parse_codec(spec);
      return memory_passes(*parsed.descriptor, parsed.params).kept;
    };
    for (const std::string& spec : variants_of(*codec)) {
      if (kept(spec) != kept(name)) specs.push_back(spec);
    }
  }
  return specs;
}
INSTANTIATE_TEST_SUITE_P(Registry, MemoryPassesBetweenRanks, testing::ValuesIn(specs_between_ranks()),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace gradtool::test
