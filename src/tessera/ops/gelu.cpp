// GELU as an operator of its own.
#include "tessera/ops/kernels.h"
#include "tessera/ops/node.h"

namespace tessera::ops {

namespace {

struct Gelu : Function<Gelu> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    return kernels(x).gelu_tanh(x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor x = ctx->get_saved_variables()[0];
    return {kernels(x).gelu_tanh_gradient(grads[0].contiguous(), x)};
  }
};

}  // namespace

Tensor gelu_tanh(const Tensor& x) { return wants_graph({&x}) ? Gelu::apply(x) : kernels(x).gelu_tanh(x); }

}  // namespace tessera::ops
