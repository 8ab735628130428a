#include "kernels/cuda/atomo.hpp"

#include "kernels/cuda/scratch_pieces.hpp"
#include "lib/codecs/atomo_parts.hpp"
#include "lib/codecs/cuda/atomo_triplets.hpp"
#include "lib/codecs/cuda/device_table.hpp"
#include "lib/codecs/cuda/twin.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/payload.hpp"

namespace gradtool {
namespace {

std::vector<cuda::AtomoPart> rows_of(const AtomoParts& format) {
  std::vector<cuda::AtomoPart> rows;
  std::size_t values = 0;
  std::size_t vectors = 0;
  for (const AtomoTensor& part : format.parts) {
    rows.push_back({.first = part.first,
                    .elements = part.elements,
                    .rows = part.rows,
                    .columns = part.columns,
                    .draw = part.draw,
                    .factored = part.count,
                    .values_at = values,
                    .vectors_at = vectors});
    values += part.factored() ? part.order() : 0;
    vectors += part.factored() ? part.order() * part.order() : 0;
  }
  return rows;
}
std::vector<cuda::AtomoTile> tiles_of(const AtomoParts& format) {
  std::vector<cuda::AtomoTile> tiles;
  for (std::size_t p = 0; p < format.parts.size(); ++p) {
    const std::size_t elements = format.parts[p].elements;
    expects(elements <= 0xffffffff, "a tensor is too large for codec atomo on a GPU");
    for (std::size_t first = 0; first < elements; first += cuda::kAtomoTile)
      tiles.push_back({p, first, std::min(cuda::kAtomoTile, elements - first)});
  }
  return tiles;
}

/// Singular triplets by AtomoTriplets; what is kept of them, and payloads, by kernels/cuda/atomo.hpp.
class CudaAtomo final : public CudaTwin {
 public:
  CudaAtomo(const Params& params, const Layout& layout)
      : CudaTwin{"atomo", params, layout},
        budget_{static_cast<double>(params.integer("s"))},
        format_{params, layout},
        triplets_{format_},
        parts_{rows_of(format_)},
        tiles_{tiles_of(format_)} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == format_.elements, "codec atomo works on the layout that it was made for");
    parts_.make();
    tiles_.make();
    if (format_.matrices > 0) triplets_.make();
    return {.payload_bytes = most_bytes(), .scratch_bytes = Room{*this, {}}.bytes, .exact = format_.matrices == 0};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& context,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    if (format_.elements == 0) return;
    const Room at{*this, scratch};
    for (const cuda::AtomoPart& part : parts_.rows()) {
      if (part.rows > 0) triplets_.decompose(queue, part, gradient.data(), at.atoms, at.solved, at.triplets);
    }
    const auto table = this->table();
    cuda::choose_atoms(queue, table, at.atoms, at.solved, budget_, context.key, payload.data());
    cuda::copy_tensors(queue, table, at.atoms, gradient.data(), payload.data());
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const cuda::AtomoPart& part = parts_.rows()[p];
      if (part.rows > 0) cuda::write_atoms(queue, table, p, part, at.atoms, gradient.data(), payload.data());
    }
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    expects(out.size() == format_.elements, "codec atomo works on the layout that it was made for");
    const std::size_t most = most_bytes();
    const std::size_t least = format_.matrices == 0 ? most : format_.header();
    if (payload.size() < least || payload.size() > most) expect_length("atomo", payload.size(), most);
    if (format_.elements == 0) return;
    cuda::add_atoms(queue, table(), payload, weight, out.data(), Room{*this, scratch}.atoms.places);
  }

 private:
  /// Pieces of the scratch; decoding needs `places` alone.
  struct Room {
    Room(const CudaAtomo& codec, View<std::byte, Space::cuda> scratch) {
      cuda::ScratchPieces pieces{scratch};
      pieces.take(atoms.places, codec.parts_.size() + 2);
      if (codec.format_.matrices > 0) {
        const std::size_t values = codec.triplets_.values(), tensors = codec.triplets_.tensors();
        pieces.take(atoms.vectors, codec.triplets_.vectors());
        pieces.take(atoms.eigenvalues, values);
        pieces.take(atoms.values, values);
        pieces.take(atoms.probabilities, values);
        pieces.take(atoms.kept, values);
        pieces.take(atoms.norms, values * cuda::kAtomoChunks);
        pieces.take(atoms.failed, tensors);
        pieces.take(atoms.counts, tensors);
        pieces.take(solved, tensors);
        triplets = pieces.take(codec.triplets_.scratch_bytes());
      }
      bytes = pieces.bytes();
    }
    cuda::AtomoRoom atoms{};
    int* solved = nullptr;
    View<std::byte, Space::cuda> triplets;
    std::size_t bytes;
  };

  [[nodiscard]] std::size_t most_bytes() const { return format_.header() + 4 * format_.most_floats; }
  [[nodiscard]] cuda::AtomoTable table() const {
    return {parts_.get(), parts_.size(), tiles_.get(), tiles_.size(), triplets_.tensors()};
  }

  double budget_;  ///< s
  AtomoParts format_;
  AtomoTriplets triplets_;
  DeviceTable<cuda::AtomoPart> parts_;
  DeviceTable<cuda::AtomoTile> tiles_;
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_atomo(const Params& params, const Layout& layout) {
  return std::make_unique<CudaAtomo>(params, layout);
}

}  // namespace gradtool
