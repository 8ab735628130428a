#pragma once

#include <string>
#include <vector>

#include "lib/report/table.hpp"

namespace gradtool {

/// Predicts the figures of codecs from the tables of the analyses: one row for each codec whose figures are there, with
/// the columns of docs/analysis.md. Errors are those of the mean over the workers in one step, without error feedback,
/// each tensor by itself (`bench --granularity tensor`), which is what `bench` reports as nmse. `tables` are those of
/// all analyses that ran. `element_bytes`: of an element as the job sends it without a codec, 2 in bfloat16, of which
/// ratios are counted.
///
/// W workers, rho their correlation (worker_pearson_mean), so that |mean|^2 = |g|^2 (1 + (W - 1) rho) / W:
///   what a worker drops is correlated between workers as what it keeps is, so that the error of selections, signs and
///   ranks is that of one gradient; rounding errors are not, so theirs is divided by 1 + (W - 1) rho.
///   topk, fft:       1 - share of the energy in what is kept
///   randomk:         1 - ratio
///   powersgd:        between 1 - power_R_share, one power iteration with random vectors, and 1 - rank_R_share, where a
///                    warm start leads in steps that are alike: the geometric mean of the two
///   fp16, bf16:      nmse of rounding (formats.csv), of the W addends and of the W - 1 sums of them that a ring rounds
///   fp8, qsgd:       nmse of rounding, or its expected value where it is drawn (formats.csv)
///   terngrad:        ternary_variance, which averaging divides, and ternary_bias, which it does not
///   efsignsgd:       1 - (E|x|)^2 / E x^2 of each tensor
///   gradiveq:        own_nmse: 99 % of the variance of earlier steps, applied to later ones
[[nodiscard]] Table predict(const std::vector<Table>& tables, double element_bytes = sizeof(float));

/// Sets measured_nmse of the row, and how far off the prediction is. Nothing where the prediction was not made.
void set_measured(Table& predictions, std::size_t row, double nmse);

/// Three lines for people: which codecs' predicted error is below 0.1, which above 0.5, and which between, of each
/// method with the parameters that compress most, of those ruled out least; and, where errors were measured, a fourth
/// that says for which the prediction fails (by more than a factor of 1.5). Lines end within 100 columns or go on
/// below.
[[nodiscard]] std::string describe_predictions(const Table& predictions);

}  // namespace gradtool
