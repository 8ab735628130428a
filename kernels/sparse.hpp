#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/bit_stream.hpp"
#include "kernels/float_bits.hpp"
#include "lib/core/view.hpp"

/// Sparse payloads: chosen values and their positions (docs/payload-format.md), written and read on both processors.
namespace gradtool {

/// How a sparse payload says which of n positions its k values have. Positions ascend and do not repeat.
enum class IndexCode : std::uint32_t {
  u32 = 0,     ///< 4k bytes
  bitmap = 1,  ///< 4 ceil(n/32) bytes: bit i mod 32 of word i div 32
  elias = 2,   ///< Elias delta codes of the gaps (position - previous, the first + 1), padded to 4 bytes
};

/// The head of a sparse payload. The values follow, in the codec's own form, and then the index section, aligned to 4.
struct SparseHeader {
  std::uint64_t bytes = 0;  ///< size of the whole payload
  std::uint32_t count = 0;  ///< k
  std::uint32_t code = 0;   ///< IndexCode
};
static_assert(sizeof(SparseHeader) == 16);

namespace format {

// Further codes, of payloads whose values are signs only (strom).
inline constexpr std::uint32_t kSignedWords = 3;          ///< words of position and sign, without a section of values
inline constexpr std::uint32_t kWordIndex = 0x7fffffffu;  ///< the bits of such a word that are the position
inline constexpr std::uint32_t kNotFinite = 256;          ///< is added to a code where all values decode to NaN

struct IndexChoice {
  IndexCode code = IndexCode::u32;
  std::size_t bytes = 0;
};

GT_HD constexpr std::size_t words_of_bits(std::size_t bits) {
  return (bits + 31) / 32;
}
/// The size of an index section of k positions below n whose gaps take `elias_bits`.
GT_HD constexpr std::size_t index_bytes(IndexCode code, std::size_t k, std::size_t n, std::size_t elias_bits) {
  return code == IndexCode::u32 ? 4 * k : 4 * words_of_bits(code == IndexCode::bitmap ? n : elias_bits);
}
/// index=auto: the smallest; of equal ones, the lowest code.
GT_HD constexpr IndexChoice smallest_index(std::size_t k, std::size_t n, std::size_t elias_bits) {
  IndexChoice best{IndexCode::u32, 4 * k};
  const std::size_t bitmap = index_bytes(IndexCode::bitmap, k, n, elias_bits);
  if (bitmap < best.bytes) best = {IndexCode::bitmap, bitmap};
  const std::size_t elias = index_bytes(IndexCode::elias, k, n, elias_bits);
  if (elias < best.bytes) best = {IndexCode::elias, elias};
  return best;
}

}  // namespace format

/// The parameter `index` of sparse codecs (kIndexParam in lib/codecs/params.hpp), and sections written as it says.
class IndexCoding {
 public:
  explicit IndexCoding(const std::string& word);

  [[nodiscard]] bool automatic() const { return automatic_; }
  [[nodiscard]] IndexCode fixed() const { return fixed_; }  ///< the code, where it is not automatic

  /// Bytes that the index section takes at most, a multiple of 4.
  [[nodiscard]] std::size_t bound(std::size_t k, std::size_t n) const;

  /// The code for these positions: the one that was asked for, or the smallest. O(k).
  using Choice = format::IndexChoice;
  [[nodiscard]] Choice choose(HostView<const std::uint32_t> positions, std::size_t n) const;

  /// Writes choice.bytes bytes to `out`, which is aligned to 4.
  static void write(Queue<Space::host> queue, const Choice& choice, HostView<const std::uint32_t> positions,
                    std::size_t n, std::byte* out);

  /// positions := the positions.size() positions of a section. Throws Fault::data, in the name of `codec`, for a
  /// section that is not so many ascending positions below n in exactly section.size() bytes.
  static void read(std::string_view codec, IndexCode code, HostView<const std::byte> section, std::size_t n,
                   HostView<std::uint32_t> positions);

