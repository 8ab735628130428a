#include "src/nan.hpp"

#if defined(__x86_64__) && defined(__linux__) && !defined(GT_EMULATION_RACES)

#include <ucontext.h>
#include <xmmintrin.h>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace emulation {
namespace {

constexpr unsigned kInvalidMask = 0x80;  ///< of MXCSR: invalid operations raise no signal
constexpr unsigned kFlags = 0x3f;        ///< of MXCSR: exceptions that were seen
constexpr greg_t kSingleStep = 0x100;    ///< of the flags register
constexpr std::uint32_t kNan32 = 0x7fffffffu;
constexpr std::uint64_t kNan64 = 0x7fffffffe0000000u;  ///< is rounded to kNan32

/// The result of an instruction of SSE, or of AVX on 128 bits.
struct Result {
  int xmm = -1;       ///< the register; negative for an instruction that is not arithmetic
  bool wide = false;  ///< float64
  int values = 0;
};

/// Reads the addition, subtraction, multiplication, division, root, conversion or fused multiplication at `code`.
Result result_of(const std::uint8_t* code) {
  bool packed = true;
  bool wide = false;
  unsigned high = 0;  // bit 3 of the register's number
  unsigned map = 1;
  bool w = false;
  const auto prefix = [&](unsigned pp) {  // 0: none, 1: 66, 2: F3, 3: F2
    packed = pp < 2;
    wide = pp % 2 == 1;
  };
  if (*code == 0xc5) {
    high = code[1] >> 7 ^ 1u;
    prefix(code[1] & 3u);
    code += 2;
  } else if (*code == 0xc4) {
    high = code[1] >> 7 ^ 1u;
    map = code[1] & 31u;
    w = code[2] >> 7 != 0;
    prefix(code[2] & 3u);
    code += 3;
  } else {
    for (; *code == 0x66 || *code == 0xf2 || *code == 0xf3; ++code) prefix(*code == 0x66 ? 1 : *code == 0xf3 ? 2 : 3);
    if (*code >> 4 == 4) high = *code++ >> 2 & 1u;
    if (*code++ != 0x0f) return {};
  }
  const unsigned operation = *code++;
  const int xmm = static_cast<int>((*code >> 3 & 7u) | high << 3);
  if (map == 2) {  // fused: the last four bits say whether one value is computed
    const unsigned kind = operation & 15u;
    if (operation < 0x96 || operation > 0xbf || kind < 6) return {};
    packed = kind < 8 || kind % 2 == 0;
    return {xmm, w, packed ? (w ? 2 : 4) : 1};
  }
  switch (operation) {
    case 0x51:
    case 0x58:
    case 0x59:
    case 0x5c:
    case 0x5e:
      return {xmm, wide, packed ? (wide ? 2 : 4) : 1};
    case 0x5a:
      return {xmm, !wide, packed ? 2 : 1};
    default:
      return {};
  }
}

/// The instruction that is being finished.
thread_local Result finishing;

void finish(int /*signal*/, siginfo_t* info, void* context) {
  auto* const machine = static_cast<ucontext_t*>(context);
  if (info->si_code != FPE_FLTINV) {
    std::signal(SIGFPE, SIG_DFL);  // raised again where it was, and then ends the process
    return;
  }
  finishing = result_of(reinterpret_cast<const std::uint8_t*>(machine->uc_mcontext.gregs[REG_RIP]));
  machine->uc_mcontext.fpregs->mxcsr |= kInvalidMask;
  machine->uc_mcontext.gregs[REG_EFL] |= kSingleStep;
}

void replace(int /*signal*/, siginfo_t* /*info*/, void* context) {
  auto* const machine = static_cast<ucontext_t*>(context);
  machine->uc_mcontext.gregs[REG_EFL] &= ~kSingleStep;
  machine->uc_mcontext.fpregs->mxcsr &= ~(kInvalidMask | kFlags);
  if (finishing.xmm < 0) return;
  auto* const element = reinterpret_cast<char*>(machine->uc_mcontext.fpregs->_xmm[finishing.xmm].element);
  for (int i = 0; i < finishing.values; ++i) {
    if (finishing.wide) {
      std::uint64_t value = 0;
      std::memcpy(&value, element + 8 * i, sizeof value);
      if (value << 1 > 0xffe0000000000000u) std::memcpy(element + 8 * i, &kNan64, sizeof kNan64);
    } else {
      std::uint32_t value = 0;
      std::memcpy(&value, element + 4 * i, sizeof value);
      if (value << 1 > 0xff000000u) std::memcpy(element + 4 * i, &kNan32, sizeof kNan32);
    }
  }
}

bool install() {
  const char* const nan = std::getenv("GRADTOOL_EMULATION_NAN");
  if (nan != nullptr && std::strcmp(nan, "host") == 0) return false;
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = finish;
  if (sigaction(SIGFPE, &action, nullptr) != 0) return false;
  action.sa_sigaction = replace;
  return sigaction(SIGTRAP, &action, nullptr) == 0;
}

}  // namespace

bool makes_gpu_nan() {
  static const bool installed = install();
  return installed;
}

// Boost.Context keeps MXCSR for each fiber.
GpuNan::GpuNan() {
  if (makes_gpu_nan()) _mm_setcsr(_mm_getcsr() & ~(kInvalidMask | kFlags));
}
GpuNan::~GpuNan() {
  _mm_setcsr((_mm_getcsr() | kInvalidMask) & ~kFlags);
}

}  // namespace emulation

#else

namespace emulation {

bool makes_gpu_nan() {
  return false;
}
GpuNan::GpuNan() = default;
GpuNan::~GpuNan() = default;

}  // namespace emulation

#endif
