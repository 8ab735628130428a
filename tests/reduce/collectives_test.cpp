// The collectives of sharded training, and --reduce alltoall, against the same codec applied by hand.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "lib/codecs/payload_moves.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

using Vectors = std::vector<std::vector<float>>;  ///< [rank]

constexpr std::uint64_t kShardSeed =
    0xD1B54A32D192ED03ULL;  ///< ShardedCodec: segment i draws from seed ^ (i + 1) x this
constexpr std::uint64_t kMeanSeed = 0x9E3779B97F4A7C15ULL;  ///< AllToAllReducer: the mean draws from seed ^ this
constexpr std::uint64_t kSeed = 9;

EncodeContext context_of(int rank, std::uint64_t seed = kSeed) {
  return {.key = {.seed = seed, .step = 0, .rank = static_cast<std::uint32_t>(rank)}, .iteration = 0};
}

struct Outcome {
  Vectors results;
  std::vector<std::uint64_t> wire, payload;
};

/// Each rank's vector after one or more reductions of the same input.
Outcome run_collective(const std::string& codec, Collective op, Scheme scheme, const Vectors& inputs, int steps = 1) {
  const int ranks = static_cast<int>(inputs.size());
  const std::size_t n = inputs[0].size();
  const auto spec = parse_codec(codec);
  Outcome out{.results = inputs,
              .wire = std::vector<std::uint64_t>(inputs.size()),
              .payload = std::vector<std::uint64_t>(inputs.size())};
  run_threads(ranks, [&](Communicator<Space::host>& comm) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto reducer = make_reducer<Space::host>(spec, make_codec<Space::host>(spec, Layout::flat(n)), scheme,
                                                   Layout::flat(n), ranks, {}, op);
    Arena<Space::host> arena{reducer->workspace_bytes()};
    const auto workspace = arena.take_bytes(reducer->workspace_bytes());
    std::memset(workspace.data(), 0xA5, workspace.size());
    NoClock<Space::host> clock;
    for (int step = 0; step < steps; ++step) {
      out.results[me] = inputs[me];
      comm.reset_traffic();
      reducer->reduce(comm, {}, {out.results[me].data(), n}, {}, context_of(comm.rank()), workspace, clock);
    }
    const auto result = reducer->result({out.results[me].data(), n});
    if (result.data() != out.results[me].data()) out.results[me].assign(result.data(), result.data() + n);
    out.wire[me] = comm.traffic().bytes_sent;
    out.payload[me] = reducer->payload_bytes();
  });
  return out;
}

Vectors gradients(int ranks, std::size_t n) {
  Vectors x;
  for (int r = 0; r < ranks; ++r) x.push_back(model_gradient(n, r, 0));
  return x;
}

std::span<const float> shard_of(const std::vector<float>& x, int i, int ranks) {
  const Segment s = ring_segment(x.size(), i, ranks);
  return std::span{x}.subspan(s.first, s.count);
}

/// decode(encode(x)), as one rank does it, and the bytes of the payload.
std::vector<float> round_trip(const Codec<Space::host>& codec, std::span<const float> x, const EncodeContext& context,
                              std::uint64_t* bytes = nullptr) {
  const Footprint plan = codec.plan(x.size());
  Arena<Space::host> arena{Arena<Space::host>::padded_size(plan.payload_bytes) +
                           Arena<Space::host>::padded_size(plan.scratch_bytes)};
  const auto payload = arena.take_bytes(plan.payload_bytes);
  const auto scratch = arena.take_bytes(plan.scratch_bytes);
  codec.encode({}, {x.data(), x.size()}, context, payload, scratch);
  std::uint64_t size = plan.payload_bytes;
  if (!plan.exact) std::memcpy(&size, payload.data(), sizeof size);
  if (bytes != nullptr) *bytes += size;
  std::vector<float> y(x.size(), 0.0F);
  codec.decode_add({}, payload.first(size), 1.0F, {y.data(), y.size()}, scratch);
  return y;
}

/// The values that one encoded shard of rank `from` decodes to.
std::vector<float> sent_shard(const Codec<Space::host>& codec, const std::vector<float>& x, int shard, int from,
                              int ranks, std::uint64_t* bytes = nullptr) {
  const auto seed = kSeed ^ (kShardSeed * static_cast<std::uint64_t>(shard + 1));
  return round_trip(codec, shard_of(x, shard, ranks), context_of(from, seed), bytes);
}

