// The CUDA side of reducer.hpp and ops.hpp, compiled only in builds with CUDA.
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/sum.hpp"
#include "kernels/cuda/vector.hpp"
#include "lib/reduce/make_reducer.hpp"

namespace gradtool {

void fill_zero(Queue<Space::cuda> queue, View<float, Space::cuda> view) {
  cuda::fill(queue, as_writable_bytes(view), 0);
}
void add(Queue<Space::cuda> queue, View<const float, Space::cuda> in, View<float, Space::cuda> out) {
  cuda::sum_into(queue, as_writable_bytes(out), as_bytes(in), Dtype::f32);
}
void scale(Queue<Space::cuda> queue, View<float, Space::cuda> view, float factor) {
  cuda::scale(queue, view, factor);
}
void read_back(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> from, void* to) {
  cuda::copy(queue, HostView<std::byte>{static_cast<std::byte*>(to), from.size()}, from);
  cuda::synchronize(queue);
}

template <>
struct ReadBack<Space::cuda>::Memory {
  cuda::PinnedBuffer numbers;
  cuda::Event arrived;
};
template <>
ReadBack<Space::cuda>::ReadBack(std::size_t most) : memory_{new Memory{cuda::PinnedBuffer{8 * most}, cuda::Event{}}} {}
template <>
ReadBack<Space::cuda>::~ReadBack() = default;
template <>
void ReadBack<Space::cuda>::fetch(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> from, std::size_t at) {
  expects(8 * at + from.size() <= memory_->numbers.size(), "more numbers are read back than there is room for");
  cuda::copy(queue, memory_->numbers.bytes().part(8 * at, from.size()), from);
}
template <>
std::span<const std::uint64_t> ReadBack<Space::cuda>::wait(Queue<Space::cuda> queue) {
  memory_->arrived.record(queue);
  memory_->arrived.synchronize();
  return memory_->numbers.as<std::uint64_t>().span();
}

void write_size(Queue<Space::cuda> queue, std::uint64_t size, View<std::byte, Space::cuda> to) {
  cuda::write_number(queue, size, to);
}

template <>
std::shared_ptr<const Codec<Space::cuda>> make_codec(const CodecSpec& spec, const Layout& layout) {
  if (!has_codec(*spec.descriptor)) return nullptr;
  if (!on_cuda(*spec.descriptor)) detail::throw_no_cuda(spec.name());
  if (spec.descriptor->make_cuda == nullptr) return nullptr;  // its own reducer does without
  return spec.descriptor->make_cuda(spec.params, layout);
}

template <>
std::unique_ptr<Reducer<Space::cuda>> make_reducer(const CodecSpec& spec,
                                                   std::shared_ptr<const Codec<Space::cuda>> codec, Scheme scheme,
                                                   const Layout& layout, int ranks, Queue<Space::cuda> queue) {
  return detail::build_reducer<Space::cuda>(spec, std::move(codec), scheme, layout, ranks, queue);
}

}  // namespace gradtool
