// Sums and activations.
#include "tessera/ops/aten/aten.h"
#include "tessera/ops/aten/parts.h"

namespace tessera::ops::aten {

Tensor sum(const Tensor& x, const Tensor& y) {
  return x.scalar_type() == y.scalar_type() ? x + y : (as_floats(x) + as_floats(y)).to(x.scalar_type());
}

Tensor gated_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const RowIndex& rows) {
  const Tensor out = at::empty_like(x);
  each_part(&rows, x.size(0), [&](const TokenPart& part) {
    Tensor to = part.tokens(out);
    at::addcmul_out(to, part.tokens(x), as_floats(part.tokens(y)), part.rows(gate));
  });
  return out;
}

void gated_branch_gradient(const Tensor& up, const Tensor& gate, const RowIndex& rows, const Tensor& dy) {
  each_part(&rows, up.size(0),
            [&](const TokenPart& part) { part.tokens(dy).copy_(part.tokens(up) * part.rows(gate)); });
}

void gate_gradient(const Tensor& up, const Tensor& y, const RowIndex& rows, const Tensor& dgate) {
  each_part(&rows, up.size(0),
            [&](const TokenPart& part) { part.add_sums(dgate, part.tokens(up) * as_floats(part.tokens(y))); });
}

Tensor gelu_tanh(const Tensor& x) { return at::gelu(x, "tanh"); }
Tensor gelu_tanh_gradient(const Tensor& dy, const Tensor& x) { return at::gelu_backward(dy, x, "tanh"); }

}  // namespace tessera::ops::aten
