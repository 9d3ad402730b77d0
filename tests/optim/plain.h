#pragma once
// The optimisers by their published formulas: in fp64, a whole tensor at once, without formats or ranks.
//
//   Plain plain(Optimizer::came, {{"beta1", 0.7}}, plan::factors_of(...), start);
//   plain.step(step, lr, scale, gradient);
//   plain.p;
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "optim/ranks.h"
#include "tessera/optim/prodigy.h"
#include "tessera/plan/optimizers.h"

namespace tessera::optim {

/// An optimiser's numbers by name; a switch is 0 or 1.
using Numbers = std::map<std::string, double>;

class Plain {
 public:
  using Values = std::vector<double>;

  Plain(plan::Optimizer optimizer, Numbers numbers, plan::Factors factors, Values start)
      : p(std::move(start)), optimizer_(optimizer), is_(std::move(numbers)), f_(factors) {
    for (Values* each : {&m_, &v_, &s_}) each->resize(p.size(), 0);
    start_ = p;
    for (Values* each : {&rows_, &off_rows_}) each->resize(static_cast<size_t>(f_.all_rows()), 0);
    for (Values* each : {&columns_, &off_columns_}) each->resize(static_cast<size_t>(f_.all_columns()), 0);
    d = most_ = of("d0");
  }

  void step(int64_t step, double lr, double scale, Values g) {
    for (double& x : g) x *= scale;
    const auto t = static_cast<double>(step);
    switch (optimizer_) {
      case plan::Optimizer::adamw:
        return adamw(t, lr, g);
      case plan::Optimizer::lion:
        return lion(lr, g);
      case plan::Optimizer::adafactor:
        return adafactor(t, lr, g);
      case plan::Optimizer::came:
        return came(lr, g);
      case plan::Optimizer::prodigy:
        return prodigy(t, lr, g);
    }
  }

  Values p;
  double d = 0;  ///< Prodigy's, of the step to come

 private:
  double of(const std::string& name) const {
    const auto found = is_.find(name);
    return found == is_.end() ? 0 : found->second;
  }

  void adamw(double t, double lr, const Values& g) {
    const double b1 = of("beta1"), b2 = of("beta2"), wd = of("weight_decay");
    for (size_t i = 0; i < p.size(); ++i) {
      m_[i] = b1 * m_[i] + (1 - b1) * g[i];
      v_[i] = b2 * v_[i] + (1 - b2) * g[i] * g[i];
      const double moved = m_[i] / (1 - std::pow(b1, t)) / (std::sqrt(v_[i] / (1 - std::pow(b2, t))) + of("eps"));
      p[i] = of("decay_last") ? (p[i] - lr * moved) * (1 - lr * wd) : p[i] * (1 - lr * wd) - lr * moved;
    }
  }

  void lion(double lr, const Values& g) {
    const double b1 = of("beta1"), b2 = of("beta2");
    for (size_t i = 0; i < p.size(); ++i) {
      const double way = b1 * m_[i] + (1 - b1) * g[i];
      p[i] = p[i] * (1 - lr * of("weight_decay")) - lr * (way > 0 ? 1 : way < 0 ? -1 : 0);
      m_[i] = b2 * m_[i] + (1 - b2) * g[i];
    }
  }

  static double rms(const Values& x) {
    double sum = 0;
    for (const double value : x) sum += value * value;
    return std::sqrt(sum / static_cast<double>(x.size()));
  }

  /// Of every element the root of its moment, estimated from the means of its row and its column (Shazeer and Stern).
  Values roots(const Values& squares, double beta, Values& rows, Values& columns) const {
    const auto r = static_cast<size_t>(f_.rows), c = static_cast<size_t>(f_.columns);
    Values out(squares.size());
    for (size_t matrix = 0; matrix < static_cast<size_t>(f_.matrices); ++matrix) {
      const double* x = &squares[matrix * r * c];
      double *row = &rows[matrix * r], *column = &columns[matrix * c];
      for (size_t i = 0; i < r; ++i) {
        double mean = 0;
        for (size_t j = 0; j < c; ++j) mean += x[i * c + j] / static_cast<double>(c);
        row[i] = beta * row[i] + (1 - beta) * mean;
      }
      for (size_t j = 0; j < c; ++j) {
        double mean = 0;
        for (size_t i = 0; i < r; ++i) mean += x[i * c + j] / static_cast<double>(r);
        column[j] = beta * column[j] + (1 - beta) * mean;
      }
      double of_rows = 0;
      for (size_t i = 0; i < r; ++i) of_rows += row[i] / static_cast<double>(r);
      for (size_t i = 0; i < r * c; ++i) out[matrix * r * c + i] = std::sqrt(row[i / c] * column[i % c] / of_rows);
    }
    return out;
  }

  /// The gradient by the root of its second moment, clipped by its size.
  Values clipped(const Values& g, double beta) {
    Values u(g.size()), squares(g.size());
    for (size_t i = 0; i < g.size(); ++i) squares[i] = g[i] * g[i] + of("eps1");
    Values by;
    if (f_.any()) {
      by = roots(squares, beta, rows_, columns_);
    } else {
      for (size_t i = 0; i < g.size(); ++i) by.push_back(std::sqrt(v_[i] = beta * v_[i] + (1 - beta) * squares[i]));
    }
    for (size_t i = 0; i < g.size(); ++i) u[i] = g[i] / by[i];
    const double clip = std::max(1.0, rms(u) / of("clip_threshold"));
    for (double& x : u) x /= clip;
    return u;
  }

