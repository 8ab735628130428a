#pragma once

namespace gradtool {

/// From now on the blocks of host arenas that ended are kept for those to come, 512 MiB at most, and with those in use
/// never more bytes than were in use at once: whoever makes large arenas again and again does not have the system clear
/// them each time.
void keep_ended_arenas();

}  // namespace gradtool
