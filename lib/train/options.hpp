#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/bench/agreement.hpp"
#include "lib/bench/options.hpp"
#include "lib/capture/capture.hpp"
#include "lib/model/cost_model.hpp"

namespace gradtool {

/// The options of one `gradtool train`. Held once, by the caller of run_train, for as long as that runs.
struct TrainOptions {
  /// The model, data and optimizer of the training. Its seed, and all that is about captured steps and their file, is
  /// not used.
  CaptureOptions training;
  std::optional<std::int64_t> epochs;  ///< 10 where neither epochs nor training.steps are given

  std::vector<CodecSpec> codecs;       ///< `none` is added in front when missing
  std::vector<std::int64_t> seeds{1};  ///< of the weights, the order of the data and the codecs' draws
  /// Learning rates are multiplied with each of these in the first seed, for every codec and for none alike; the other
  /// seeds run with what did best.
  std::vector<double> lr_factors{1.0};
  Granularity granularity;
  std::string comm = "threads";  ///< threads, mpi or udp
  UdpOptions udp;                ///< where comm is udp
  double comm_timeout = 600.0;   ///< seconds that ranks wait for one of them; rank 0 evaluates while they do

  std::vector<Network> networks;               ///< to model
  std::optional<double> target_accuracy;       ///< in (0, 1], to be timed
  std::optional<std::int64_t> evaluate_every;  ///< steps between rows, besides those at the ends of epochs
  std::optional<std::int64_t> test_images;     ///< the first ones of the test set; all where it is not given

  std::string out;                               ///< folder
  std::optional<std::int64_t> checkpoint_every;  ///< steps; else each epoch, and a minute after the last one
  std::string command;                           ///< as given, for the record

  bool workers_given = false;  ///< --workers stands on the command line
  bool all_codecs = false;  ///< the list is the whole registry: what the scheme does not fit is left out, not refused
  bool force = false, resume = false;
  Scheme scheme = Scheme::automatic;
  AllReduce all_reduce = AllReduce::ring;
  Overlap overlap = Overlap::bucket;  ///< of the modelled networks

  /// The transport between workers that are processes.
  [[nodiscard]] ProcessComm processes() const { return {comm, udp}; }
  /// `scheme`, but what they always ride for none and noop.
  [[nodiscard]] Scheme scheme_for(const CodecSpec& spec) const;
};

/// Checks what needs no data, and fills in what was left out; `ranks` are the processes of an MPI job, else 0. Throws
/// Fault::usage with one sentence about the first option that is not valid.
[[nodiscard]] TrainOptions check_options(TrainOptions options, int ranks);

/// All that decides the numbers of the runs, for a folder to be resumed and for the processes of a job to agree on.
/// Hashes the files of the data set. `steps` are those of one run.
[[nodiscard]] std::vector<Fact> facts_of(const TrainOptions& options, std::int64_t steps);

}  // namespace gradtool
