#pragma once

#include <cstdint>

namespace gradtool {

/// Counts calls of operator new, in programs that link gradtool_allocation_hooks: tests that ask for it, and every
/// program when GRADTOOL_CHECKS is on. In other programs `active()` is false and the counts stay 0.
class AllocationWatch {
 public:
  AllocationWatch();
  /// Allocations by the calling thread since construction.
  [[nodiscard]] std::uint64_t on_this_thread() const;
  /// Allocations by any thread since construction.
  [[nodiscard]] std::uint64_t in_process() const;
  [[nodiscard]] static bool active();

 private:
  std::uint64_t thread_start_;
  std::uint64_t process_start_;
};

namespace detail {
void count_allocation() noexcept;
void declare_allocation_hooks() noexcept;
}  // namespace detail

}  // namespace gradtool
