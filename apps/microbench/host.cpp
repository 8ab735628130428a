// Benchmarks on the CPU: codecs, and methods that only exist between ranks.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>

#include "apps/microbench/microbench.hpp"
#include "kernels/blas.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/comm/threads.hpp"
#include "lib/core/arena.hpp"
#include "lib/methods/gradiveq/layers.hpp"

namespace gradtool {
namespace {

/// A capture starts each turn at another step, so that codecs with a memory see what they see in training.
class Feeds {
 public:
  static constexpr std::size_t kTurns = 4;
  explicit Feeds(const HostSetting& setting) : setting_{setting} {}
  /// The inputs of turn t. Made when first asked for: only codecs with a memory go beyond turn 0.
  const Feed& turn(std::size_t t) {
    while (feeds_.size() <= t) {
      feeds_.push_back(setting_.file.empty()
                           ? synthetic_feed(setting_.elements, static_cast<std::uint32_t>(feeds_.size()))
                           : captured_feed(setting_.file, setting_.elements, feeds_.size()));
    }
    return feeds_[t];
  }

 private:
  const HostSetting& setting_;
  std::deque<Feed> feeds_;  // references stay valid
};

/// One codec with its buffers, shared by its encode and its decode benchmark.
struct CodecSetup {
  CodecSetup(const CodecSpec& spec, Feeds& all, const HostSetting& setting)
      : feeds{all},
        codec{spec.descriptor->make_host(spec.params, setting.layout)},
        encoder{codec->make_encoder(setting.layout.elements, 1, {&setting.pool})},
        plan{codec->plan(setting.layout.elements)},
        pool{setting.pool},
        arena{Arena<Space::host>::padded_size(plan.payload_bytes) +
              Arena<Space::host>::padded_size(plan.scratch_bytes)},
        payload{arena.take_bytes(plan.payload_bytes)},
        scratch{arena.take_bytes(plan.scratch_bytes)},
        out(setting.layout.elements) {
    for (std::size_t t = 0; t < (encoder ? 2 * Feeds::kTurns : 1); ++t) encode();
  }
  void encode() {
    const Feed& feed = feeds.turn(encoder ? turn++ % Feeds::kTurns : 0);
    const HostView<const float> gradient{feed.gradient.data(), feed.gradient.size()};
    if (encoder == nullptr) {
      codec->encode({&pool}, gradient, {}, payload, scratch);
      return;
    }
    const SideInputs<Space::host> side{.weight = {feed.weight.data(), feed.weight.size()},
                                       .second_moment = {feed.second_moment.data(), feed.second_moment.size()}};
    encoder->encode({&pool}, gradient, side, {.key = {.step = static_cast<std::uint32_t>(turn)}}, payload, scratch);
  }
  /// The payload of the last encode; codecs with a memory write another one each time.
  void decode() { codec->decode_add({&pool}, payload.first(size()), 1.0F, {out.data(), out.size()}, scratch); }
  [[nodiscard]] std::size_t size() const {
    std::uint64_t bytes = plan.payload_bytes;
    if (!plan.exact) std::memcpy(&bytes, payload.data(), sizeof bytes);
    return bytes;
  }

  Feeds& feeds;
  std::size_t turn = 0;
  std::unique_ptr<Codec<Space::host>> codec;
  std::unique_ptr<Encoder<Space::host>> encoder;
  Footprint plan;
  TaskPool& pool;
  Arena<Space::host> arena;
  HostView<std::byte> payload, scratch;
  std::vector<float> out;
};

/// Seconds of each phase since the last `clear`.
class Stopwatch final : public PhaseClock<Space::host> {
 public:
  void begin(Phase /*phase*/, Queue<Space::host> /*queue*/) override { start_ = std::chrono::steady_clock::now(); }
  void end(Phase phase, Queue<Space::host> /*queue*/) override {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    seconds_[static_cast<std::size_t>(phase)] += passed.count();
  }
  void clear() { seconds_ = {}; }
  [[nodiscard]] double seconds(Phase phase) const { return seconds_[static_cast<std::size_t>(phase)]; }

