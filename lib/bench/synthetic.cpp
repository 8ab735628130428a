#include "lib/bench/synthetic.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "kernels/draws.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parse.hpp"
#include "lib/core/text.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kMostSizes = 1000;
constexpr std::uint64_t kLargest = std::uint64_t{1}
                                   << 40;  // what no machine has cannot be allocated, nor stepped through
constexpr std::size_t kShift = 1031;  // elements between the beginnings of two streams; a prime, so that no row repeats
constexpr float kDeviation = 1e-3F;

[[noreturn]] void fail(std::string_view text, const std::string& why) {
  throw Error{Fault::usage, fmt::format("--synthetic '{}' is not valid: {}; write a size such as 16MB, or a sweep such "
                                        "as 1MB:1GB:x4 or 1MB:10MB:+1MB",
                                        text, why)};
}

std::uint64_t whole_elements(std::string_view text, std::string_view all) {
  const std::uint64_t bytes = parse_bytes(text, "--synthetic") / 4 * 4;
  if (bytes == 0) fail(all, "a float32 value has 4 bytes");
  if (bytes > kLargest) fail(all, "a size is at most 1024GiB");
  return bytes;
}

double parse_factor(std::string_view text, std::string_view all) {
  const double factor = number_of<double>(text).value_or(0.0);
  if (!(factor > 1.0 && std::isfinite(factor))) fail(all, "the factor behind x is a number above 1");
  return factor;
}

/// The largest divisor of n that is at most its root.
std::uint64_t short_side(std::uint64_t n) {
  auto side = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(n)));
  while (n % side != 0) --side;
  return side;
}

/// Laplace distributed values of variance 1, from one draw each: the upper bit is the sign.
std::vector<float> laplace_values(std::size_t count) {
  std::vector<float> values((count + host::kDrawGroup - 1) / host::kDrawGroup * host::kDrawGroup);
  std::array<std::uint32_t, 8 * host::kDrawGroup> draws;
  const float scale = std::sqrt(0.5F);
  for (std::size_t first = 0; first < values.size(); first += draws.size()) {
    const std::size_t tile = std::min(draws.size(), values.size() - first);
    host::draw_tile({.seed = 1}, first, tile, draws.data());
    for (std::size_t i = 0; i < tile; ++i) {
      const float magnitude = -scale * std::log(static_cast<float>((draws[i] & 0x7fffffffU) + 1U) * 0x1p-31F);
      values[first + i] = (draws[i] >> 31) != 0 ? -magnitude : magnitude;
    }
  }
  return values;
}

}  // namespace

