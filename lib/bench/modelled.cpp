#include "lib/bench/modelled.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/bench/gate.hpp"
#include "lib/model/cost_model.hpp"

namespace gradtool {
namespace {

/// The median and its interval; the other numbers are of samples.
PhaseSummary scaled(const PhaseSummary& phase, double by) {
  const auto times = [by](std::optional<double> seconds) { return seconds ? std::optional{*seconds * by} : seconds; };
  return {.median = phase.median * by, .low = times(phase.low), .high = times(phase.high)};
}

double share(double part, double whole) {
  return whole > 0.0 ? part / whole : 1.0;
}

/// When coding takes `encode` and `decode` seconds in all.
double iteration_at(const ResultRow& row, double compute, Overlap overlap, double encode, double decode) {
  std::vector<UnitCost> costs;
  for (const UnitProfile& unit : row.units) {
    costs.push_back(
        {.ready = unit.ready,
         .encode = unit.encode * share(encode, row.encode->median),
         .communicate = model_step(unit.uses, carrying(row, unit, *row.network), counted_ranks(row), row.ranks).seconds,
         .decode = unit.decode * share(decode, row.decode->median)});
  }
  return iteration_seconds(costs, compute, overlap, row.iteration ? row.iteration->backward.share : kBackwardShare);
}

/// The row as if its machines had had as many ranks as those of the network, the same number of machines: a codec
/// between machines gets shards that are smaller by the ratio, and so are its times and messages. Inside, vectors stay
/// as long, and their parts shrink with the shards. Errors stay those of the machines that were replayed.
void put_on_machines_of(int node, ResultRow& row) {
  const double shorter = static_cast<double>(row.level_node) / node;
  row.level_node = node;
  double encode = 0.0, decode = 0.0;
  for (UnitProfile& unit : row.units) {
    const double inside = unit.decode - unit.decode_across;
    unit.encode *= shorter;
    unit.decode_across *= shorter;
    unit.decode = inside + unit.decode_across;
    encode += unit.encode;
    decode += unit.decode;
    for (CollectiveUse& use : unit.uses) {
      if (use.level == Level::whole) continue;
      use.node = node;
      if (use.level == Level::across || use.kind != CollectiveUse::Kind::reduce_scatter) use.bytes *= shorter;
    }
  }
  *row.encode = scaled(*row.encode, share(encode, row.encode->median));
  *row.decode = scaled(*row.decode, share(decode, row.decode->median));
}

ResultRow modelled_row(const ResultRow& replayed, const Network& network, int machines, const ModelSetting& setting) {
  ResultRow measured = replayed;
  const bool other_machines = measured.inner && measured.inner->name() == "none" && network.node > 1;
  if (other_machines && network.node != measured.level_node) put_on_machines_of(network.node, measured);
  const int ranks = machines * network.node;
  const double more = decodes_every_rank(measured) ? static_cast<double>(ranks) / counted_ranks(measured) : 1.0;
  const double grows = measured.decode_fixed_share + (1.0 - measured.decode_fixed_share) * more;
  // In two levels only the payloads of other machines become more.
  const auto decodes = [&](double across, double all) {
    const double growing = measured.inner ? share(across, all) : 1.0;
    return 1.0 - growing + growing * grows;
  };
  // In an all-gather a rank encodes its shard and in some reduce-scatters it decodes it; that shrinks as ranks grow.
  const double shrinks = static_cast<double>(measured.ranks) / ranks;
  const double encodes = measured.op == Collective::all_gather ? shrinks : 1.0;
  // A gated unit is decoded as one of `none`, by a division.
  const auto decodes_unit = [&](const UnitProfile& unit) {
    if (decodes_own_shard(measured) || (unit.gated && measured.op == Collective::reduce_scatter)) return shrinks;
    return unit.gated ? 1.0 : decodes(unit.decode_across, unit.decode);
  };
  double before = 0.0, after = 0.0;
  for (const UnitProfile& unit : measured.units) {
    before += unit.decode;
    after += unit.decode * decodes_unit(unit);
  }
  ResultRow row = measured;
  row.network = network;
  row.comm = "model";
  row.ranks = ranks;
  row.encode = scaled(*measured.encode, encodes);
  row.decode = scaled(*measured.decode, before > 0.0 ? after / before : decodes(0.0, 0.0));
  for (auto& unit : row.units) {
    unit.encode *= encodes;
    unit.decode *= decodes_unit(unit);
  }
  row.samples.clear();
  row.steps.clear();
  row.verdict = {};
  if (row.codec.name() == "none" && row.op == Collective::all_reduce && !setting.tensor_bytes.empty()) {
    row.tensorwise_seconds = row.encode->median + row.decode->median;
    for (const double bytes : setting.tensor_bytes) {
      const CollectiveUse use{.kind = CollectiveUse::Kind::all_reduce, .calls = 1.0, .bytes = bytes};
      *row.tensorwise_seconds += model_step({&use, 1}, carrying(row, {}, network), measured.ranks, ranks).seconds;
    }
  }
  if (setting.compute.seconds > 0.0)
    row.iteration = {.compute_seconds = setting.compute.seconds,
                     .compute_low = setting.compute.low,
                     .compute_high = setting.compute.high,
                     .overlap = setting.overlap,
                     .backward = setting.backward};
  set_modelled_times(row);
  row.message = fmt::format("{}{}errors and payload as measured on {} ranks", measured.message,
                            measured.message.empty() ? "" : "; ", measured.ranks);
  if (row.level_node != row.measured_node) row.message += fmt::format(", {} to a machine", row.measured_node);
  return row;
}

/// Whether the row is in two levels beside one of the same codec in one.
bool chosen_beside_one_level(const std::vector<ResultRow>& rows, std::size_t position) {
  const ResultRow& row = rows[position];
  return row.inner && std::any_of(rows.begin(), rows.end(), [&](const ResultRow& other) {
           return !other.inner && !other.modelled() && !other.units.empty() && same_method(other, row);
         });
}

/// The modelled row with its collectives carried by the library, or by the hook over what carries them now.
ResultRow sent_over(ResultRow row, Library library) {
  Network& network = *row.network;
  if (network.library == Library::gloo || network.library == Library::nccl) network.under_hook = network.library;
  network.library = library;
  set_modelled_times(row);
  return row;
}

/// Median and interval of what judged_seconds() is of.
PhaseSummary judged_time(const ResultRow& row) {
  if (!row.iteration) return *row.total;
  return {.median = row.iteration->seconds, .low = row.iteration->low, .high = row.iteration->high};
}

}  // namespace

Network carrying(const ResultRow& row, const UnitProfile& unit, Network network) {
  const bool uncompressed = row.codec.name() == "none" || unit.gated;
  if (network.library == Library::hook && uncompressed) network.library = network.under_hook;
  return network;
}

int counted_ranks(const ResultRow& row) {
  return row.measured_ranks / row.measured_node * row.level_node;
}

void set_in_ddp(std::span<ResultRow> modelled) {
  std::vector<ResultRow*> rows;
  std::vector<ResultRow> hooked;
  for (ResultRow& row : modelled) {
    if (row.op != Collective::all_reduce || row.inner || row.level_node > 1 || row.network->library == Library::hook ||
        row.granularity.starts_with("size:"))
      continue;
    rows.push_back(&row);
    hooked.push_back(sent_over(row, Library::hook));
  }
  set_gates(hooked);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ResultRow& sent = hooked[i];
    const std::string under{name_of(sent.network->under_hook)}, codec = sent.codec.name();
    auto& in_ddp = rows[i]->in_ddp;
    in_ddp = {.hook = codec == "none" ? under : "ddp_hook over " + under,
              .time = judged_time(sent),
              .gate_bytes = sent.gate_applied ? sent.gate_bytes : std::nullopt};
    if ((codec != "bf16" && codec != "fp16") || !takes_own_scheme(sent)) continue;
    const ResultRow summed = sent_over(*rows[i], sent.network->under_hook);
    if (judged_seconds(summed) < in_ddp->time.median)
      in_ddp = {.hook = codec + "_compress_hook", .time = judged_time(summed)};
  }
}

