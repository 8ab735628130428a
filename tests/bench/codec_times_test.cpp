// The least that codecs need of a memory, against what their reducers keep, and times of another machine's record.
#include "lib/bench/codec_times.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lib/comm/launch.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/error.hpp"
#include "lib/core/task_pool.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

constexpr std::size_t kRows = 64, kColumns = 128, kElements = kRows * kColumns;
constexpr int kRanks = 4;

ResultRow timed_row(const std::string& codec, double payload = 1000.0) {
  ResultRow row{parse_codec(codec)};
  row.scheme = resolve(Scheme::automatic, row.codec, Collective::all_reduce);
  row.ranks = row.measured_ranks = kRanks;
  row.elements = kElements;
  row.granularity = "model";
  row.processor = "a CPU";
  row.device = "cpu";
  row.bytes = StepBytes{.payload = payload};
  row.encode = PhaseSummary{.median = 1e-3, .low = 0.9e-3, .high = 1.1e-3};
  row.decode = PhaseSummary{.median = 3e-3, .low = 2.7e-3, .high = 3.3e-3};
  row.units.resize(2);
  row.units[0].encode = 0.25e-3, row.units[1].encode = 0.75e-3;
  row.units[0].decode = 1e-3, row.units[1].decode = 2e-3;
  for (UnitProfile& unit : row.units) add_use(unit.uses, "all_gather", payload / 2.0);
  return row;
}

/// Memory that a rank's reducer keeps after some steps.
struct Kept {
  std::size_t residual = 0;  ///< floats that it holds back
  std::size_t bytes = 0;     ///< of all that it keeps
  bool reached = false;      ///< the method has begun
};
Kept kept_by(const CodecSpec& spec) {
  Layout layout;
  layout.elements = kElements;
  layout.tensors.push_back({.name = "fc.weight",
                            .shape = {kRows, kColumns},
                            .kind = "linear",
                            .layout = "OI",
                            .first = 0,
                            .elements = kElements});
  constexpr std::uint32_t kMostSteps = 600;  // some methods look at gradients for a while before they begin
  Kept kept;
  run_threads(kRanks, [&](Communicator<Space::host>& comm) {
    TaskPool pool{1};
    const Queue<Space::host> queue{&pool};
    const auto reducer = make_reducer<Space::host>(spec, make_codec<Space::host>(spec, layout), Scheme::automatic,
                                                   layout, kRanks, queue);
    Arena<Space::host> arena{Arena<Space::host>::padded_size(reducer->workspace_bytes())};
    const auto workspace = arena.take_bytes(reducer->workspace_bytes());
    NoClock<Space::host> clock;
    reducer->prepare(comm);
    const auto weight = gradient_like(kElements, 8);
    const std::vector<float> moment(kElements, 0.5F);
    const auto rank = static_cast<std::uint32_t>(comm.rank());
    for (std::uint32_t step = 0; step == 0 || (!reducer->reached() && step < kMostSteps); ++step) {
      auto x = gradient_like(kElements, 7 + step);
      reducer->reduce(comm, queue, {x.data(), kElements},
                      {.weight = {weight.data(), kElements}, .second_moment = {moment.data(), kElements}},
                      {.key = {.seed = 1, .step = step, .rank = rank}, .iteration = step}, workspace, clock);
    }
    if (rank == 0) kept = {reducer->residual().size(), save_state(*reducer).size(), reducer->reached()};
  });
  return kept;
}

/// Every registered method, with error feedback as by default, on and off where it can be chosen. What the floor counts
/// must be kept, else it is no bound; and a residual that is kept must be counted.
TEST(MemoryFloor, CountsTheMemoryThatTheReducerKeeps) {
  for (const CodecDescriptor* codec : codecs()) {
    const std::string name{codec->name};
    if (name == "none" || name == "noop") continue;
    std::vector<std::string> specs{name};
    if (!codec->memory) specs.push_back(name + ":ef=off");
    if (!codec->memory && codec->amplifier.empty()) specs.push_back(name + ":ef=on");
    for (const std::string& spec : specs) {
      ResultRow row = timed_row(spec);
      const Kept kept = kept_by(row.codec);
      // gradiveq sends such gradients as they are, because nothing in them repeats.
      EXPECT_TRUE(kept.reached || name == "gradiveq") << spec;
      row.reached = kept.reached;
      const MemoryFloor floor = memory_floor(row);
      const MemoryPasses passes = memory_passes(*codec, row.codec.params);
      const bool residual = row.codec.feedback() != Feedback::off;
      const double read = 4.0 * kElements * (residual ? 1.0 : passes.reads);
      const double counted = floor.encode - read - 1000.0;
      EXPECT_EQ(counted > 0.5, kept.residual == kElements || !codec->target.empty()) << spec;
      EXPECT_LE(counted, 2.0 * static_cast<double>(kept.bytes)) << spec;
      const bool gathers = row.scheme == Scheme::gather;
      EXPECT_EQ(floor.decode, (gathers ? kRanks : 1) * 1000.0 + 4.0 * kElements) << spec;
      EXPECT_EQ(floor.decode_fixed, 4.0 * kElements) << spec;
    }
  }
}

