// Linear attention in two steps (rows.h).
#include "tessera/ops/aten/aten.h"
#include "tessera/ops/aten/parts.h"

namespace tessera::ops::aten {

namespace {

/// Calls body(sample, rows [heads, n, d] of an operand) for samples with rows.
template <class Body>
void each_sample_with_rows(const Offsets& at, int64_t heads, const Body& body) {
  for (size_t s = 0; s + 1 < at.size(); ++s)
    if (const int64_t rows = at[s + 1] - at[s]; rows > 0)
      body(static_cast<int64_t>(s), [&, first = at[s], rows, heads](const Tensor& x) {
        return x.narrow(0, first, rows).view({rows, heads, -1}).transpose(0, 1);
      });
}

/// A state's products [heads, d, d] and sums [heads, 1, d].
Tensor products_of(const Tensor& state) { return state.narrow(1, 0, state.size(2)); }
Tensor sums_of(const Tensor& state) { return state.narrow(1, state.size(2), 1); }

}  // namespace

Tensor linear_attention_states(const Tensor& rotated_k, const Tensor& plain_k, const Tensor& values, int64_t heads,
                               const Offsets& at) {
  const Tensor rotated = as_floats(rotated_k), k = as_floats(plain_k), v = as_floats(values);
  const int64_t d = k.size(1) / heads;
  const Tensor states = at::zeros({static_cast<int64_t>(at.size()) - 1, heads, d + 1, d}, k.options());
  each_sample_with_rows(at, heads, [&](int64_t s, const auto& rows) {
    const Tensor state = states.select(0, s);
    products_of(state).copy_(rows(rotated).transpose(1, 2).bmm(rows(v)));
    sums_of(state).copy_(rows(k).sum(1, /*keepdim=*/true));
  });
  return states;
}

Kernels::StatesGradients linear_attention_states_backward(const Tensor& up, const Tensor& rotated_k,
                                                          const Tensor& values, bool same, int64_t heads,
                                                          const Offsets& at) {
  const Tensor rotated = as_floats(rotated_k), v = as_floats(values);
  const Tensor d_rotated = at::empty_like(rotated), d_v = at::empty_like(v),
               d_k = same ? d_rotated : at::empty_like(rotated);
  each_sample_with_rows(at, heads, [&](int64_t s, const auto& rows) {
    const Tensor state = up.select(0, s);
    rows(d_rotated).copy_(rows(v).bmm(products_of(state).transpose(1, 2)));
    rows(d_v).copy_(rows(rotated).bmm(products_of(state)));
    same ? rows(d_k).add_(sums_of(state)) : rows(d_k).copy_(sums_of(state).expand_as(rows(d_k)));
  });
  return {d_rotated, d_k, d_v};
}

Tensor linear_attention_result(const Tensor& rotated_q, const Tensor& plain_q, const Tensor& states, int64_t heads,
                               const Offsets& at, double eps, Tensor& down) {
  const Tensor rotated = as_floats(rotated_q), q = as_floats(plain_q);
  const Tensor out = at::empty_like(q);
  down = at::empty({q.size(0), heads}, q.options());
  each_sample_with_rows(at, heads, [&](int64_t s, const auto& rows) {
    const Tensor state = states.select(0, s), divisor = (rows(q) * sums_of(state)).sum(2, true).add_(eps);
    rows(out).copy_(rows(rotated).bmm(products_of(state)).div_(divisor));
    rows(down).copy_(divisor);
  });
  return out;
}

Kernels::ResultGradients linear_attention_result_backward(const Tensor& up_y, const Kernels::SavedResult& given,
                                                          bool same, int64_t heads, const Offsets& at) {
  const Tensor dy = as_floats(up_y);
  const Kernels::SavedResult saved = {as_floats(given.rotated), as_floats(given.q), given.states, as_floats(given.out),
                                      given.down};
  const Tensor d_q = at::empty_like(saved.q), d_rotated = same ? d_q : at::empty_like(saved.q),
               d_states = at::zeros(saved.states.sizes(), saved.states.options());
  each_sample_with_rows(at, heads, [&](int64_t s, const auto& rows) {
    const Tensor state = saved.states.select(0, s), d_state = d_states.select(0, s);
    const Tensor up = rows(dy) / rows(saved.down), slope = (up * rows(saved.out)).sum(2, true).neg_();
    rows(d_q).copy_(slope * sums_of(state));
    sums_of(d_state).copy_((slope * rows(saved.q)).sum(1, /*keepdim=*/true));
    const Tensor back = up.bmm(products_of(state).transpose(1, 2));
    same ? rows(d_rotated).add_(back) : rows(d_rotated).copy_(back);
    products_of(d_state).copy_(rows(saved.rotated).transpose(1, 2).bmm(up));
  });
  return {d_rotated, d_q, d_states};
}

}  // namespace tessera::ops::aten
