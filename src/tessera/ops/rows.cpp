#include "tessera/ops/rows.h"

#include <ATen/Parallel.h>

#include "tessera/base/check.h"
#include "tessera/ops/half.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/node.h"

namespace tessera::ops {

namespace {

constexpr int64_t kRowGrain = 16, kChannelGrain = 32;

Tensor taken(const Tensor& x, const Tensor& order) {
  // index_select does not support meta tensors
  if (x.is_meta()) return at::empty({order.size(0), x.size(1)}, x.options());
  return x.index_select(0, order);
}
Tensor put(const Tensor& x, const Tensor& order) {
  Tensor out = at::empty(x.sizes(), x.options());
  return x.is_meta() ? out : out.index_copy_(0, order, x);
}

struct TakeRows : Function<TakeRows> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& order) {
    ctx->save_for_backward({order});
    return taken(x, order);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {put(grads[0].contiguous(), ctx->get_saved_variables()[0]), {}};
  }
};

struct PutRows : Function<PutRows> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& order) {
    ctx->save_for_backward({order});
    return put(x, order);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {taken(grads[0].contiguous(), ctx->get_saved_variables()[0]), {}};
  }
};

/// One row: pair i of a head is at `step * i` and `step * i + apart`.
TESSERA_KERNEL void rotate_row(const float* __restrict x, const float* __restrict cos, const float* __restrict sin,
                               float sign, int64_t heads, int64_t pairs, int64_t step, int64_t apart,
                               float* __restrict out) {
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < pairs; ++i) {
      const int64_t a = h * 2 * pairs + step * i, b = a + apart;
      const float re = x[a], im = x[b], s = sign * sin[i];
      out[a] = re * cos[i] - im * s, out[b] = re * s + im * cos[i];
    }
}

/// `sign` -1 rotates back.
Tensor rotated(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t heads, bool half_split, float sign) {
  const Tensor out = at::empty_like(x);
  if (x.is_meta()) return out;
  const Values from(x);
  const Results to(out);
  const int64_t width = x.size(1), pairs = cos.size(1);
  at::parallel_for(0, x.size(0), kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = from.read(r * width, width, from.half() ? half_scratch(0, width) : nullptr);
      float* rotated_row = to.place(r * width, to.half() ? half_scratch(1, width) : nullptr);
      rotate_row(row, data(cos) + r * pairs, data(sin) + r * pairs, sign, heads, pairs, half_split ? 1 : 2,
                 half_split ? pairs : 1, rotated_row);
      to.store(r * width, width, rotated_row);
    }
  });
  return out;
}

struct Rope : Function<Rope> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t heads,
                        bool half_split) {
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["half"] = half_split;
    return rotated(x, cos, sin, heads, half_split, 1);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {rotated(grads[0].contiguous(), saved[0], saved[1], ctx->saved_data["heads"].toInt(),
                    ctx->saved_data["half"].toBool(), -1),
            {},
            {},
            {},
            {}};
  }
};

/// Channels [begin, end) of one row and one tap; w at stride `taps`.
TESSERA_KERNEL void add_tap(float* __restrict y, const float* __restrict x, const float* __restrict w, int64_t taps,
                            int64_t begin, int64_t end) {
  for (int64_t c = begin; c < end; ++c) y[c] += w[c * taps] * x[c];
}
TESSERA_KERNEL void add_tap_gradient(float* __restrict w, int64_t taps, const float* __restrict x,
                                     const float* __restrict dy, int64_t begin, int64_t end) {
  for (int64_t c = begin; c < end; ++c) w[c * taps] += x[c] * dy[c];
}

/// Calls work(row, tap, source row, begin, end) for ranges of channels in parallel, rows and taps in order.
template <class Work>
void each_tap(const Tensor& table, int64_t width, const Work& work) {
  const int64_t taps = table.size(0), rows = table.size(1);
  const auto* sources = table.const_data_ptr<int32_t>();
  at::parallel_for(0, width, kChannelGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t t = 0; t < taps; ++t)
        if (const int64_t source = sources[t * rows + r]; source >= 0) work(r, t, source, begin, end);
  });
}

