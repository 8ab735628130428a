#include "lib/capture/trainer.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/capture/trainer_fixture.hpp"

namespace gradtool {
namespace {

using test::relative_distance;

class TrainerGradient : public test::TrainerTest, public testing::WithParamInterface<const char*> {};

// Along the gradient's own direction d: (loss(w + h d) - loss(w - h d)) / 2h = |g|. Uses no derivative of the
// library's.
TEST_P(TrainerGradient, IsTheSlopeOfTheLoss) {
  const Dataset images = test::striped_images(16, 1, 28);
  const auto trainer = make_trainer(options(GetParam(), 1, 16), images);
  const auto samples = first_samples(16);
  trainer->compute(samples, false);
  const auto gradient = copy(trainer->gradient(0));
  const auto weights = copy(trainer->weights());
  double norm = 0.0;
  for (const float g : gradient) norm += double{g} * g;
  norm = std::sqrt(norm);
  ASSERT_GT(norm, 0.0);
  const double h = 1e-2 / norm;  // the loss changes by about 0.01
  const auto loss_at = [&](double shift) {
    std::vector<float> moved(weights.size());
    for (std::size_t i = 0; i < moved.size(); ++i) {
      moved[i] = static_cast<float>(weights[i] + shift * gradient[i] / norm);
    }
    trainer->set_weights(moved);
    trainer->compute(samples, false);
    return double{trainer->losses()[0]};
  };
  EXPECT_NEAR((loss_at(h) - loss_at(-h)) / (2.0 * h), norm, 0.02 * norm);
}

// Without batch normalisation: the mean of two workers' gradients is the gradient of the mean loss over both batches.
TEST_F(TrainerGradient, TheMeanOverWorkersIsTheGradientOfTheWholeBatch) {
  const Dataset images = test::striped_images(32, 1, 28);
  const auto apart = make_trainer(options("lenet5", 2, 16), images);
  const auto together = make_trainer(options("lenet5", 1, 32), images);
  const auto samples = first_samples(32);
  apart->compute(samples, false);
  together->compute(samples, false);
  const auto zero = apart->gradient(0), one = apart->gradient(1);
  std::vector<double> mean(zero.size());
  for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = (double{zero[i]} + one[i]) / 2.0;
  EXPECT_LT(relative_distance(together->gradient(0), mean), 1e-5);
  EXPECT_NEAR((apart->losses()[0] + apart->losses()[1]) / 2.0, together->losses()[0], 1e-5);
  EXPECT_GT(relative_distance(zero, mean), 0.05) << "workers with images of their own must differ";
}

// The backward pass of layers that follow each other completes the gradients from the last to the first, whatever the
// clock says.
TEST_F(TrainerGradient, GradientsAreReadyFromTheLastLayerToTheFirst) {
  const Dataset images = test::striped_images(16, 1, 28);
  const auto trainer = make_trainer(options("lenet5", 1, 16, 2), images);
  trainer->compute(first_samples(16), false);
  const BackwardTimes& times = trainer->backward_times()[0];
  ASSERT_EQ(times.ready.size(), trainer->parameters().size());
  double later = times.seconds;
  for (std::size_t t = 0; t < times.ready.size(); t += 2) {  // weight and bias of a layer, in either order
    const auto [first, last] = std::minmax(times.ready[t], times.ready[t + 1]);
    EXPECT_LE(last, later) << trainer->parameters()[t].name;
    EXPECT_GE(first, 0.0);
    later = first;
  }
  EXPECT_LT(times.seconds, trainer->compute_seconds()[0]);
}

// Four micro-batches of one worker are the batches of four workers: their gradients, squared and added by hand.
TEST_P(TrainerGradient, MicroBatchesGiveTheirMeanAndTheSecondMoment) {
  const Dataset images = test::striped_images(32, 1, 28);
  const auto split = make_trainer(options(GetParam(), 1, 32, 4), images);
  const auto parts = make_trainer(options(GetParam(), 4, 8), images);
  const auto samples = first_samples(32);
  split->compute(samples, true);
  parts->compute(samples, false);
  std::vector<double> mean(parts->elements()), second_moment(parts->elements());
  double loss = 0.0;
  for (std::size_t part = 0; part < 4; ++part) {
    const auto gradient = parts->gradient(part);
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i] += gradient[i] / 4.0;
      second_moment[i] += (gradient[i] / 4.0) * (gradient[i] / 4.0);
    }
    loss += parts->losses()[part] / 4.0;
  }
  EXPECT_LT(relative_distance(split->gradient(0), mean), 1e-6);
  EXPECT_LT(relative_distance(split->second_moment(0), second_moment), 1e-6);
  EXPECT_NEAR(split->losses()[0], loss, 1e-6);
}

