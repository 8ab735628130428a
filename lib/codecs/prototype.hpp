#pragma once

#include <string>
#include <string_view>

#include "lib/codecs/registry.hpp"

/// Codecs and reducers written in Python, for methods that are still being invented (docs/prototypes.md).
///
/// A prototype is a class of a Python file. Each rank has a process of the interpreter that serves it; gradients and
/// payloads lie in memory that both map, and requests go over a socket. What Python returns rides the generic reducers,
/// so bytes and errors are counted as those of any codec. Times are Python's.
namespace gradtool {

/// The name that all prototypes have in the place of a method's: "python:mine.py,ratio=0.1".
inline constexpr std::string_view kPrototype = "python";

/// Whether a codec's text names a prototype.
[[nodiscard]] inline bool is_prototype(std::string_view text) {
  return text.substr(0, text.find(':')) == kPrototype;
}

/// A prototype's descriptor, which lives as long as the program, and what parse_codec makes its Params from.
struct PrototypeText {
  const CodecDescriptor* descriptor = nullptr;
  std::string params;  ///< "file=mine.py,ratio=0.1"
};

/// `text` is what stands behind "python:": the path of the file (or "@" and the path of a Unix socket, behind which a
/// process serves the class), then parameters, of which `cls` names the class where the file has several. Starts an
/// interpreter, GRADTOOL_PYTHON or python3, which reads the file. Throws Fault::usage without a file, Fault::data where
/// it is no prototype, Fault::unavailable where there is no interpreter with NumPy.
[[nodiscard]] PrototypeText read_prototype(std::string_view text);
/// Takes the text that a record has and does not read the file, which need not be there any more: the descriptor
/// takes these parameters alone, and cannot make a codec.
[[nodiscard]] PrototypeText recorded_prototype(std::string_view text);

}  // namespace gradtool
