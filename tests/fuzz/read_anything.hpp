#pragma once

#include <string>

namespace gradtool::fuzz {

enum class Answer { accepted, refused };

/// Opens `path` as a gradient file and reads all of it. The only answers allowed are success and Fault::data in one
/// line that begins with the path; anything else ends the process (abort), which is what a fuzzer looks for.
Answer read_anything(const std::string& path);

}  // namespace gradtool::fuzz