void set_modelled_times(ResultRow& row) {
  const ModelledStep step = model_units(row, *row.network, row.ranks);
  row.bytes->wire_per_rank = step.wire_bytes;
  row.bytes->wire_inside = step.wire_inside;
  row.bytes->wire_across = step.wire_across;
  row.messages = step.messages;
  row.communicate = PhaseSummary{.median = step.seconds};
  row.total = PhaseSummary{.median = row.encode->median + step.seconds + row.decode->median};
  const bool known = row.encode->low && row.decode->low;
  if (known) {
    // The two are taken to err together, because what disturbs a machine disturbs both.
    row.total->low = *row.encode->low + step.seconds + *row.decode->low;
    row.total->high = *row.encode->high + step.seconds + *row.decode->high;
  }
  if (!row.iteration) return;
  const auto seconds_at = [&](double encode, double decode) {
    return iteration_at(row, row.iteration->compute_seconds, row.iteration->overlap, encode, decode);
  };
  row.iteration->seconds = seconds_at(row.encode->median, row.decode->median);
  if (!known) return;
  row.iteration->low = seconds_at(*row.encode->low, *row.decode->low);
  row.iteration->high = seconds_at(*row.encode->high, *row.decode->high);
}

bool decodes_every_rank(const ResultRow& row) {
  return row.op == Collective::all_reduce && row.scheme == Scheme::gather &&
         row.codec.descriptor->aggregation != Aggregation::none;
}

bool decodes_own_shard(const ResultRow& row) {
  return row.op == Collective::reduce_scatter &&
         (row.scheme == Scheme::sum || row.codec.name() == "none" || row.codec.name() == "noop");
}

double modelled_iteration(const ResultRow& row, double compute, Overlap overlap) {
  return iteration_at(row, compute, overlap, row.encode->median, row.decode->median);
}

ModelledStep model_units(const ResultRow& row, const Network& network, int ranks) {
  ModelledStep step;
  for (const UnitProfile& unit : row.units) {
    const ModelledStep sent = model_step(unit.uses, carrying(row, unit, network), counted_ranks(row), ranks);
    step.seconds += sent.seconds;
    step.wire_bytes += sent.wire_bytes;
    step.wire_inside += sent.wire_inside;
    step.wire_across += sent.wire_across;
    step.messages += sent.messages;
  }
  return step;
}

void add_modelled(std::vector<ResultRow>& rows, const ModelSetting& setting) {
  const std::size_t measured = rows.size();
  for (const auto& network : setting.networks) {
    for (const int machines : setting.machines) {
      const std::size_t first = rows.size();
      for (std::size_t i = 0; i < measured; ++i) {
        if (rows[i].units.empty() || rows[i].modelled()) continue;  // concurrent, not timed, or of one tensor
        // Two levels that nobody asked for are for machines of several ranks, two at least.
        if (chosen_beside_one_level(rows, i) && (network.node == 1 || machines == 1)) continue;
        rows.push_back(modelled_row(rows[i], network, machines, setting));
      }
      set_in_ddp(std::span{rows}.subspan(first));
    }
  }
  set_gates(std::span{rows}.subspan(measured));
}

}  // namespace gradtool
