// Messages of each library: gloo's loop replayed event by event, the hook's messages against those that its
// communicator counts, and the sizes at which Open MPI changes its algorithms.
#include "lib/model/library.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "lib/comm/launch.hpp"
#include "lib/core/error.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/model/cost_model.hpp"

namespace gradtool::test {
namespace {

Network lab(Library library, const std::string& more = "") {
  Network network = Network::parse("lab:alpha=10us,beta=1GBps" + more);
  network.library = library;
  return network;
}

/// The loop of gloo's ring for one phase: operation i is begun when operation i - 2 has come to its end. Its bytes
/// leave once the receiver's note is there and the link has carried those before.
struct Loop {
  double seconds = 0.0;
  double messages = 0.0;
};
Loop gloo_loop(const Link& link, std::size_t operations, double bytes) {
  std::vector<double> ends;
  double link_free = 0.0;
  for (std::size_t i = 0; i < operations; ++i) {
    const double begun = i < 2 ? 0.0 : ends[i - 2];
    link_free = std::max(begun + link.alpha, link_free) + bytes / link.beta;
    ends.push_back(link_free + link.alpha);
  }
  return {ends.empty() ? 0.0 : ends.back(), static_cast<double>(operations)};
}

TEST(Library, GloosRingSendsSegmentsOfWhichTwoAreUnderWay) {
  const Network network = lab(Library::gloo);
  for (const std::size_t p : {2, 3, 4, 7, 8, 16, 64}) {
    for (const std::size_t bytes : {4'096UL, 262'144UL, 3'000'000UL, 25'000'000UL, 400'000'000UL}) {
      std::size_t segments = std::max((bytes + (1U << 20) - 1) >> 20, 2 * p);
      segments += (p - segments % p) % p;
      const Loop phase = gloo_loop(network.link, segments - segments / p, static_cast<double>(bytes) / segments);
      const auto cost = library_all_reduce(network, static_cast<double>(p), static_cast<double>(bytes));
      EXPECT_NEAR(cost.seconds, 2.0 * phase.seconds, 1e-9 * phase.seconds) << p << " ranks, " << bytes;
      EXPECT_EQ(cost.messages, 2.0 * phase.messages) << p << " ranks, " << bytes;
      const Loop parts = gloo_loop(network.link, 2 * (p - 1), static_cast<double>(bytes) / 2.0);
      const auto gathered = library_all_gather(network, static_cast<double>(p), static_cast<double>(bytes));
      EXPECT_NEAR(gathered.seconds, parts.seconds, 1e-9 * parts.seconds) << p << " ranks, " << bytes;
      EXPECT_EQ(gathered.messages, parts.messages);
    }
  }
  // A small bucket waits for twice the latencies of a ring of single messages; a large one for its bytes alone.
  EXPECT_NEAR(library_all_reduce(network, 8, 16e3).seconds, 28 * 10e-6 + (14 + 2) * 1e-6, 1e-9);
  EXPECT_NEAR(library_all_reduce(network, 8, 1e9).seconds, 1.75 + 4 * 10e-6, 1e-9);
  // The root of a broadcast among 8 serves three children at once, its first child two, and that one's child one.
  EXPECT_NEAR(library_broadcast(network, 8, 1e6).seconds, 4 * 10e-6 + 6 * 1e-3, 1e-9);
}

/// Messages and bytes of the rank that sends most, as the communicator counts them.
struct Counted {
  double messages = 0.0, bytes = 0.0;
};
template <class Work>
Counted counted(int ranks, Work work) {
  Counted most;
  std::mutex mutex;
  run_threads(ranks, [&](Communicator<Space::host>& comm) {
    TaskPool pool{1};
    comm.set_all_reduce(AllReduce::automatic);
    comm.reset_traffic();
    work(comm, Queue<Space::host>{&pool});
    const std::scoped_lock lock{mutex};
    most.messages = std::max(most.messages, static_cast<double>(comm.traffic().messages_sent));
    most.bytes = std::max(most.bytes, static_cast<double>(comm.traffic().bytes_sent));
  });
  return most;
}

TEST(Library, TheHookSendsWhatItsCommunicatorCounts) {
  const Network network = lab(Library::hook);
  using Kind = CollectiveUse::Kind;
  for (int p = 2; p <= 16; ++p) {
    // Sums of 64 KiB are doubled, larger ones go round the ring; 720 values more make segments of one size.
    for (const std::size_t bytes : {std::size_t{4096}, kDoublingMost, kDoublingMost + 4UL * 720720UL}) {
      const auto model = [&](Kind kind, double size) {
        const CollectiveUse use{.kind = kind, .calls = 1.0, .bytes = size};
        return model_step({&use, 1}, network, p, p);
      };
      const auto check = [&](const char* what, const ModelledStep& step, const Counted& real) {
        EXPECT_EQ(step.messages, real.messages) << what << " of " << bytes << " among " << p;
        EXPECT_NEAR(step.wire_bytes, real.bytes, 16.0 * p) << what << " of " << bytes << " among " << p;
      };
      check("all_reduce", model(Kind::all_reduce, static_cast<double>(bytes)), counted(p, [&](auto& comm, auto queue) {
              std::vector<std::byte> values(bytes), scratch(comm.scratch_bytes(bytes));
              comm.all_reduce_sum(queue, {values.data(), bytes}, Dtype::f32, {scratch.data(), scratch.size()});
            }));
      check("reduce_scatter", model(Kind::reduce_scatter, static_cast<double>(bytes)),
            counted(p, [&](auto& comm, auto queue) {
              std::vector<std::byte> values(bytes), scratch(comm.scratch_bytes(bytes));
              comm.reduce_scatter_sum(queue, {values.data(), bytes}, Dtype::f32, {scratch.data(), scratch.size()});
            }));
      const std::size_t part = bytes / 64;
      check("all_gather", model(Kind::all_gather, static_cast<double>(part)), counted(p, [&](auto& comm, auto queue) {
              std::vector<std::byte> mine(part), all(part * static_cast<std::size_t>(p));
              comm.all_gather(queue, {mine.data(), part}, {all.data(), all.size()});
            }));
      check("broadcast", model(Kind::broadcast, static_cast<double>(bytes)), counted(p, [&](auto& comm, auto queue) {
              std::vector<std::byte> view(bytes);
              comm.broadcast(queue, {view.data(), bytes}, 0);
            }));
      check("all_to_all", model(Kind::all_to_all, static_cast<double>(part * static_cast<std::size_t>(p - 1))),
            counted(p, [&](auto& comm, auto queue) {
              std::vector<std::byte> out(part * static_cast<std::size_t>(p)), in(out.size());
              comm.all_to_all(queue, {out.data(), out.size()}, {in.data(), in.size()});
            }));
    }
  }
}

TEST(Library, TheHooksMessagesWaitForTheirReceiversOverGlooAlone) {
  Network network = lab(Library::hook);
  EXPECT_NEAR(library_all_reduce(network, 8, 1e6).seconds, 14 * 20e-6 + 1.75e-3, 1e-9);
  EXPECT_NEAR(library_all_reduce(network, 8, 8e3).seconds, 3 * (20e-6 + 8e-6), 1e-12);
  // Six ranks: the last two are folded into the first four before, and told after.
  EXPECT_NEAR(library_all_reduce(network, 6, 8e3).seconds, 4 * (20e-6 + 8e-6), 1e-12);
  network.under_hook = Library::nccl;
  EXPECT_NEAR(library_all_reduce(network, 8, 1e6).seconds, 14 * 10e-6 + 1.75e-3, 1e-9);
}

TEST(Library, OpenMpiDoublesSmallVectorsAndSegmentsLargeOnes) {
  const Network network = lab(Library::mpi);
  EXPECT_NEAR(library_all_reduce(network, 8, 9'999).seconds, 3 * (10e-6 + 9.999e-6), 1e-12);
  EXPECT_NEAR(library_all_reduce(network, 8, 10'000).seconds, 14 * 10e-6 + 17.5e-6, 1e-12);
  // Shares of 2.5 MB: three segments each on the way to their sums, one on the way back.
  EXPECT_NEAR(library_all_reduce(network, 8, 20e6).seconds, 28 * 10e-6 + 35e-3, 1e-9);
  EXPECT_EQ(library_all_gather(network, 8, 6'000).messages, 3);
  EXPECT_EQ(library_all_gather(network, 8, 7'000).messages, 4);
  EXPECT_EQ(library_all_gather(network, 7, 10'000).messages, 6);
  EXPECT_EQ(library_reduce_scatter(network, 8, 256 * 1024).messages, 3);
  EXPECT_EQ(library_reduce_scatter(network, 7, 256 * 1024).messages, 6);
}

TEST(Library, NcclKnowsMachinesAndGathersAroundRings) {
  const Network flat = lab(Library::nccl);
  EXPECT_NEAR(library_all_reduce(flat, 64, 1e9).seconds, 126 * 10e-6 + 2.0 * 63 / 64, 1e-9) << "a ring";
  EXPECT_NEAR(library_all_reduce(flat, 64, 1e3).seconds, 12 * 10e-6 + 2e-6, 1e-12) << "a double tree";
  EXPECT_NEAR(library_all_gather(flat, 8, 1e6).seconds, 7 * 10e-6 + 7e-3, 1e-9);
  // Two machines of four: one hop across, six inside.
  const Network two = lab(Library::nccl, ",node=4,inner=nvlink");
  EXPECT_NEAR(library_all_gather(two, 8, 1e6).seconds, 10e-6 + 6 * two.inner.alpha + 7e-3, 1e-9);
  EXPECT_NEAR(library_all_reduce(two, 8, 1e6).seconds,
              2 * (3 * two.inner.alpha + 0.75e6 / two.inner.beta) + 2 * 10e-6 + 1e-3, 1e-9);
}

/// Whatever is compared with each other, in one level or two, is modelled by the best known algorithms.
TEST(Library, NoneIsFasterThanTheBest) {
  using Kind = CollectiveUse::Kind;
  for (const char* machines : {"", ",node=4,inner=nvlink"}) {
    for (const Kind kind :
         {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::all_to_all, Kind::exchange}) {
      for (const int p : {2, 3, 4, 5, 6, 7, 8, 16, 100}) {
        if (*machines != 0 && p > 4 && p % 4 != 0) continue;  // machines are full
        for (double bytes = 64; bytes < 1e9; bytes *= 4) {
          const CollectiveUse use{.kind = kind, .calls = 1.0, .bytes = bytes};
          const double best = model_step({&use, 1}, lab(Library::best, machines), 4, p).seconds;
          for (const Library library : {Library::nccl, Library::gloo, Library::mpi, Library::hook}) {
            // gloo hides latencies behind the transfers of other segments, NCCL those inside machines behind those
            // across.
            const double hidden = library == Library::gloo ? 2.0 * steps_of_doubling(p) * 10e-6 : 0.0;
            const double seconds = model_step({&use, 1}, lab(library, machines), 4, p).seconds + hidden;
            EXPECT_LE(best, seconds * (1.0 + 1e-12)) << name_of(library) << ", " << name_of(kind) << ", " << p
                                                     << " ranks, " << bytes << " bytes" << machines;
          }
        }
      }
    }
  }
}

/// Who adds all vectors needs no more than an all-gather of them, however many ranks there are.
TEST(Library, AnAllReduceTakesNoLongerThanAGatherOfAll) {
  for (const char* machines : {"", ",node=3,inner=nvlink", ",node=4,inner=10gbe", ",node=6,inner=10gbe"}) {
    const Network best = lab(Library::best, machines);
    for (int p = best.node; p <= 64; p += best.node) {
      for (double bytes = 64; bytes < 1e9; bytes *= 4) {
        const CollectiveUse sum{.kind = CollectiveUse::Kind::all_reduce, .calls = 1.0, .bytes = bytes};
        const CollectiveUse all{.kind = CollectiveUse::Kind::all_gather, .calls = 1.0, .bytes = bytes};
        EXPECT_LE(model_step({&sum, 1}, best, 4, p).seconds, model_step({&all, 1}, best, 4, p).seconds * (1.0 + 1e-12))
            << p << " ranks, " << bytes << " bytes" << machines;
      }
    }
  }
}

TEST(Library, OneRankSendsNothing) {
  for (const Library library : {Library::nccl, Library::gloo, Library::mpi, Library::hook}) {
    const Network network = lab(library);
    EXPECT_EQ(library_all_reduce(network, 1, 1e6).seconds, 0.0);
    EXPECT_EQ(library_reduce_scatter(network, 1, 1e6).messages, 0.0);
    EXPECT_EQ(library_all_gather(network, 1, 1e6).seconds, 0.0);
    EXPECT_EQ(library_broadcast(network, 1, 1e6).messages, 0.0);
  }
}

TEST(Library, TheColumnsTextIsReadBack) {
  for (const char* text : {"best", "nccl", "gloo", "mpi", "hook over gloo", "hook over nccl"}) {
    Network network = lab(Library::best);
    set_library(network, text);
    EXPECT_EQ(library_text(network), text);
  }
  Network network;
  for (const char* text : {"", "hook", "hook over mpi", "hook over best", "ucc"}) {
    EXPECT_THROW(set_library(network, text), Error) << text;
  }
}

}  // namespace
}  // namespace gradtool::test
