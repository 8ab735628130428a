#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gradtool {

struct KindAndLayout {
  std::string kind, layout;
};

/// The probable kind of a parameter of this name and shape, by the names that PyTorch, Hugging Face and JAX models use
/// (docs/import.md has the rules). What is not known is `other`.
[[nodiscard]] KindAndLayout guess_kind(const std::string& name, const std::vector<std::int64_t>& shape);

/// A kind that the user states for all parameters whose names match a regular expression.
struct KindRule {
  std::string pattern, kind;
};
/// Parses "pattern=kind". Throws Fault::usage for other text, an unknown kind and a malformed pattern.
[[nodiscard]] KindRule parse_kind_rule(const std::string& text);
/// The kind of the last rule that matches, else the guess.
[[nodiscard]] KindAndLayout kind_of(const std::string& name, const std::vector<std::int64_t>& shape,
                                    const std::vector<KindRule>& rules);

}  // namespace gradtool
