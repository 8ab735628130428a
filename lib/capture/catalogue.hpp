#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/capture/dataset.hpp"

// Facts about a model that are known without building it. This header does not include LibTorch.
namespace gradtool {

/// The shape of one sample, and the number of classes of the output.
struct ModelInput {
  std::int64_t channels = 1;  ///< of an image, like height and width
  std::int64_t height = 28;
  std::int64_t width = 28;
  std::int64_t classes = 10;         ///< labels of images, or tokens of the vocabulary
  std::int64_t sequence_length = 0;  ///< tokens of a sample of text; 0 for images
};

struct ModelDescription {
  std::string_view name;     ///< as in --model
  std::string_view summary;  ///< one line
  std::string_view takes;    ///< behind "takes": "images of 28 x 28 or 32 x 32 pixels"
  /// Whether it takes square images of that many pixels a side. Null for language models.
  bool (*takes_side)(std::int64_t side) = nullptr;
  std::int64_t sequence_length = 0, longest_sequence = 0;  ///< default and limit of a language model; 0 for images
  std::int64_t parameters;                                 ///< with the input `at`
  ModelInput at;                                           ///< the input for which the parameters were published
  double sgd_rate, adam_rate;                              ///< default learning rates; adam_rate also of adamw
  bool batch_norm = false;                                 ///< then a micro-batch needs two images
  std::string_view reference;                              ///< paper, and where the number of parameters is from

  [[nodiscard]] bool is_text() const { return takes_side == nullptr; }
};

/// All models, in the order in which they are listed. Their numbers of parameters are those of the papers or of the
/// implementation that `reference` names, to the last one; a test builds every model and counts.
[[nodiscard]] std::span<const ModelDescription> models();
/// The values that --model accepts.
[[nodiscard]] const std::vector<std::string>& model_names();
/// Throws Fault::internal for a name that is not in model_names().
[[nodiscard]] const ModelDescription& find_model(const std::string& name);

/// The input that a sample of `dataset` is to a model when images are enlarged to `image_size` pixels a side (0: not
/// enlarged). Throws Fault::usage when the model takes text and the data set has images, or the other way round, when
/// it cannot take images of that size or so long a sequence, and when `image_size` is below the size of the images.
[[nodiscard]] ModelInput model_input(const std::string& model, const Dataset& dataset, std::int64_t image_size);

}  // namespace gradtool
