#include "kernels/cuda/onebit.hpp"

#include "kernels/law/bitpack.hpp"
#include "lib/codecs/cuda/tensor_table.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/onebit_matrices.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

/// What the kernels look up, made on the host.
struct Tables {
  std::vector<cuda::OneBitMatrix> matrices;
  std::vector<cuda::OneBitStrip> strips;
  std::vector<cuda::OneBitTile> tiles;
  std::size_t columns = 0, slots = 0;

  explicit Tables(const std::vector<OneBitMatrix>& shapes) {
    for (const OneBitMatrix& shape : shapes) {
      expects(shape.columns < (std::size_t{1} << 31), "codec onebit on a GPU: a matrix has 2^31 columns or more");
      matrices.push_back({shape.first, shape.rows, shape.columns, shape.first_column});
      columns += shape.columns;
      if (shape.columns > 1) add_strips(shape);
    }
  }

 private:
  void add_strips(const OneBitMatrix& shape) {
    const std::size_t chunks = (shape.rows + law::kSumRows - 1) / law::kSumRows;
    for (std::size_t c = 0; c < shape.columns; c += cuda::kStripColumns) {
      const std::size_t count = std::min(cuda::kStripColumns, shape.columns - c);
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) tiles.push_back({strips.size(), chunk});
      strips.push_back({shape.first + c, shape.rows, shape.columns, shape.first_column + c, count, slots});
      slots += chunks * count;
    }
  }
};

class CudaOneBit final : public CudaTwin {
 public:
  CudaOneBit(const Params& params, const Layout& layout)
      : CudaOneBit{params, layout, Tables{onebit_matrices(layout, params.is("means", "column"))}} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    pieces_.make(n);
    matrices_.make();
    strips_.make();
    tiles_.make();
    return {.payload_bytes = bytes(), .scratch_bytes = cuda::onebit_scratch_bytes(pieces_.pieces(), slots_)};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    cuda::onebit_encode(queue, table(), gradient.data(), elements<float>(payload, 0, 2 * columns_).data(),
                        elements<std::uint32_t>(payload, 8 * columns_, pieces_.words()).data(), scratch.data());
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    decode_add_all(queue, {&payload, 1}, weight, out, scratch);
  }

  void decode_add_all(Queue<Space::cuda> queue, std::span<const View<const std::byte, Space::cuda>> payloads,
                      float weight, View<float, Space::cuda> out,
                      View<std::byte, Space::cuda> /*scratch*/) const override {
    for (const auto& payload : payloads) expect_length("onebit", payload.size(), bytes());
    cuda::in_batches(payloads, [&](const cuda::Payloads& batch) {
      cuda::onebit_decode_add(queue, table(), batch, weight, out.data());
    });
  }

 private:
  CudaOneBit(const Params& params, const Layout& layout, Tables tables)
      : CudaTwin{"onebit", params, layout},
        columns_{tables.columns},
        slots_{tables.slots},
        pieces_{TensorPieces{layout, [](std::size_t count) { return law::packed_words(count, 1); }}},
        matrices_{std::move(tables.matrices)},
        strips_{std::move(tables.strips)},
        tiles_{std::move(tables.tiles)} {}

  [[nodiscard]] std::size_t bytes() const { return 8 * columns_ + 4 * pieces_.words(); }
  [[nodiscard]] cuda::OneBitTable table() const {
    return {pieces_.table(), matrices_.get(), strips_.get(), strips_.size(),
            tiles_.get(),    tiles_.size(),   columns_,      slots_};
  }

  std::size_t columns_, slots_;
  CudaTensorPieces pieces_;
  DeviceTable<cuda::OneBitMatrix> matrices_;
  DeviceTable<cuda::OneBitStrip> strips_;
  DeviceTable<cuda::OneBitTile> tiles_;
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_onebit(const Params& params, const Layout& layout) {
  return std::make_unique<CudaOneBit>(params, layout);
}

}  // namespace gradtool
