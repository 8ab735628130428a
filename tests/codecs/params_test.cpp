#include <gtest/gtest.h>

#include <algorithm>

#include "lib/codecs/reducer.hpp"
#include "lib/core/error.hpp"

namespace gradtool::test {
namespace {

std::string failure(const std::string& spec) {
  try {
    const auto parsed = parse_codec(spec);
    static_cast<void>(parsed.descriptor->make_host(parsed.params, Layout::flat(100)));
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::usage);
    return error.what();
  }
  return "taken";
}

TEST(CodecSpec, FillsInDefaultsAndReadsBack) {
  const auto spec = parse_codec("qsgd:bits=3");
  EXPECT_EQ(spec.params_text(), "bits=3,bucket=512,norm=max,code=fixed");
  EXPECT_EQ(parse_codec("qsgd:" + spec.params_text()).params_text(), spec.params_text());
  EXPECT_EQ(parse_codec("none").params_text(), "");
}

TEST(CodecSpec, HasOneTextWhateverDigitsANumberWasGivenIn) {
  for (const char* spelled : {"topk:ratio=1e-2", "topk:ratio=.01", "topk:ratio=0.010", "topk:ratio=0.01", "topk"})
    EXPECT_EQ(parse_codec(spelled).params_text(), "ratio=0.01,index=auto") << spelled;
  EXPECT_EQ(parse_codec("topk:ratio=5e-1").params_text(), parse_codec("topk:ratio=0.5").params_text());
  EXPECT_EQ(parse_codec("qsgd:bits=4.0,bucket=1e3").params_text(), "bits=4,bucket=1000,norm=max,code=fixed");
  EXPECT_EQ(parse_codec("topk:ratio=5e-1").given, "ratio=5e-1") << "people read what they wrote";
  EXPECT_EQ(parse_codec("topk:ratio=1e-2").params.real("ratio"), 0.01);
  EXPECT_EQ(parse_codec("strom:tau=1e-06").params_text(), parse_codec("strom:tau=0.000001").params_text());
  EXPECT_NE(parse_codec("strom:tau=1e-06").params_text().find("tau=1e-6"), std::string::npos);
}

TEST(CodecSpec, RefusesWhatCountsForNothing) {
  EXPECT_EQ(failure("dlcp:loss=0.1"), "codec dlcp: loss counts only with model=iid, and model is importance");
  EXPECT_EQ(failure("dlcp:model=iid,burst=3"), "codec dlcp: burst counts only with model=gilbert, and model is iid");
  EXPECT_NE(failure("zfp:tolerance=0.1").find("with mode=accuracy, and mode is rate"), std::string::npos);
  for (const char* fine : {"dlcp:model=iid,loss=0.1", "dlcp:drain=0.5,queue=2", "dlcp:model=gilbert,bad=0.2"})
    EXPECT_EQ(failure(fine), "taken") << fine;
  // A record has all parameters, at their defaults where they count for nothing.
  EXPECT_EQ(failure("dlcp:" + parse_codec("dlcp:model=iid,loss=0.1").params_text()), "taken");
}

TEST(CodecSpec, ErrorFeedbackIsForEveryCodec) {
  EXPECT_TRUE(parse_codec("topk").error_feedback);
  EXPECT_FALSE(parse_codec("topk:ef=off").error_feedback);
  EXPECT_EQ(parse_codec("topk:ratio=0.1,ef=off").params_text(), "ratio=0.1,index=auto,ef=off");
  EXPECT_TRUE(parse_codec("qsgd:ef=on,bits=2").error_feedback);
  EXPECT_EQ(parse_codec("topk:ef=on").params_text(), "ratio=0.01,index=auto");
}

TEST(CodecSpec, PresetsAreCodecsWithParameters) {
  for (const Preset& preset : presets()) {
    const CodecSpec spec = parse_codec(preset.name);
    EXPECT_EQ(spec.params_text(), parse_codec(preset.spec).params_text()) << preset.name;
    EXPECT_EQ(spec.way, Scheme::alltoall) << preset.name;
    const std::string recorded = spec.name() + ":" + spec.params_text();
    EXPECT_EQ(parse_codec(recorded).params_text(), spec.params_text()) << preset.name;
    for (const auto* codec : codecs()) EXPECT_NE(codec->name, preset.name);
  }
  EXPECT_TRUE(std::is_sorted(presets().begin(), presets().end(), [](auto& a, auto& b) { return a.name < b.name; }));
  EXPECT_EQ(parse_codec("torchcomms-fp8").params_text(),
            "format=e4m3,block=128,scale=block,row=512,rounding=nearest,reduce=alltoall,own=exact,segment=512,"
            "gate=16777216");
  EXPECT_EQ(parse_codec("torchcomms-fp8:gate=0").params_text(),
            "format=e4m3,block=128,scale=block,row=512,rounding=nearest,reduce=alltoall,own=exact,segment=512");
  EXPECT_EQ(parse_codec("quickreduce-int8:gate=1000,ef=on").gate, 1000U);
  EXPECT_TRUE(parse_codec("flashinfer-fp8:ef=on").error_feedback);
  EXPECT_EQ(expand_codec_list("quickreduce-int4,torchcomms-fp8").size(), 2U);
  EXPECT_NE(failure("torchcomms-fp9").find("did you mean 'torchcomms-fp8'"), std::string::npos);
  EXPECT_NE(failure("torchcomms-fp8:block=64").find("twice"), std::string::npos);
}

TEST(CodecSpec, GateIsForAllCodecsAndSegmentForShards) {
  EXPECT_EQ(parse_codec("powersgd:gate=65536").gate, 65536U);
  EXPECT_TRUE(parse_codec("noop").gate == 0 && parse_codec("topk").segment == 1);
  EXPECT_NE(failure("none:gate=1").find("baseline"), std::string::npos);
  EXPECT_NE(failure("topk:gate=-1").find("gate"), std::string::npos);
  EXPECT_NE(failure("fp8:segment=512").find("reduce=alltoall"), std::string::npos);
  EXPECT_NE(failure("fp8:reduce=alltoall,segment=0").find("segment"), std::string::npos);
}

TEST(CodecSpec, ReduceAndOwnAreForCodecsThatTakeThem) {
  EXPECT_NE(parse_codec("int8:reduce=hop").params_text().find(",reduce=hop"), std::string::npos);
  EXPECT_EQ(parse_codec("int8:reduce=auto").params_text(), parse_codec("int8").params_text());
  EXPECT_NE(failure("powersgd:reduce=gather").find("reducer of its own"), std::string::npos);
  EXPECT_NE(failure("dgc:reduce=alltoall").find("use gather"), std::string::npos);
  EXPECT_NE(failure("qsgd:reduce=sum").find("cannot ride on a sum"), std::string::npos);
  EXPECT_NE(failure("topk:reduce=hop").find("keeps a residual"), std::string::npos);
  for (const char* text : {"fp8:own=exact", "fp8:reduce=gather,own=exact", "fp8:reduce=alltoall,own=exact,ef=on"})
    EXPECT_NE(failure(text).find("own=exact is for the owners"), std::string::npos) << text;
  const auto spec = parse_codec("int8:reduce=hop");
  EXPECT_THROW(static_cast<void>(resolve(Scheme::gather, spec)), Error);
}

TEST(CodecSpec, SaysWhatIsWrongAndWhatIsValid) {
  EXPECT_NE(failure("qsdg").find("did you mean 'qsgd'"), std::string::npos);
  EXPECT_NE(failure("qsgd:bit=4").find("did you mean 'bits'"), std::string::npos);
  EXPECT_NE(failure("qsgd:bits=9").find("2 to 8"), std::string::npos);
  EXPECT_NE(failure("qsgd:bits=3.5").find("integer"), std::string::npos);
  EXPECT_NE(failure("qsgd:bits").find("needs a value"), std::string::npos);
  EXPECT_NE(failure("qsgd:bits=4,bits=5").find("twice"), std::string::npos);
  EXPECT_NE(failure("qsgd:norm=l3").find("max, l2"), std::string::npos);
  EXPECT_NE(failure("qsgd:bucket=100").find("multiple of 32"), std::string::npos);
  EXPECT_NE(failure("none:x=1").find("takes none"), std::string::npos);
  EXPECT_NE(failure("topk:ratio=nan").find("0 to 1"), std::string::npos);
  EXPECT_NE(failure("topk:ef=maybe").find("on"), std::string::npos);
  EXPECT_NE(failure(""), "taken");
  for (const char* empty :
       {"topk:", "topk:,", "topk:ratio=0.1,", "topk:,ratio=0.1", "topk:ratio=0.1,,ef=on", "none:"}) {
    EXPECT_NE(failure(empty).find("empty parameter"), std::string::npos) << empty;
  }
}

TEST(Registry, IsSortedAndDescribesItself) {
  const auto all = codecs();
  ASSERT_GE(all.size(), 5U);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0) EXPECT_LT(all[i - 1]->name, all[i]->name);
    EXPECT_FALSE(all[i]->summary.empty());
    EXPECT_FALSE(all[i]->reference.empty());
    EXPECT_FALSE(all[i]->payload.empty());
    const auto sentences = std::count(all[i]->description.begin(), all[i]->description.end(), '.');
    EXPECT_GE(sentences, 3) << all[i]->name << ": docs/codecs.md needs how it works, what was decided, when it pays";
    EXPECT_TRUE(all[i]->description.ends_with(".")) << all[i]->name;
    EXPECT_TRUE(has_codec(*all[i]) || all[i]->aggregation == Aggregation::own) << all[i]->name;
    for (const auto& info : all[i]->params) {
      EXPECT_FALSE(info.meaning.empty()) << all[i]->name << " " << info.name;
      EXPECT_NO_THROW(static_cast<void>(parse_codec(std::string{all[i]->name} + ":" + std::string{info.name} + "=" +
                                                    std::string{info.default_value})));
    }
  }
}

