#pragma once

namespace emulation {

/// While one lives, arithmetic of this fiber that makes a NaN out of numbers, or out of a signalling NaN, makes the
/// GPU's: 0x7fffffff, and not 0xffc00000 as x86 does. A NaN of float64 becomes the one that is rounded to 0x7fffffff.
///
/// The processor raises a signal when such an operation begins; its handler lets it finish and replaces the result. An
/// operation on quiet NaNs raises none, and keeps the bits of an operand, where a GPU would write 0x7fffffff. On other
/// processors, with ThreadSanitizer and with GRADTOOL_EMULATION_NAN=host NaNs stay the host's.
class GpuNan {
 public:
  GpuNan();
  ~GpuNan();
  GpuNan(const GpuNan&) = delete;
  GpuNan& operator=(const GpuNan&) = delete;
};

/// Whether GpuNan does so in this build and process.
[[nodiscard]] bool makes_gpu_nan();

}  // namespace emulation