/// A convolution reads and sums in fp32: copies 16-bit operands.
struct Depthwise : Function<Depthwise> {
  static Tensor run(const Tensor& x, const Tensor& table, const WeightSite& weight, const WeightSite* bias,
                    at::ScalarType type) {
    const int64_t taps = table.size(0), rows = table.size(1), width = x.size(1);
    const Tensor wide = as_floats(x);
    const Tensor y = at::empty({rows, width}, wide.options());
    if (!x.is_meta()) {
      const Tensor w = as_floats(weight.value), b = bias ? as_floats(bias->value) : Tensor();
      for (int64_t r = 0; r < rows; ++r)
        b.defined() ? std::copy_n(data(b), width, out_data(y) + r * width)
                    : std::fill_n(out_data(y) + r * width, width, 0.0f);
      each_tap(table, width, [&](int64_t r, int64_t t, int64_t source, int64_t begin, int64_t end) {
        add_tap(out_data(y) + r * width, data(wide) + source * width, data(w) + t, taps, begin, end);
      });
    }
    return y.to(type);
  }
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& anchor, const Tensor& table, Handle weight,
                        Handle bias, int64_t type) {
    ctx->save_for_backward({x, table});
    ctx->saved_data["w"] = weight, ctx->saved_data["b"] = bias;
    return run(x, table, *site_of(weight), site_of(bias), static_cast<at::ScalarType>(type));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &table = saved[1], dy = as_floats(grads[0].contiguous());
    const int64_t taps = table.size(0), rows = table.size(1), width = x.size(1);
    WeightSite &weight = *site_of(ctx, "w"), *bias = site_of(ctx, "b");
    if (float* dw = accumulating(weight)) {
      const Tensor wide = as_floats(x);
      each_tap(table, width, [&](int64_t r, int64_t t, int64_t source, int64_t begin, int64_t end) {
        add_tap_gradient(dw + t, taps, data(wide) + source * width, data(dy) + r * width, begin, end);
      });
    } else if (is_half(x) && weight.grad.defined()) {
      as_floats(x);  // meta: allocates the same memory
    }
    if (bias)
      if (float* db = accumulating(*bias))
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < width; ++c) db[c] += data(dy)[r * width + c];
    if (!ctx->needs_input_grad(0)) return {{}, {}, {}, {}, {}, {}};
    const Tensor dx = at::zeros(x.sizes(), dy.options());
    if (!x.is_meta()) {
      const Tensor w = as_floats(weight.value);
      each_tap(table, width, [&](int64_t r, int64_t t, int64_t source, int64_t begin, int64_t end) {
        add_tap(out_data(dx) + source * width, data(dy) + r * width, data(w) + t, taps, begin, end);
      });
    }
    return {dx.to(x.scalar_type()), {}, {}, {}, {}, {}};
  }
};

}  // namespace

Tensor take_rows(const Tensor& x, const Tensor& order) {
  return wants_graph({&x}) ? TakeRows::apply(x, order) : taken(x, order);
}
Tensor put_rows(const Tensor& x, const Tensor& order) {
  return wants_graph({&x}) ? PutRows::apply(x, order) : put(x, order);
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t heads, bool half_split) {
  const bool fits = cos.sizes() == at::IntArrayRef({x.size(0), x.size(1) / heads / 2}) && cos.sizes() == sin.sizes();
  check_internal(fits && cos.is_contiguous() && sin.is_contiguous() && x.is_contiguous(), "ops.rope",
                 "cos and sin must be [rows, channels / heads / 2]");
  return wants_graph({&x}) ? Rope::apply(x, cos, sin, heads, half_split) : rotated(x, cos, sin, heads, half_split, 1);
}

Tensor depthwise(const Tensor& x, const Tensor& table, WeightSite& weight, WeightSite* bias, const Tensor& anchor,
                 at::ScalarType type) {
  check_internal(x.is_contiguous() && weight.value.numel() == x.size(1) * table.size(0), "ops.depthwise",
                 "the weight must have a value for each channel and tap");
  if (wants_graph({&x, &anchor}))
    return Depthwise::apply(x, anchor, table, handle(&weight), handle(bias), static_cast<int64_t>(type));
  return Depthwise::run(x, table, weight, bias, type);
}

}  // namespace tessera::ops
