#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "kernels/law/philox.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// What one encode of the micro-benchmark is given. Side inputs are empty where there are none.
struct Feed {
  std::vector<float> gradient, second_moment, weight;
};

/// Heavy-tailed values of both signs, about 1e-3: the product of a bell and a lognormal, like a real gradient; with
/// second moments as of four micro-batches that differ.
inline Feed synthetic_feed(std::size_t n, std::uint32_t turn) {
  Feed feed;
  feed.gradient.resize(n);
  feed.second_moment.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto draws = law::draw4({.seed = 1, .step = turn}, i);
    const float bell = law::uniform(draws.bits[0]) + law::uniform(draws.bits[1]) + law::uniform(draws.bits[2]) - 1.5F;
    const float scale = 1e-3F * std::exp(2.0F * law::uniform(draws.bits[3]) - 1.0F);
    feed.gradient[i] = scale * bell;
    feed.second_moment[i] = 0.25F * feed.gradient[i] * feed.gradient[i] + 0.1F * scale * scale;
  }
  return feed;
}

/// The gradients of a capture, worker after worker, step after step from `turn` on, repeated until n are there; with
/// second moments and weights where the file has them for every tensor.
inline Feed captured_feed(const std::string& path, std::size_t n, std::size_t turn) {
  const GradientReader reader{path};
  bool moments = true;
  bool weights = true;
  for (const auto& tensor : reader.tensors()) {
    moments = moments && tensor.has_second_moment;
    weights = weights && tensor.has_weight;
  }
  Feed feed;
  std::vector<float> values;
  const auto append = [n](std::vector<float>& to, const std::vector<float>& from) {
    to.insert(to.end(), from.begin(), from.begin() + static_cast<std::ptrdiff_t>(std::min(from.size(), n - to.size())));
  };
  for (std::size_t round = 0; feed.gradient.size() < n; ++round) {
    const std::size_t worker = round % reader.workers();
    const std::size_t step = (turn + round / reader.workers()) % reader.steps().size();
    for (std::size_t t = 0; t < reader.tensors().size() && feed.gradient.size() < n; ++t) {
      values.resize(reader.tensors()[t].elements);
      if (moments) {
        reader.read_second_moment(t, step, worker, values);
        append(feed.second_moment, values);
      }
      if (weights) {
        reader.read_weight(t, step, values);
        append(feed.weight, values);
      }
      reader.read_gradient(t, step, worker, values);
      append(feed.gradient, values);
    }
  }
  return feed;
}

}  // namespace gradtool
