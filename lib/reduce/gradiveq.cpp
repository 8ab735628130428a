// GradiVeQ on the host.
#include <cstring>

#include "lib/core/task_pool.hpp"
#include "lib/reduce/cuda_reducers.hpp"
#include "lib/reduce/gradiveq_compressor.hpp"
#include "lib/reduce/gradiveq_reducer.hpp"

namespace gradtool {
namespace {

using gradiveq::Layer;

class HostCompressor : public gradiveq::Compressor {
 public:
  using Queue = gradtool::Queue<Space::host>;
  using Compressor::Compressor;

  void fit(Queue queue, HostView<std::byte> /*scratch*/) { Compressor::fit(queue); }
  void project(Queue queue, const float* gradient, std::span<float* const> y, float* /*slices*/,
               HostView<std::byte> scratch, HostView<float> vote, double worst) const {
    double loss = 0.0;
    Compressor::project(queue, gradient, y, scratch, vote.empty() ? nullptr : &loss);
    if (!vote.empty()) vote[0] = loss > worst ? 1.0F : 0.0F;
  }
  void rebuild(Queue queue, std::span<float* const> y, float* /*slices*/, HostView<std::byte> /*scratch*/,
               float* gradient) const {
    Compressor::rebuild(queue, y, gradient);
  }
  template <class F>
  void share(Queue /*queue*/, HostView<std::byte> /*scratch*/, F&& broadcast) {
    const auto counts = Compressor::components();
    broadcast(as_writable_bytes(HostView<std::uint64_t>{counts.data(), counts.size()}));
    for (std::size_t l = 0; l < counts.size(); ++l) broadcast(as_writable_bytes(basis(l)));
    broadcast(as_writable_bytes(means()));
  }

  static void gather(Queue queue, const Layer& layer, const float* gradient, std::size_t first_tap,
                     std::size_t last_tap, float* out) {
    gradiveq::gather_taps(queue, layer, gradient, first_tap, last_tap, out);
  }
  static void scatter(Queue queue, const Layer& layer, const float* in, std::size_t first_tap, std::size_t last_tap,
                      float* gradient) {
    gradiveq::scatter_taps(queue, layer, in, first_tap, last_tap, 1.0F, gradient);
  }
  static void copy(Queue queue, const float* from, std::size_t count, float* to) {
    parallel_for(queue, count, 16, 1 << 15, [&](std::size_t first, std::size_t last) {
      std::memcpy(to + first, from + first, 4 * (last - first));
    });
  }
};

}  // namespace

extern constinit const OwnReducer gradiveq_reducer{
    .codec = "gradiveq",
    .make_host = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<GradiVeqReducer<Space::host, HostCompressor>>(setup);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_gradiveq),
};

}  // namespace gradtool
