#pragma once

#include <memory>
#include <string>

#include "kernels/law/strom.hpp"
#include "lib/codecs/codec.hpp"

namespace gradtool {

/// form=dense: two bits for every element, as MXNet's.
[[nodiscard]] std::unique_ptr<Codec<Space::host>> make_dense_strom(law::Strom law);
/// form=sparse: which elements, and their signs. `index`: words, or as IndexCoding.
[[nodiscard]] std::unique_ptr<Codec<Space::host>> make_sparse_strom(law::Strom law, const std::string& index);

}  // namespace gradtool
