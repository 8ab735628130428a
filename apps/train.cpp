#include "lib/train/train.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/options.hpp"
#include "apps/subcommands.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/core/utf8.hpp"
#include "lib/report/json.hpp"
#include "lib/report/outputs.hpp"

namespace gradtool::app {
namespace {

struct TrainArguments {
  TrainOptions train;
  std::vector<std::string> codecs, networks;
  std::string granularity = "bucket:25MB";
  std::string scheme = "auto", all_reduce = "ring", overlap = "bucket";
};

/// The processes of the job; 0 where ranks are threads.
int processes_of(const TrainOptions& train) {
  if (train.comm == "threads") {
    if (const int size = mpi_place().size; size > 1)
      throw_error(Fault::usage, "started as {} processes: add --comm mpi or udp", size);
    return 0;
  }
  for (const auto& backend : comm_backends()) {
    if (backend.name == train.comm && !backend.available)
      throw_error(Fault::unavailable, "--comm {}: {}", train.comm, backend.detail);
  }
  return processes_world(train.processes(), train.comm_timeout).size;
}

int run(TrainArguments& o, const CLI::App& app) {
  TrainOptions& train = o.train;
  train.workers_given = app.get_option("--workers")->count() > 0;
  const ProcessComm comm = parse_comm(train.comm);
  train.comm = comm.name;
  train.udp = comm.udp;
  train.codecs = parse_codecs(o.codecs, train.all_codecs);
  train.granularity = Granularity::parse(o.granularity);
  train.scheme = named<Scheme>(o.scheme).value();
  train.all_reduce = named<AllReduce>(o.all_reduce).value();
  train.overlap = o.overlap == "none" ? Overlap::none : Overlap::bucket;
  train.networks = parse_networks(o.networks);
  train.command = command_line();
  const TrainOptions options = check_options(train, processes_of(train));
  std::vector<Fact> facts;
  const TrainReport report = run_train(options, facts);
  if (!report.leads) return 0;
  const auto path = [&](const char* name) { return (std::filesystem::path{options.out} / name).string(); };
  if (report.kept_old) {
    fmt::print(stderr, "interrupted before a first result: '{}' stays as it was\n", printable(options.out));
    return kInterrupted;
  }
  Outputs outputs;
  outputs.csv(path("train.csv"), train_table(options, report));
  outputs.csv(path("summary.csv"), train_summary(options, report));
  outputs.text(path("train.json"), json_text(train_record(options, report, facts), 1) + "\n");
  fmt::print("{}", train_text(options, report));
  std::fflush(stdout);
  for (const auto& written : outputs.written()) fmt::print(stderr, "wrote {}\n", printable(written));
  outputs.finish();
  if (!report.interrupted) return 0;
  fmt::print(stderr, "interrupted: the same command with --resume goes on\n");
  return kInterrupted;
}

}  // namespace

Subcommand add_train(CLI::App& root) {
  auto* app =
      root.add_subcommand("train", "Train a model with codecs in the loop, and see what they do to its accuracy");
  auto o = std::make_shared<TrainArguments>();
  TrainOptions& t = o->train;
  add_data_options(*app, t.training);
  app->add_option("--epochs", t.epochs, "Times that every training image is seen [10, unless --steps says otherwise]");
  add_training_options(*app, t.training);
  app->remove_option(app->get_option("--seed"));
  app->get_option("--steps")->description("Or training iterations, in the place of --epochs");
  app->get_option("--lr-schedule")
      ->description(
          "constant, cosine (to 0 at the end), step:ITERATIONS:FACTOR (times FACTOR every ITERATIONS), or "
          "milestones:ITERATION,...:FACTOR; with warmup:ITERATIONS: before it the rate first rises from 0");
  app->get_option("--micro-batches")
      ->description("Split a worker's batch in K; with K above 1 codecs have second moments (vgc)");
  app->add_option(
         "--seeds", t.seeds,
         "Of the initial weights, the order of the images and the codecs' draws: a run for each, such as 1,2,3")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--lr-factors", t.lr_factors,
                  "Multiply learning rates with each of these in the first seed, such as 1,0.5,0.1, for every codec "
                  "and for none alike; the other seeds run with what did best, and they alone are judged")
      ->delimiter(',')
      ->default_str("1");
  app->add_option("--test-images", t.test_images, "Test images of each evaluation, the first ones [all]");
  app->add_option("--evaluate-every", t.evaluate_every,
                  "Steps after which it is evaluated too, with a row of its own [after each epoch only]");
  app->add_option("--target-accuracy", t.target_accuracy,
                  "Share of correct answers, such as 0.9, whose time is to be told, as finely as it is evaluated");
  app->add_option("--codec", o->codecs,
                  "name:key=value,...; repeatable, or several with commas; 'all' for every codec (gradtool list "
                  "codecs); topk:ratio=[0.001,0.01] for each of these values; python:mine.py for a class of your own")
      ->take_all()
      ->expected(1);
  app->add_option("--granularity", o->granularity,
                  "What is reduced in one piece: bucket:25MB (filled as PyTorch DDP does), tensor or model")
      ->capture_default_str();
  add_reduce_options(*app, o->scheme, o->all_reduce);
  app->add_option("--comm", t.comm,
                  "threads: workers in this process; mpi: one for each process of mpirun; udp: the same over the "
                  "bounded-loss transport, also without mpirun (udp:loss=0.01, docs/transport.md)")
      ->check(one_of_comms({"threads", "mpi", "udp"}))
      ->capture_default_str();
  app->add_option("--comm-timeout", t.comm_timeout,
                  "Seconds that workers wait for one of them before the training ends and names it, 0.1 to 1000000; "
                  "they also wait while one evaluates")
      ->capture_default_str();
  app->add_option("--network", o->networks,
                  "Also model this network: wan, 1gbe, 10gbe, 25gbe, 100gbe, 200gbe, 400gbe, ndr, nvlink, "
                  "NAME:alpha=5us,beta=12.5GBps, or the file of gradtool probe; two levels: "
                  "100gbe:node=8,inner=nvlink; repeatable")
      ->take_all()
      ->expected(1);
  app->add_option("--overlap", o->overlap,
                  "In modelled steps: bucket (a unit is sent as soon as the backward pass has it) or none")
      ->check(CLI::IsMember({"none", "bucket"}))
      ->needs("--network")
      ->capture_default_str();
  app->add_option("-o,--out", t.out, "Folder for train.csv, summary.csv, train.json and checkpoints");
  app->add_flag("--force", t.force, "Replace what an earlier training left there");
  app->add_flag("--resume", t.resume, "Go on where the same command was stopped or killed");
  app->add_option("--checkpoint-every", t.checkpoint_every,
                  "Steps between checkpoints [an epoch, and a minute at most]");
  app->get_option("--out")->type_name("FOLDER");
  app->get_option("--codec")->type_name("CODEC");
  app->get_option("--network")->type_name("NETWORK");
  set_groups(*app, {{"How it is trained",
                     {"--epochs", "--seeds", "--lr-factors", "--test-images", "--evaluate-every", "--target-accuracy"}},
                    {"Codecs", {"--codec", "--granularity", "--reduce", "--all-reduce"}},
                    {"Communication", {"--comm", "--comm-timeout"}},
                    {"Modelled networks", {"--network", "--overlap"}},
                    {"Output", {"--out", "--force", "--resume", "--checkpoint-every"}}});
  app->footer(
      "none (uncompressed) is trained beside the codecs, from the same seeds. The same command gives the same numbers, "
      "times aside. What the numbers mean: docs/train.md. Examples:\n"
      "  gradtool train --model lenet5 --epochs 5 --codec topk:ratio=0.01 --out run\n"
      "  gradtool train --model resnet20 --dataset cifar10 --workers 4 \\\n"
      "      --codec topk:ratio=0.01,powersgd:rank=4 --seeds 1,2,3 \\\n"
      "      --lr-schedule cosine --network 1gbe --target-accuracy 0.8 --out run\n"
      "  gradtool train ... --out run --resume\n"
      "  mpirun -n 4 gradtool train --model lenet5 --comm mpi --codec qsgd --out run");
  return {app, [o, app] { return run(*o, *app); }};
}

}  // namespace gradtool::app
