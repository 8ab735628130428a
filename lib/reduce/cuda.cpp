// The CUDA side of reducer.hpp and ops.hpp, compiled only in builds with CUDA.
#include <fmt/format.h>

#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/vector.hpp"
#include "lib/reduce/make_reducer.hpp"

namespace gradtool {

void fill_zero(Queue<Space::cuda> queue, View<float, Space::cuda> view) {
  cuda::memset_async(queue, as_writable_bytes(view), 0);
}
void add(Queue<Space::cuda> queue, View<const float, Space::cuda> in, View<float, Space::cuda> out) {
  cuda::add_scaled(queue.stream, in.data(), 1.0F, out.data(), out.size());
}
void scale(Queue<Space::cuda> queue, View<float, Space::cuda> view, float factor) {
  cuda::scale(queue.stream, view.data(), factor, view.size());
}
void read_back(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> from, void* to) {
  cuda::copy_to_host(queue, from, to);
  cuda::synchronize(queue);
}

template <>
std::shared_ptr<const Codec<Space::cuda>> make_codec(const CodecSpec& spec) {
  if (spec.descriptor->make_cuda == nullptr) {
    throw Error{Fault::unavailable, fmt::format("codec {} has no CUDA version in this build; use --device cpu", spec.name())};
  }
  return spec.descriptor->make_cuda(spec.params);
}

template <>
std::unique_ptr<Reducer<Space::cuda>> make_reducer(const CodecSpec& spec, std::shared_ptr<const Codec<Space::cuda>> codec,
                                                   Scheme scheme, std::size_t n, int ranks, Queue<Space::cuda> queue) {
  return detail::build_reducer<Space::cuda>(spec, std::move(codec), scheme, n, ranks, queue);
}

}  // namespace gradtool
