#include "lib/import/kinds.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/core/utf8.hpp"
#include "lib/io/schema.hpp"

namespace gradtool {
namespace {

/// The words of a name in lower case: "layers.0.ln_1.weight" has layers, 0, ln, 1 and weight.
std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (c == '.' || c == '/' || c == '_' || c == '-' || c == ' ') {
      words.emplace_back();
    } else {
      words.back() += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  return words;
}

/// The layout that a kind mostly has with so many dimensions.
std::string layout_of(const std::string& kind, std::size_t rank) {
  if (kind == "conv" && rank == 4) return "OIHW";
  return (kind == "linear" || kind == "expert" || kind == "router") && rank == 2 ? "OI" : "";
}

}  // namespace

KindAndLayout guess_kind(const std::string& name, const std::vector<std::int64_t>& shape) {
  const auto words = words_of(name);
  // Whether a word is one of these, but for digits at its end ("bn1"), or holds one that no other word holds by chance.
  const auto any = [&](auto&& test) { return std::any_of(words.begin(), words.end(), test); };
  const auto is = [](const std::string& word, std::initializer_list<std::string_view> wanted) {
    const std::string_view stem = std::string_view{word}.substr(0, word.find_last_not_of("0123456789") + 1);
    return std::find(wanted.begin(), wanted.end(), stem) != wanted.end();
  };
  const bool norm = any([&](const std::string& word) {
    return word.find("norm") != std::string::npos || is(word, {"ln", "bn", "gn", "layernorm", "rmsnorm"});
  });
  const bool embedding = any([&](const std::string& word) {
    return word.find("embed") != std::string::npos || is(word, {"wte", "wpe", "emb"});
  });
  const bool recurrent = any([&](const std::string& word) { return is(word, {"lstm", "gru", "rnn", "ih", "hh"}); });
  std::string kind = "other";
  if (shape.size() <= 1 && norm) {
    kind = "norm";
  } else if (shape.size() <= 1 && !words.empty() && (words.back().ends_with("bias") || words.back() == "b")) {
    kind = "bias";
  } else if (shape.size() >= 2 && any([&](const std::string& word) { return is(word, {"expert", "experts"}); })) {
    kind = "expert";
  } else if (shape.size() == 2 && any([&](const std::string& word) { return is(word, {"router"}); })) {
    kind = "router";
  } else if (shape.size() == 4) {
    kind = "conv";
  } else if (shape.size() == 2) {
    kind = embedding ? "embedding" : recurrent ? "recurrent" : "linear";
  }
  return {kind, layout_of(kind, shape.size())};
}

KindRule parse_kind_rule(const std::string& text) {
  // A pattern may hold an equals sign, a kind cannot.
  const std::size_t at = text.rfind('=');
  KindRule rule{text.substr(0, at), at == std::string::npos ? "" : text.substr(at + 1)};
  if (at == std::string::npos || rule.pattern.empty() ||
      std::find(schema::kKinds.begin(), schema::kKinds.end(), rule.kind) == schema::kKinds.end()) {
    throw_error(Fault::usage, "--kind '{}' is not valid; write PATTERN=KIND, where KIND is one of {}", printable(text),
                joined(schema::kKinds, ", "));
  }
  static_cast<void>(matches(rule.pattern, ""));
  return rule;
}

KindAndLayout kind_of(const std::string& name, const std::vector<std::int64_t>& shape,
                      const std::vector<KindRule>& rules) {
  for (std::size_t i = rules.size(); i-- > 0;) {
    if (matches(rules[i].pattern, name)) return {rules[i].kind, layout_of(rules[i].kind, shape.size())};
  }
  return guess_kind(name, shape);
}

}  // namespace gradtool