/// The mean of shard `owner`, as its owner adds it: in float32, in the order of ranks, then times 1/p.
std::vector<float> owners_mean(const Codec<Space::host>& codec, const Vectors& x, int owner) {
  const int ranks = static_cast<int>(x.size());
  std::vector<float> sum(shard_of(x[0], owner, ranks).size(), 0.0F);
  for (int r = 0; r < ranks; ++r) {
    const auto y = sent_shard(codec, x[static_cast<std::size_t>(r)], owner, r, ranks);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += y[i];
  }
  for (float& value : sum) value *= 1.0F / static_cast<float>(ranks);
  return sum;
}

std::vector<std::string> shardable() {
  std::vector<std::string> specs;
  for (const auto* codec : codecs()) {
    if (codec->aggregation == Aggregation::own || codec->aggregation == Aggregation::none || codec->memory ||
        codec->by_layout) {
      continue;
    }
    specs.push_back(codec->error_feedback ? std::string{codec->name} + ":ef=off" : std::string{codec->name});
  }
  return specs;
}

/// Decoding adds in one pass here and payload by payload in a reducer that decodes a sum at once (linear transforms).
void expect_close(std::span<const float> got, std::span<const float> want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double error = 0.0, energy = 0.0;
  bool same = true;
  for (std::size_t i = 0; i < got.size(); ++i) {
    same = same && std::bit_cast<std::uint32_t>(got[i]) == std::bit_cast<std::uint32_t>(want[i]);
    error += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
    energy += std::pow(static_cast<double>(want[i]), 2);
  }
  if (what.starts_with("bf16") || what.starts_with("fp16") || what.starts_with("qsgd") || what.starts_with("none"))
    EXPECT_TRUE(same) << what;
  EXPECT_LE(error, 1e-11 * energy) << what;
}

class Shards : public testing::TestWithParam<std::string> {};

TEST_P(Shards, AllToAllReducesToTheOwnersMeanEncodedOnce) {
  const auto codec = make_codec<Space::host>(parse_codec(GetParam()), Layout::flat(4001));
  for (const int ranks : {1, 2, 3, 5}) {
    const auto x = gradients(ranks, 4001);
    const auto out = run_collective(GetParam(), Collective::all_reduce, Scheme::alltoall, x);
    for (int owner = 0; owner < ranks; ++owner) {
      const auto mean = owners_mean(*codec, x, owner);
      const auto want = round_trip(*codec, mean, context_of(owner, kSeed ^ kMeanSeed));
      for (const auto& result : out.results) {
        expect_close(shard_of(result, owner, ranks), want,
                     GetParam() + " on " + std::to_string(ranks) + " ranks, shard " + std::to_string(owner));
      }
    }
    for (const auto& result : out.results) EXPECT_EQ(result, out.results[0]);
  }
}

/// own=exact: an owner begins with its own shard as it is and adds what the others' payloads say, in the order of
/// ranks. Messages are those of the way without it.
TEST(AllToAll, AddsItsOwnShardExactlyWhereAsked) {
  const std::size_t n = 4001;
  const auto codec = make_codec<Space::host>(parse_codec("fp8"), Layout::flat(n));
  for (const int ranks : {1, 2, 3, 5}) {
    const auto x = gradients(ranks, n);
    const auto out = run_collective("fp8:reduce=alltoall,own=exact", Collective::all_reduce, Scheme::automatic, x);
    const auto coded = run_collective("fp8:reduce=alltoall", Collective::all_reduce, Scheme::automatic, x);
    EXPECT_EQ(out.wire, coded.wire);
    if (ranks > 1) EXPECT_NE(out.results, coded.results);
    for (int owner = 0; owner < ranks; ++owner) {
      const auto own = shard_of(x[static_cast<std::size_t>(owner)], owner, ranks);
      std::vector<float> mean(own.begin(), own.end());
      for (int r = 0; r < ranks; ++r) {
        if (r == owner) continue;
        const auto y = sent_shard(*codec, x[static_cast<std::size_t>(r)], owner, r, ranks);
        for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += y[i];
      }
      for (float& value : mean) value *= 1.0F / static_cast<float>(ranks);
      const auto want = round_trip(*codec, mean, context_of(owner, kSeed ^ kMeanSeed));
      for (const auto& result : out.results) {
        const auto got = shard_of(result, owner, ranks);
        EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin(), want.end())) << ranks << " ranks, shard " << owner;
      }
    }
  }
}

