#include "lib/core/arena.hpp"

#include <new>

#include "lib/core/huge_pages.hpp"

namespace gradtool {

template <>
Arena<Space::host>::Arena(std::size_t capacity) : capacity_{padded_size(capacity)} {
  base_.reset(static_cast<std::byte*>(::operator new (capacity_ + kAlignment, std::align_val_t{kAlignment})));
  prefer_huge_pages(base_.get(), capacity_);
}

template <>
void Arena<Space::host>::Free::operator()(std::byte* bytes) const noexcept {
  ::operator delete (bytes, std::align_val_t{kAlignment});
}

template class Arena<Space::host>;

}  // namespace gradtool
