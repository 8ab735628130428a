#pragma once

#include <string>
#include <vector>

#include "lib/bench/options.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// Something that the processes of one job must have in common: "--seed" and "1".
struct Fact {
  std::string what, value;
};

/// The facts that decide which collectives the processes of one `gradtool bench` make, and what they compute: the
/// version, the options that matter for that, and, unless `reader` is null because the options alone make the
/// gradients, the file's tensors and steps, and a hash of every tensor's values. Reads the file once. Options that only
/// the first rank heeds are not among them, nor is the name of the file, because machines may keep copies of it; but
/// which outputs are asked for is, because those of another rank would never be written.
[[nodiscard]] std::vector<Fact> facts_of(const BenchOptions& options, const GradientSource* reader);

/// Collective. Returns when all ranks have the same facts; else throws Fault::usage, with the same sentence on every
/// rank, which names the first fact that differs from that of rank 0 and the first rank that has another one.
void expect_same_on_all_ranks(const std::vector<Fact>& facts, Communicator<Space::host>& comm);

}  // namespace gradtool
