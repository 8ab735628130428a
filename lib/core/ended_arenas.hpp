#pragma once

namespace gradtool {

/// From now on host arenas of a megabyte or more share 1.5 GiB of memory, which the system clears once, when it is
/// first used: whoever makes large arenas again and again would have it clear each. What finds no room there is asked
/// of the system as before.
void keep_ended_arenas();

}  // namespace gradtool