TEST_P(TrainerGradient, SecondMomentsChangeNothingElse) {
  const Dataset images = test::striped_images(64, 1, 28);
  std::vector<std::vector<float>> weights;
  for (const bool with_second_moments : {false, true}) {
    const auto trainer = make_trainer(options(GetParam(), 2, 16, 2), images);
    for (int step = 0; step < 3; ++step) {
      trainer->compute(first_samples(32), with_second_moments);
      trainer->update(0.05);
    }
    weights.push_back(copy(trainer->weights()));
  }
  EXPECT_EQ(weights[0], weights[1]);
}

// The loss of text is the mean over all tokens, so a batch of two sequences has the mean of their gradients.
TEST_F(TrainerGradient, OfTextIsTheMeanOverTokens) {
  const Dataset text = test::counting_text(64, 8);
  auto options = TrainerGradient::options("gpt-nano", 2, 1);
  const auto apart = make_trainer(options, text);
  options.workers = 1, options.batch_size = 2;
  const auto together = make_trainer(options, text);
  const std::vector<std::uint32_t> samples{5, 2};
  apart->compute(samples, false);
  together->compute(samples, false);
  const auto zero = apart->gradient(0), one = apart->gradient(1);
  std::vector<double> mean(zero.size());
  for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = (double{zero[i]} + one[i]) / 2.0;
  EXPECT_LT(relative_distance(together->gradient(0), mean), 1e-5);
  EXPECT_GT(relative_distance(zero, mean), 0.05) << "workers with sequences of their own must differ";
  EXPECT_NEAR(apart->losses()[0], std::log(256.0), 0.3) << "untrained, it guesses among 256 bytes";
}

TEST_F(TrainerGradient, OfTextLearnsToCount) {
  const Dataset text = test::counting_text(16 * 40 + 1, 16);
  const auto trainer = make_trainer(options("gpt-nano", 1, 8), text);
  const auto before = trainer->evaluate(text, 40);
  for (int step = 0; step < 300; ++step) {
    std::vector<std::uint32_t> samples(8);
    for (std::size_t i = 0; i < 8; ++i) samples[i] = static_cast<std::uint32_t>((step * 8 + i) % 40);
    trainer->compute(samples, false);
    trainer->update(0.03);
  }
  const auto after = trainer->evaluate(text, 40);
  EXPECT_LT(before.accuracy, 0.2);
  EXPECT_GT(after.accuracy, 0.8);
  EXPECT_LT(after.loss, 0.5 * before.loss);
}

INSTANTIATE_TEST_SUITE_P(Models, TrainerGradient, testing::Values("lenet5", "resnet20"),
                         [](const auto& info) { return std::string{info.param}; });

class TrainerUpdate : public test::TrainerTest {};

TEST_F(TrainerUpdate, IsSgdWithMomentumAndWeightDecayOnTheMeanGradient) {
  const Dataset images = test::striped_images(64, 1, 28);
  const auto trainer = make_trainer(options("lenet5", 2, 16), images);
  std::vector<double> expected(trainer->weights().begin(), trainer->weights().end());
  std::vector<double> velocity(expected.size());
  for (const double rate : {0.1, 0.03}) {
    trainer->compute(first_samples(32), false);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double mean = (double{trainer->gradient(0)[i]} + trainer->gradient(1)[i]) / 2.0;
      velocity[i] = 0.9 * velocity[i] + mean + 1e-4 * expected[i];
      expected[i] -= rate * velocity[i];
    }
    trainer->update(rate);
    EXPECT_LT(relative_distance(trainer->weights(), expected), 1e-6);
  }
}

