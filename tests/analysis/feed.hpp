#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "lib/analysis/analysis.hpp"

namespace gradtool::test {

/// A capture in memory: gradient[tensor][step][worker][element], and second moments where they are.
struct Capture {
  Scope scope;
  std::vector<std::vector<std::vector<std::vector<float>>>> gradient, second_moment;

  Capture(std::size_t steps, std::size_t workers, std::int64_t micro_batches = 1) {
    scope.file = "memory";
    scope.last_step = steps - 1;
    scope.workers = workers;
    scope.micro_batches = micro_batches;
  }

  /// value(step, worker, element)
  using Value = std::function<double(std::size_t, std::size_t, std::size_t)>;
  std::size_t add(TensorInfo info, const Value& value, const Value& moment = {}) {
    info.elements = 1;
    for (const auto extent : info.shape) info.elements *= static_cast<std::uint64_t>(extent);
    if (info.name.empty()) info.name = "t" + std::to_string(scope.tensors.size());
    info.has_second_moment = static_cast<bool>(moment);
    const auto make = [&](const Value& from) {
      std::vector<std::vector<std::vector<float>>> all(scope.steps());
      for (std::size_t s = 0; s < all.size(); ++s) {
        for (std::size_t w = 0; w < scope.workers; ++w) {
          auto& values = all[s].emplace_back(info.elements);
          for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(from(s, w, i));
        }
      }
      return all;
    };
    gradient.push_back(make(value));
    second_moment.push_back(moment ? make(moment) : decltype(make(value)){});
    scope.tensors.push_back(info);
    return scope.tensors.size() - 1;
  }
};

/// Runs one analysis over a capture, each tensor cut into `pieces` parts. Returns its tables.
inline std::vector<Table> run(Analysis& analysis, const Capture& capture, std::size_t pieces = 1) {
  const Scope& scope = analysis.scope();
  for (std::size_t t = 0; t < scope.tensors.size(); ++t) {
    const std::uint64_t n = scope.tensors[t].elements;
    const bool slices = analysis.unit() == Analysis::Unit::slices;
    const std::size_t cuts = slices ? scope.steps() : std::min<std::uint64_t>(pieces, n);
    std::unique_ptr<Accumulator> whole;
    for (std::size_t c = 0; c < cuts; ++c) {
      const Part part =
          slices ? Part{t, 0, n, c, 1} : Part{t, n * c / cuts, n * (c + 1) / cuts - n * c / cuts, 0, scope.steps()};
      auto accumulator = analysis.start(part);
      for (std::size_t s = part.first_step; s < part.first_step + part.steps; ++s) {
        for (std::size_t w = 0; w < scope.workers; ++w) {
          const auto cut = [&](const std::vector<float>& all) {
            return std::span{all}.subspan(part.first, part.count);
          };
          Slice slice{s, w, part.first, cut(capture.gradient[t][s][w]), {}};
          if (analysis.needs_second_moment(t)) slice.second_moment = cut(capture.second_moment[t][s][w]);
          accumulator->observe(slice);
        }
      }
      accumulator->close();
      if (whole) {
        whole->merge(*accumulator);
      } else {
        whole = std::move(accumulator);
      }
    }
    analysis.finish(t, *whole);
  }
  return analysis.tables();
}

inline double number(const Table& table, std::size_t row, const std::string& column) {
  const Cell& cell = table.at(row, column);
  if (const auto* integer = std::get_if<std::int64_t>(&cell)) return static_cast<double>(*integer);
  if (const auto* real = std::get_if<double>(&cell)) return *real;
  throw std::runtime_error("column " + column + " holds no number: '" + to_text(cell) + "'");
}

/// The row of a tensor where a column has that value.
inline std::size_t row_of(const Table& table, const std::string& column, const std::string& value,
                          const std::string& tensor = "t0") {
  for (std::size_t r = 0; r < table.rows().size(); ++r) {
    if (to_text(table.at(r, "tensor")) == tensor && to_text(table.at(r, column)) == value) return r;
  }
  throw std::runtime_error("no row with " + column + " = " + value);
}

inline bool is_empty(const Table& table, std::size_t row, const std::string& column) {
  return std::holds_alternative<std::monostate>(table.at(row, column));
}

/// Independent standard normal values, the same at every call with the same arguments.
inline std::vector<double> normal(std::size_t count, unsigned seed) {
  std::mt19937_64 engine{seed};
  std::normal_distribution<double> draw;
  std::vector<double> values(count);
  for (auto& value : values) value = draw(engine);
  return values;
}

inline TensorInfo vector_of(std::int64_t n, std::string name = {}) {
  TensorInfo info;
  info.name = std::move(name);
  info.shape = {n};
  info.kind = "bias";
  return info;
}

/// The first cell in which two tables differ, numbers by more than `tolerance` times the larger one (or times `floor`);
/// empty when there is none.
inline std::string difference(const Table& a, const Table& b, double tolerance, double floor = 1e-30) {
  if (a.rows().size() != b.rows().size()) return a.name() + ": another number of rows";
  for (std::size_t r = 0; r < a.rows().size(); ++r) {
    for (std::size_t c = 0; c < a.columns().size(); ++c) {
      const Cell &x = a.rows()[r][c], &y = b.rows()[r][c];
      if (x == y) continue;
      const auto *p = std::get_if<double>(&x), *q = std::get_if<double>(&y);
      if (p && q && std::fabs(*p - *q) <= tolerance * std::max({std::fabs(*p), std::fabs(*q), floor})) continue;
      return a.name() + " row " + std::to_string(r) + " " + a.columns()[c].name + ": " + to_text(x) + " and " +
             to_text(y);
    }
  }
  return {};
}

}  // namespace gradtool::test
