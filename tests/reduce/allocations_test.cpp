// No reducer allocates in the timed region. A program of its own, because counting replaces operator new.
#include <gtest/gtest.h>

#include "lib/codecs/pipelined.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

TEST(ReducerAllocations, NoneInTheTimedRegion) {
  ASSERT_TRUE(AllocationWatch::active());
  auto specs = own_specs();
  for (const auto* codec : codecs()) {
    if (codec->aggregation != Aggregation::own) specs.emplace_back(codec->name);
  }
  specs.emplace_back("topk:ef=ef21");
  specs.emplace_back("topk:ef=ef21m");
  specs.emplace_back("fp16:ef=ef21");
  for (const auto& spec : specs) {
    const auto out = run_model({.codec = spec, .ranks = 2, .steps = 6});
    EXPECT_EQ(out.allocations, 0U) << spec;
  }
}

/// Allocations of all ranks and of all their chunks' threads, in six steps of three chunks.
std::uint64_t allocations_when_pipelined(const std::string& codec) {
  const auto spec = parse_codec(codec);
  const Layout layout = small_model();
  const std::size_t n = layout.elements;
  std::uint64_t allocations = 0;
  run_threads(2, [&](Communicator<Space::host>& comm) {
    TaskPool threads{3};
    const auto reducer = make_pipelined_reducer(spec, make_codec<Space::host>(spec, layout), Scheme::automatic, layout,
                                                2, {}, 3, threads);
    Arena<Space::host> arena{reducer->workspace_bytes() + 256};
    const auto workspace = arena.take_bytes(reducer->workspace_bytes());
    NoClock<Space::host> clock;
    for (int step = 0; step < 6; ++step) {
      auto x = model_gradient(n, comm.rank(), step);
      comm.barrier({});  // from here to the next but one nobody does anything else
      const AllocationWatch watch;
      comm.barrier({});
      reducer->reduce(
          comm, {}, {x.data(), n}, {},
          {.key = {.step = static_cast<std::uint32_t>(step), .rank = static_cast<std::uint32_t>(comm.rank())},
           .iteration = step},
          workspace, clock);
      comm.barrier({});
      if (comm.rank() == 0) allocations += watch.in_process();
      comm.barrier({});
    }
  });
  return allocations;
}

TEST(ReducerAllocations, NoneInAPipelineOfChunks) {
  ASSERT_TRUE(AllocationWatch::active());
  for (const auto* codec : codecs()) EXPECT_EQ(allocations_when_pipelined(std::string{codec->name}), 0U) << codec->name;
}

}  // namespace
}  // namespace gradtool::test
