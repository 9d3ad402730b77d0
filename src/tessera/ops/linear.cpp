// y = x W^T + b and y = gelu(x) W^T + b.
#include "tessera/base/check.h"
#include "tessera/ops/fused.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/node.h"
#include "tessera/ops/ranges.h"
#include "tessera/ops/tangent.h"
#include "tessera/ops/weight.h"

namespace tessera::ops {

namespace {

/// A weight as a matrix: convolutions whose kernel equals their stride are GEMMs over flattened patches.
Tensor matrix(const Tensor& weight) { return weight.dim() == 2 ? weight : weight.view({weight.size(0), -1}); }

/// What a product in more bits reads.
Tensor values(const WeightSite& weight) {
  check_internal(!weight.in_codes(), "ops.linear", "codes were gathered of a weight whose values are multiplied");
  return matrix(weight.value);
}

Fp8Weight eight_bits(const WeightSite& weight) {
  return {weight, [&] { return values(weight); }};
}

double flops_of(const Tensor& x, const Tensor& weight) {
  return 2 * static_cast<double>(x.size(0)) * static_cast<double>(weight.numel());
}

Tensor run_forward(const Tensor& x, const WeightSite& weight, const WeightSite* bias, at::ScalarType type, bool gelu) {
  check_internal(x.dim() == 2 && x.is_contiguous() && (x.scalar_type() == at::kFloat || is_half(x)), "ops.linear",
                 "x must be a contiguous matrix of fp32, bf16 or fp16");
  check_internal(weight.value.defined(), "ops.linear", "the weight is used while it is not gathered");
  session().products.results += flops_of(x, weight.value);
  const Tensor offset = bias ? bias->value : Tensor();
  if (takes_fp8(x, type)) return fp8_linear(x, eight_bits(weight), offset, gelu, type);
  return kernels(x).linear(x, values(weight), offset, gelu, type);
}

/// What a linear's weight gradient shares with others that read its input: codes of its columns, or its rounded rows; null: none.
struct Shared {
  c10::intrusive_ptr<Fp8Columns> columns;
  c10::intrusive_ptr<RoundedRows> rounded;
};

template <class T>
c10::intrusive_ptr<T> shared_of(AutogradContext* ctx, const char* name) {
  const auto it = ctx->saved_data.find(name);
  return it == ctx->saved_data.end() ? c10::intrusive_ptr<T>()
                                     : c10::static_intrusive_pointer_cast<T>(it->second.toCapsule());
}

template <bool kGelu>
struct Linear : Function<Linear<kGelu>> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& anchor, Handle weight, Handle bias,
                               int64_t type, const Tensor* known, bool late, bool passes) {
    ctx->saved_data["w"] = weight;
    ctx->saved_data["b"] = bias;
    ctx->saved_data["late"] = late;
    const bool fp8 = takes_fp8(x, static_cast<at::ScalarType>(type));
    ctx->saved_data["fp8"] = fp8;
    if (fp8 && !kGelu && !site_of(weight)->frozen)
      ctx->saved_data["columns"] = c10::IValue::make_capsule(session().fp8->readers(x));
    const Tensor given = !kGelu && session().rounded ? session().rounded->given(x) : Tensor();
    if (!kGelu && session().rounded && !given.defined() && x.scalar_type() == at::kFloat && !site_of(weight)->frozen)
      ctx->saved_data["rounded"] = c10::IValue::make_capsule(session().rounded->readers(x));
    if (kGelu) ctx->saved_data["bias"] = bias_behind(x);
    ctx->saved_data["type"] = static_cast<int64_t>(x.scalar_type());
    ctx->save_for_backward({given.defined() ? given : x});
    const Tensor y = known ? known->detach()
                           : run_forward(x, *site_of(weight), site_of(bias), static_cast<at::ScalarType>(type), kGelu);
    if (!passes) return {y};
    ctx->set_materialize_grads(false);
    return {y, x.detach()};
  }