/// segment=512: shards begin at multiples of 512 elements, and some are empty where ranks outnumber segments.
TEST(AllToAll, ShardsHoldWholeSegmentsWhereAsked) {
  const std::size_t n = 4001;  // seven segments of 512, and 417 elements
  const auto codec = make_codec<Space::host>(parse_codec("fp8"), Layout::flat(n));
  const auto cut = [&](const std::vector<float>& x, int shard, int ranks) {
    const auto border = [&](int i) {
      return std::min(n, 8U * static_cast<std::size_t>(i) / static_cast<std::size_t>(ranks) * 512U);
    };
    return std::vector<float>(x.begin() + static_cast<std::ptrdiff_t>(border(shard)),
                              x.begin() + static_cast<std::ptrdiff_t>(border(shard + 1)));
  };
  for (const int ranks : {1, 2, 3, 5, 8, 11}) {
    const auto x = gradients(ranks, n);
    const auto out = run_collective("fp8:reduce=alltoall,segment=512", Collective::all_reduce, Scheme::automatic, x);
    std::vector<float> want;
    std::vector<std::uint64_t> sent(static_cast<std::size_t>(ranks), 0);
    for (int owner = 0; owner < ranks; ++owner) {
      std::vector<float> mean(cut(x[0], owner, ranks).size(), 0.0F);
      for (int r = 0; r < ranks; ++r) {
        const auto seed = kSeed ^ (kShardSeed * static_cast<std::uint64_t>(owner + 1));
        const auto y = round_trip(*codec, cut(x[static_cast<std::size_t>(r)], owner, ranks), context_of(r, seed),
                                  &sent[static_cast<std::size_t>(r)]);
        for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += y[i];
      }
      for (float& value : mean) value *= 1.0F / static_cast<float>(ranks);
      const auto y =
          round_trip(*codec, mean, context_of(owner, kSeed ^ kMeanSeed), &sent[static_cast<std::size_t>(owner)]);
      want.insert(want.end(), y.begin(), y.end());
    }
    for (const auto& result : out.results) EXPECT_EQ(result, want) << ranks << " ranks";
    EXPECT_EQ(out.payload, sent) << ranks << " ranks";
  }
}

/// gate: a smaller unit goes as `none` sends it, and says that the codec was not at work.
TEST(Gate, SmallUnitsGoUncompressed) {
  for (const char* codec : {"topk:ratio=0.01", "torchcomms-fp8", "signsgd"}) {
    for (const auto op : {Collective::all_reduce, Collective::reduce_scatter}) {
      const CodecDescriptor& descriptor = *parse_codec(codec).descriptor;
      if (op == Collective::reduce_scatter && descriptor.aggregation == Aggregation::own) continue;
      const std::string ef = descriptor.error_feedback && op == Collective::reduce_scatter ? ",ef=off" : "";
      const auto gated = [&](const char* bytes) {
        return std::string{codec} + (std::string_view{codec}.find(':') == std::string_view::npos ? ":" : ",") +
               "gate=" + bytes + ef;
      };
      const auto x = gradients(3, 1200);
      const auto none = run_collective("none", op, Scheme::automatic, x);
      const auto below = run_collective(gated("4801"), op, Scheme::automatic, x);
      EXPECT_EQ(below.results, none.results) << codec;
      EXPECT_EQ(below.wire, none.wire) << codec;
      EXPECT_EQ(below.payload, none.payload) << codec;
      const auto at = run_collective(gated("4800"), op, Scheme::automatic, x);
      EXPECT_EQ(at.results, run_collective(gated("0"), op, Scheme::automatic, x).results) << codec;
      EXPECT_NE(at.payload, none.payload) << codec;
    }
  }
  const auto reducer = [](const char* codec) {
    const CodecSpec spec = parse_codec(codec);
    const Layout layout = Layout::matrix(30, 40);
    return make_reducer<Space::host>(spec, make_codec<Space::host>(spec, layout), Scheme::automatic, layout, 3, {});
  };
  EXPECT_FALSE(reducer("powersgd:gate=4801")->reached());
  EXPECT_FALSE(reducer("powersgd:gate=4801")->note().empty());
}

