#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "lib/reduce/reducer.hpp"

namespace gradtool {

/// What a reducer is made from. The references need not outlive the call.
template <Space S>
struct ReducerSetup {
  const CodecSpec& spec;
  std::shared_ptr<const Codec<S>> codec;  ///< null where the descriptor has none
  const Layout& layout;
  int ranks = 1;
  Queue<S> queue;
};

/// A method that is several collectives, or an agreement between ranks (Aggregation::own): the reducer that carries
/// the codec of the same name.
struct OwnReducer {
  std::string_view codec;
  std::unique_ptr<Reducer<Space::host>> (*make_host)(const ReducerSetup<Space::host>&) = nullptr;
  std::unique_ptr<Reducer<Space::cuda>> (*make_cuda)(const ReducerSetup<Space::cuda>&) = nullptr;
};

/// All of them, sorted by name: a table that CMake generates from the list in lib/reduce/CMakeLists.txt, where reducer
/// <name> is <name>.cpp with its `<name>_reducer`.
[[nodiscard]] std::span<const OwnReducer* const> own_reducers();
/// Throws std::logic_error when a codec declares Aggregation::own and has no reducer: a mistake in CMake.
[[nodiscard]] const OwnReducer& find_own_reducer(std::string_view codec);

}  // namespace gradtool
