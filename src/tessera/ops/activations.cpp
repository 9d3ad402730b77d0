// GELU as an operator of its own.
#include "tessera/ops/activations.h"

#include "tessera/ops/kernels.h"
#include "tessera/ops/node.h"
#include "tessera/ops/tangent.h"

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

Tensor gelu_tanh(const Tensor& x) {
  if (const auto [value, tangent] = parts(x); tangent.defined())
    return moving(kernels(value).gelu_tanh(value), kernels(value).gelu_tanh_gradient(tangent, value));
  return wants_graph({&x}) ? Gelu::apply(x) : kernels(x).gelu_tanh(x);
}

namespace {

using at::Tensor;

struct Relu : Function<Relu> {
  static Tensor run(const Tensor& x) { return at::threshold(x, 0, 0); }  // at::relu has no meta form

  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    const Tensor out = run(x);
    ctx->save_for_backward({out});
    return out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {at::threshold_backward(grads[0], ctx->get_saved_variables()[0], 0)};
  }
};

struct SiluGlu : Function<SiluGlu> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& gate) {
    ctx->save_for_backward({x, gate});
    return kernels(x).silu_glu(x, gate);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto [dx, dgate] = kernels(saved[0]).silu_glu_gradients(grads[0].contiguous(), saved[0], saved[1]);
    return {dx, dgate};
  }
};

}  // namespace

at::Tensor silu_glu(const at::Tensor& x, const at::Tensor& gate) {
  if (any_moves({&x, &gate})) {
    const Moving mx = parts(x), mg = parts(gate);
    return moving(kernels(mx.value).silu_glu(mx.value, mg.value),
                  sum_of_tangents({mx.moves() ? mx.tangent * at::silu(mg.value) : Tensor(),
                                   mg.moves() ? mx.value * at::silu_backward(mg.tangent, mg.value) : Tensor()}));
  }
  return wants_graph({&x, &gate}) ? SiluGlu::apply(x, gate) : kernels(x).silu_glu(x, gate);
}

at::Tensor relu(const at::Tensor& x) {
  if (const auto [value, tangent] = parts(x); tangent.defined()) {
    const Tensor out = Relu::run(value);
    return moving(out, at::threshold_backward(tangent, out, 0));
  }
  return wants_graph({&x}) ? Relu::apply(x) : Relu::run(x);
}

}  // namespace tessera::ops
