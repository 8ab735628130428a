#include "lib/core/allocation_watch.hpp"

#include <atomic>

namespace gradtool {
namespace {
std::atomic<std::uint64_t> process_count{0};
std::atomic<bool> hooked{false};
thread_local std::uint64_t thread_count = 0;
}  // namespace

AllocationWatch::AllocationWatch() : thread_start_{thread_count}, process_start_{process_count.load()} {}
std::uint64_t AllocationWatch::on_this_thread() const {
  return thread_count - thread_start_;
}
std::uint64_t AllocationWatch::in_process() const {
  return process_count.load() - process_start_;
}
bool AllocationWatch::active() {
  return hooked.load();
}

namespace detail {
void count_allocation() noexcept {
  ++thread_count;
  process_count.fetch_add(1, std::memory_order_relaxed);
}
void declare_allocation_hooks() noexcept {
  hooked.store(true);
}
}  // namespace detail

}  // namespace gradtool
