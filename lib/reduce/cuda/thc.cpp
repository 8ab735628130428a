#include "lib/reduce/thc.hpp"

#include "kernels/cuda/thc.hpp"
#include "kernels/law/chunk_sums.hpp"
#include "lib/reduce/cuda_reducers.hpp"

namespace gradtool {

template <>
std::size_t ThcSteps<Space::cuda>::scratch_bytes(std::size_t n) {
  return sizeof(double) * ((n + law::kSumChunk - 1) / law::kSumChunk);
}

template <>
void ThcSteps<Space::cuda>::signs(Queue<Space::cuda> queue, const law::DrawKey& key,
                                  View<std::uint32_t, Space::cuda> signs) {
  cuda::thc_signs(queue, key, signs);
}

template <>
void ThcSteps<Space::cuda>::norm(Queue<Space::cuda> queue, View<const float, Space::cuda> u, float* norm,
                                 View<std::byte, Space::cuda> scratch) {
  cuda::thc_norm(queue, u, norm, scratch.data());
}

template <>
template <std::uint32_t Bits>
void ThcSteps<Space::cuda>::encode(Queue<Space::cuda> queue, const law::ThcShape& shape,
                                   const law::ThcTable<Bits>& table, View<const float, Space::cuda> u,
                                   const float* norms, const std::uint32_t* signs, const law::DrawKey& key,
                                   View<std::byte, Space::cuda> codes, View<float, Space::cuda> residual) {
  cuda::thc_encode(queue, shape, table, u.data(), norms, signs, key, reinterpret_cast<std::uint32_t*>(codes.data()),
                   residual.empty() ? nullptr : residual.data());
}

template <>
template <std::uint32_t Bits, class Sum>
void ThcSteps<Space::cuda>::add_codes(Queue<Space::cuda> queue, const law::ThcTable<Bits>& table,
                                      View<const std::byte, Space::cuda> codes, std::size_t groups, bool add,
                                      Sum* sums) {
  cuda::thc_add_codes(queue, table, reinterpret_cast<const std::uint32_t*>(codes.data()), groups, add, sums);
}

template <>
template <std::uint32_t Bits, class Sum>
void ThcSteps<Space::cuda>::decode(Queue<Space::cuda> queue, const law::ThcShape& shape,
                                   const law::ThcTable<Bits>& table, const Sum* sums, const float* norms,
                                   const std::uint32_t* signs, View<float, Space::cuda> gradient) {
  cuda::thc_decode(queue, shape, table, sums, norms, signs, gradient.data());
}

std::unique_ptr<Reducer<Space::cuda>> make_cuda_thc_reducer(const ReducerSetup<Space::cuda>& setup) {
  return make_thc_reducer<Space::cuda>(setup);
}

}  // namespace gradtool
