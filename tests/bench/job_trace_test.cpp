#include "lib/bench/job_trace.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "lib/core/error.hpp"

namespace gradtool::test {
namespace {

/// Events of a trace, in microseconds.
class Trace {
 public:
  Trace& step(int number, double from, double length) {
    return event(fmt::format("ProfilerStep#{}", number), "user_annotation", from, length);
  }
  Trace& kernel(const std::string& name, double from, double length, const std::string& args = "") {
    return event(name, "kernel", from, length, args);
  }
  Trace& event(const std::string& name, const std::string& category, double from, double length,
               const std::string& args = "") {
    text_ += fmt::format(R"({}{{"ph":"X","cat":"{}","name":"{}","pid":1,"tid":2,"ts":{},"dur":{},"args":{{{}}}}})",
                         text_.empty() ? "" : ",\n", category, name, from, length, args);
    return *this;
  }
  [[nodiscard]] std::string list() const { return "[" + text_ + "]"; }
  /// With fields around the list as Kineto has them, lists among them.
  [[nodiscard]] std::string document() const {
    return R"({"schemaVersion":1,"deviceProperties":[{"id":0,"name":"card"}],"distributedInfo":{"backend":"nccl",)"
           R"("pg_config":[{"pg_name":"0","ranks":[0,1]}]},"traceEvents":)" +
           list() + R"(,"traceName":"t.json","more":[[{"ts":3}]]})";
  }

 private:
  std::string text_;
};

class JobTraces : public testing::Test {
 protected:
  JobTraces() { std::filesystem::create_directories(folder_); }
  ~JobTraces() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) {
    const std::string path = (folder_ / name).string();
    std::ofstream{path, std::ios::binary} << text;
    return path;
  }
  JobTrace read(const Trace& trace) { return read_job_traces(write("trace.json", trace.document())); }
  std::string refusal(const std::string& path) {
    try {
      static_cast<void>(read_job_traces(path));
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::data);
      return error.what();
    }
    return "it was read";
  }
  std::filesystem::path folder_ = std::filesystem::temp_directory_path() / fmt::format("job_traces_{}", getpid());
};

constexpr const char* kSum = R"("Collective name":"allreduce","In msg nelems":1000000,"dtype":"Float","Group size":4)";

/// Two steps of 100 and of 200 us: 30 us of their collectives have no computation beside them in the first, 50 in the
/// second.
Trace two_steps() {
  Trace trace;
  trace.step(7, 1000, 100).step(8, 1100, 200);
  trace.kernel("gemm", 1000, 50).kernel("someCollective", 1040, 40, kSum);  // 10 of 40 beside gemm
  trace.kernel("gemm", 1090, 20).kernel("ncclDevKernel_AllGather", 1150, 60);
  trace.kernel("gemm", 1170, 10).event("Memcpy HtoD", "gpu_memcpy", 1250, 50);
  // Kernels of other streams at the same time, and a collective within another.
  trace.kernel("ncclDevKernel_AllReduce", 1155, 5).kernel("gemm", 1172, 4);
  return trace;
}

TEST_F(JobTraces, CountAsExposedWhatHasNoComputationBesideIt) {
  const JobTrace trace = read(two_steps());
  EXPECT_EQ(trace.steps, 2U);
  EXPECT_NEAR(trace.step_seconds, 150e-6, 1e-12);
  EXPECT_NEAR(trace.exposed_seconds, (30e-6 + 50e-6) / 2.0, 1e-12);
  EXPECT_NEAR(trace.compute_seconds, (70e-6 + 150e-6) / 2.0, 1e-12);
  EXPECT_NEAR(trace.compute_low, 70e-6, 1e-12);
  EXPECT_NEAR(trace.compute_high, 150e-6, 1e-12);
  EXPECT_NEAR(trace.most_gain(), 150.0 / 110.0, 1e-9);
  EXPECT_NE(trace.words().find("40.0 us are exposed communication: no codec can gain more than 1.36 times"),
            std::string::npos)
      << trace.words();
}