 private:
  bool automatic_;
  IndexCode fixed_ = IndexCode::u32;
};

/// Reads the header and checks it against the payload's length and n: k <= n, a known code, and room for k values of
/// `bits_per_value`. Throws Fault::data in the name of `codec`.
[[nodiscard]] SparseHeader read_sparse_header(std::string_view codec, HostView<const std::byte> payload, std::size_t n,
                                              std::size_t bits_per_value);

/// Writes a whole payload of k float32 values and their positions, ascending, as topk, dgc, dct and sidco send it.
/// `out` has sparse_bound bytes. Returns the number that was written, which is also the first 8 bytes of `out`.
std::size_t write_sparse(Queue<Space::host> queue, const IndexCoding& coding, HostView<const std::uint32_t> positions,
                         HostView<const float> values, std::size_t n, HostView<std::byte> out);
[[nodiscard]] inline std::size_t sparse_bound(const IndexCoding& coding, std::size_t k, std::size_t n) {
  return sizeof(SparseHeader) + 4 * k + coding.bound(k, n);
}
/// The values of such a payload, which lie behind its header. write_sparse copies nothing if they are there already.
template <Space S>
[[nodiscard]] View<float, S> sparse_values(View<std::byte, S> payload, std::size_t k) {
  return {reinterpret_cast<float*>(payload.data() + sizeof(SparseHeader)), k};
}
/// k = round(ratio n), halves away from zero, at least 1 and at most n.
[[nodiscard]] inline std::size_t share_of(double ratio, std::size_t n) {
  const auto wanted = static_cast<std::size_t>(std::llround(ratio * static_cast<double>(n)));
  return std::clamp<std::size_t>(wanted, std::min<std::size_t>(n, 1), n);
}
/// out[position] += weight * value for all values of a payload. `positions` is scratch for as many positions as there
/// can be; more in a payload are Fault::data.
void add_sparse(std::string_view codec, HostView<const std::byte> payload, float weight, HostView<float> out,
                HostView<std::uint32_t> positions);

}  // namespace gradtool

/// The GPU versions give the same bytes and sums, with counts that only the GPU knows. Everything is enqueued and
/// allocates nothing.
namespace gradtool::cuda {

/// The shape that all payloads of a codec have.
struct SparseShape {
  std::size_t n = 0;              ///< elements of the gradient
  std::size_t most = 0;           ///< values of a payload, at most
  bool automatic = true;          ///< whether the smallest index code is chosen
  IndexCode fixed{};              ///< the index code otherwise
  std::uint32_t value_bits = 32;  ///< 32 for float32 values; 1 for signs, set for negative values, 32 to a word
  /// Whether words of position and sign may take the place of both sections, where values are signs.
  enum class Words : std::uint32_t { never, smallest, always } words = Words::never;

  /// Bytes that k values take.
  [[nodiscard]] GT_HD constexpr std::size_t value_bytes(std::size_t k) const {
    return 4 * format::words_of_bits(k * value_bits);
  }
};

/// The source of a payload of signs; unused for float32 values.
struct SparseSigns {
  const float* values = nullptr;              ///< the chosen values
  const std::uint32_t* not_finite = nullptr;  ///< on the GPU; where it is not 0, all values decode to NaN
};

/// Scratch of write_sparse, and that of add_sparse and mark_sparse. Asks the current GPU, so call it before the clock
/// starts.
[[nodiscard]] std::size_t write_sparse_scratch_bytes(const SparseShape& shape);
[[nodiscard]] std::size_t read_sparse_scratch_bytes(const SparseShape& shape);
/// Scratch for whichever of them.
[[nodiscard]] inline std::size_t sparse_scratch_bytes(const SparseShape& shape) {
  return std::max(write_sparse_scratch_bytes(shape), read_sparse_scratch_bytes(shape));
}

/// Writes header and index section of `payload`, which is 4-byte aligned and large enough for any choice, for *count
/// ascending positions. float32 values are written by whoever chose them (sparse_values). Where the payload is the end
/// of a larger one, `front` bytes lie before it, and the first 8 of them become the size of the whole.
void write_sparse(Queue<Space::cuda> queue, const SparseShape& shape, const std::uint32_t* positions,
                  const std::uint32_t* count, std::byte* payload, View<std::byte, Space::cuda> scratch,
                  std::size_t front = 0, const SparseSigns& signs = {});

/// One of many gradients, of which the k largest elements are sent.
struct LargestUnit {
  const float* from;
  std::byte* to;       ///< the payload
  std::byte* scratch;  ///< a part of the batch's
  std::uint32_t n, k;
};

/// Payloads of float32 values, each of the largest elements of a gradient, as Select::largest, Select::write and
/// write_sparse make one: the same bytes, in eight launches for up to kMost gradients, or as many as `scratch` has room
/// for.
class LargestBatch {
 public:
  static constexpr std::size_t kMost = 96;

