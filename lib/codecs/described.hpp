#pragma once

#include <span>
#include <string>

#include "lib/codecs/registry.hpp"

namespace gradtool {

/// Facts about codecs for programs, as `gradtool list codecs --json` and Python's `codecs()` have them: a JSON array
/// with an object for each.
[[nodiscard]] std::string described(std::span<const CodecDescriptor* const> codecs);

}  // namespace gradtool