TEST(MemoryFloor, WhatNoCacheHoldsIsReadAgain) {
  constexpr double n = kElements;
  const auto encode = [](const std::string& codec, double cache) {
    ResultRow row = timed_row(codec);
    row.units[0].elements = row.units[0].largest_tensor = kElements / 4;
    row.units[1].elements = 3 * kElements / 4;
    row.units[1].largest_tensor = kElements / 2;
    row.units[1].has_side = true;
    return memory_floor(row, cache).encode - 1000.0;
  };
  EXPECT_EQ(encode("nvfp4", 4.0 * n), 4.0 * n);
  EXPECT_EQ(encode("nvfp4", 2.9 * n), 4.0 * n + 3.0 * n) << "the larger unit alone";
  EXPECT_EQ(encode("nvfp4", 0.9 * n), 8.0 * n);
  EXPECT_EQ(encode("terngrad", 2.9 * n), 4.0 * n) << "a scale is a tensor's";
  EXPECT_EQ(encode("terngrad", 1.9 * n), 4.0 * n + 2.0 * n);
  EXPECT_EQ(encode("int8", 1.0), 4.0 * n) << "a block is held by every cache";
  EXPECT_EQ(encode("int8:ef=on", 1.0), 12.0 * n);
  EXPECT_EQ(encode("dgc", 1.0), 20.0 * n);
  EXPECT_EQ(encode("dgc:clip=1", 1.0), 24.0 * n);
  EXPECT_EQ(encode("vgc", 1.0), 20.0 * n + 3.0 * n) << "with the second moments of one unit";
  EXPECT_DOUBLE_EQ(encode("randomk:ratio=0.25,ef=off", 1.0), n) << "what is not drawn is not read";
  EXPECT_EQ(encode("randomk:ratio=0.25", 1.0), 12.0 * n) << "the residual is added to every element";
  ResultRow row = timed_row("nvfp4");
  row.units[0].elements = kElements;
  ASSERT_TRUE(CodecSpeed::parse("floor:2,cache=1KB").apply(row));
  EXPECT_DOUBLE_EQ(row.encode->median, (8.0 * n + 1000.0) / 2e9);
  EXPECT_EQ(row.processor, "a processor with 2 GB/s of memory and 1.00 kB of cache");
}

TEST(MemoryFloor, WordsSayWhatIsReadAndWhy) {
  const auto words = [](const char* codec) { return memory_floor_words(find_codec(codec)); };
  EXPECT_EQ(
      words("nvfp4"),
      "encode: 4 bytes an element read, the payload written (with ef=on 4 read and 4 written for the residual); 4 "
      "are read again where no cache holds the unit, because scales of blocks are in units of the largest "
      "magnitude; decode: every rank's payload read, 4 bytes an element written");
  EXPECT_NE(words("fp8").find("; with scale=unit 4 are read again"), std::string::npos) << words("fp8");
  EXPECT_NE(words("dgc").find("8 read and 8 written for its memory; with clip 4 are read again"), std::string::npos)
      << words("dgc");
  EXPECT_NE(words("vgc").find("4 read of second moments"), std::string::npos) << words("vgc");
  EXPECT_NE(words("iwp").find("4 read of weights"), std::string::npos) << words("iwp");
  EXPECT_NE(words("randomk").find("4 bytes an element read (with ef=off 0.04: elements that it does not draw"),
            std::string::npos)
      << words("randomk");
  for (const CodecDescriptor* codec : codecs()) EXPECT_FALSE(memory_floor_words(*codec).empty()) << codec->name;
}