TEST(AllToAll, IsTheWayOfASpecificationThatSaysSo) {
  const auto x = gradients(3, 1000);
  EXPECT_EQ(run_collective("int8:reduce=alltoall", Collective::all_reduce, Scheme::automatic, x).results,
            run_collective("int8", Collective::all_reduce, Scheme::alltoall, x).results);
  EXPECT_EQ(resolve(Scheme::automatic, parse_codec("bf16:reduce=gather")), Scheme::gather);
  EXPECT_EQ(resolve(Scheme::alltoall, parse_codec("fp8:reduce=alltoall")), Scheme::alltoall);
  EXPECT_EQ(resolve(Scheme::automatic, parse_codec("fp8:reduce=hop"), Collective::all_gather), Scheme::gather);
}

TEST_P(Shards, AllToAllCountsAllThatARankEncodes) {
  const std::size_t n = 4001;
  const int ranks = 3;
  const auto codec = make_codec<Space::host>(parse_codec(GetParam()), Layout::flat(n));
  const auto x = gradients(ranks, n);
  const auto out = run_collective(GetParam(), Collective::all_reduce, Scheme::alltoall, x);
  for (int r = 0; r < ranks; ++r) {
    std::uint64_t encoded = 0;
    for (int shard = 0; shard < ranks; ++shard)
      static_cast<void>(sent_shard(*codec, x[static_cast<std::size_t>(r)], shard, r, ranks, &encoded));
    static_cast<void>(round_trip(*codec, owners_mean(*codec, x, r), context_of(r, kSeed ^ kMeanSeed), &encoded));
    EXPECT_EQ(out.payload[static_cast<std::size_t>(r)], encoded) << "rank " << r;
  }
}

TEST_P(Shards, ReduceScatterLeavesTheMeanWithItsOwner) {
  const std::size_t n = 4020;
  const auto codec = make_codec<Space::host>(parse_codec(GetParam()), Layout::flat(n));
  for (const int ranks : {1, 2, 3, 5}) {
    const auto x = gradients(ranks, n);
    const auto out = run_collective(GetParam(), Collective::reduce_scatter, Scheme::alltoall, x);
    for (int r = 0; r < ranks; ++r)
      expect_close(shard_of(out.results[static_cast<std::size_t>(r)], r, ranks), owners_mean(*codec, x, r),
                   GetParam() + " on " + std::to_string(ranks) + " ranks");
  }
}

TEST_P(Shards, ReduceScatterBytesAreThoseOfTheShardsForOthers) {
  const std::size_t n = 4020;
  const int ranks = 5;
  const auto codec = make_codec<Space::host>(parse_codec(GetParam()), Layout::flat(n));
  const auto x = gradients(ranks, n);
  const auto out = run_collective(GetParam(), Collective::reduce_scatter, Scheme::alltoall, x);
  for (int r = 0; r < ranks; ++r) {
    std::uint64_t others = 0, all = 0;
    for (int shard = 0; shard < ranks; ++shard) {
      std::uint64_t bytes = 0;
      static_cast<void>(sent_shard(*codec, x[static_cast<std::size_t>(r)], shard, r, ranks, &bytes));
      all += bytes;
      if (shard != r) others += bytes + (codec->plan(n / ranks).exact ? 0 : 8);
    }
    EXPECT_EQ(out.wire[static_cast<std::size_t>(r)], others);
    EXPECT_EQ(out.payload[static_cast<std::size_t>(r)], all);
  }
}

