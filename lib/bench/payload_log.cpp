#include "lib/bench/payload_log.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "lib/core/error.hpp"
#include "lib/report/csv.hpp"

namespace gradtool {

PayloadLog::PayloadLog(const ReplayPlan& plan, int rank)
    : plan_{plan},
      rank_{rank},
      stem_{(std::filesystem::path{plan.payloads} / fmt::format("rank{}", rank)).string()},
      table_{"payloads",
             {{"codec", "its name"},
              {"params", "all its parameters"},
              {"rank", "who put it in"},
              {"step", "captured step, from 0"},
              {"iteration", "training iteration of the step"},
              {"unit", "what is reduced in one piece, from 0"},
              {"tensors", "names of the unit's tensors, joined by +"},
              {"elements", "of the unit"},
              {"call", "collective"},
              {"offset", "of the message in the .bin file beside this table"},
              {"bytes", "of the message"}}} {
  std::error_code failed;
  std::filesystem::create_directories(plan.payloads, failed);
  out_.open(stem_ + ".bin", std::ios::binary | std::ios::trunc);
  if (!out_) throw Error{Fault::backend, fmt::format("--payloads: cannot write {}.bin", stem_)};
}

void PayloadLog::put(std::size_t step, std::size_t unit, std::string_view call, HostView<const std::byte> bytes) {
  std::string tensors;
  for (const auto& piece : (*plan_.units)[unit].pieces) {
    tensors += (tensors.empty() ? "" : "+") + plan_.reader->tensors()[piece.tensor].name;
  }
  out_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  const auto number = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
  table_.add({plan_.codec.name(), plan_.codec.params_text(), number(static_cast<std::uint64_t>(rank_)), number(step),
              plan_.reader->steps()[step].iteration, number(unit), tensors, number((*plan_.units)[unit].elements),
              std::string{call}, number(offset_), number(bytes.size())});
  offset_ += bytes.size();
}

void PayloadLog::close() {
  out_.close();
  if (!out_) throw Error{Fault::backend, fmt::format("--payloads: {}.bin could not be written whole", stem_)};
  save_csv(stem_ + ".csv", table_);
}

}  // namespace gradtool
