#pragma once

#include <string>
#include <variant>
#include <vector>

#include "lib/bench/result.hpp"

namespace gradtool {

/// The codecs' times that another machine's `gradtool bench` wrote down with --json, such as those of a GPU, to model
/// a job on that machine with the gradients of this one.
class RecordedTimes {
 public:
  /// Throws Fault::data, naming the file, where it cannot be read, or holds no timed isolated row.
  static RecordedTimes read(const std::string& path);

  /// Puts the record's encoding and decoding in the place of the row's, with their intervals, and its processor,
  /// threads and device; `codec_times` becomes record. Of the rows with this codec, parameters, way and collective that
  /// with the row's --granularity is taken, else that with the nearest number of elements. Times go with the elements
  /// that are coded, and in a gather decoding goes with the ranks, as a whole: the row's message then says so. The
  /// units of the row share the times as before. Returns false, and leaves the row as it is, where the record has no
  /// such row.
  [[nodiscard]] bool apply(ResultRow& row) const;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  struct Times {
    std::string codec, params, way, op, levels, inner, granularity;
    std::string processor, device;
    int threads = 1;
    int ranks = 1;
    double elements = 0.0;
    PhaseSummary encode, decode;
  };
  [[nodiscard]] const Times* times_of(const ResultRow& row) const;

  std::string path_;
  std::vector<Times> all_;
};

/// The bytes that a step of a row must at least move between a rank's processor and its memory, whatever the
/// implementation.
struct MemoryFloor {
  double encode = 0.0;
  double decode = 0.0;        ///< for the ranks that were measured
  double decode_fixed = 0.0;  ///< of `decode`, what more ranks add nothing to
};
/// The largest cache of a processor that gradients are trained on, in bytes: AMD's MI300X has 256 MB.
constexpr double kLargestCache = 256e6;
/// With n elements, P bytes of payload, p measured ranks, and what the codec declares (MemoryPasses):
/// - encoding reads 4 n, of an all-gather those of its shard, and writes P. It reads as much again where the codec
///   declares that, in units (or the largest tensors of units) of more than `cache` bytes: a cache that keeps what was
///   read a moment ago makes a second pass free, a first one never. The residual of error feedback, and each value an
///   element that the method keeps, are read and written, 8 n more; each side input that the capture has is read, 4 n.
///   Without error feedback a method that looks at a part of the elements reads that part;
/// - decoding reads the payloads (p P in a gather, P else) and writes 4 n, of a reduce-scatter those of the shard;
/// - none encodes nothing and divides in place, 8 n, unless gradients have 16 bits or are not averaged; noop moves
///   nothing.
/// The row has bytes.
[[nodiscard]] MemoryFloor memory_floor(const ResultRow& row, double cache = kLargestCache);
/// The reads and writes that the codec declares, with its defaults, in words for `gradtool list NAME`.
[[nodiscard]] std::string memory_floor_words(const CodecDescriptor& codec);

/// The source, named by --codec-speed, of codec times that take the place of the measured ones in modelled rows.
class CodecSpeed {
 public:
  /// "floor:3000", the GB/s of a memory, also "floor:3000,cache=50MB" with what its processor's cache holds, or the
  /// path of a record. Throws Fault::usage for what is no rate or no size, and as RecordedTimes::read.
  static CodecSpeed parse(const std::string& text);

  /// Replaces the row's times and sets `codec_times`; false where there are none for it.
  [[nodiscard]] bool apply(ResultRow& row) const;
  /// The option's value, as parse() took it.
  [[nodiscard]] const std::string& text() const { return text_; }
  /// The file of a record; empty for a floor.
  [[nodiscard]] std::string file() const;

 private:
  std::string text_;
  struct Memory {
    double bytes_per_second = 0.0;
    double cache = kLargestCache;  ///< bytes
  };
  std::variant<RecordedTimes, Memory> source_ = Memory{};
};
/// The file that the option's value names; empty for a floor.
[[nodiscard]] std::string codec_speed_file(const std::string& text);

/// The rows with the times that `speed` has, to be modelled in the place of those that were measured. Timed isolated
/// rows that it has no times for are left out and named, once each, in `missing`.
[[nodiscard]] std::vector<ResultRow> with_codec_speed(const std::vector<ResultRow>& rows, const CodecSpeed& speed,
                                                      std::vector<std::string>& missing);

}  // namespace gradtool