TEST_P(Shards, DefaultAndHopReduceScatterAgreeWithTheMean) {
  const std::size_t n = 4020;
  for (const Scheme scheme : {Scheme::automatic, Scheme::hop}) {
    for (const int ranks : {1, 2, 4}) {
      const auto x = gradients(ranks, n);
      const auto out = run_collective(GetParam(), Collective::reduce_scatter, scheme, x);
      const auto whole =
          run_collective(GetParam(), Collective::all_reduce, scheme == Scheme::hop ? Scheme::hop : Scheme::alltoall, x);
      for (int r = 0; r < ranks; ++r) {
        double error = 0.0, energy = 0.0, error_of_whole = 0.0;
        const auto got = shard_of(out.results[static_cast<std::size_t>(r)], r, ranks);
        const auto also = shard_of(whole.results[0], r, ranks);
        for (std::size_t i = 0; i < got.size(); ++i) {
          double mean = 0.0;
          for (const auto& one : x)
            mean += static_cast<double>(shard_of(one, r, ranks)[i]) / static_cast<double>(ranks);
          error += std::pow(mean - static_cast<double>(got[i]), 2);
          error_of_whole += std::pow(mean - static_cast<double>(also[i]), 2);
          energy += mean * mean;
        }
        // An all-reduce encodes the same mean once more, so that it cannot be much better.
        EXPECT_LE(error, 3.0 * error_of_whole + 1e-5 * energy) << name_of(scheme) << " " << ranks;
      }
    }
  }
}

TEST_P(Shards, AllGatherBringsEveryShardDecodedToAll) {
  const std::size_t n = 4020;
  const auto codec = make_codec<Space::host>(parse_codec(GetParam()), Layout::flat(n));
  for (const int ranks : {1, 2, 3, 5}) {
    const auto x = gradients(ranks, n);
    const auto out = run_collective(GetParam(), Collective::all_gather, Scheme::automatic, x);
    for (int owner = 0; owner < ranks; ++owner) {
      const auto want =
          round_trip(*codec, shard_of(x[static_cast<std::size_t>(owner)], owner, ranks), context_of(owner));
      for (const auto& result : out.results) expect_close(shard_of(result, owner, ranks), want, GetParam());
    }
  }
}