  static void weight_gradients(const Tensor& x, const Tensor& dy, WeightSite& weight, WeightSite* bias, bool fp8,
                               const Shared& shared) {
    if (weight.grad.defined()) {
      session().products.weight_grads += flops_of(x, weight.grad);
      const bool add = !std::exchange(weight.fresh, false);
      RoundedInput rounded(x, shared.rounded ? shared.rounded->made : Tensor());
      const RoundedScope scope(shared.rounded ? &rounded : nullptr);
      if (fp8)
        fp8_weight_gradient(matrix(weight.grad), dy, x, kGelu, add, shared.columns.get());
      else
        kernels(x).linear_weight_gradient(matrix(weight.grad), dy, x, kGelu, add);
      if (shared.rounded) shared.rounded->made = --shared.rounded->readers > 0 ? rounded.known() : Tensor();
    }
    if (bias && bias->grad.defined()) bias_gradient(ColumnSums::rows_to_add(dy), *bias);
  }

  static Tensor through_gelu_of(const Tensor& x, const Tensor& dz) {
    return kGelu ? kernels(x).gelu_tanh_gradient(dz, x) : dz;
  }

  /// Of gelu(x) W^T at once, for which gelu(x) is made once.
  static Tensor both_gradients(AutogradContext* ctx, const Tensor& x, const Tensor& dy, WeightSite& weight,
                               WeightSite* bias) {
    session().products.weight_grads += flops_of(x, weight.grad);
    session().products.results += flops_of(x, weight.value);
    if (bias && bias->grad.defined()) bias_gradient(ColumnSums::rows_to_add(dy), *bias);
    ColumnSums columns(ctx);
    const bool add = !std::exchange(weight.fresh, false);
    const Tensor dx = kernels(x).gelu_linear_gradients(dy, values(weight), x, is_sole_owner(x), matrix(weight.grad),
                                                       add, columns.wanted());
    columns.leave(dx);
    return dx;
  }

  /// What has the dtype of the input: it, or for what was saved rounded one value in its place.
  static Tensor input_like(AutogradContext* ctx, const Tensor& saved) {
    const auto type = static_cast<at::ScalarType>(ctx->saved_data["type"].toInt());
    return saved.scalar_type() == type ? saved : at::empty({1, 1}, saved.options().dtype(type)).expand(saved.sizes());
  }

  /// What the input has by another way, to be added to: a tensor of which nobody else knows. A product adds to it before it
  /// rounds, so whether it is a copy may not decide whether the product adds: bits would depend on who else holds it.
  static Tensor to_add_to(Tensor beside) {
    const bool own = beside.use_count() <= 2 && beside.storage().use_count() == 1;  // here and in the engine's list
    return own && beside.is_contiguous() && beside.storage_offset() == 0 ? beside
                                                                         : beside.clone(at::MemoryFormat::Contiguous);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Tensor beside = grads.size() > 1 ? std::move(grads[1]) : Tensor();
    if (!grads[0].defined()) return {beside, {}, {}, {}, {}, {}, {}, {}};  // a result that nobody used
    const Tensor x = ctx->get_saved_variables()[0], dy = grads[0].contiguous();
    WeightSite &weight = *site_of(ctx, "w"), *bias = site_of(ctx, "b");
    const bool wants_input = ctx->needs_input_grad(0);
    DeferredGradients* deferred = session().deferred;
    const bool fp8 = ctx->saved_data["fp8"].toBool();
    if (kGelu && wants_input && !deferred && !fp8 && weight.grad.defined())
      return {both_gradients(ctx, x, dy, weight, bias), {}, {}, {}, {}, {}, {}, {}};
    const Shared shared = {shared_of<Fp8Columns>(ctx, "columns"), shared_of<RoundedRows>(ctx, "rounded")};
    // It holds x, which then has another owner: only where it is needed.
    const auto work = [&] {
      return [x, dy, &weight, bias, fp8, shared] { weight_gradients(x, dy, weight, bias, fp8, shared); };
    };
    const bool learns = weight.grad.defined() || (bias && bias->grad.defined());
    if (!deferred && wants_input && learns && ctx->saved_data["late"].toBool())
      session().later(work());
    else if (!deferred)
      weight_gradients(x, dy, weight, bias, fp8, shared);
    else if (deferred->wants(weight) || (bias && deferred->wants(*bias)))
      deferred->add(work());
    Tensor dx;
    if (wants_input) {
      session().products.results += flops_of(x, weight.value);
      if (fp8) {
        dx = through_gelu_of(x, fp8_input_gradient(dy, eight_bits(weight), x.scalar_type()));
      } else if (!kGelu && beside.defined()) {
        dx = to_add_to(std::exchange(beside, Tensor()));
        kernels(x).add_linear_input_gradient(dx, dy, values(weight));
      } else {
        dx = kernels(x).linear_input_gradient(dy, values(weight), input_like(ctx, x), kGelu, kGelu && is_sole_owner(x));
      }
      if (beside.defined()) dx.add_(beside);
    }
    return {dx, {}, {}, {}, {}, {}, {}, {}};
  }
};