// update() sums in float64; apply() takes the mean as it is.
TEST_F(TrainerUpdate, ApplyTakesAGivenMean) {
  const Dataset images = test::striped_images(64, 1, 28);
  const auto by_update = make_trainer(options("resnet20", 2, 16), images);
  const auto by_apply = make_trainer(options("resnet20", 2, 16), images);
  for (int step = 0; step < 3; ++step) {
    by_update->compute(first_samples(32), false);
    by_apply->compute(first_samples(32), false);
    std::vector<float> mean(by_apply->elements());
    for (std::size_t i = 0; i < mean.size(); ++i)
      mean[i] = static_cast<float>((double{by_apply->gradient(0)[i]} + by_apply->gradient(1)[i]) / 2.0);
    const auto given = mean;
    by_update->update(0.05);
    by_apply->apply(mean, 0.05);
    EXPECT_EQ(mean, given) << "apply() must not write to what it is given";
    EXPECT_EQ(copy(by_apply->weights()), copy(by_update->weights()));
  }
  test::sentence_of(Fault::internal, [&] { by_apply->apply(std::vector<float>(3), 0.05); });
}

// Weights, momentum and each replica's running statistics: with all of them a new trainer goes on bit for bit, and
// without any one of them it does not.
TEST_F(TrainerUpdate, GoesOnFromSavedState) {
  const Dataset images = test::striped_images(64, 1, 28);
  const auto run = [&](Trainer& trainer, int first, int last) {
    for (int step = first; step < last; ++step) {
      auto samples = first_samples(32);
      for (auto& sample : samples) sample = (sample + 8U * static_cast<unsigned>(step)) % 64U;
      trainer.compute(samples, false);
      trainer.update(0.05);
    }
  };
  const auto replica = [](Trainer& trainer, std::size_t worker, StateVisitor& visitor) {
    trainer.visit_replica(worker, visitor);
  };
  const auto whole = make_trainer(options("resnet20", 2, 16), images);
  run(*whole, 0, 4);
  const auto first = make_trainer(options("resnet20", 2, 16), images);
  run(*first, 0, 2);
  const auto shared = save_state(*first);
  std::vector<std::byte> replicas[2];
  for (std::size_t w = 0; w < 2; ++w) {
    StateSaver saver{replicas[w]};
    replica(*first, w, saver);
    EXPECT_GT(replicas[w].size(), 1000U);
  }
  EXPECT_NE(replicas[0], replicas[1]);
  for (const bool statistics : {true, false}) {
    const auto second = make_trainer(options("resnet20", 2, 16), images);
    restore_state(*second, shared);
    for (std::size_t w = 0; statistics && w < 2; ++w) {
      StateLoader loader{replicas[w]};
      replica(*second, w, loader);
      loader.finish();
    }
    run(*second, 2, 4);
    EXPECT_EQ(copy(second->weights()), copy(whole->weights()));
    EXPECT_EQ(second->evaluate(images, 64).loss == whole->evaluate(images, 64).loss, statistics);
  }
  const auto without = make_trainer(options("resnet20", 2, 16), images);
  without->set_weights(first->weights());
  run(*without, 2, 4);
  EXPECT_NE(copy(without->weights()), copy(whole->weights())) << "momentum must matter";
}

// A gradient must not leak into the next step's, nor from one worker to another.
TEST_F(TrainerUpdate, EveryStepStartsFromZeroGradients) {
  const Dataset images = test::striped_images(64, 1, 28);
  const auto trainer = make_trainer(options("lenet5", 2, 16), images);
  trainer->compute(first_samples(32), false);
  const auto first = copy(trainer->gradient(1));
  trainer->compute(first_samples(32), false);
  EXPECT_EQ(copy(trainer->gradient(1)), first);
}

