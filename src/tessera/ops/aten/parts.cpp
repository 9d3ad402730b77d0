#include "tessera/ops/aten/parts.h"

namespace tessera::ops::aten {

Tensor product(const Tensor& a, const Tensor& b, at::ScalarType type) {
  if (a.scalar_type() == b.scalar_type()) {
    if (a.scalar_type() == type) return at::mm(a, b);
    if (a.is_cuda() && is_half(a) && type == at::kFloat) return at::mm(a, b, type);
  }
  return at::mm(as_floats(a), as_floats(b)).to(type);
}

void product_into(const Tensor& out, const Tensor& a, const Tensor& b, bool add) {
  Tensor to = out;
  const double keep = add ? 1 : 0;
  if (a.scalar_type() == b.scalar_type() && a.scalar_type() == to.scalar_type())
    at::addmm_out(to, to, a, b, keep);
  else if (a.scalar_type() == b.scalar_type() && a.is_cuda() && is_half(a) && to.scalar_type() == at::kFloat)
    at::addmm_out(to, to, a, b, at::kFloat, keep);
  else if (to.scalar_type() == at::kFloat)
    at::addmm_out(to, to, as_floats(a), as_floats(b), keep);
  else
    add ? to.add_(product(a, b, at::kFloat)) : to.copy_(product(a, b, at::kFloat));
}

void TokenPart::add_sums(const Tensor& table, const Tensor& values) const {
  Tensor to = table;
  if (!gathered_) {
    (to.dim() == 1 ? to : to.select(0, row_)).add_(values.sum(0));
    return;
  }
  // A product with ones where token and row meet: unlike index_add, its order is fixed on every device.
  const Tensor row = at::arange(to.size(0), gathered_->of_token.options()).unsqueeze(1);
  to.addmm_(row.eq(gathered_->of_token).to(values.scalar_type()), values);
}

}  // namespace tessera::ops::aten
