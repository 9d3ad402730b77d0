#include "tessera/ops/aten/parts.h"

#include "tessera/device/backend.h"
#include "tessera/ops/products.h"
#include "tessera/ops/session.h"

namespace tessera::ops::aten {

namespace {

/// Whether cuBLAS multiplies two operands of 16 bits to fp32 as they are. A CPU widens both first; meta tensors that stand for a
/// GPU's take what a GPU takes.
bool widens_in_place(const Tensor& a, const Tensor& b, at::ScalarType type) {
  const bool gpu = a.is_meta() ? session().target || device::used() : !a.is_cpu();
  return gpu && is_half(a) && a.scalar_type() == b.scalar_type() && type == at::kFloat;
}

/// Whether the product can be of the library's own functions (products.h), and where its result then lies.
Tensor by_library(const Tensor& a, const Tensor& b, const Tensor& bias, at::ScalarType type) {
  if (!library_may_multiply(a) || a.scalar_type() != b.scalar_type()) return {};
  const Tensor out = at::empty({a.size(0), b.size(1)}, a.options().dtype(type));
  return multiplied(out, a, b, bias, /*add=*/false) ? out : Tensor();
}

}  // namespace

Tensor product(const Tensor& a, const Tensor& b, at::ScalarType type) {
  if (const Tensor made = by_library(a, b, {}, type); made.defined()) return made;
  if (a.scalar_type() == b.scalar_type() && a.scalar_type() == type) return at::mm(a, b);
  if (widens_in_place(a, b, type))
    return a.is_meta() ? at::empty({a.size(0), b.size(1)}, a.options().dtype(type)) : at::mm(a, b, type);
  return at::mm(as_floats(a), as_floats(b)).to(type);
}

Tensor product_and_bias(const Tensor& a, const Tensor& b, const Tensor& bias) {
  const Tensor made = by_library(a, b, bias, a.scalar_type());
  return made.defined() ? made : at::addmm(bias, a, b);
}

void product_into(const Tensor& out, const Tensor& a, const Tensor& b, bool add) {
  if (multiplied(out, a, b, {}, add)) return;
  Tensor to = out;
  const double keep = add ? 1 : 0;
  if (a.scalar_type() == b.scalar_type() && a.scalar_type() == to.scalar_type())
    at::addmm_out(to, to, a, b, keep);
  else if (widens_in_place(a, b, to.scalar_type()))
    to.is_meta() ? to : at::addmm_out(to, to, a, b, at::kFloat, keep);
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