TEST(MemoryFloor, BaselinesAndShardsMoveLess) {
  ResultRow none = timed_row("none");
  EXPECT_EQ(memory_floor(none).encode, 0.0);
  EXPECT_EQ(memory_floor(none).decode, 8.0 * kElements);
  none.baseline_dtype = "bf16";
  EXPECT_EQ(memory_floor(none).decode, 0.0);
  EXPECT_EQ(memory_floor(timed_row("noop")).decode, 0.0);
  ResultRow shard = timed_row("fp16");
  shard.op = Collective::all_gather;
  EXPECT_EQ(memory_floor(shard).encode, kElements + 1000.0) << "a quarter of the elements";
  shard.op = Collective::reduce_scatter;
  EXPECT_EQ(memory_floor(shard).decode, kElements + 250.0) << "and a quarter of the payload";
}

TEST(MemoryFloor, UnitsBelowTheGateMoveWhatNoneMoves) {
  ResultRow row = timed_row("int8:gate=8192", 1000.0 + kElements);
  row.units[0] = {.elements = kElements / 4, .bytes = {.payload = kElements}, .gated = true};
  row.units[1].elements = kElements - kElements / 4;
  EXPECT_EQ(memory_floor(row).encode, 3.0 * kElements + 1000.0);
  EXPECT_EQ(memory_floor(row).decode, kRanks * 1000.0 + 3.0 * kElements + 2.0 * kElements);
  row.baseline_dtype = "bf16";
  EXPECT_EQ(memory_floor(row).decode, kRanks * 1000.0 + 3.0 * kElements);
}

TEST(MemoryFloor, InAGatherTheResultIsWrittenOnceHoweverManyRanks) {
  ResultRow row = timed_row("int8");
  ASSERT_EQ(row.scheme, Scheme::gather);
  ASSERT_TRUE(CodecSpeed::parse("floor:2").apply(row));
  EXPECT_EQ(row.codec_times, CodecTimes::floor);
  EXPECT_DOUBLE_EQ(row.encode->median, (4.0 * kElements + 1000.0) / 2e9);
  EXPECT_DOUBLE_EQ(row.units[1].encode, 0.75 * row.encode->median);
  std::vector<ResultRow> rows{row};
  const std::vector<Network> networks{Network::parse("10gbe")};
  const std::vector<int> machines{64};
  const std::vector<double> tensors;
  add_modelled(rows, {.networks = networks, .machines = machines, .tensor_bytes = tensors});
  EXPECT_NEAR(rows.at(1).decode->median, (64 * 1000.0 + 4.0 * kElements) / 2e9, 1e-15);
}

/// A rank of a reduce-scatter that adds decodes its shard: what is left on 64 ranks of that on 4 is a sixteenth.
TEST(MemoryFloor, ShardsOfAReduceScatterShrinkAsRanksGrow) {
  for (const char* codec : {"none", "fp16"}) {
    ResultRow row = timed_row(codec);
    row.op = Collective::reduce_scatter;
    ASSERT_TRUE(CodecSpeed::parse("floor:2").apply(row));
    std::vector<ResultRow> rows{row};
    const std::vector<Network> networks{Network::parse("10gbe")};
    const std::vector<int> machines{64};
    const std::vector<double> tensors;
    add_modelled(rows, {.networks = networks, .machines = machines, .tensor_bytes = tensors});
    EXPECT_NEAR(rows.at(1).decode->median, memory_floor(row).decode / 16.0 / 2e9, 1e-15) << codec;
    EXPECT_DOUBLE_EQ(rows.at(1).encode->median, row.encode->median) << codec;
  }
}

class RecordOfATest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path{testing::TempDir()} / fmt::format("codec_times_{}", getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& text) const {
    const std::string path = (folder_ / "card.json").string();
    std::ofstream{path} << text;
    return path;
  }
  /// One row of fp16 with `more` in the place of what a bench writes.
  static std::string fp16(std::size_t elements, int ranks, double encode_us, const std::string& granularity,
                          const std::string& params = "default") {
    return fmt::format(
        R"({{"status":"ok","codec":"fp16","params":"{}","aggregation":"sum","op":"all-reduce","tensor":"all",)"
        R"("granularity":"{}","elements":{},"ranks":{},"threads":1,"device":"cuda:0","processor":"a card",)"
        R"("time_source":"measured","timing":"isolated","encode_us_median":{},"encode_us_low":{},"encode_us_high":{},)"
        R"("decode_us_median":6}})",
        params, granularity, elements, ranks, encode_us, 0.5 * encode_us, 2.0 * encode_us);
  }
  static std::string record_of(const std::string& rows) {
    return R"({"format":"gradtool.bench","schema_version":2,"rows":[)" + rows + "]}";
  }
  std::filesystem::path folder_;
};

