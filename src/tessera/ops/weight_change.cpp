// The change D of a frozen weight that LoHa and LoKr make of two matrices, each whole or a product of two factors (weight.h).
// Some rows of z pass at a time. A Kronecker product is never made: z Q^T is taken for each j, and P mixes the results. Of an
// element-wise product some rows are made at a time. All of it is fp32.
#include "tessera/ops/weight.h"

#include "tessera/base/check.h"
#include "tessera/ops/gemm.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/node.h"
#include "tessera/ops/ops.h"

namespace tessera::ops {

namespace {

constexpr int64_t kChangedRows = 512;  // rows of z that pass at once, and of an element-wise product that exist

/// out (+)= a b, on the host with sums in our order.
void multiply(const Tensor& out, const Tensor& a, const Tensor& b, bool add) {
  if (out.is_cpu() || out.is_meta()) return gemm(out, a, b, add);
  Tensor to = out;
  at::addmm_out(to, to, a, b, add ? 1 : 0, 1);
}

/// x *= factor, without a tensor for the number.
void scale(const Tensor& x, double factor) {
  if (x.is_cpu() || x.is_meta()) return scale_in_place(x, factor);
  x.mul_(factor);
}

Tensor like(const Tensor& x, at::IntArrayRef shape) { return at::empty(shape, x.options().dtype(at::kFloat)); }

bool is_whole(const Adapter::Half& half) { return half.whole != nullptr; }

/// One of the two matrices as fp32; of a pair, some of its rows.
Tensor matrix(const Adapter::Half& half) {
  if (is_whole(half)) return as_floats(half.whole->value);
  const Tensor a = as_floats(half.a->value), b = as_floats(half.b->value);
  const Tensor product = like(a, {a.size(0), b.size(1)});
  multiply(product, a, b, false);
  return product;
}

std::array<int64_t, 2> sizes(const Adapter::Half& half) {
  if (is_whole(half)) return {half.whole->value.size(0), half.whole->value.size(1)};
  return {half.a->value.size(0), half.b->value.size(1)};
}

/// Adds the gradient of rows [first, ...) of one of the matrices to those of its factors.
void add_matrix_gradient(const Adapter::Half& half, const Tensor& grad, int64_t first) {
  if (is_whole(half)) {
    if (const Tensor to = accumulating(*half.whole); to.defined()) to.narrow(0, first, grad.size(0)).add_(grad);
    return;
  }
  const Tensor da = accumulating(*half.a), db = accumulating(*half.b);
  if (da.defined()) multiply(da.narrow(0, first, grad.size(0)), grad, as_floats(half.b->value).t(), true);
  if (db.defined()) multiply(db, as_floats(half.a->value).narrow(0, first, grad.size(0)).t(), grad, true);
}

/// Rows of a tensor as fp32: themselves, or a copy.
class Rows {
 public:
  Rows(const Tensor& all, bool copies)
      : all_(all),
        buffer_(copies || is_half(all) ? like(all, {std::min(kChangedRows, all.size(0)), all.size(1)}) : Tensor()) {}
  Tensor read(int64_t first, int64_t count) const {
    const Tensor own = all_.narrow(0, first, count);
    if (!buffer_.defined()) return own;
    const Tensor rows = buffer_.narrow(0, 0, count);
    rows.copy_(own);
    return rows;
  }
  /// What was read and added to, back where it was; nothing where it is there already.
  void write(const Tensor& rows, int64_t first) const {
    if (buffer_.defined()) all_.narrow(0, first, rows.size(0)).copy_(rows);
  }

 private:
  const Tensor all_, buffer_;
};

/// Of the adapter's input, and of what comes back to it.
void drop(const Tensor& rows, const Adapter& adapter, int64_t first) {
  for (const Dropout* each : {&adapter.dropout, &adapter.left_out})
    if (each->active()) drop_rows(rows, *each, first);
}

/// drop(z) of some rows, z perhaps gelu'd.
class Inputs {
 public:
  Inputs(const Tensor& z, const Adapter& adapter, bool gelu)
      : rows_(z, gelu || adapter.dropout.active() || adapter.left_out.active()), adapter_(adapter), gelu_(gelu) {}
  Tensor read(int64_t first, int64_t count) const {
    const Tensor z = rows_.read(first, count);
    if (gelu_) z.copy_(kernels(z).gelu_tanh(z));
    drop(z, adapter_, first);
    return z;
  }

 private:
  const Rows rows_;
  const Adapter& adapter_;
  const bool gelu_;
};

template <class Each>
void each_rows(int64_t rows, const Each& each) {
  for (int64_t first = 0; first < rows; first += kChangedRows) each(first, std::min(kChangedRows, rows - first));
}

/// P x Q, out = l k and in = m n. Row t of z is [m, n], of y [l, k].
class Kronecker {
 public:
  explicit Kronecker(const Adapter& adapter)
      : adapter_(adapter), p_(matrix(adapter.first)), q_(matrix(adapter.second)) {}

