#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "kernels/bitpack.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/lanes.hpp"
#include "kernels/sums.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/codecs/tensor_pieces.hpp"
#include "lib/methods/onebit/matrices.hpp"

namespace gradtool {
namespace {

/// Sums of a column over some of its rows.
struct ColumnSums {
  double negative = 0.0;
  double other = 0.0;
  std::uint64_t negatives = 0;
};

/// The means that the elements of a column are decoded to.
struct Means {
  float other = 0.0F;     ///< of the elements not below zero
  float negative = 0.0F;  ///< of the elements below zero
};

using format::kSumRows;
/// Columns that are worked on at a time, so few that the tile stays in the cache.
constexpr std::size_t kColumns = 512;

/// Sums of neighbouring columns over `rows` rows that are `stride` apart, kept in registers from row to row.
struct AddColumns {
  static constexpr std::size_t kCount = 16;

  template <std::size_t Bytes>
  [[gnu::always_inline]] static void run(const float* x, std::size_t rows, std::size_t stride, ColumnSums* out) {
    constexpr std::size_t kVectors = kCount * sizeof(double) / Bytes;
    constexpr std::size_t kInVector = kCount / kVectors;
    using Sums = host::Vector<double, Bytes>;
    using Values = host::Vector<float, Bytes / 2>;
    Sums negative[kVectors] = {}, other[kVectors] = {};
    host::Vector<std::int32_t, Bytes / 2> negatives[kVectors] = {};
    for (std::size_t r = 0; r < rows; ++r, x += stride) {
#pragma GCC unroll 8
      for (std::size_t i = 0; i < kVectors; ++i) {
        Values values{};
        std::memcpy(&values, x + i * kInVector, sizeof values);
        const auto below = values < Values{};
        negatives[i] -= below;
        negative[i] += __builtin_convertvector(below ? values : Values{}, Sums);
        other[i] += __builtin_convertvector(below ? Values{} : values, Sums);
      }
    }
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kVectors; ++i) {
      for (std::size_t j = 0; j < kInVector; ++j)
        out[i * kInVector + j] = {negative[i][j], other[i][j], static_cast<std::uint64_t>(negatives[i][j])};
    }
  }
};

/// Sums of `columns` columns over `rows` rows that are `stride` apart, each down its column.
void add_rows(const float* x, std::size_t rows, std::size_t columns, std::size_t stride, ColumnSums* out) {
  std::size_t c = 0;
  for (; c + AddColumns::kCount <= columns; c += AddColumns::kCount)
    host::run_with_vectors<AddColumns>(x + c, rows, stride, out + c);
  for (; c < columns; ++c) {
    ColumnSums sums;
    for (std::size_t r = 0; r < rows; ++r) {
      const float value = x[r * stride + c];
      const bool below = value < 0.0F;
      (below ? sums.negative : sums.other) += static_cast<double>(value);
      sums.negatives += below ? 1 : 0;
    }
    out[c] = sums;
  }
}

/// Writes each bit to a byte, for whole words.
GT_SIMD_CLONES void spread_bits(const std::uint32_t* words, std::size_t count, std::uint8_t* bits) {
  for (std::size_t i = 0; i < count; i += 32, ++words, bits += 32) {
    for (std::uint32_t j = 0; j < 32; ++j) bits[j] = static_cast<std::uint8_t>(*words >> j & 1U);
  }
}

GT_SIMD_CLONES void add_in_row(const std::uint8_t* bits, const Means* means, std::size_t count, float weight,
                               float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] += weight * (bits[i] != 0 ? means[i].negative : means[i].other);
}

GT_SIMD_CLONES void add_in_column(const std::uint8_t* bits, Means means, std::size_t count, float weight, float* out) {
  const float negative = weight * means.negative;
  const float other = weight * means.other;
  for (std::size_t i = 0; i < count; ++i) out[i] += bits[i] != 0 ? negative : other;
}