 private:
  std::chrono::steady_clock::time_point start_{};
  std::array<double, 3> seconds_{};
};

/// One rank that reduces alone.
class OneRank {
 public:
  OneRank(const CodecSpec& spec, Feeds& feeds, const HostSetting& setting)
      : feed_{feeds.turn(0)},
        queue_{&setting.pool},
        reducer_{make_reducer<Space::host>(spec, make_codec<Space::host>(spec, setting.layout), Scheme::automatic,
                                           setting.layout, 1, queue_)},
        arena_{Arena<Space::host>::padded_size(reducer_->workspace_bytes())},
        workspace_{arena_.take_bytes(reducer_->workspace_bytes())},
        gradient_(feed_.gradient.size()) {
    for (std::size_t i = 0; i < setting.settling; ++i) step();
  }

  /// Every step has the gradient turned by some elements, so that methods that learn see variance.
  void step() {
    const auto& x = feed_.gradient;
    const auto turn = static_cast<std::ptrdiff_t>(977 * ++steps_ % x.size());
    std::rotate_copy(x.begin(), x.begin() + turn, x.end(), gradient_.begin());
    clock_.clear();
    const EncodeContext context{.key = {.seed = 1, .step = static_cast<std::uint32_t>(steps_)},
                                .iteration = static_cast<std::int64_t>(steps_)};
    const SideInputs<Space::host> side{.weight = {feed_.weight.data(), feed_.weight.size()},
                                       .second_moment = {feed_.second_moment.data(), feed_.second_moment.size()}};
    reducer_->reduce(comm_, queue_, {gradient_.data(), gradient_.size()}, side, context, workspace_, clock_);
  }
  [[nodiscard]] double seconds(Phase phase) const { return clock_.seconds(phase); }
  [[nodiscard]] std::uint64_t payload_bytes() const { return reducer_->payload_bytes(); }

 private:
  const Feed& feed_;
  Queue<Space::host> queue_;
  std::unique_ptr<Reducer<Space::host>> reducer_;
  Arena<Space::host> arena_;
  HostView<std::byte> workspace_;
  std::vector<float> gradient_;
  RankGroup group_{1, 60.0};
  ThreadsCommunicator comm_{group_, 0};
  Stopwatch clock_;
  std::size_t steps_ = 0;
};

/// The products of a compressed step as SGEMM sees them, layer by layer, with as many components as there can be.
class GradiVeqProducts {
 public:
  GradiVeqProducts(const CodecSpec& spec, Feeds& /*feeds*/, const HostSetting& setting)
      : pool_{setting.pool}, layers_{gradiveq::layers_of(setting.layout, spec.params)} {
    const auto most = static_cast<std::size_t>(spec.params.integer("lt")) - 1;
    for (const auto& layer : layers_) {
      const std::size_t k = layer.coordinates();
      components_.push_back(std::min(most, k));
      bases_.emplace_back(k * components_.back(), 0.01F);
      slices_.emplace_back(layer.sliced(), 0.01F);
      coefficients_.emplace_back(layer.slices * components_.back(), 0.01F);
    }
  }
  void project() {
    parallel_parts({&pool_}, layers_.size(), layers_.size(), 1, [&](std::size_t l, std::size_t, std::size_t) {
      host::multiply_transposed(bases_[l].data(), slices_[l].data(), components_[l], layers_[l].coordinates(),
                                layers_[l].slices, coefficients_[l].data());
    });
  }
  void rebuild() {
    parallel_parts({&pool_}, layers_.size(), layers_.size(), 1, [&](std::size_t l, std::size_t, std::size_t) {
      host::multiply(coefficients_[l].data(), bases_[l].data(), layers_[l].slices, components_[l],
                     layers_[l].coordinates(), slices_[l].data());
    });
  }

