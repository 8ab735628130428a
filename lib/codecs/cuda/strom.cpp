#include "kernels/cuda/strom.hpp"

#include "kernels/cuda/select.hpp"
#include "kernels/law/half.hpp"
#include "lib/codecs/cuda/sparse.hpp"
#include "lib/codecs/cuda_factories.hpp"

namespace gradtool {
namespace {

law::Strom law_of(const Params& params) {
  return {static_cast<float>(params.real("tau"))};
}

/// MXNet's form: two bits for every element.
class CudaDenseStrom final : public CudaTwin {
 public:
  explicit CudaDenseStrom(const Params& params) : CudaTwin{"strom", params}, law_{law_of(params)} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override { return {.payload_bytes = bytes(n)}; }
  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> /*scratch*/) const override {
    cuda::strom_encode(queue, gradient, law_, payload.data());
  }
  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> /*scratch*/) const override {
    expect_length("strom", payload.size(), bytes(out.size()));
    cuda::strom_decode_add(queue, payload.data(), law_, weight, out);
  }

 private:
  static std::size_t bytes(std::size_t n) {
    return 4 * ((n + law::Strom::kCodesPerWord - 1) / law::Strom::kCodesPerWord);
  }

  law::Strom law_;
};

/// Which elements, and their signs.
class CudaSparseStrom final : public CudaTwin {
 public:
  explicit CudaSparseStrom(const Params& params)
      : CudaTwin{"strom", params},
        law_{law_of(params)},
        as_words_{params.is("index", "words")},
        coding_{as_words_ ? "u32" : params.word("index")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n <= std::size_t{1} << 31,
            "codec strom: indices have 31 bits, a unit of more than 2^31 elements needs form=dense");
    return {.payload_bytes = bound_of(n), .scratch_bytes = Room{*this, n, {}}.bytes, .exact = false};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = gradient.size();
    if (n == 0) return cuda::write_empty_sparse(queue, shape(0), payload.data());
    const Room at{*this, n, scratch};
    const cuda::Select select{queue, gradient, at.select};
    select.at_least(law::bits_of(law_.tau) + 1);  // strictly above, or not a number
    select.write(at.positions, at.values);
    cuda::strom_check(queue, at.values, select.count(), n, at.not_finite);
    cuda::write_sparse(queue, shape(n), at.positions, select.count(), payload.data(), at.sparse, 0,
                       {at.values, at.not_finite});
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = out.size();
    expect_room("strom", payload.size(), sizeof(SparseHeader), bound_of(n));
    cuda::add_sparse(queue, shape(n), payload, weight * law_.tau, out.data(), Room{*this, n, scratch}.sparse);
  }

 private:
  /// Pieces of the scratch.
  struct Room {
    Room(const CudaSparseStrom& codec, std::size_t n, View<std::byte, Space::cuda> scratch) {
      cuda::ScratchPieces pieces{scratch};
      pieces.take(not_finite, 1);
      pieces.take(positions, n);
      pieces.take(values, n);
      select = pieces.take(cuda::Select::scratch_bytes(n));
      sparse = pieces.take(cuda::sparse_scratch_bytes(codec.shape(n)));
      bytes = pieces.bytes();
    }
    std::uint32_t *not_finite, *positions;
    float* values;
    View<std::byte, Space::cuda> select, sparse;
    std::size_t bytes;
  };
  [[nodiscard]] cuda::SparseShape shape(std::size_t n) const {
    cuda::SparseShape shape = sparse_shape(coding_, n, n, 1);
    shape.words = as_words_             ? cuda::SparseShape::Words::always
                  : coding_.automatic() ? cuda::SparseShape::Words::smallest
                                        : cuda::SparseShape::Words::never;
    return shape;
  }
  [[nodiscard]] std::size_t bound_of(std::size_t n) const {
    return sizeof(SparseHeader) + coding_.bound(n, n) + (as_words_ ? 0 : 4 * law::words_of_bits(n));
  }

  law::Strom law_;
  bool as_words_;
  IndexCoding coding_;
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_strom(const Params& params, const Layout& /*layout*/) {
  if (params.is("form", "dense")) return std::make_unique<CudaDenseStrom>(params);
  return std::make_unique<CudaSparseStrom>(params);
}

}  // namespace gradtool
