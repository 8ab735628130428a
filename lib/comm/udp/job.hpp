#pragma once

#include <functional>

#include "lib/comm/udp/engine.hpp"
#include "lib/comm/udp/options.hpp"

namespace gradtool::udp {

/// Runs ranks like run_udp (lib/comm/launch.hpp), for callers that send messages of their own.
void run_engine(const UdpOptions& options, const std::function<void(Engine&)>& body, double timeout_seconds = 120.0);

}  // namespace gradtool::udp
