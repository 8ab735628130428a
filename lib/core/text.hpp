#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradtool {

/// The candidate nearest to `word` by edit distance, or empty when none is near enough to be what was meant.
[[nodiscard]] std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// "25MB", "4MiB", "512K", "1.5GB", "1000" to bytes. MB = 1e6 and MiB = 2^20; a bare K, M, G is a power of two, as in
/// nccl-tests. Throws Fault::usage naming `what` when it is none of these.
[[nodiscard]] std::uint64_t parse_bytes(std::string_view text, std::string_view what);

/// "12.3 kB", "4.2 MB": three significant digits, decimal prefixes.
[[nodiscard]] std::string human_bytes(double bytes);
/// "12.3 us", "4.20 ms", "1.5 s", "3 min 20 s".
[[nodiscard]] std::string human_seconds(double seconds);

/// True when `pattern` (ECMAScript regular expression) is found in `text`. Throws Fault::usage for a malformed pattern.
[[nodiscard]] bool matches(const std::string& pattern, const std::string& text);

}  // namespace gradtool
