#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/model/units.hpp"

namespace gradtool {

/// How an optimizer makes an update of a gradient, without the learning rate, which exact and received gradients share,
/// and without weight decay. Sutskever et al. 2013 as PyTorch has it: m = momentum m + g, and the update is m, or
/// g + momentum m with Nesterov. Kingma and Ba 2015, algorithm 1, for Adam and AdamW.
struct UpdateRule {
  bool adam = false;
  bool nesterov = false;
  double momentum = 0.0;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;

  /// Reads what a gradient file records ("sgd:learning_rate=0.1,momentum=0.9,...", "AdamW") or an option says ("adam").
  /// Empty where it names no SGD with its momentum and no Adam, or where a number is none that such an optimizer has.
  /// With DiLoCo it is that of the outer optimizer, which takes what is captured.
  [[nodiscard]] static std::optional<UpdateRule> parse(std::string_view text);
  /// The rule for what is received from a method that brings momentum of its own: SGD has none then, as in `gradtool
  /// train`.
  [[nodiscard]] UpdateRule without_momentum() const;
  /// That UpdateErrors takes for each element.
  [[nodiscard]] std::uint64_t bytes_per_element() const { return adam ? 24 : 16; }
};

/// Whether the optimizer that a file records divides what it gets by the size of earlier gradients, element by element,
/// as Adam, Adagrad and RMSprop do: then small values move a model as far as large ones. True for every name but SGD's.
[[nodiscard]] bool scales_by_history(std::string_view optimizer);

/// Sums over the elements of a tensor and the steps of a window.
struct UpdateSums {
  double error = 0.0;     ///< (u-v)^2, u the update by the exact mean, v that by what was received
  double energy = 0.0;    ///< u^2
  double distance = 0.0;  ///< 1 - cosine between the sums of the first kSummedSteps exact and received gradients

  [[nodiscard]] double nmse() const;
};

/// Follows a range of units through the optimizer: runs its moments over the exact mean and over what was received.
/// Both begin at 0 in every window. Takes 16 bytes an element, with Adam 24.
class UpdateErrors {
 public:
  /// A fixed number, so that the cosine of sums does not depend on how long a window is: what a codec delays is
  /// bounded, and a sum over more steps hides more of it. The first ones, because later sums have what was delayed
  /// before them.
  static constexpr std::size_t kSummedSteps = 8;

  UpdateErrors(std::span<const Unit> units, const UpdateRule& exact, const UpdateRule& received);

  /// The next step of a unit, which is counted in the range.
  void observe(std::size_t unit_index, std::span<const double> exact, std::span<const float> got);
  /// All steps of a window were observed: adds to `sums`, by tensor, and begins anew.
  void finish(std::span<UpdateSums> sums);

 private:
  /// State that belongs to the exact gradients, or to those received.
  struct Moments {
    UpdateRule rule;
    std::vector<float> first, second;
    std::vector<float> sum;  ///< of the first kSummedSteps gradients
    void reset();
    /// The updates of some elements; `step` counts from 1.
    void update(std::size_t at, std::span<const float> gradient, std::size_t step, std::span<float> to);
  };
  struct OfUnit {
    Moments exact, received;
    std::size_t steps = 0;         ///< of the window
    std::vector<UpdateSums> sums;  ///< of each piece
  };
  static double distance(const OfUnit& unit, const Unit::Piece& piece);

  std::span<const Unit> units_;
  std::vector<OfUnit> states_;
};

}  // namespace gradtool
