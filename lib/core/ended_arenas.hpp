#pragma once

#include <cstddef>

namespace gradtool {

/// From now on host arenas of a megabyte or more share so many bytes of memory, which the system clears once, when it
/// is first used: whoever makes large arenas again and again would have it clear each. What finds no room there is
/// asked of the system, which gets the pages first that no arena uses. Only the first call counts.
void keep_ended_arenas(std::size_t bytes);

}  // namespace gradtool
