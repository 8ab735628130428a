#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <type_traits>

namespace gradtool {

/// The words of an enum whose values count from 0. Beside the enum stands `constexpr auto spellings(E) { return
/// words("first", "second"); }`, which name_of() and named() find by the enum's namespace.
template <class... Word>
[[nodiscard]] constexpr std::array<std::string_view, sizeof...(Word)> words(const Word&... word) {
  return {word...};
}

template <class E>
concept Spelled = std::is_enum_v<E> && requires(E value) {
  spellings(value);
};

template <Spelled E>
[[nodiscard]] constexpr std::string_view name_of(E value) {
  return spellings(value)[static_cast<std::size_t>(value)];
}

/// Empty for a word that is none of these.
template <Spelled E>
[[nodiscard]] constexpr std::optional<E> named(std::string_view word) {
  constexpr auto kAll = spellings(E{});
  const auto found = std::find(kAll.begin(), kAll.end(), word);
  return found == kAll.end() ? std::nullopt : std::optional{static_cast<E>(found - kAll.begin())};
}

}  // namespace gradtool
