#include "cufft.h"

#include <fftw3.h>

#include <memory>
#include <mutex>
#include <vector>

#include "emulation/launch.hpp"

namespace {

struct Plan {
  fftwf_plan forward = nullptr, inverse = nullptr;  ///< the inverse exists for complex transforms only
  fftw_plan wide = nullptr;                         ///< plan in double precision, for one row
  cudaStream_t stream = nullptr;
  ~Plan() {
    if (forward != nullptr) fftwf_destroy_plan(forward);
    if (inverse != nullptr) fftwf_destroy_plan(inverse);
    if (wide != nullptr) fftw_destroy_plan(wide);
  }
};

std::mutex mutex;  // protects FFTW's planner and the table of plans
std::vector<std::unique_ptr<Plan>>& plans() {
  static auto* const all = new std::vector<std::unique_ptr<Plan>>;
  return *all;
}
Plan* find(cufftHandle handle) {
  const std::lock_guard lock{mutex};
  const auto at = static_cast<std::size_t>(handle) - 1;
  return at < plans().size() ? plans()[at].get() : nullptr;
}

}  // namespace

cufftResult cufftCreate(cufftHandle* plan) {
  const std::lock_guard lock{mutex};
  plans().push_back(std::make_unique<Plan>());
  *plan = static_cast<int>(plans().size());
  return CUFFT_SUCCESS;
}
cufftResult cufftDestroy(cufftHandle handle) {
  if (find(handle) == nullptr) return CUFFT_INVALID_PLAN;
  cudaDeviceSynchronize();  // no task may still use the plan
  const std::lock_guard lock{mutex};
  plans()[static_cast<std::size_t>(handle) - 1].reset();
  return CUFFT_SUCCESS;
}
cufftResult cufftSetAutoAllocation(cufftHandle plan, int /*automatic*/) {
  return find(plan) == nullptr ? CUFFT_INVALID_PLAN : CUFFT_SUCCESS;
}
cufftResult cufftSetStream(cufftHandle handle, cudaStream_t stream) {
  Plan* plan = find(handle);
  if (plan == nullptr) return CUFFT_INVALID_PLAN;
  plan->stream = stream;
  return CUFFT_SUCCESS;
}
cufftResult cufftSetWorkArea(cufftHandle plan, void* /*memory*/) {
  return find(plan) == nullptr ? CUFFT_INVALID_PLAN : CUFFT_SUCCESS;
}