  /// y += z D^T
  void forward(const Tensor& y, const Tensor& z) const {
    const Tensor mixed = mix(p_, through(z), z.size(0), rows_of_q());
    for (int64_t i = 0; i < p_.size(0); ++i)
      y.narrow(1, i * rows_of_q(), rows_of_q()).add_(mixed[i].view({z.size(0), rows_of_q()}), adapter_.scale);
  }

  /// Adds to the gradients of P and Q; dz += dy D.
  void backward(const Tensor& dz, const Tensor& dy, const Tensor& z, const Tensor& dp, const Tensor& dq) const {
    const int64_t t = z.size(0), k = rows_of_q(), n = q_.size(1);
    const Tensor up = like(z, {p_.size(0), t * k});  // s dy, row block i of P by row
    for (int64_t i = 0; i < p_.size(0); ++i) {
      const Tensor rows = up[i].view({t, k});
      rows.copy_(dy.narrow(1, i * k, k));
      scale(rows, adapter_.scale);
    }
    if (dp.defined()) multiply(dp, up, through(z).t(), true);
    const Tensor back = mix(p_.t(), up, t, k);  // of z Q^T
    for (int64_t j = 0; j < p_.size(1); ++j) {
      const Tensor rows = back[j].view({t, k});
      if (dz.defined()) multiply(dz.narrow(1, j * n, n), rows, q_, true);
      if (dq.defined()) multiply(dq, rows.t(), z.narrow(1, j * n, n), true);
    }
  }

  const Tensor& p() const { return p_; }
  const Tensor& q() const { return q_; }

 private:
  int64_t rows_of_q() const { return q_.size(0); }
  /// z_j Q^T for each j: [m, T k]
  Tensor through(const Tensor& z) const {
    const int64_t m = p_.size(1), n = q_.size(1);
    const Tensor all = like(z, {m, z.size(0) * rows_of_q()});
    for (int64_t j = 0; j < m; ++j)
      multiply(all[j].view({z.size(0), rows_of_q()}), z.narrow(1, j * n, n), q_.t(), false);
    return all;
  }
  static Tensor mix(const Tensor& p, const Tensor& all, int64_t rows, int64_t k) {
    const Tensor mixed = like(all, {p.size(0), rows * k});
    multiply(mixed, p, all, false);
    return mixed;
  }