// PyTorch's DistributedDataParallel keeps rank 0's running statistics; another worker's images must not enter them.
TEST_F(TrainerUpdate, OnlyWorkerZeroFeedsTheRunningStatistics) {
  const Dataset images = test::striped_images(64, 1, 28);
  auto samples = first_samples(32);
  std::vector<double> losses;
  for (const bool change_worker_one : {false, true}) {
    const auto trainer = make_trainer(options("resnet20", 2, 16), images);
    if (change_worker_one) {
      for (std::size_t i = 16; i < 32; ++i) samples[i] += 16;
    }
    trainer->compute(samples, false);  // no update: the weights stay as they are
    losses.push_back(trainer->evaluate(images, 64).loss);
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST_F(TrainerUpdate, RefusesAGpuThatIsNotThere) {
  const Dataset images = test::striped_images(64, 1, 28);
  TrainerOptions far = options("lenet5", 1, 16);
  far.device = "cuda:1000";
  EXPECT_THAT(test::sentence_of(Fault::unavailable, [&] { (void)make_trainer(far, images); }),
              testing::StartsWith("--device cuda:1000: LibTorch"));
}

TEST_F(TrainerUpdate, SaysWhatItWasCalledWrongWith) {
  const Dataset images = test::striped_images(64, 1, 28);
  const auto trainer = make_trainer(options("lenet5", 2, 16), images);
  test::sentence_of(Fault::internal, [&] { trainer->compute(first_samples(31), false); });
  trainer->compute(first_samples(32), false);
  test::sentence_of(Fault::internal, [&] { (void)trainer->second_moment(0); });
  test::sentence_of(Fault::usage, [&] { (void)make_trainer(options("lenet5", 2, 16, 3), images); });
}

class DiLoCo : public test::TrainerTest {
 protected:
  static TrainerOptions plain(std::size_t workers, std::size_t rounds) {
    TrainerOptions options = TrainerTest::options("lenet5", workers, 8);
    options.momentum = 0.0;
    options.weight_decay = 0.0;
    options.inner_steps = rounds;
    options.outer_momentum = 0.0;
    return options;
  }
};

TEST_F(DiLoCo, OneRoundOfPlainSgdIsTheGradientTimesTheRate) {
  const Dataset images = test::striped_images(32, 1, 28);
  const auto rounds = make_trainer(plain(2, 1), images);
  auto exchanging = plain(2, 1);
  exchanging.inner_steps = 0;
  const auto steps = make_trainer(exchanging, images);
  const auto samples = first_samples(16);
  rounds->compute_rounds(samples, 0.25);
  steps->compute(samples, false);
  for (std::size_t w = 0; w < 2; ++w) {
    const auto gradient = steps->gradient(w);
    std::vector<double> wanted(gradient.begin(), gradient.end());
    for (double& value : wanted) value *= 0.25;
    EXPECT_LT(relative_distance(rounds->gradient(w), wanted), 1e-4) << "the difference of two rounded weights";
  }
  EXPECT_EQ(copy(rounds->losses()), copy(steps->losses()));
}

TEST_F(DiLoCo, OneWorkerWhoseOuterRateIsOneTrainsAsIfAlone) {
  const Dataset images = test::striped_images(64, 1, 28);
  auto inner = plain(1, 3);
  inner.momentum = 0.9;  // goes on from round to round
  const auto rounds = make_trainer(inner, images);
  auto alone = inner;
  alone.inner_steps = 0;
  const auto steps = make_trainer(alone, images);
  for (int iteration = 0; iteration < 2; ++iteration) {
    std::vector<std::uint32_t> samples = first_samples(24);
    rounds->compute_rounds(samples, 0.05);
    rounds->update(1.0);
    for (std::size_t round = 0; round < 3; ++round) {
      steps->compute(std::span{samples}.subspan(8 * round, 8), false);
      steps->update(0.05);
    }
  }
  const auto wanted = steps->weights();
  EXPECT_LT(relative_distance(rounds->weights(), std::vector<double>(wanted.begin(), wanted.end())), 1e-5);
}

TEST_F(DiLoCo, OuterStepsAreNesterovsOfTheMeanPseudoGradient) {
  const Dataset images = test::striped_images(64, 1, 28);
  auto options = plain(2, 2);
  options.outer_momentum = 0.9;
  const auto trainer = make_trainer(options, images);
  std::vector<double> velocity(trainer->elements(), 0.0);
  for (int iteration = 0; iteration < 3; ++iteration) {
    const auto before = copy(trainer->weights());
    trainer->compute_rounds(first_samples(32), 0.05);
    const auto first = copy(trainer->gradient(0)), second = copy(trainer->gradient(1));
    trainer->update(0.7);
    std::vector<double> wanted(before.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const double mean = (double{first[i]} + second[i]) / 2.0;
      velocity[i] = 0.9 * velocity[i] + mean;
      wanted[i] = before[i] - 0.7 * (mean + 0.9 * velocity[i]);
    }
    EXPECT_LT(relative_distance(trainer->weights(), wanted), 1e-6) << iteration;
    EXPECT_NE(first, second);
  }
}

}  // namespace
}  // namespace gradtool
