#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/codecs/registry.hpp"

namespace gradtool {

/// One choice of parameters: a codec of a SearchSpace, and a value for each parameter that is searched.
struct Setting {
  std::size_t codec = 0;      ///< position in the space
  std::vector<double> point;  ///< for each searched parameter its number, or which of its words
  std::string spec;           ///< as --codec takes it
};

/// The settings among which a search looks. A codec's parameters that were given keep their values; of the others those
/// with a ParamInfo::search are searched, and what the search finds between two of these values as well, where they are
/// numbers: any real one, and integers below 64. Larger integers are sizes of blocks, which must be whole multiples.
class SearchSpace {
 public:
  /// `codecs` as parse_codec() takes them, whose exceptions this throws.
  explicit SearchSpace(const std::vector<std::string>& codecs);

  /// Every combination of the values that the registry has. Those of all codecs that are nearest to their defaults come
  /// first: what no time is left for are the others.
  [[nodiscard]] std::vector<Setting> grid();

  /// Halfway from a setting to the next ones that were handed out before and differ from it in one number: at most two
  /// for each parameter. None is handed out twice.
  [[nodiscard]] std::vector<Setting> around(const Setting& setting);

 private:
  struct Axis {
    const ParamInfo* info;
    std::vector<std::string> words;  ///< of a choice
    std::vector<double> numbers;     ///< of anything else
    bool geometric = false;          ///< halfway is the geometric mean
  };
  struct Codec {
    CodecSpec spec;
    std::vector<Axis> axes;
    std::set<std::string> handed_out;
    std::vector<std::vector<double>> points;  ///< of those
  };

  /// Empty where that was handed out before.
  std::optional<Setting> hand_out(std::size_t codec, std::vector<double> point);

  std::vector<Codec> codecs_;
};

/// The result of measuring a setting.
struct Found {
  double error = 0.0;    ///< relative, as it will be over all steps
  double seconds = 0.0;  ///< of a step or an iteration
  bool sure = true;      ///< whether the advice may take it as it is; if not, it needs a trial
};
/// Measures settings, each by its spec, in round `round` of a search. Empty for those that had no turn; an infinite
/// error for those that came to no result.
using MeasureSettings =
    std::function<std::vector<std::optional<Found>>(const std::vector<std::string>& specs, int round)>;

/// A setting and what a round of the search found of it.
struct Trial {
  Setting setting;
  int round = 0;
  std::optional<Found> found;
};

struct SearchResult {
  std::vector<Trial> trials;           ///< of all rounds
  std::vector<std::string> finalists;  ///< specs, the fastest first; what is not worth measuring in full is not there
};

/// The rounds of a search.
constexpr int kSearchRounds = 6;
/// How far above the limit an error may be in a round that goes over some of the steps only.
[[nodiscard]] double search_slack(int round);

/// Looks for the settings that take the least time with an error of at most `max_error`, and for slower ones with less
/// error: successive halving (Jamieson and Talwalkar, AISTATS 2016), where `measure` should look the more closely the
/// later the round. The first round measures the whole grid. Each of the others measures a third as many settings, but
/// twelve at least: the fastest whose error is within the limit, at most a third of these of one codec, each with what
/// is halfway to its neighbours (SearchSpace::around), and behind them others that no setting beats in both error and
/// time. Every other one of the fastest is `sure`, as long as there are such, and of the finalists too: what needs a
/// trial crowds out nothing that does not. Steps between values so become 2^(1/16) of the grid's by the end.
[[nodiscard]] SearchResult search(SearchSpace& space, double max_error, const MeasureSettings& measure);

}  // namespace gradtool