class OneBit final : public Codec<Space::host> {
 public:
  OneBit(const Params& params, const Layout& layout)
      : pieces_{layout, [](std::size_t count) { return format::packed_words(count, 1); }} {
    for (const OneBitMatrix& shape : onebit_matrices(layout, params.is("means", "column"))) {
      const Matrix matrix{shape, slots_};
      const std::size_t columns = matrix.columns;
      if (columns == 1) {
        slots_ += (matrix.rows + host::kSumChunk - 1) / host::kSumChunk;
      } else {
        for (std::size_t row = 0; row < matrix.rows; row += kSumRows, slots_ += columns) {
          for (std::size_t column = 0; column < columns; column += kColumns)
            tiles_.push_back({matrices_.size(), row * columns + column,
                              std::min<std::size_t>(kSumRows, matrix.rows - row),
                              std::min<std::size_t>(kColumns, columns - column), slots_ + column});
        }
      }
      columns_ += columns;
      matrices_.push_back(matrix);
    }
  }

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == pieces_.elements(), "codec onebit works on the layout that it was made for");
    return {.payload_bytes = signs_offset() + 4 * pieces_.words(), .scratch_bytes = sizeof(ColumnSums) * slots_};
  }

  void encode(Queue<Space::host> queue, HostView<const float> gradient, const EncodeContext& /*context*/,
              HostView<std::byte> payload, HostView<std::byte> scratch) const override {
    auto* sums = section<ColumnSums>(scratch);
    auto* signs = section<std::uint32_t>(payload, signs_offset());
    pieces_.each(queue, [&](std::size_t i, const TensorPiece& piece) {
      const Matrix& matrix = matrices_[piece.tensor];
      if (matrix.rows_begin_words()) return;
      const float* x = gradient.data() + piece.first;
      std::uint32_t* words = signs + piece.word;
      host::write_negatives(x, piece.count, words);
      if (matrix.columns != 1) return;
      std::uint64_t negatives = 0;
      for (std::size_t w = 0; w < format::packed_words(piece.count, 1); ++w)
        negatives += static_cast<std::uint64_t>(std::popcount(words[w]));
      const host::SignedSums both = host::signed_sums_of(x, piece.count);
      sums[matrix.first_slot + i - pieces_.tensors()[piece.tensor].first] = {both.negative, both.other, negatives};
    });
    host::for_pieces(queue, tiles_.size(), pieces_.elements(), [&](std::size_t i) {
      const Tile& tile = tiles_[i];
      const Matrix& matrix = matrices_[tile.tensor];
      const float* x = gradient.data() + matrix.first + tile.first;
      if (matrix.rows_begin_words()) {
        std::uint32_t* words = signs + pieces_.pieces()[pieces_.tensors()[tile.tensor].first].word;
        for (std::size_t r = 0; r < tile.rows; ++r)
          host::write_negatives(x + r * matrix.columns, tile.columns, words + (tile.first + r * matrix.columns) / 32);
      }
      add_rows(x, tile.rows, tile.columns, matrix.columns, sums + tile.slot);
    });
    auto* means = section<Means>(payload);
    for (const Matrix& matrix : matrices_) {
      parallel_for(queue, matrix.columns, 16, 1 << 12, [&](std::size_t first, std::size_t last) {
        for (std::size_t c = first; c < last; ++c) means[matrix.first_column + c] = means_of(matrix, c, sums);
      });
    }
  }

  void decode_add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out,
                  HostView<std::byte> /*scratch*/) const override {
    expect_length("onebit", payload.size(), signs_offset() + 4 * pieces_.words());
    const auto* signs = section<std::uint32_t>(payload, signs_offset());
    pieces_.each(queue, [&](std::size_t, const TensorPiece& piece) {
      alignas(64) std::array<std::uint8_t, host::kSumChunk> bits;
      spread_bits(signs + piece.word, piece.count, bits.data());
      const Matrix& matrix = matrices_[piece.tensor];
      const auto* means = section<Means>(payload) + matrix.first_column;
      float* to = out.data() + piece.first;
      if (matrix.columns == 1) {
        add_in_column(bits.data(), means[0], piece.count, weight, to);
        return;
      }
      std::size_t column = (piece.first - matrix.first) % matrix.columns;
      for (std::size_t at = 0; at < piece.count; column = 0) {
        const std::size_t count = std::min(piece.count - at, matrix.columns - column);
        add_in_row(bits.data() + at, means + column, count, weight, to + at);
        at += count;
      }
    });
  }

  /// A mean of elements of one sign is never larger than the largest of them, and no other single value is closer to
  /// them.
  [[nodiscard]] ErrorBound bound(std::size_t /*n*/) const override {
    return {.nmse = 1.0 + 1e-6, .of_largest = 1.0 + 1e-6};
  }

 private:
  struct Matrix : OneBitMatrix {
    std::size_t first_slot = 0;  ///< index of its first sums in scratch: a row of columns for each chunk of rows
    /// Whether the signs of tiles are whole words, so that they are written when the tile is read.
    [[nodiscard]] bool rows_begin_words() const { return columns > 1 && columns % 32 == 0; }
  };
  /// A part of a matrix of several columns that one thread adds up.
  struct Tile {
    std::size_t tensor;
    std::size_t first;  ///< index of its first element in the tensor
    std::size_t rows, columns;
    std::size_t slot;  ///< index of its sums in scratch
  };

  [[nodiscard]] std::size_t signs_offset() const { return sizeof(Means) * columns_; }

  [[nodiscard]] static Means means_of(const Matrix& matrix, std::size_t column, const ColumnSums* sums) {
    const std::size_t chunk = matrix.columns == 1 ? host::kSumChunk : kSumRows;
    format::GroupedSum negative;
    format::GroupedSum other;
    std::uint64_t negatives = 0;
    for (std::size_t row = 0, slot = matrix.first_slot + column; row < matrix.rows;
         row += chunk, slot += matrix.columns) {
      negative.add(sums[slot].negative);
      other.add(sums[slot].other);
      negatives += sums[slot].negatives;
    }
    return {format::stored_mean(other.value(), matrix.rows - negatives),
            format::stored_mean(negative.value(), negatives)};
  }

  TensorPieces pieces_;
  std::vector<Matrix> matrices_;
  std::vector<Tile> tiles_;
  std::size_t columns_ = 0;
  std::size_t slots_ = 0;
};

constexpr ParamInfo kParams[] = {choice_param("means", "column", "column|tensor",
                                              "what has two means of its own: each column, as in the paper, or a "
                                              "tensor, which costs less where columns are short")};

}  // namespace

extern constinit const CodecDescriptor onebit_codec{
    .name = "onebit",
    .summary = "sends signs and the two means of each column, with error feedback",
    .reference = "Seide et al., 1-Bit Stochastic Gradient Descent, Interspeech 2014",
    .params = kParams,
    .error_feedback = true,
    .by_layout = true,
    .payload = "n + 64 C bits, C columns of all tensors, each tensor padded to 32 bits",
    .make_host = make_method_codec<Space::host, OneBit>,
};

}  // namespace gradtool