  /// `form`: all of a shape but its n and most. `scratch`, 256-byte aligned, holds at least what one needs by itself,
  /// Select::scratch_bytes and write_sparse_scratch_bytes, and is in use until the last flush is done.
  LargestBatch(Queue<Space::cuda> queue, const SparseShape& form, View<std::byte, Space::cuda> scratch);

  /// Adds a gradient of fewer than Select::kMany elements, after a flush where there is no room. 1 <= k <= its size.
  void add(View<const float, Space::cuda> from, std::size_t k, std::byte* to);
  /// Enqueues what was added.
  void flush();

 private:
  Queue<Space::cuda> queue_;
  SparseShape form_;
  View<std::byte, Space::cuda> scratch_;
  std::array<LargestUnit, kMost> units_{};
  std::size_t count_ = 0, used_ = 0;  ///< units, and bytes of their scratch
};

/// The payload of no values at all: its header.
void write_empty_sparse(Queue<Space::cuda> queue, const SparseShape& shape, std::byte* payload);

/// A second task of add_sparse at the positions of a payload: kept[position] := 0 if its pattern is at least `low`.
struct SparseForget {
  float* kept = nullptr;  ///< of the length of `out`, or null for nothing
  std::uint32_t low = 1;
};

/// out[position] += weight * value for all values of a payload, which may be shorter than its view (at least 16 bytes,
/// 4-byte aligned). A header that contradicts itself or `shape` makes all of `out` NaN; positions behind the end are
/// skipped, and nothing is read behind the view. With value_bits = 1 a value is 1, -1 or NaN.
void add_sparse(Queue<Space::cuda> queue, const SparseShape& shape, View<const std::byte, Space::cuda> payload,
                float weight, float* out, View<std::byte, Space::cuda> scratch, const SparseForget& forget = {});

/// One of many payloads whose values are added to their sums.
struct AddedUnit {
  const std::byte* payload;
  float* out;
  std::byte* scratch;            ///< a part of the batch's
  std::uint32_t n, most, bytes;  ///< of the shape, and of the view
  std::uint32_t units;           ///< parts of the largest index section of the shape
};

/// add_sparse of many payloads in three launches for up to kMost of them, or as many as `scratch` has room for.
class AddedBatch {
 public:
  static constexpr std::size_t kMost = 80;

  /// `form`: all of a shape but its n and most. `scratch`, 256-byte aligned, holds at least what any one needs,
  /// read_sparse_scratch_bytes, and is in use until the last flush is done.
  AddedBatch(Queue<Space::cuda> queue, const SparseShape& form, float weight, View<std::byte, Space::cuda> scratch);

  /// Adds a payload of at most `most` values, after a flush where there is no room.
  void add(View<const std::byte, Space::cuda> payload, std::size_t most, View<float, Space::cuda> out);
  /// Enqueues what was added.
  void flush();

 private:
  Queue<Space::cuda> queue_;
  SparseShape form_;
  float weight_;
  View<std::byte, Space::cuda> scratch_;
  std::array<AddedUnit, kMost> units_{};
  std::size_t count_ = 0, used_ = 0;  ///< units, and bytes of their scratch
};

/// Sets the bits of the elements that have a value in a payload, in a bitmap over shape.n elements. A header that
/// contradicts itself or `shape` sets all of them.
void mark_sparse(Queue<Space::cuda> queue, const SparseShape& shape, View<const std::byte, Space::cuda> payload,
                 std::uint32_t* words, View<std::byte, Space::cuda> scratch);

}  // namespace gradtool::cuda

namespace gradtool {

/// The shape of a payload of at most `most` values of `n` elements, of `value_bits` each.
[[nodiscard]] inline cuda::SparseShape sparse_shape(const IndexCoding& coding, std::size_t most, std::size_t n,
                                                    std::uint32_t value_bits = 32) {
  return {n, most, coding.automatic(), coding.fixed(), value_bits};
}

}  // namespace gradtool
