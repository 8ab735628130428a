#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace gradtool {

/// A parameter that a codec takes in `name:key=value,...`: what it is, what is valid, what it is when not given.
struct ParamInfo {
  enum class Kind : std::uint8_t { integer, real, choice };
  std::string_view name;
  Kind kind = Kind::real;
  std::string_view default_value;
  double min = 0.0;  ///< smallest valid number; unused for a choice
  double max = 0.0;  ///< largest
  std::string_view choices =
      {};  ///< "max|l2": valid words; for a number, words that are valid besides numbers ("auto")
  /// "0.01|0.1|1": values that `gradtool tune` begins with, in ascending order; empty: it leaves the default.
  std::string_view search = {};
  std::string_view meaning = {};
  std::string_view condition = {};  ///< "mode=rate": with another mode the parameter counts for nothing; empty: none

  /// A copy that has what `gradtool tune` begins with.
  [[nodiscard]] constexpr ParamInfo searched(std::string_view values) const {
    ParamInfo info = *this;
    info.search = values;
    return info;
  }
  /// A copy that counts only where another parameter, a choice, has that value.
  [[nodiscard]] constexpr ParamInfo only_with(std::string_view other) const {
    ParamInfo info = *this;
    info.condition = other;
    return info;
  }
  /// A copy for numbers that takes these words, too.
  [[nodiscard]] constexpr ParamInfo or_words(std::string_view words) const {
    ParamInfo info = *this;
    info.choices = words;
    return info;
  }
};

struct NumberRange {
  double min, max;  ///< both valid
};

[[nodiscard]] constexpr ParamInfo real_param(std::string_view name, std::string_view default_value, NumberRange range,
                                             std::string_view meaning) {
  return {name, ParamInfo::Kind::real, default_value, range.min, range.max, {}, {}, meaning};
}
[[nodiscard]] constexpr ParamInfo integer_param(std::string_view name, std::string_view default_value,
                                                NumberRange range, std::string_view meaning) {
  return {name, ParamInfo::Kind::integer, default_value, range.min, range.max, {}, {}, meaning};
}
/// `choices`: "max|l2".
[[nodiscard]] constexpr ParamInfo choice_param(std::string_view name, std::string_view default_value,
                                               std::string_view choices, std::string_view meaning) {
  return {name, ParamInfo::Kind::choice, default_value, 0.0, 0.0, choices, {}, meaning};
}

/// The parameter `index` of codecs with sparse payloads (IndexCoding in kernels/sparse.hpp).
inline constexpr ParamInfo kIndexParam =
    choice_param("index", "auto", "auto|u32|bitmap|elias", "how positions are written; auto takes the smallest");

/// The parameters of one codec, checked against its ParamInfo list, defaults filled in.
class Params {
 public:
  /// `text` is what stands behind the colon. Throws Fault::usage with one sentence naming codec, key and valid values,
  /// also for a value besides the default of a parameter that counts for nothing.
  Params(std::string_view codec, std::span<const ParamInfo> infos, std::string_view text);

  [[nodiscard]] std::int64_t integer(std::string_view name) const;
  [[nodiscard]] double real(std::string_view name) const;
  [[nodiscard]] const std::string& word(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const { return values_.contains(name); }
  /// Whether the other parameter that `info` depends on has the value with which it counts.
  [[nodiscard]] bool counts(const ParamInfo& info) const;
  /// True when the value is the word `word` ("auto") and not a number.
  [[nodiscard]] bool is(std::string_view name, std::string_view word) const { return this->word(name) == word; }

  /// "bits=4,bucket=512": all parameters in declared order, the same text for the same values, in whatever digits they
  /// were given. Parsing it again gives these values.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::map<std::string, std::string, std::less<>> values_;
  std::string text_;
};

}  // namespace gradtool