TEST_F(RecordOfATest, TimesGoWithTheElementsAndKeepTheirIntervals) {
  const std::string params = [] {
    const std::string text = parse_codec("fp16").params_text();
    return text.empty() ? std::string{"default"} : text;
  }();
  const std::string path = file(record_of(fp16(8 * kElements, 2, 80.0, "bucket:25MB", params) + "," +
                                          fp16(2 * kElements, 2, 12.0, "size:1MB", params)));
  const auto speed = CodecSpeed::parse(path);
  ResultRow row = timed_row("fp16");
  ASSERT_TRUE(speed.apply(row));
  EXPECT_DOUBLE_EQ(row.encode->median, 6e-6) << "half of the row that is nearest in size";
  EXPECT_DOUBLE_EQ(row.encode->low.value(), 3e-6);
  EXPECT_DOUBLE_EQ(row.encode->high.value(), 12e-6);
  EXPECT_DOUBLE_EQ(row.decode->median, 3e-6) << "a sum is decoded once";
  EXPECT_FALSE(row.decode->low);
  EXPECT_DOUBLE_EQ(row.units[0].encode + row.units[1].encode, 6e-6);
  EXPECT_DOUBLE_EQ(row.units[0].decode, 1e-6);
  EXPECT_EQ(row.codec_times, CodecTimes::record);
  EXPECT_EQ(row.processor, "a card");
  EXPECT_EQ(row.codec_times_file, path);
  EXPECT_EQ(row.message, "");
  std::vector<std::string> missing;
  const auto rows = with_codec_speed({timed_row("fp16"), timed_row("int8"), timed_row("int8")}, speed, missing);
  EXPECT_EQ(rows.size(), 1U);
  EXPECT_EQ(missing, std::vector<std::string>{"int8"});
}

TEST_F(RecordOfATest, AGathersDecodingGoesWithTheRanksAndTheRowSaysSo) {
  const std::string row_of_int8 =
      R"({"status":"ok","codec":"int8","params":"block=2048,rounding=nearest","aggregation":"gather",)"
      R"("op":"all-reduce","tensor":"all","granularity":"model","elements":8192,"ranks":2,"threads":1,)"
      R"("device":"cuda:0","processor":"a card","time_source":"measured","timing":"isolated",)"
      R"("encode_us_median":5,"decode_us_median":6})";
  ResultRow row = timed_row("int8");
  ASSERT_TRUE(CodecSpeed::parse(file(record_of(row_of_int8))).apply(row));
  EXPECT_DOUBLE_EQ(row.encode->median, 5e-6);
  EXPECT_DOUBLE_EQ(row.decode->median, 12e-6) << "twice as many payloads";
  EXPECT_EQ(row.message, "all of the record's decoding scaled from 2 ranks to 4");
}

TEST_F(RecordOfATest, WhatIsNoRecordOrNoSpeedIsRefused) {
  const auto refusal = [](const std::string& text) {
    try {
      static_cast<void>(CodecSpeed::parse(text));
    } catch (const Error& error) {
      return std::string{error.what()};
    }
    return std::string{"taken"};
  };
  EXPECT_NE(refusal(file("{")).find("no valid JSON"), std::string::npos);
  EXPECT_NE(refusal(file("{}")).find("no record of a bench"), std::string::npos);
  EXPECT_NE(refusal(file(R"({"format":"gradtool.bench","schema_version":1})")).find("schema_version"),
            std::string::npos);
  EXPECT_NE(refusal(file(record_of(""))).find("no times of codecs"), std::string::npos);
  for (const char* text : {"floor:", "floor:0", "floor:-1", "floor:fast", "floor:3000GB", "floor:3000,50MB"}) {
    EXPECT_NE(refusal(text).find("floor:3000"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace gradtool::test
