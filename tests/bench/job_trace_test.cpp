#include "lib/bench/job_trace.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lib/bench/trace_calls.hpp"
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
    const std::string kind = category.empty() ? "" : fmt::format(R"("cat":"{}",)", category);
    text_ += fmt::format(R"({}{{"ph":"X",{}"name":"{}","pid":1,"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
                         text_.empty() ? "" : ",\n", kind, name, thread_, from, length, args);
    return *this;
  }
  /// Puts the events that follow on this thread.
  Trace& on_thread(int thread) {
    thread_ = thread;
    return *this;
  }
  [[nodiscard]] std::string list() const { return "[" + text_ + "]"; }
  /// With fields around the list as Kineto has them, lists among them.
  [[nodiscard]] std::string document() const {
    return R"({"schemaVersion":1,"deviceProperties":[{"id":0,"name":"card"}],"distributedInfo":{"backend":"nccl",)"
           R"("world_size":4,"pg_config":[{"pg_name":"0","world_size":9,"ranks":[0,1]}]},"traceEvents":)" +
           list() + R"(,"traceName":"t.json","more":[[{"ts":3}]]})";
  }

 private:
  std::string text_;
  int thread_ = 2;
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
  EXPECT_NE(trace.words().find(
                "40.0 us are exposed communication: on that job's network no codec can gain more than 1.36 times"),
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

/// A step of an older trace, in microseconds: what computes, and what its two threads launch at the same time.
Trace older_step() {
  Trace trace;
  trace.step(1, 0, 1000).kernel("gemm", 0, 100);
  const auto launch = [&](double at, int correlation) {
    trace.event("cudaLaunchKernelExC", "cuda_runtime", at, 5, fmt::format(R"("correlation":{})", correlation));
  };
  trace.on_thread(7).event("record_param_comms", "cpu_op", 19, 30,
                           R"("Input Dims":[[],[]],"Input type":["","Scalar"])");
  trace.event("nccl:all_reduce", "user_annotation", 20, 20, R"("Input Dims":[[1000,50]],"Input type":["float"])");
  launch(25, 31);
  trace.on_thread(8).event("nccl:_all_gather_base", "user_annotation", 10, 30,
                           R"("Input Dims":[[30000],[]],"Input type":["c10::BFloat16","Scalar"])");
  launch(24, 32);
  launch(30, 33);  // a large collective in two kernels
  launch(60, 34);  // behind all annotations
  trace.event("nccl:all_reduce", "gpu_user_annotation", 400, 100, R"("Input Dims":[[9]],"Input type":["float"])");
  const auto kernel = [&](double from, double length, int correlation) {
    trace.on_thread(20).kernel("ncclKernel_Ring", from, length, fmt::format(R"("correlation":{})", correlation));
  };
  kernel(400, 100, 31);
  kernel(600, 30, 33);
  kernel(560, 40, 32);
  kernel(700, 10, 34);
  kernel(800, 10, 99);  // launched before the trace began
  return trace;
}

TEST_F(JobTraces, TakeTheSizesOfOlderKernelsFromWhatLaunchedThem) {
  const JobTrace trace = read(older_step());
  EXPECT_NEAR(trace.exposed_seconds, 190e-6, 1e-12) << "kernels without sizes are communication, too";
  ASSERT_EQ(trace.collectives.size(), 2U);
  const TracedCollective& sum = trace.collectives[0];
  EXPECT_EQ(sum.name, "all_reduce");
  EXPECT_EQ(sum.bytes, 200e3);
  EXPECT_EQ(sum.calls, 1U);
  EXPECT_NEAR(sum.seconds, 100e-6, 1e-12);
  const TracedCollective& gather = trace.collectives[1];
  EXPECT_EQ(gather.name, "_all_gather_base");
  EXPECT_EQ(gather.bytes, 60e3);
  EXPECT_EQ(gather.calls, 1U) << "two kernels of one annotation";
  EXPECT_NEAR(gather.seconds, 70e-6, 1e-12);
  // 2 x 3/4 x 200 kB in 100 us, and the three parts of 60 kB that come from others in 70.
  EXPECT_EQ(trace.collectives_words(),
            "The collectives of the trace: all_reduce of 200 kB among 4 ranks takes 100 us (3 GB/s of bus bandwidth), "
            "_all_gather_base of 60.0 kB among 4 ranks takes 70.0 us (2.57 GB/s of bus bandwidth); it names no process "
            "groups, so that all ranks of the job are taken to be in each");
}

TEST_F(JobTraces, AreReadBackFromTheRecordAsTheyWere) {
  const JobTrace trace = read(older_step());
  const JobTrace again = job_trace_of(to_json(trace));
  EXPECT_EQ(again.words(), trace.words());
  EXPECT_EQ(again.collectives_words(), trace.collectives_words());
  EXPECT_EQ(again.given, trace.given);
  EXPECT_DOUBLE_EQ(again.compute_low, trace.compute_low);
  EXPECT_DOUBLE_EQ(again.compute_high, trace.compute_high);
}

TEST_F(JobTraces, TakeSizeAndGroupFromRecordParamCommsWhereItHasThem) {
  Trace trace;
  trace.step(1, 0, 100).kernel("gemm", 0, 10);
  trace.event("record_param_comms", "cpu_op", 5, 10,
              R"("Collective name":"reduce_scatter","In msg nelems":1000,"dtype":"Half","Group size":2)");
  trace.event("nccl:_reduce_scatter_base", "user_annotation", 6, 8, R"("Input Dims":[[7]],"Input type":["float"])");
  trace.event("cudaLaunchKernel", "cuda_runtime", 8, 1, R"("correlation":5)");
  trace.kernel("ncclDevKernel_ReduceScatter", 20, 2, R"("correlation":5)");
  EXPECT_EQ(read(trace).collectives_words(),
            "The collectives of the trace: reduce_scatter of 2.00 kB among 2 ranks takes 2.00 us (0.5 GB/s of bus "
            "bandwidth)");
}

TEST_F(JobTraces, OfPyTorchWithoutKinetoHaveNeitherCategoriesNorSizes) {
  Trace trace;
  trace.event("ProfilerStep#1", "", 0, 100).event("aten::mm", "", 0, 60).event("aten::copy_", "", 10, 5);
  trace.event("MmBackward0", "", 0, 100).event("gloo:all_reduce", "", 50, 40);
  const JobTrace found = read_job_traces(write("list.json", trace.list()));
  EXPECT_NEAR(found.exposed_seconds, 30e-6, 1e-12);
  EXPECT_EQ(found.collectives_words().find("The trace does not record how large its collectives are"), 0U);
}

TEST(BusBytes, AreCountedAsNcclTestsDoes) {
  EXPECT_EQ(bus_bytes("allreduce", 4, 100.0), 150.0);
  EXPECT_EQ(bus_bytes("nccl_all_reduce_coalesced", 4, 100.0), 150.0);
  EXPECT_EQ(bus_bytes("reduce_scatter_tensor", 4, 100.0), 75.0);
  EXPECT_EQ(bus_bytes("all_to_allv", 4, 100.0), 75.0);
  EXPECT_EQ(bus_bytes("_allgather_base", 4, 100.0), 300.0) << "of 400 bytes in all";
  EXPECT_EQ(bus_bytes("broadcast", 4, 100.0), 100.0);
  EXPECT_EQ(bus_bytes("reduce", 4, 100.0), 100.0);
  EXPECT_EQ(bus_bytes("send", 4, 100.0), 0.0);
}

TEST_F(JobTraces, AreReadWithoutKernelsByAnnotationsAndOperators) {
  Trace trace;
  trace.step(1, 0, 100).event("aten::mm", "cpu_op", 0, 60).event("aten::copy_", "cpu_op", 10, 5);
  trace.event("gloo:all_reduce", "user_annotation", 50, 40, R"("Input type":["float",""],"Input Dims":[[10,20],[5]])");
  trace.event("ProfilerStep#1", "gpu_user_annotation", 0, 7);
  const JobTrace read_back = read(trace);
  EXPECT_NEAR(read_back.exposed_seconds, 30e-6, 1e-12);
  ASSERT_EQ(read_back.collectives.size(), 1U);
  EXPECT_EQ(read_back.collectives[0].bytes, 800.0) << "what has no type is no tensor";
}

TEST_F(JobTraces, TakeNoSizeFromDimensionsThatAreNoLists) {
  for (const char* dimensions : {R"([{"a":5}])", R"({"a":{"b":5}})", R"([5])", R"([[[5]]])"}) {
    Trace trace;
    trace.step(1, 0, 100).event("aten::mm", "cpu_op", 0, 60);
    trace.event("gloo:all_reduce", "user_annotation", 50, 40,
                fmt::format(R"("Input Dims":{},"Input type":["float"])", dimensions));
    EXPECT_NEAR(read(trace).exposed_seconds, 30e-6, 1e-12) << dimensions;
  }
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
  Trace no_steps, no_collectives, no_work, no_kernels;
  no_steps.kernel("gemm", 0, 1).kernel("nccl", 1, 1);
  no_collectives.step(1, 0, 10).kernel("gemm", 0, 5);
  no_work.step(1, 0, 10).event("gloo:all_reduce", "user_annotation", 0, 5);
  no_kernels.step(1, 0, 10).event("aten::mm", "cpu_op", 0, 5).event("nccl:all_reduce", "user_annotation", 2, 1);
  const auto said = [&](const Trace& trace) { return refusal(write("t.json", trace.document())); };
  EXPECT_NE(said(no_steps).find("marks no steps; call step() of the profiler"), std::string::npos);
  EXPECT_NE(said(no_collectives).find("records no collective"), std::string::npos);
  EXPECT_NE(said(no_work).find("records collectives alone"), std::string::npos);
  EXPECT_NE(said(no_kernels).find("launched on a GPU, and not when they ran; profile"), std::string::npos);
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