TEST_P(Shards, AllToAllBringsEveryRankItsParts) {
  const std::size_t n = 4020;
  const auto codec = make_codec<Space::host>(parse_codec(GetParam()), Layout::flat(n));
  for (const int ranks : {1, 2, 3, 5}) {
    const auto x = gradients(ranks, n);
    const auto out = run_collective(GetParam(), Collective::all_to_all, Scheme::automatic, x);
    for (int to = 0; to < ranks; ++to) {
      for (int from = 0; from < ranks; ++from) {
        const auto want = sent_shard(*codec, x[static_cast<std::size_t>(from)], to, from, ranks);
        expect_close(shard_of(out.results[static_cast<std::size_t>(to)], from, ranks), want, GetParam());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, Shards, testing::ValuesIn(shardable()),
                         [](const auto& info) { return test_name(info.param); });

TEST(Collectives, UncompressedOnesMoveTheValuesThemselves) {
  const std::size_t n = 60;
  for (const int ranks : {1, 2, 3, 5}) {
    const auto x = gradients(ranks, n);
    const auto part = n / static_cast<std::size_t>(ranks);
    const auto gathered = run_collective("none", Collective::all_gather, Scheme::automatic, x);
    const auto sent = run_collective("none", Collective::all_to_all, Scheme::automatic, x);
    const auto scattered = run_collective("none", Collective::reduce_scatter, Scheme::automatic, x);
    const auto others = 4 * part * static_cast<std::size_t>(ranks - 1);
    for (int r = 0; r < ranks; ++r) {
      const auto me = static_cast<std::size_t>(r);
      for (const auto* out : {&gathered, &sent, &scattered}) EXPECT_EQ(out->wire[me], others);
      for (int s = 0; s < ranks; ++s) {
        const auto from = static_cast<std::size_t>(s);
        for (std::size_t i = 0; i < part; ++i) {
          EXPECT_EQ(shard_of(gathered.results[me], s, ranks)[i], shard_of(x[from], s, ranks)[i]);
          EXPECT_EQ(shard_of(sent.results[me], s, ranks)[i], shard_of(x[from], r, ranks)[i]);
        }
      }
      for (std::size_t i = 0; i < part; ++i) {
        double mean = 0.0;
        for (const auto& one : x) mean += static_cast<double>(shard_of(one, r, ranks)[i]) / ranks;
        EXPECT_NEAR(shard_of(scattered.results[me], r, ranks)[i], mean, 1e-5 * std::abs(mean) + 1e-9);
      }
    }
  }
}

TEST(Collectives, TheErrorOfAlltoallDoesNotGrowWithRanksAndThatOfHopsDoes) {
  const auto nmse = [](Scheme scheme, int ranks) {
    const std::size_t n = 20'000;
    const auto x = gradients(ranks, n);
    const auto out = run_collective("bf16", Collective::all_reduce, scheme, x);
    double error = 0.0, energy = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      double mean = 0.0;
      for (const auto& one : x) mean += static_cast<double>(one[i]) / ranks;
      error += std::pow(mean - static_cast<double>(out.results[0][i]), 2);
      energy += mean * mean;
    }
    return error / energy;
  };
  EXPECT_LT(nmse(Scheme::alltoall, 32), 1.5 * nmse(Scheme::alltoall, 2));
  EXPECT_GT(nmse(Scheme::hop, 32), 4.0 * nmse(Scheme::hop, 2));
  EXPECT_GT(nmse(Scheme::sum, 32), 4.0 * nmse(Scheme::sum, 2));
}

TEST(Collectives, ErrorFeedbackOfAlltoallBringsEverythingInTheEnd) {
  // The input is the same in every step: values that senders and owners keep come later, so that the mean over steps
  // gets better.
  const int ranks = 3;
  const std::size_t n = 3000;
  const auto x = gradients(ranks, n);
  const auto run = [&](int steps) {
    std::vector<double> sum(n, 0.0);
    const auto spec = parse_codec("topk:ratio=0.1");
    run_threads(ranks, [&](Communicator<Space::host>& comm) {
      const auto me = static_cast<std::size_t>(comm.rank());
      const auto reducer = make_reducer<Space::host>(spec, make_codec<Space::host>(spec, Layout::flat(n)),
                                                     Scheme::alltoall, Layout::flat(n), ranks, {});
      Arena<Space::host> arena{reducer->workspace_bytes()};
      const auto workspace = arena.take_bytes(reducer->workspace_bytes());
      NoClock<Space::host> clock;
      for (int step = 0; step < steps; ++step) {
        auto y = x[me];
        reducer->reduce(comm, {}, {y.data(), n}, {}, context_of(comm.rank()), workspace, clock);
        if (me == 0)
          std::transform(y.begin(), y.end(), sum.begin(), sum.begin(),
                         [](float a, double b) { return b + static_cast<double>(a); });
      }
    });
    double error = 0.0, energy = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      double mean = 0.0;
      for (const auto& one : x) mean += static_cast<double>(one[i]) / ranks;
      error += std::pow(mean - sum[i] / steps, 2);
      energy += mean * mean;
    }
    return error / energy;
  };
  EXPECT_LT(run(60), 0.1 * run(3));
}

TEST(Collectives, RefusalsSayWhatGoes) {
  const auto message = [](const std::string& codec, Scheme scheme, Collective op) -> std::string {
    try {
      static_cast<void>(resolve(scheme, parse_codec(codec), op));
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::usage);
      return error.what();
    }
    return "";
  };
  using enum Collective;
  EXPECT_EQ(message("powersgd", Scheme::automatic, reduce_scatter),
            "codec powersgd is a way of its own to all-reduce; it has no reduce-scatter");
  EXPECT_NE(message("dgc", Scheme::automatic, all_gather).find("what it keeps of earlier steps"), std::string::npos);
  EXPECT_NE(message("topk", Scheme::automatic, all_to_all).find("add ef=off"), std::string::npos);
  EXPECT_NE(message("bf16", Scheme::gather, reduce_scatter).find("take hop or alltoall"), std::string::npos);
  EXPECT_NE(message("qsgd", Scheme::sum, reduce_scatter).find("its payloads do not add; use alltoall or hop"),
            std::string::npos);
  EXPECT_NE(message("bf16", Scheme::sum, all_gather).find("leave it at auto"), std::string::npos);
  EXPECT_NE(message("dgc", Scheme::alltoall, all_reduce).find("use gather"), std::string::npos);
  EXPECT_EQ(resolve(Scheme::automatic, parse_codec("bf16"), reduce_scatter), Scheme::sum);
  EXPECT_EQ(resolve(Scheme::automatic, parse_codec("qsgd"), reduce_scatter), Scheme::alltoall);
  EXPECT_EQ(resolve(Scheme::alltoall, parse_codec("topk"), all_reduce), Scheme::alltoall);
}

}  // namespace
}  // namespace gradtool::test