TEST_F(JobTraces, NameCollectivesWithTheirSizesAndGroups) {
  const JobTrace trace = read(two_steps());
  ASSERT_EQ(trace.collectives.size(), 1U) << "only one kernel says how large its message is";
  EXPECT_EQ(trace.collectives[0].name, "allreduce");
  EXPECT_EQ(trace.collectives[0].ranks, 4);
  EXPECT_EQ(trace.collectives[0].bytes, 4e6);
  EXPECT_EQ(trace.collectives[0].calls, 1U);
  // 2 x 3/4 x 4 MB in 40 us.
  EXPECT_EQ(
      trace.collectives_words(),
      "The collectives of the trace: allreduce of 4.00 MB among 4 ranks takes 40.0 us (150 GB/s of bus bandwidth)");
}

TEST_F(JobTraces, AreReadWithoutKernelsByAnnotationsAndOperators) {
  Trace trace;
  trace.step(1, 0, 100).event("aten::mm", "cpu_op", 0, 60).event("aten::copy_", "cpu_op", 10, 5);
  trace.event("gloo:all_reduce", "user_annotation", 50, 40, R"("Input type":["float",""],"Input Dims":[[10,20],[5]])");
  trace.event("ProfilerStep#1", "gpu_user_annotation", 0, 7);
  const JobTrace read_back = read(trace);
  EXPECT_NEAR(read_back.exposed_seconds, 30e-6, 1e-12);
  ASSERT_EQ(read_back.collectives.size(), 1U);
  EXPECT_EQ(read_back.collectives[0].bytes, 800.0) << "of the first tensor";
}

TEST_F(JobTraces, OfSeveralRanksTheOneThatComputesLongestIsTaken) {
  Trace fast;
  fast.step(1, 0, 100).kernel("gemm", 0, 20).kernel("nccl", 20, 80);
  Trace slow;
  slow.step(1, 0, 100).kernel("gemm", 0, 70).kernel("nccl", 70, 30);
  const std::string one = write("one.json", fast.document()), other = write("other.json", slow.list());
  for (const std::string& both : {one + "," + other, other + "," + one}) {
    const JobTrace trace = read_job_traces(both);
    EXPECT_EQ(trace.file, other);
    EXPECT_EQ(trace.given, both);
    EXPECT_NEAR(trace.exposed_seconds, 30e-6, 1e-12);
  }
}

TEST_F(JobTraces, StepsInWhichNothingWasRecordedDoNotCount) {
  Trace trace = two_steps();
  trace.step(9, 5000, 1);
  EXPECT_EQ(read(trace).steps, 2U);
}

TEST_F(JobTraces, ThatSayNothingAreRefusedWithOneSentence) {
  Trace no_steps, no_collectives, no_work;
  no_steps.kernel("gemm", 0, 1).kernel("nccl", 1, 1);
  no_collectives.step(1, 0, 10).kernel("gemm", 0, 5);
  no_work.step(1, 0, 10).event("gloo:all_reduce", "user_annotation", 0, 5);
  const auto said = [&](const Trace& trace) { return refusal(write("t.json", trace.document())); };
  EXPECT_NE(said(no_steps).find("marks no steps; call step() of the profiler"), std::string::npos);
  EXPECT_NE(said(no_collectives).find("records no collective"), std::string::npos);
  EXPECT_NE(said(no_work).find("records collectives alone"), std::string::npos);
  const std::string whole = two_steps().document();
  EXPECT_NE(refusal(write("t.json", whole.substr(0, whole.size() / 2))).find("no whole JSON document"),
            std::string::npos);
  EXPECT_NE(refusal(write("t.json", R"({"traceEvents":3})")).find("no list traceEvents"), std::string::npos);
  EXPECT_NE(refusal(write("t.json", std::string(1000, '['))).find("no whole JSON document"), std::string::npos);
  EXPECT_NE(refusal(write("t.json", "")).find("no whole JSON document"), std::string::npos);
  EXPECT_NE(refusal((folder_ / "none.json").string()).find("none.json"), std::string::npos);
  EXPECT_NE(refusal(write("t.json.gz", "\x1f\x8b\x08 no stream")).find("t.json.gz"), std::string::npos);
}

TEST_F(JobTraces, AreNamedByTheirEnding) {
  for (const char* name : {"a.json", "b.json.gz", "a.json,b.json"}) EXPECT_TRUE(names_traces(name)) << name;
  for (const char* name : {"120", "captured", "none", "", "json"}) EXPECT_FALSE(names_traces(name)) << name;
}

}  // namespace
}  // namespace gradtool::test