cufftResult cufftMakePlanMany64(cufftHandle handle, int rank, long long* lengths, long long* in_shape,
                                long long in_stride, long long in_distance, long long* out_shape, long long out_stride,
                                long long out_distance, cufftType type, long long batch, std::size_t* work_bytes) {
  Plan* plan = find(handle);
  if (plan == nullptr) return CUFFT_INVALID_PLAN;
  if (rank != 1 || batch < 1 || lengths[0] < 1) return CUFFT_INVALID_SIZE;
  const std::lock_guard lock{mutex};
  const int n = static_cast<int>(lengths[0]);
  const int many = static_cast<int>(batch);
  if (type == CUFFT_D2Z) {
    if (batch != 1) return CUFFT_INVALID_SIZE;
    std::vector<double> x(static_cast<std::size_t>(n)), y(static_cast<std::size_t>(n) + 2);
    plan->wide =
        fftw_plan_dft_r2c_1d(n, x.data(), reinterpret_cast<fftw_complex*>(y.data()), FFTW_ESTIMATE | FFTW_UNALIGNED);
    *work_bytes = 512;
    return plan->wide == nullptr ? CUFFT_INVALID_SIZE : CUFFT_SUCCESS;
  }
  // Null shapes mean packed rows, as in cuFFT.
  const int packed_in = type == CUFFT_C2R ? n / 2 + 1 : n;
  const int packed_out = type == CUFFT_R2C ? n / 2 + 1 : n;
  const int in = in_shape == nullptr ? packed_in : static_cast<int>(in_distance);
  const int out = out_shape == nullptr ? packed_out : static_cast<int>(out_distance);
  const int is = in_shape == nullptr ? 1 : static_cast<int>(in_stride);
  const int os = out_shape == nullptr ? 1 : static_cast<int>(out_stride);
  // Planning with FFTW_ESTIMATE does not touch the data. FFTW_UNALIGNED is set because rows may have any alignment.
  const unsigned flags = FFTW_ESTIMATE | FFTW_UNALIGNED;
  const std::size_t floats = 2 * static_cast<std::size_t>(many) * static_cast<std::size_t>(std::max(in, out)) + 2;
  std::vector<float> a(floats), b(floats);
  auto* ca = reinterpret_cast<fftwf_complex*>(a.data());
  auto* cb = reinterpret_cast<fftwf_complex*>(b.data());
  if (type == CUFFT_R2C) {
    plan->forward = fftwf_plan_many_dft_r2c(1, &n, many, a.data(), nullptr, is, in, cb, nullptr, os, out,
                                            flags | FFTW_PRESERVE_INPUT);
  } else if (type == CUFFT_C2R) {
    plan->forward = fftwf_plan_many_dft_c2r(1, &n, many, ca, nullptr, is, in, b.data(), nullptr, os, out, flags);
  } else {
    plan->forward = fftwf_plan_many_dft(1, &n, many, ca, nullptr, is, in, cb, nullptr, os, out, FFTW_FORWARD, flags);
    plan->inverse = fftwf_plan_many_dft(1, &n, many, ca, nullptr, is, in, cb, nullptr, os, out, FFTW_BACKWARD, flags);
  }
  *work_bytes = 512;
  return plan->forward == nullptr ? CUFFT_INVALID_SIZE : CUFFT_SUCCESS;
}

cufftResult cufftExecR2C(cufftHandle handle, cufftReal* in, cufftComplex* out) {
  Plan* plan = find(handle);
  if (plan == nullptr) return CUFFT_INVALID_PLAN;
  const fftwf_plan fftw = plan->forward;
  emulation::enqueue(plan->stream, [=] { fftwf_execute_dft_r2c(fftw, in, reinterpret_cast<fftwf_complex*>(out)); });
  return CUFFT_SUCCESS;
}
cufftResult cufftExecD2Z(cufftHandle handle, cufftDoubleReal* in, cufftDoubleComplex* out) {
  Plan* plan = find(handle);
  if (plan == nullptr || plan->wide == nullptr) return CUFFT_INVALID_PLAN;
  const fftw_plan fftw = plan->wide;
  emulation::enqueue(plan->stream, [=] { fftw_execute_dft_r2c(fftw, in, reinterpret_cast<fftw_complex*>(out)); });
  return CUFFT_SUCCESS;
}
cufftResult cufftExecC2R(cufftHandle handle, cufftComplex* in, cufftReal* out) {
  Plan* plan = find(handle);
  if (plan == nullptr) return CUFFT_INVALID_PLAN;
  const fftwf_plan fftw = plan->forward;
  emulation::enqueue(plan->stream, [=] { fftwf_execute_dft_c2r(fftw, reinterpret_cast<fftwf_complex*>(in), out); });
  return CUFFT_SUCCESS;
}
cufftResult cufftExecC2C(cufftHandle handle, cufftComplex* in, cufftComplex* out, int direction) {
  Plan* plan = find(handle);
  if (plan == nullptr) return CUFFT_INVALID_PLAN;
  // FFTW has different plans for transforms in place and out of place; this plan is for the latter.
  if (in == out || plan->inverse == nullptr) return CUFFT_INVALID_VALUE;
  const fftwf_plan fftw = direction == CUFFT_FORWARD ? plan->forward : plan->inverse;
  emulation::enqueue(plan->stream, [=] {
    fftwf_execute_dft(fftw, reinterpret_cast<fftwf_complex*>(in), reinterpret_cast<fftwf_complex*>(out));
  });
  return CUFFT_SUCCESS;
}