template <bool kGelu>
Tensor apply(const Tensor& x, WeightSite& weight, WeightSite* bias, const Tensor& anchor, at::ScalarType type,
             const Tensor* known, When weight_gradients, Tensor* passed) {
  if (known)
    check_internal(known->size(0) == x.size(0) && known->scalar_type() == type, "ops.linear",
                   "the known result is not that of these rows");
  if (moves(x)) {
    check_internal(!known, "ops.linear", "forward mode recomputes nothing");
    const auto [value, tangent] = parts(x);
    const Tensor dx = kGelu ? kernels(value).gelu_tanh_gradient(tangent, value) : tangent;
    return moving(run_forward(value, weight, bias, type, kGelu), run_forward(dx, weight, nullptr, type, false));
  }
  if (!wants_graph({&x, &anchor})) return known ? *known : run_forward(x, weight, bias, type, kGelu);
  const variable_list made = Linear<kGelu>::apply(x, anchor, handle(&weight), handle(bias), static_cast<int64_t>(type),
                                                  known, weight_gradients == When::late, passed != nullptr);
  if (passed) *passed = made[1];
  return made[0];
}

}  // namespace

namespace {

/// Sums of columns on their way from a kernel to a linear: of which gradient, and of which of its versions.
struct Left {
  c10::weak_intrusive_ptr<c10::TensorImpl> of;
  int64_t version;
  Tensor sums;
};
std::vector<Left>& all_left() {
  thread_local std::vector<Left> left;
  return left;
}

}  // namespace

const Fp8Lines& Fp8Inputs::rows(const Tensor& x) {
  take(x);
  if (!rows_.codes.defined()) rows_ = kernels(x).fp8_lines(x, at::kFloat8_e4m3fn, /*turned=*/false, /*gelu=*/false);
  return rows_;
}

double* fp8_counts(at::ScalarType format) {
  double* counts = session().fp8_counts;
  return counts && format == at::kFloat8_e5m2 ? counts + kFp8Counts / 2 : counts;
}

bool takes_fp8(const Tensor& x, at::ScalarType type) {
  return session().fp8 != nullptr && x.scalar_type() == at::kBFloat16 && type == at::kBFloat16;
}

Fp8Lines Fp8Weight::rows() const {
  if (matrix_.defined())
    return kernels(matrix_).fp8_lines(matrix_, at::kFloat8_e4m3fn, /*turned=*/false, /*gelu=*/false);
  const Fp8Lines& lines = codes_[0];
  check_internal(lines.codes.defined(), "ops.linear", "a forward multiplies codes of rows, which were not gathered");
  const int64_t width = lines.codes.size(1), stride = round_up(width, kFp8Pad);
  if (stride == width) return lines;
  const Tensor codes = at::empty({lines.codes.size(0), stride}, lines.codes.options().dtype(at::kByte));
  codes.narrow(1, 0, width).copy_(lines.codes.view(at::kByte));
  codes.narrow(1, width, stride - width).zero_();
  return {codes.view(at::kFloat8_e4m3fn), lines.scales};
}

Fp8Lines Fp8Weight::columns() const {
  if (matrix_.defined())
    return kernels(matrix_).fp8_lines(matrix_, at::kFloat8_e4m3fn, /*turned=*/true, /*gelu=*/false);
  const Fp8Lines& lines = codes_[1];
  check_internal(lines.codes.defined(), "ops.linear",
                 "a backward multiplies codes of columns, which were not gathered");
  const int64_t rows = lines.codes.size(0), width = lines.codes.size(1), stride = round_up(rows, kFp8Pad);
  const Tensor turned = at::empty({width, stride}, lines.codes.options());
  run_at(turned, turn_codes, &device::Backend::turn_codes,
         TurnedCodes{rows, width, static_cast<const uint8_t*>(read_address(lines.codes)),
                     static_cast<uint8_t*>(address(turned)), stride});
  return {turned, lines.scales};
}

