// GradiVeQ on the host.
#include "lib/reduce/cuda_reducers.hpp"
#include "lib/reduce/gradiveq_compressor.hpp"
#include "lib/reduce/gradiveq_reducer.hpp"

namespace gradtool {
namespace {

class HostCompressor : public gradiveq::Compressor {
 public:
  using Queue = gradtool::Queue<Space::host>;
  using Moves = gradiveq::TapMoves;
  using Compressor::Compressor;

  void fit(Queue queue, HostView<std::byte> /*scratch*/) { Compressor::fit(queue); }
  void project(Queue queue, const float* gradient, std::span<float* const> y, float* /*slices*/,
               HostView<std::byte> scratch, HostView<float> vote, double worst) const {
    double loss = 0.0;
    Compressor::project(queue, gradient, y, scratch, vote.empty() ? nullptr : &loss);
    if (!vote.empty()) vote[0] = loss > worst ? 1.0F : 0.0F;
  }
  void rebuild(Queue queue, std::span<float* const> y, float share, float* /*slices*/, HostView<std::byte> /*scratch*/,
               float* gradient) const {
    for (std::size_t l = 0; l < y.size(); ++l) {
      if (components(l) > 0) scale(queue, {y[l], layers()[l].slices * components(l)}, share);
    }
    Compressor::rebuild(queue, y, gradient);
  }
  template <class F>
  void share(Queue /*queue*/, HostView<std::byte> /*scratch*/, F&& broadcast) {
    const auto counts = Compressor::components();
    broadcast(as_writable_bytes(HostView<std::uint64_t>{counts.data(), counts.size()}));
    for (std::size_t l = 0; l < counts.size(); ++l) broadcast(as_writable_bytes(basis(l)));
    broadcast(as_writable_bytes(means()));
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