  void adafactor(double t, double lr, const Values& g) {
    if (of("relative_step")) lr = std::min(lr, 1 / std::sqrt(t));
    if (of("warmup_init")) lr = std::min(lr, 1e-6 * t);
    if (of("scale_parameter")) lr *= std::max(of("eps2"), rms(p));
    Values u = clipped(g, 1 - std::pow(t, of("decay_rate")));
    for (size_t i = 0; i < p.size(); ++i) {
      u[i] *= lr;
      if (of("beta1") > 0) u[i] = m_[i] = of("beta1") * m_[i] + (1 - of("beta1")) * u[i];
      p[i] = p[i] * (1 - lr * of("weight_decay")) - u[i];
    }
  }

  void came(double lr, const Values& g) {
    const double b1 = of("beta1");
    const Values u = clipped(g, of("beta2"));
    Values off(g.size());
    for (size_t i = 0; i < p.size(); ++i) {
      m_[i] = b1 * m_[i] + (1 - b1) * u[i];
      off[i] = (u[i] - m_[i]) * (u[i] - m_[i]) + of("eps2");
    }
    const Values by = f_.any() ? roots(off, of("beta3"), off_rows_, off_columns_) : Values(g.size(), 1);
    for (size_t i = 0; i < p.size(); ++i) p[i] = p[i] * (1 - lr * of("weight_decay")) - lr * m_[i] / by[i];
  }

  void prodigy(double t, double lr, const Values& g) {
    const double b1 = of("beta1"), b2 = of("beta2"), b3 = of("beta3") > 0 ? of("beta3") : std::sqrt(b2);
    if (of("bias_correction")) lr *= std::sqrt(1 - std::pow(b2, t)) / (1 - std::pow(b1, t));
    double toward = 0, size = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      toward += g[i] * (start_[i] - p[i]);
      m_[i] = b1 * m_[i] + (1 - b1) * d * g[i];
      v_[i] = b2 * v_[i] + (1 - b2) * d * d * g[i] * g[i];
      s_[i] = b3 * s_[i] + d / of("d0") * d * (of("safeguard_warmup") ? 1 : lr) * g[i];
      size += std::abs(s_[i]);
      p[i] = p[i] * (1 - d * lr * of("weight_decay")) - d * lr * m_[i] / (std::sqrt(v_[i]) + d * of("eps"));
    }
    numerator_ = b3 * numerator_ + d / of("d0") * d * lr * toward;
    const double estimate = of("d_coef") * numerator_ / size;
    if (d == of("d0")) d = std::max(d, estimate);
    most_ = std::max(most_, estimate);
    d = std::min(most_, d * (of("growth_rate") > 0 ? of("growth_rate") : std::numeric_limits<double>::infinity()));
  }

  const plan::Optimizer optimizer_;
  const Numbers is_;
  const plan::Factors f_;
  Values start_, m_, v_, s_, rows_, columns_, off_rows_, off_columns_;
  double most_ = 0, numerator_ = 0;
};

/// A tensor on three ranks trained by an optimiser, and by its formula.
struct Followed {
  at::Tensor moved;  ///< what the optimiser made of it, less what it began as
  double off = 0;    ///< the largest distance from the formula, by the largest move
};

/// Six steps of other rates and scales; after the third the states go on under another `made()`, as after a stop.
/// `prodigy`: the numbers of an optimiser that has a step size of its own.
template <class Made>
Followed follow(const Made& made, plan::Optimizer optimizer, const Numbers& numbers, std::vector<int64_t> shape,
                plan::Factoring factoring, double lr, plan::Masters masters = plan::Masters::fp32,
                const std::optional<ProdigyOptions>& prodigy = {}) {
  const auto one = made(), other = made();
  const plan::ParamSpec spec{"w", shape};
  const int64_t count = spec.numel();
  Ranks ranks(*one, shape, {0, 256, 768, count}, 0, masters);
  const at::Tensor start = ranks.whole();
  const float* first = start.const_data_ptr<float>();
  Plain plain(optimizer, numbers, plan::factors_of(factoring, spec), {first, first + count});
  std::optional<ProdigySize> size;
  if (prodigy) size.emplace(*prodigy);
  for (int64_t step = 1; step <= 6; ++step) {
    if (step == 4) {
      ranks.go_on(*other);
      if (size) size.emplace(*prodigy, size->d(), size->most(), size->numerator());
    }
    const auto gradient = [&](int64_t i, double p) {  // towards 0.3, steeper in some rows and matrices than in others
      const double steep = (i % 370 < 111 ? 0.25 : 1.5) * (i < 370 ? 1 : 4);
      return steep * (p - 0.3) + 0.2 * std::cos(0.11 * static_cast<double>(step * i));
    };
    const net::StepControl control{step, lr * (1 + 0.25 * static_cast<double>(step % 3)), step % 2 ? 1 : 0.5,
                                   size ? size->d() : 0};
    const at::Tensor at = ranks.whole();
    at::Tensor g = at::empty({count}, at::kFloat);
    Plain::Values exact;
    for (int64_t i = 0; i < count; ++i) {
      g.mutable_data_ptr<float>()[i] = static_cast<float>(gradient(i, at.const_data_ptr<float>()[i]));
      exact.push_back(gradient(i, plain.p[static_cast<size_t>(i)]));
    }
    ranks.step(control, g);
    if (size) size->take(ranks.totals, control);
    plain.step(step, control.lr, control.scale, exact);
  }
  const at::Tensor end = ranks.whole();
  const at::Tensor expected = at::from_blob(plain.p.data(), {count}, at::kDouble).to(at::kFloat);
  const double most = distance(end, start);
  return {end - start, distance(end, expected) / most};
}

}  // namespace tessera::optim