Tensor fp8_linear(const Tensor& x, const Fp8Weight& w, const Tensor& bias, bool gelu, at::ScalarType type) {
  if (session().fp8_sites) session().fp8_sites->insert(session().site);
  const Kernels& table = kernels(x);
  Fp8Inputs* inputs = session().fp8;
  if (inputs && gelu) inputs->clear();  // what has been read before would lie beside the largest product
  const Fp8Lines of_x =
      inputs && !gelu ? inputs->rows(x) : table.fp8_lines(x, at::kFloat8_e4m3fn, /*turned=*/false, gelu);
  return table.fp8_product(of_x, w.rows(), bias, type);
}

Tensor fp8_input_gradient(const Tensor& dy, const Fp8Weight& w, at::ScalarType type) {
  const Kernels& table = kernels(dy);
  const Fp8Lines of_dy = table.fp8_lines(dy, at::kFloat8_e5m2, /*turned=*/false, /*gelu=*/false);
  return table.fp8_product(of_dy, w.columns(), {}, type);
}

void fp8_weight_gradient(const Tensor& dw, const Tensor& dy, const Tensor& x, bool gelu, bool add, Fp8Columns* shared) {
  const Kernels& table = kernels(x);
  const Fp8Lines of_dy = table.fp8_lines(dy, at::kFloat8_e5m2, /*turned=*/true, /*gelu=*/false);
  Fp8Lines of_x = shared ? shared->made : Fp8Lines();
  if (!of_x.codes.defined()) of_x = table.fp8_lines(x, at::kFloat8_e4m3fn, /*turned=*/true, gelu);
  if (shared) shared->made = --shared->readers > 0 ? of_x : Fp8Lines();
  table.fp8_product_into(dw, of_dy, of_x, add);
}

Handle bias_behind(const Tensor& y) {
  using torch::autograd::CppNode;
  torch::autograd::Node* node = y.output_nr() == 0 ? y.grad_fn().get() : nullptr;
  AutogradContext* ctx = nullptr;
  if (auto* linear = dynamic_cast<CppNode<Linear<false>>*>(node)) ctx = &linear->ctx_;
  if (auto* linear = dynamic_cast<CppNode<Linear<true>>*>(node)) ctx = &linear->ctx_;
  return ctx ? ctx->saved_data.at("b").toInt() : 0;
}

ColumnSums::ColumnSums(AutogradContext* ctx) {
  const WeightSite* bias = site_of(ctx, "bias");
  wanted_ = bias && bias->grad.defined() && !session().deferred;
}

void ColumnSums::leave(const Tensor& gradient) {
  std::erase_if(all_left(), [](const Left& left) { return left.of.expired(); });
  if (sums_.defined())
    all_left().push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(gradient.getIntrusivePtr()),
                          static_cast<int64_t>(gradient._version()), std::move(sums_)});
}

Tensor ColumnSums::rows_to_add(const Tensor& gradient) {
  std::vector<Left>& left = all_left();
  const auto it = std::find_if(left.begin(), left.end(),
                               [&](const Left& one) { return one.of.lock() == gradient.getIntrusivePtr(); });
  if (it == left.end()) return gradient;
  const Tensor sums = it->version == static_cast<int64_t>(gradient._version()) ? it->sums : gradient;
  left.erase(it);
  return sums;
}

void bias_gradient(const Tensor& dy, WeightSite& bias) {
  session().settle(bias.grad);
  kernels(dy).bias_gradient(bias.grad, dy, !std::exchange(bias.fresh, false));
}

Tensor linear(const Tensor& x, WeightSite& weight, WeightSite* bias, const Tensor& anchor, at::ScalarType type,
              When weight_gradients, Tensor* passed) {
  return apply<false>(x, weight, bias, anchor, type, nullptr, weight_gradients, passed);
}

Tensor gelu_linear(const Tensor& x, WeightSite& weight, WeightSite* bias, const Tensor& anchor, at::ScalarType type,
                   const Tensor* known) {
  return apply<true>(x, weight, bias, anchor, type, known, When::at_once, nullptr);
}

}  // namespace tessera::ops