  const Adapter& adapter_;
  const Tensor p_, q_;
};

/// s P o Q for some rows of the weight, with P and Q.
struct Product {
  Tensor p, q, change;
};
Product product_rows(const Adapter& adapter, int64_t first, int64_t count) {
  const auto of = [&](const Adapter::Half& half) {
    if (is_whole(half)) return as_floats(half.whole->value).narrow(0, first, count);
    const Tensor a = as_floats(half.a->value).narrow(0, first, count), b = as_floats(half.b->value);
    const Tensor rows = like(a, {count, b.size(1)});
    multiply(rows, a, b, false);
    return rows;
  };
  Product made{of(adapter.first), of(adapter.second), {}};
  made.change = at::mul(made.p, made.q);
  scale(made.change, adapter.scale);
  return made;
}

}  // namespace

void check_change(const Adapter& adapter, int64_t out, int64_t in) {
  for (const Adapter::Half* half : {&adapter.first, &adapter.second})
    check_internal(half->whole ? half->whole->value.defined()
                               : half->a && half->b && half->a->value.defined() && half->b->value.defined(),
                   "ops.change", "a factor is missing, or used while it is not gathered");
  check_internal(!adapter.magnitude || !(adapter.dropout.active() || adapter.left_out.active()), "ops.change",
                 "a magnitude excludes dropout");
  const auto p = sizes(adapter.first), q = sizes(adapter.second);
  const bool fits = adapter.kind == Adapter::Kind::kronecker ? p[0] * q[0] == out && p[1] * q[1] == in
                                                             : p == q && p[0] == out && p[1] == in;
  check_internal(fits, "ops.change", "the factors make no change of a weight of this size");
}

void add_change(const Tensor& y, const Tensor& z, const Adapter& adapter, bool gelu) {
  const Inputs inputs(z, adapter, gelu);
  const Rows results(y, false);
  std::optional<Kronecker> kronecker;
  if (adapter.kind == Adapter::Kind::kronecker) kronecker.emplace(adapter);
  each_rows(z.size(0), [&](int64_t first, int64_t count) {
    const Tensor rows = inputs.read(first, count), sums = results.read(first, count);
    if (kronecker)
      kronecker->forward(sums, rows);
    else
      each_rows(y.size(1), [&](int64_t out, int64_t some) {
        multiply(sums.narrow(1, out, some), rows, product_rows(adapter, out, some).change.t(), true);
      });
    results.write(sums, first);
  });
}

void add_change_gradients(const Tensor& dz, const Tensor& dy, const Tensor& z, const Adapter& adapter, bool gelu) {
  const Inputs inputs(z, adapter, gelu);
  const Rows ups(dy, false);
  const bool drops = adapter.dropout.active() || adapter.left_out.active();
  std::optional<Rows> backs;
  if (dz.defined()) backs.emplace(dz, false);
  const Tensor undropped = backs && drops ? like(dz, {std::min(kChangedRows, dz.size(0)), dz.size(1)}) : Tensor();
  std::optional<Kronecker> kronecker;
  Tensor dp, dq;
  if (adapter.kind == Adapter::Kind::kronecker) {
    kronecker.emplace(adapter);
    dp = at::zeros_like(kronecker->p()), dq = at::zeros_like(kronecker->q());
  }
  each_rows(z.size(0), [&](int64_t first, int64_t count) {
    const Tensor rows = inputs.read(first, count), up = ups.read(first, count);
    const Tensor sums = backs ? backs->read(first, count) : Tensor(),
                 back = undropped.defined() ? undropped.narrow(0, 0, count).zero_() : sums;
    if (kronecker)
      kronecker->backward(back, up, rows, dp, dq);
    else
      each_rows(dy.size(1), [&](int64_t out, int64_t some) {
        const Product made = product_rows(adapter, out, some);
        const Tensor of_rows = up.narrow(1, out, some);
        if (back.defined()) multiply(back, of_rows, made.change, true);
        const Tensor grad = like(rows, {some, rows.size(1)});
        multiply(grad, of_rows.t(), rows, false);
        scale(grad, adapter.scale);
        add_matrix_gradient(adapter.first, at::mul(made.q, grad), out);
        add_matrix_gradient(adapter.second, at::mul(made.p, grad), out);
      });
    if (!backs) return;
    if (drops) {
      drop(back, adapter, first);
      sums.add_(back);
    }
    backs->write(sums, first);
  });
  if (!kronecker) return;
  add_matrix_gradient(adapter.first, dp, 0);
  add_matrix_gradient(adapter.second, dq, 0);
}

void add_change_to(const Tensor& rows, const Adapter& adapter, int64_t first) {
  if (adapter.kind == Adapter::Kind::elementwise)
    return each_rows(rows.size(0), [&](int64_t at, int64_t some) {
      rows.narrow(0, at, some).add_(product_rows(adapter, first + at, some).change);
    });
  const Tensor p = matrix(adapter.first), q = matrix(adapter.second);
  const int64_t k = q.size(0), end = first + rows.size(0);
  for (int64_t row = first; row < end;) {  // those of one row of P
    const int64_t of_p = row / k, of_q = row % k, count = std::min(k - of_q, end - row);
    rows.narrow(0, row - first, count)
        .view({count, p.size(1), q.size(1)})
        .addcmul_(p[of_p].view({1, p.size(1), 1}), q.narrow(0, of_q, count).unsqueeze(1), adapter.scale);
    row += count;
  }
}

namespace {

Tensor gain_of(const Adapter& adapter, const Tensor& norms) {
  return as_floats(adapter.magnitude->value) / norms.clamp_min(1e-30);
}

}  // namespace

void scale_by_magnitude(const Tensor& y, const Adapter& adapter, const Tensor& norms, const WeightSite* bias) {
  const Tensor gain = gain_of(adapter, norms), shift = bias ? as_floats(bias->value) : Tensor();
  const Rows results(y, false);
  each_rows(y.size(0), [&](int64_t first, int64_t count) {
    const Tensor rows = results.read(first, count);
    rows.mul_(gain);
    if (shift.defined()) rows.add_(shift);
    results.write(rows, first);
  });
}

Tensor magnitude_gradients(const Tensor& dy, const Tensor& y, const Adapter& adapter, const Tensor& norms,
                           const WeightSite* bias) {
  const Tensor gain = gain_of(adapter, norms), shift = bias ? as_floats(bias->value) : Tensor(),
               m = as_floats(adapter.magnitude->value), grad = accumulating(*adapter.magnitude),
               sums = at::zeros_like(norms), du = at::empty_like(dy);
  const Rows ups(dy, true), results(y, true);
  each_rows(dy.size(0), [&](int64_t first, int64_t count) {
    const Tensor up = ups.read(first, count), result = results.read(first, count);
    if (shift.defined()) result.sub_(shift);
    kernels(up).bias_gradient(sums, result.mul_(up), /*add=*/true);  // of dy (y - b)
    du.narrow(0, first, count).copy_(up.mul_(gain));
  });
  if (grad.defined()) grad.add_(sums.div_(m).masked_fill_(m.eq(at::zeros_like(m)), 0));
  return du;
}

}  // namespace tessera::ops
