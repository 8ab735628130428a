#include <algorithm>
#include <cmath>
#include <functional>

#include "apps/microbench/cub_topk.hpp"
#include "apps/microbench/device_timer.hpp"
#include "apps/microbench/microbench.hpp"
#include "kernels/blas.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/sparse.hpp"
#include "kernels/transform.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/error.hpp"
#include "lib/methods/gradiveq/layers.hpp"

namespace gradtool {
namespace {

using Queue = gradtool::Queue<Space::cuda>;

cuda::DeviceBuffer values(Queue queue, std::size_t count) {
  cuda::DeviceBuffer buffer{4 * count};
  const Feed feed = synthetic_feed(std::min<std::size_t>(count, 1U << 20), 0);
  for (std::size_t first = 0; first < count; first += feed.gradient.size()) {
    const std::size_t here = std::min(feed.gradient.size(), count - first);
    cuda::copy_elements(queue, buffer.as<float>().part(first, here), HostView<const float>{feed.gradient.data(), here});
  }
  cuda::synchronize(queue);
  return buffer;
}

/// Returns seconds of one execution.
double measure(
    benchmark::State& state, Queue queue, std::size_t elements, const std::function<void()>& work,
    const std::function<void()>& prepare = [] {}) {
  const DeviceTimer::Times times = DeviceTimer{queue}.time(work, prepare);
  report(state, times, 4.0 * static_cast<double>(elements), 0.0, 0.0);
  return times.seconds;
}

/// `body` sets up on the stream of a rank that is alone, and measures.
void add(const std::string& name, std::function<void(benchmark::State&, Communicator<Space::cuda>&, Queue)> body) {
  register_on_device(name, [body = std::move(body)](benchmark::State& state) {
    run_loopback(1, 0, [&](auto& comm, Queue queue) { body(state, comm, queue); });
  });
}

Layout matrix_of(std::size_t elements) {
  const auto rows = static_cast<std::size_t>(std::sqrt(static_cast<double>(elements)));
  return Layout::matrix(rows, elements / rows);
}

/// At least one, as many as there are elements for, up to 128 MiB: a hundred samples and bases of each are kept.
Layout convolutions_of(std::size_t elements) {
  elements = std::min<std::size_t>(elements, 32U << 20);
  const std::vector<std::int64_t> shape{256, 256, 3, 3};
  constexpr std::size_t kEach = std::size_t{256} * 256 * 9;
  Layout layout;
  do {
    layout.tensors.push_back(
        {.shape = shape, .kind = "conv", .layout = "OIHW", .first = layout.elements, .elements = kEach});
    layout.elements += kEach;
  } while (layout.elements + kEach <= elements);
  return layout;
}

/// Whole steps, `settling` of them before the clock starts. With a copy's rate, of_copy where the method's least
/// traffic is known.
void add_steps(const std::string& name, const CodecSpec& spec, const Layout& layout, int settling,
               double copy_rate = 0.0) {
  add(name, [=](benchmark::State& state, Communicator<Space::cuda>& comm, Queue queue) {
    const auto reducer =
        make_reducer<Space::cuda>(spec, make_codec<Space::cuda>(spec, layout), Scheme::automatic, layout, 1, queue);
    Arena<Space::cuda> arena{reducer->workspace_bytes()};
    const auto workspace = arena.take_bytes(reducer->workspace_bytes());
    // Twice as long, and every step looks at another part of it, so that methods that learn see variance.
    const auto input = values(queue, 2 * layout.elements);
    const auto weight = values(queue, spec.descriptor->needs_weight ? layout.elements : 0);
    const SideInputs<Space::cuda> side{.weight = weight.as<const float>()};
    const cuda::DeviceBuffer gradient{4 * layout.elements};
    NoClock<Space::cuda> clock;
    std::uint32_t step = 0;
    const auto once = [&] {
      const EncodeContext context{.key = {.seed = 1, .step = step}, .iteration = step};
      reducer->reduce(comm, queue, gradient.as<float>(), side, context, workspace, clock);
      ++step;
    };
    const auto refill = [&] {
      cuda::copy_elements(queue, gradient.as<float>(),
                          View<const float, Space::cuda>{
                              input.as<float>().part(4 * (977 * step % (layout.elements / 8 + 1)), layout.elements)});
    };
    for (int i = 0; i < settling; ++i) {
      refill();
      once();
    }
    const double seconds = measure(state, queue, layout.elements, once, refill);
    if (copy_rate > 0.0 && memory_passes(*spec.descriptor, spec.params).kept > 0) {
      const auto result = 4.0 * static_cast<double>(layout.elements);
      const double least = encode_floor(spec, layout.elements, 0.0) + result;
      state.counters["of_copy"] = least / seconds / (2.0 * copy_rate);
    }
  });
}

void add_powersgd(const CodecSpec& spec, const std::string& name, const Layout& layout) {
  const std::size_t rows = layout.tensors[0].rows();
  const std::size_t columns = layout.tensors[0].columns();
  const std::size_t rank = std::min({static_cast<std::size_t>(spec.params.integer("rank")), rows, columns});
  add_steps(name + "/step", spec, layout, 3);
  add(name + "/cublas", [=](benchmark::State& state, Communicator<Space::cuda>& /*comm*/, Queue queue) {
    const auto blas = cuda::Blas::of_this_thread();
    const cuda::DeviceBuffer work{blas->work_bytes()};
    const auto m = values(queue, rows * columns);
    const auto p = values(queue, rank * rows);
    const auto q = values(queue, rank * columns);
    const cuda::DeviceBuffer out{4 * rows * columns};
    measure(state, queue, layout.elements, [&] {
      blas->multiply(queue, work.bytes(), rows, rank, columns, 1.0F, {m.as<float>().data(), columns, true},
                     {q.as<float>().data(), columns}, 0.0F, p.as<float>().data(), rows);
      blas->multiply(queue, work.bytes(), columns, rank, rows, 1.0F, {m.as<float>().data(), columns},
                     {p.as<float>().data(), rows}, 0.0F, q.as<float>().data(), columns);
      blas->multiply(queue, work.bytes(), columns, rows, rank, 1.0F, {q.as<float>().data(), columns},
                     {p.as<float>().data(), rows, true}, 0.0F, out.as<float>().data(), columns);
    });
  });
}

void add_gradiveq(const CodecSpec& spec, const std::string& name, const Layout& layout) {
  const auto samples = static_cast<std::size_t>(spec.params.integer("lt"));
  std::string lasting = spec.params.text();  // compressed steps until the clock stops, and no samples among them
  const std::size_t at = lasting.find("lc=");
  lasting.replace(at, lasting.find(',', at) - at, "lc=1000000000");
  add_steps(name + "/step", parse_codec("gradiveq:" + lasting), layout, static_cast<int>(samples));
  add(name + "/cublas", [=](benchmark::State& state, Communicator<Space::cuda>& /*comm*/, Queue queue) {
    const auto layers = gradiveq::layers_of(layout, spec.params);
    const gradiveq::Layer& layer = layers.at(0);  // all are alike
    const std::size_t k = layer.coordinates();
    const std::size_t d = std::min(samples - 1, k);
    const auto blas = cuda::Blas::of_this_thread();
    const cuda::DeviceBuffer work{blas->work_bytes(layers.size())};
    const auto bases = values(queue, layers.size() * k * d);
    const auto slices = values(queue, layers.size() * layer.sliced());
    const auto y = values(queue, layers.size() * layer.slices * d);
    std::vector<cuda::Product> projections, rebuilds;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const float* u = bases.as<float>().data() + l * k * d;
      float* x = slices.as<float>().data() + l * layer.sliced();
      float* coefficients = y.as<float>().data() + l * layer.slices * d;
      projections.push_back({d, layer.slices, k, {u, k, true}, {x, k}, coefficients, d});
      rebuilds.push_back({k, layer.slices, d, {u, k}, {coefficients, d}, x, k});
    }
    measure(state, queue, layout.elements, [&] {
      blas->multiply(queue, work.bytes(), 1.0F, projections);
      blas->multiply(queue, work.bytes(), 1.0F, rebuilds);
    });
  });
}

void add_cufft(std::size_t elements) {
  constexpr std::size_t kChunk = 65536;  // fft's own
  const std::size_t length = std::min(kChunk, elements);
  const std::size_t rows = elements / length;
  add("cuda/cufft/forward+inverse", [=](benchmark::State& state, Communicator<Space::cuda>& /*comm*/, Queue queue) {
    const cuda::RealTransforms transforms{length, rows};
    const cuda::DeviceBuffer work{transforms.work_bytes()};
    const auto real = values(queue, length * rows);
    const cuda::DeviceBuffer spectrum{8 * rows * (length / 2 + 1)};
    const cuda::DeviceBuffer back{4 * length * rows};
    measure(state, queue, length * rows, [&] {
      transforms.forward(queue, real.as<float>().data(), spectrum.as<float>().data(), work.bytes().data());
      transforms.inverse(queue, spectrum.as<float>().data(), back.as<float>().data(), work.bytes().data());
    });
  });
}

void add_cub_topk(std::size_t elements, double ratio) {
  add("cuda/cub/topk", [=](benchmark::State& state, Communicator<Space::cuda>& /*comm*/, Queue queue) {
    const std::size_t k = share_of(ratio, elements);
    const auto x = values(queue, elements);
    const cuda::DeviceBuffer temporary{cub_topk_bytes(elements, k)}, magnitudes{4 * k}, places{4 * k};
    measure(state, queue, elements, [&] {
      cub_topk(queue, temporary.bytes(), x.as<float>().data(), elements, k, magnitudes.as<float>().data(),
               places.as<std::uint32_t>().data());
    });
  });
}

}  // namespace

void register_cuda_products(const std::vector<CodecSpec>& specs, std::size_t elements, double copy_rate) {
  cuda::require_device(0, "gradtool_microbench --device=cuda");
  for (const auto& spec : specs) {
    const std::string name = "cuda/" + full_name(spec);
    if (spec.name() == "powersgd") {
      add_powersgd(spec, name, matrix_of(elements));
      // The rank that papers and users run.
      if (spec.params.integer("rank") != 4)
        add_powersgd(parse_codec("powersgd:rank=4"), "cuda/powersgd:rank=4", matrix_of(elements));
    }
    if (spec.name() == "gradiveq") add_gradiveq(spec, name, convolutions_of(elements));
    if (spec.name() == "fft" && elements > 0) add_cufft(elements);
    if (spec.name() == "topk" && elements > 0 && has_cub_topk()) add_cub_topk(elements, spec.params.real("ratio"));
    const bool products = spec.name() == "powersgd" || spec.name() == "gradiveq";
    if (spec.descriptor->gpu.reducer && !products) add_steps(name + "/step", spec, matrix_of(elements), 8, copy_rate);
  }
}

}  // namespace gradtool