 private:
  TaskPool& pool_;
  std::vector<gradiveq::Layer> layers_;
  std::vector<std::size_t> components_;
  std::vector<std::vector<float>> bases_, slices_, coefficients_;
};

/// One object for several benchmarks, made when the first of them runs, so that what a filter leaves out costs nothing.
template <class T>
auto make_later(const CodecSpec& spec, const std::shared_ptr<Feeds>& feeds, const HostSetting& setting) {
  return [&spec, feeds, &setting, made = std::make_shared<std::unique_ptr<T>>()]() -> T& {
    if (*made == nullptr) *made = std::make_unique<T>(spec, *feeds, setting);
    return **made;
  };
}

/// `floor`: bytes that an iteration must read and write; 0: not known.
void count(benchmark::State& state, const HostSetting& setting, double floor = 0.0) {
  using benchmark::Counter;
  const auto times = static_cast<double>(state.iterations());
  const double raw = 4.0 * static_cast<double>(setting.layout.elements) * times;
  state.counters["raw"] = Counter(raw, Counter::kIsRate, Counter::kIs1000);
  state.counters["of_memcpy"] = Counter(raw / setting.copy_rate, Counter::kIsRate);
  if (floor > 0.0) state.counters["of_floor"] = Counter(floor * times / (2.0 * setting.copy_rate), Counter::kIsRate);
}

/// A benchmark by the clock on the wall that calls `work` with the object that `get` makes. `floor` says of that object
/// what count() takes.
template <class Get, class Work, class Floor>
void add(const std::string& name, const HostSetting& setting, Get get, Work work, Floor floor) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [get, work, floor, &setting](benchmark::State& state) {
                                 auto& object = get();
                                 for ([[maybe_unused]] auto _ : state) work(object);
                                 count(state, setting, floor(object));
                                 benchmark::ClobberMemory();
                               })
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

void register_codec(const CodecSpec& spec, const std::shared_ptr<Feeds>& feeds, const HostSetting& setting) {
  const auto get = make_later<CodecSetup>(spec, feeds, setting);
  const std::size_t n = setting.layout.elements;
  add(
      full_name(spec) + "/encode", setting, get, [](CodecSetup& setup) { setup.encode(); },
      [&spec, n](const CodecSetup& setup) { return encode_floor(spec, n, static_cast<double>(setup.size())); });
  add(
      full_name(spec) + "/decode", setting, get, [](CodecSetup& setup) { setup.decode(); },
      [&spec, n](const CodecSetup& setup) { return decode_floor(spec, n, static_cast<double>(setup.size())); });
}

void register_reducer(const CodecSpec& spec, const std::shared_ptr<Feeds>& feeds, const HostSetting& setting) {
  constexpr int kSteps = 16;  // a fixed number, because a phase may take no time at all
  const auto get = make_later<OneRank>(spec, feeds, setting);
  for (const auto& [phase, word] : {std::pair{Phase::encode, "/encode"}, {Phase::decode, "/decode"}}) {
    benchmark::RegisterBenchmark(
        (full_name(spec) + word).c_str(),
        [get, &spec, &setting, phase = phase](benchmark::State& state) {
          OneRank& rank = get();
          for ([[maybe_unused]] auto _ : state) {
            rank.step();
            state.SetIterationTime(rank.seconds(phase));
          }
          const auto n = setting.layout.elements;
          const auto bytes = static_cast<double>(rank.payload_bytes());
          // The result is written once, into what was the gradient.
          count(state, setting,
                phase == Phase::encode ? encode_floor(spec, n, bytes, true) : bytes + 4.0 * static_cast<double>(n));
          state.counters["payload_ratio"] = 4.0 * static_cast<double>(setting.layout.elements) /
                                            static_cast<double>(std::max<std::uint64_t>(rank.payload_bytes(), 1));
        })
        ->UseManualTime()
        ->Iterations(kSteps)
        ->Unit(benchmark::kMillisecond);
  }
  if (spec.name() != "gradiveq") return;
  const auto products = make_later<GradiVeqProducts>(spec, feeds, setting);
  const auto unknown = [](const GradiVeqProducts&) { return 0.0; };
  add(
      "gradiveq_products_by_blas/encode", setting, products, [](GradiVeqProducts& by_blas) { by_blas.project(); },
      unknown);
  add(
      "gradiveq_products_by_blas/decode", setting, products, [](GradiVeqProducts& by_blas) { by_blas.rebuild(); },
      unknown);
}

}  // namespace

std::string full_name(const CodecSpec& spec) {
  const std::string params = spec.params_text();
  return spec.name() + (params.empty() ? "" : ":" + params);
}

void register_host(const std::vector<CodecSpec>& specs, const HostSetting& setting) {
  const auto feeds = std::make_shared<Feeds>(setting);
  for (const auto& spec : specs) {
    if (has_codec(*spec.descriptor))
      register_codec(spec, feeds, setting);
    else
      register_reducer(spec, feeds, setting);
  }
#if GT_HAS_FFTW
  const auto is_fft = [](const CodecSpec& spec) { return spec.name() == "fft"; };
  if (std::any_of(specs.begin(), specs.end(), is_fft)) {
    register_fftw(feeds->turn(0).gradient, setting.pool,
                  [feeds, &setting](benchmark::State& state) { count(state, setting); });
  }
#endif
}

}  // namespace gradtool
