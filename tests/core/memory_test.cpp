#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "lib/core/arena.hpp"
#include "lib/core/ended_arenas.hpp"
#include "lib/core/huge_pages.hpp"
#include "lib/core/scratch.hpp"
#include "tests/core/fault.hpp"

namespace gradtool::test {
namespace {

TEST(LargeVector, HasZeros) {
  for (const std::size_t n : {std::size_t{0}, std::size_t{3}, std::size_t{3} << 20})
    EXPECT_EQ(large_vector<double>(n), std::vector<double>(n, 0.0));
}

using HostArena = Arena<Space::host>;
using HostScratch = Scratch<Space::host>;

bool aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % HostArena::kAlignment == 0;
}

TEST(HostArena, TakesTheBlockOfOneThatEnded) {
#ifdef GRADTOOL_SANITIZED
  GTEST_SKIP() << "a sanitizer is to find who uses what has ended";
#endif
  keep_ended_arenas(std::size_t{1} << 30);
  constexpr std::size_t kBytes = std::size_t{8} << 20;
  const auto place_of = [](std::size_t bytes) {
    HostArena arena{bytes};
    return reinterpret_cast<std::uintptr_t>(arena.take_bytes(1).data());
  };
  const HostArena other{2 * kBytes};  // in use all the time
  const std::uintptr_t place = place_of(kBytes);
  EXPECT_EQ(place_of(kBytes), place);
  EXPECT_EQ(place_of(kBytes - kBytes / 8), place) << "larger than needed";
  // Places are taken anew from the front, and those that lie side by side become one, whichever of them ends first.
  std::optional<HostArena> first{kBytes}, second{kBytes};
  const HostArena third{kBytes};
  EXPECT_NE(place_of(kBytes), place) << "it is in use";
  first.reset();
  second.reset();
  EXPECT_EQ(place_of(2 * kBytes), place);
  first.emplace(kBytes);
  second.emplace(kBytes);
  second.reset();
  first.reset();
  EXPECT_EQ(place_of(2 * kBytes), place);
  const auto middle_of = [](std::size_t bytes, std::optional<std::byte> written = {}) {
    HostArena arena{bytes};
    std::byte& middle = arena.take_bytes(bytes)[bytes / 2];
    if (written) middle = *written;
    return std::to_integer<int>(middle);
  };
  middle_of(kBytes, std::byte{1});
  EXPECT_EQ(middle_of(kBytes), 1) << "its pages are used again";
  EXPECT_NE(place_of(std::size_t{2} << 30), place) << "more than is kept at all";
  EXPECT_EQ(middle_of(kBytes), 0) << "free pages were returned first";
}

TEST(HostArena, AlignsAndSeparatesPieces) {
  HostArena arena{1000};
  EXPECT_EQ(arena.capacity(), 1024U);
  const auto a = arena.take_bytes(1);
  const auto b = arena.take<double>(3);
  const auto c = arena.take<std::uint16_t>(0);
  const auto d = arena.take_bytes(256);
  EXPECT_TRUE(aligned(a.data()) && aligned(b.data()) && aligned(c.data()) && aligned(d.data()));
  EXPECT_EQ(a.size(), 1U);
  EXPECT_EQ(b.size(), 3U);
  EXPECT_TRUE(c.empty());
  EXPECT_EQ(reinterpret_cast<std::byte*>(b.data()) - a.data(), 256);
  EXPECT_EQ(d.data() - reinterpret_cast<std::byte*>(b.data()), 256);
  EXPECT_EQ(arena.used(), 768U);
  std::memset(d.data(), 1, d.size());  // the address sanitizer checks that the memory is there
}

TEST(HostArena, RefusesToGrow) {
  HostArena arena{512};
  static_cast<void>(arena.take_bytes(257));
  message_of(Fault::internal, [&] { static_cast<void>(arena.take_bytes(1)); });
  EXPECT_EQ(arena.used(), 512U);
  arena.rewind();
  EXPECT_EQ(arena.used(), 0U);
  message_of(Fault::internal, [&] { static_cast<void>(arena.take_bytes(513)); });
  EXPECT_EQ(arena.take_bytes(512).size(), 512U);
  message_of(Fault::internal, [] { static_cast<void>(HostArena{0}.take_bytes(1)); });
}

TEST(HostArena, PadsToTheAlignment) {
  EXPECT_EQ(HostArena::padded_size(0), 0U);
  EXPECT_EQ(HostArena::padded_size(1), 256U);
  EXPECT_EQ(HostArena::padded_size(256), 256U);
  EXPECT_EQ(HostArena::padded_size(257), 512U);
}

/// Takes its pieces in one function, as the methods do, so that planning and work cannot differ.
struct Workspace {
  Workspace(std::size_t n, HostScratch scratch)
      : floats{scratch.take<float>(n)},
        bytes{scratch.take_bytes(n + 1)},
        counts{scratch.take<std::uint64_t>(3)},
        size{scratch.bytes()} {}
  HostView<float> floats;
  HostView<std::byte> bytes;
  HostView<std::uint64_t> counts;
  std::size_t size;
};

TEST(HostScratch, PlansWhatTheWorkTakes) {
  for (const std::size_t n : {0, 1, 63, 64, 65, 255, 256, 1000}) {
    const Workspace plan{n, HostScratch{}};
    EXPECT_EQ(plan.floats.data(), nullptr);
    EXPECT_EQ(plan.floats.size(), n);
    HostArena arena{plan.size};
    const auto memory = arena.take_bytes(plan.size);
    const Workspace work{n, HostScratch{memory}};
    EXPECT_EQ(work.size, plan.size);
    EXPECT_EQ(planned<Workspace>(n), plan.size);
    EXPECT_TRUE(aligned(work.floats.data()) && aligned(work.bytes.data()) && aligned(work.counts.data()));
    EXPECT_GE(work.bytes.data(), reinterpret_cast<std::byte*>(work.floats.data() + n));
    EXPECT_GE(reinterpret_cast<std::byte*>(work.counts.data()), work.bytes.data() + n + 1);
    EXPECT_LE(reinterpret_cast<std::byte*>(work.counts.data() + 3), memory.data() + memory.size());
  }
}

TEST(HostScratch, MoreThanWasPlannedIsABug) {
  const Workspace plan{100, HostScratch{}};
  HostArena arena{plan.size};
  const auto memory = arena.take_bytes(plan.size);
  const auto message = message_of(Fault::internal, [&] { Workspace{100, HostScratch{memory.first(plan.size - 256)}}; });
  EXPECT_NE(message.find("working memory is smaller than what was planned"), std::string::npos) << message;
  message_of(Fault::internal, [&] { Workspace{1000, HostScratch{memory}}; });
}

// A method that needs no working memory is given an empty view, and one that then takes something is only planning.
TEST(HostScratch, AnEmptyViewPlans) {
  HostScratch scratch{HostView<std::byte>{}};
  EXPECT_EQ(scratch.take<int>(5).data(), nullptr);
  EXPECT_EQ(scratch.bytes(), 256U);
}

}  // namespace
}  // namespace gradtool::test
