#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/host/bit_stream.hpp"
#include "kernels/law/sparse.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// The parameter `index` of sparse codecs and what follows from it.
class IndexCoding {
 public:
  explicit IndexCoding(const std::string& word);

  [[nodiscard]] bool automatic() const { return automatic_; }
  [[nodiscard]] IndexCode fixed() const { return fixed_; }  ///< where it is not automatic

  /// Bytes that the index section may take, a multiple of 4.
  [[nodiscard]] std::size_t bound(std::size_t k, std::size_t n) const;

  /// What these positions will be written as: the word asked for, or the smallest. O(k).
  using Choice = law::IndexChoice;
  [[nodiscard]] Choice choose(HostView<const std::uint32_t> positions, std::size_t n) const;

  /// Writes choice.bytes bytes to `out`, which is aligned to 4.
  static void write(Queue<Space::host> queue, const Choice& choice, HostView<const std::uint32_t> positions,
                    std::size_t n, std::byte* out);

  /// positions := the k positions of a section. Throws Fault::data, in the name of `codec`, for anything that is not k
  /// ascending positions below n in exactly section.size() bytes.
  static void read(std::string_view codec, IndexCode code, HostView<const std::byte> section, std::size_t n,
                   HostView<std::uint32_t> positions);

 private:
  bool automatic_;
  IndexCode fixed_ = IndexCode::u32;
};

/// For a codec's list of parameters.
inline constexpr ParamInfo kIndexParam{.name = "index",
                                       .kind = ParamInfo::Kind::choice,
                                       .default_value = "auto",
                                       .choices = "auto|u32|bitmap|elias",
                                       .meaning = "how positions are written; auto takes the smallest"};

/// Reads and checks the header against the payload's length and n: k <= n, a known code, at least `bytes_per_value` k /
/// 8 more bytes. Throws Fault::data in the name of `codec`.
[[nodiscard]] SparseHeader read_sparse_header(std::string_view codec, HostView<const std::byte> payload, std::size_t n,
                                              std::size_t bits_per_value);

/// A whole payload of k float32 values and their positions (ascending), as topk, dgc, dct and sidco send it. `out` has
/// sparse_bound bytes; the number that was written is also its first 8 bytes.
std::size_t write_sparse(Queue<Space::host> queue, const IndexCoding& coding, HostView<const std::uint32_t> positions,
                         HostView<const float> values, std::size_t n, HostView<std::byte> out);
[[nodiscard]] inline std::size_t sparse_bound(const IndexCoding& coding, std::size_t k, std::size_t n) {
  return sizeof(SparseHeader) + 4 * k + coding.bound(k, n);
}
/// out[position] += weight * value for all of them. `positions` is scratch for up to out.size() of them, or as many as
/// the caller knows there can be.
void add_sparse(std::string_view codec, HostView<const std::byte> payload, float weight, HostView<float> out,
                HostView<std::uint32_t> positions);

}  // namespace gradtool