std::vector<std::uint64_t> parse_sizes(std::string_view text) {
  std::array<std::string_view, 3> parts;
  std::size_t count = 0;
  for (std::string_view rest = text;;) {
    if (count == parts.size()) fail(text, "it has more than three parts");
    const std::size_t colon = rest.find(':');
    parts[count++] = rest.substr(0, colon);
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  const std::uint64_t first = whole_elements(parts[0], text);
  if (count == 1) return {first};
  const std::uint64_t last = whole_elements(parts[1], text);
  if (first > last) fail(text, "the first size is larger than the last");
  double factor = 4.0;
  std::uint64_t step = 0;
  if (count == 3 && parts[2].starts_with('+'))
    step = whole_elements(parts[2].substr(1), text);
  else if (count == 3 && parts[2].starts_with('x'))
    factor = parse_factor(parts[2].substr(1), text);
  else if (count == 3)
    fail(text, "the third part is a factor such as x4 or a step such as +1MB");
  std::vector<std::uint64_t> sizes;
  double size = static_cast<double>(first);
  // Rounds are counted, because a factor next to 1 makes few sizes in very many rounds.
  for (std::size_t round = 0; size <= static_cast<double>(last); ++round) {
    if (round == kMostSizes) fail(text, fmt::format("it has more than {} sizes", kMostSizes));
    const std::uint64_t bytes = static_cast<std::uint64_t>(size) / 4 * 4;
    if (sizes.empty() || bytes > sizes.back()) sizes.push_back(bytes);
    size = step > 0 ? size + static_cast<double>(step) : size * factor;
  }
  return sizes;
}

std::string size_name(std::uint64_t bytes) {
  struct Suffix {
    std::uint64_t bytes;
    const char* name;
  };
  for (const Suffix& suffix : {Suffix{1'000'000'000, "GB"}, Suffix{1U << 30, "GiB"}, Suffix{1'000'000, "MB"},
                               Suffix{1U << 20, "MiB"}, Suffix{1'000, "kB"}, Suffix{1U << 10, "KiB"}}) {
    if (bytes % suffix.bytes == 0) return fmt::format("size:{}{}", bytes / suffix.bytes, suffix.name);
  }
  return fmt::format("size:{}", bytes);
}

std::vector<std::unique_ptr<GradientSource>> SyntheticGradients::make(const std::vector<std::uint64_t>& sizes,
                                                                      int workers) {
  std::uint64_t largest = 0;
  for (const std::uint64_t bytes : sizes) largest = std::max(largest, bytes / 4);
  // Streams of each step: the common one, one for each worker, and one for its second moments; and the weights.
  const std::size_t streams = kSteps * (1 + 2 * static_cast<std::size_t>(workers)) + 1;
  const auto values = std::make_shared<const std::vector<float>>(laplace_values(largest + streams * kShift));
  std::vector<std::unique_ptr<GradientSource>> sources;
  sources.reserve(sizes.size());
  for (const std::uint64_t bytes : sizes)
    sources.push_back(std::unique_ptr<GradientSource>{new SyntheticGradients{bytes / 4, workers, values}});
  return sources;
}

SyntheticGradients::SyntheticGradients(std::uint64_t elements, int workers,
                                       std::shared_ptr<const std::vector<float>> values)
    : values_{std::move(values)} {
  info_.complete = true;
  info_.model = "synthetic";
  info_.workers = workers;
  info_.micro_batches = 8;
  const std::uint64_t rows = short_side(elements);
  tensors_.push_back({.name = "synthetic",
                      .shape = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(elements / rows)},
                      .kind = "linear",
                      .layout = "OI",
                      .elements = elements,
                      .has_second_moment = true,
                      .has_weight = true});
  for (std::size_t step = 0; step < kSteps; ++step) steps_.push_back({.iteration = static_cast<std::int64_t>(step)});
}

const float* SyntheticGradients::stream(std::size_t number, std::uint64_t first) const {
  return values_->data() + number * kShift + first;
}

void SyntheticGradients::read(const ArrayPart& part, std::span<float> out) const {
  const std::size_t streams = 1 + 2 * workers();
  if (part.of == ArrayPart::Of::weight) {
    const float* const weight = stream(kSteps * streams, part.first);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = 50.0F * kDeviation * weight[i];
    return;
  }
  const float* const common = stream(part.step * streams, part.first);
  const float* const own = stream(part.step * streams + 1 + part.worker, part.first);
  const float scale = kDeviation * std::sqrt(0.5F);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = scale * (common[i] + own[i]);
  if (part.of == ArrayPart::Of::gradient) return;
  // With K micro-batches whose means are the worker's mean g plus noise of variance v, the sum of (mean / K)^2 over
  // them is (g^2 + v) / K on average. A worker's own part of g, half of its variance, is the mean of that noise: v is
  // K / 2 of the variance, here of each element by a draw of its own.
  const float* const noise = stream(part.step * streams + 1 + workers() + part.worker, part.first);
  const auto k = static_cast<float>(info_.micro_batches);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float v = 0.5F * k * (kDeviation * noise[i]) * (kDeviation * noise[i]);
    out[i] = (out[i] * out[i] + v) / k;
  }
}

}  // namespace gradtool
