#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/codecs/adacomp_bins.hpp"
#include "lib/codecs/adacomp_mark.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

// What adacomp's payload has for a tensor: a count for each bin, then the entries, each an index in its bin and a
// ternary code. All are of one byte or of two, as the tensor's width() says.

/// Writes the counts and entries of a piece; what was sent is taken off the residue (none where it is null). `counts`
/// are the tensor's, `place` is how many entries of the tensor lie before the piece's.
void adacomp_write(const AdaCompBins& bins, const AdaCompBins::Piece& piece, const std::uint32_t* marks,
                   HostView<const float> gradient, float* residue, float scale, std::byte* counts, std::size_t place);

/// places[i].place := how many entries of the tensor lie before those of its piece i; returns the bytes that counts and
/// entries take of `tail`, which starts with them. Throws Fault::data where they do not fit.
[[nodiscard]] std::size_t adacomp_place(const AdaCompBins& bins, const AdaCompBins::Tensor& tensor,
                                        HostView<const std::byte> tail, AdaCompFound* places);

/// out += scale * sign for the entries of a piece. Throws Fault::data for entries that cannot have been written.
void adacomp_add(const AdaCompBins& bins, const AdaCompBins::Piece& piece, HostView<const std::byte> tail,
                 std::size_t place, float scale, HostView<float> out);

[[noreturn]] void bad_adacomp_payload(const char* what);

}  // namespace gradtool
