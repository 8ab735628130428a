// The inputs of the micro-benchmark: synthetic or captured gradients, and the tensors that they are cut into.
#include <algorithm>
#include <cmath>

#include "apps/microbench/microbench.hpp"
#include "kernels/draws.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {
namespace {

TensorShape tensor(std::vector<std::int64_t> shape, std::string kind) {
  std::size_t elements = 1;
  for (const auto extent : shape) elements *= static_cast<std::size_t>(extent);
  return {.shape = std::move(shape), .kind = std::move(kind), .layout = "OIHW", .elements = elements};
}

/// The convolutions of ResNet-20 for CIFAR-10 (He et al. 2016, section 4.2) with their norms, and its last layer.
std::vector<TensorShape> resnet20() {
  std::vector<TensorShape> tensors;
  const auto add = [&](std::int64_t out, std::int64_t in) {
    tensors.push_back(tensor({out, in, 3, 3}, "conv"));
    tensors.push_back(tensor({out}, "norm"));
    tensors.push_back(tensor({out}, "bias"));
  };
  add(16, 3);
  for (const std::int64_t width : {16, 32, 64}) {
    for (int i = 0; i < 6; ++i) add(width, i == 0 && width > 16 ? width / 2 : width);
  }
  tensors.push_back(tensor({10, 64}, "linear"));
  tensors.push_back(tensor({10}, "bias"));
  return tensors;
}

}  // namespace

Feed synthetic_feed(std::size_t n, std::uint32_t turn) {
  Feed feed;
  feed.gradient.resize(n);
  feed.second_moment.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto draws = format::draw4({.seed = 1, .step = turn}, i);
    const float bell =
        format::uniform(draws.bits[0]) + format::uniform(draws.bits[1]) + format::uniform(draws.bits[2]) - 1.5F;
    const float scale = 1e-3F * std::exp(2.0F * format::uniform(draws.bits[3]) - 1.0F);
    feed.gradient[i] = scale * bell;
    feed.second_moment[i] = 0.25F * feed.gradient[i] * feed.gradient[i] + 0.1F * scale * scale;
  }
  return feed;
}

Feed captured_feed(const std::string& path, std::size_t n, std::size_t turn) {
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

Layout benchmark_layout(const std::string& file, std::size_t n) {
  std::vector<TensorShape> tensors = resnet20();
  if (!file.empty()) {
    tensors.clear();
    const GradientReader reader{file};
    for (const auto& info : reader.tensors())
      tensors.push_back({.shape = info.shape, .kind = info.kind, .layout = info.layout, .elements = info.elements});
  }
  Layout layout;
  const auto add = [&](TensorShape shape) {
    shape.first = layout.elements;
    layout.elements += shape.elements;
    layout.tensors.push_back(std::move(shape));
  };
  for (std::size_t t = 0; layout.elements + tensors[t].elements <= n; t = (t + 1) % tensors.size()) add(tensors[t]);
  if (layout.elements < n) add(tensor({static_cast<std::int64_t>(n - layout.elements)}, "other"));
  return layout;
}

double encode_floor(const CodecSpec& spec, std::size_t n, double payload, bool residual) {
  MemoryPasses passes = memory_passes(*spec.descriptor, spec.params);
  if (residual && spec.feedback() != Feedback::off) {
    ++passes.kept;
    passes.reads = 1.0;
  }
  const auto elements = static_cast<double>(n);
  const double beside = passes.side + (passes.again == ReadAgain::never ? 0.0 : 1.0);
  return passes.encode_bytes(elements, elements * beside) + payload;
}

double decode_floor(const CodecSpec& spec, std::size_t n, double payload) {
  if (memory_passes(*spec.descriptor, spec.params).scatters) return 0.0;
  return payload + 8.0 * static_cast<double>(n);  // out is read and written
}

}  // namespace gradtool
