// The CUDA side of reducer.hpp, compiled only in builds with CUDA.
#include "lib/codecs/build_reducer.hpp"
#include "lib/codecs/levelled_reducer.hpp"

namespace gradtool {

template <>
std::shared_ptr<const Codec<Space::cuda>> make_codec(const CodecSpec& spec, const Layout& layout) {
  if (!has_codec(*spec.descriptor)) return nullptr;
  if (!on_cuda(*spec.descriptor)) detail::throw_no_cuda(spec.name());
  if (spec.descriptor->gpu.codec == nullptr) return nullptr;  // its own reducer does without
  return spec.descriptor->gpu.codec(spec.params, layout);
}

template <>
std::unique_ptr<Reducer<Space::cuda>> make_reducer(const CodecSpec& spec,
                                                   std::shared_ptr<const Codec<Space::cuda>> codec, Scheme scheme,
                                                   const Layout& layout, int ranks, Queue<Space::cuda> queue,
                                                   Collective op) {
  return detail::build_reducer<Space::cuda>(spec, std::move(codec), scheme, layout, ranks, queue, op);
}

template <>
std::unique_ptr<Reducer<Space::cuda>> make_levelled_reducer(const CodecSpec& between, const CodecSpec& inside,
                                                            Scheme scheme, std::size_t n, Dtype dtype, int ranks,
                                                            int node, Queue<Space::cuda> queue) {
  return std::make_unique<LevelledReducer<Space::cuda>>(between, inside, scheme, n, dtype, ranks, node, queue);
}

}  // namespace gradtool