TEST(CodecList, NamesSeveralAndExpandsBrackets) {
  using List = std::vector<std::string>;
  EXPECT_EQ(expand_codec_list("topk"), List{"topk"});
  EXPECT_EQ(expand_codec_list("all,topk:ratio=0.1,ef=off,qsgd:bits=4"),
            (List{"all", "topk:ratio=0.1,ef=off", "qsgd:bits=4"}));
  EXPECT_EQ(expand_codec_list("topk:ratio=[0.1,0.01],index=[u32,elias]"),
            (List{"topk:ratio=0.1,index=u32", "topk:ratio=0.1,index=elias", "topk:ratio=0.01,index=u32",
                  "topk:ratio=0.01,index=elias"}));
  // Left as they are for parse_codec to refuse.
  EXPECT_EQ(expand_codec_list("topk:ratio=0.1,"), List{"topk:ratio=0.1,"});
  EXPECT_EQ(expand_codec_list(""), List{""});
  for (const char* bad : {"topk:ratio=[0.1", "topk:ratio=0.1]", "topk:ratio=[[1]]", "]["}) {
    EXPECT_THROW(static_cast<void>(expand_codec_list(bad)), Error) << bad;
  }
  std::string many = "topk:ratio=[0";
  for (int i = 1; i <= 1000; ++i) many += ",0." + std::to_string(i);
  EXPECT_THROW(static_cast<void>(expand_codec_list(many + "]")), Error);
}

TEST(CodecSpec, KeepsWhatWasGiven) {
  EXPECT_EQ(parse_codec("topk:ratio=0.01").given, "ratio=0.01");
  EXPECT_EQ(parse_codec("topk").given, "");
}

}  // namespace
}  // namespace gradtool::test
