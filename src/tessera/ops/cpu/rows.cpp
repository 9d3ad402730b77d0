// Rotary embedding, convolutions and dropout over rows, on CPUs.
#include <ATen/Parallel.h>

#include "tessera/ops/half.h"
#include "tessera/ops/kernel.h"
#include "tessera/ops/kernel_list.h"
#include "tessera/ops/node.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops::cpu {

namespace {

constexpr int64_t kRowGrain = 16, kChannelGrain = 32;

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
  const auto* sources = host_pointer<const int32_t>(table);
  at::parallel_for(0, width, kChannelGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t t = 0; t < taps; ++t)
        if (const int64_t source = sources[t * rows + r]; source >= 0) work(r, t, source, begin, end);
  });
}

}  // namespace

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t heads, bool half_split, float sign) {
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

// The fp32 copies of operands end before the result is rounded.
Tensor depthwise(const Tensor& x, const Tensor& table, const Tensor& w, const Tensor& bias, at::ScalarType type,
                 bool silu) {
  const int64_t taps = table.size(0), rows = table.size(1), width = x.size(1);
  Tensor y;
  {
    const Tensor wide = silu ? at::silu(as_floats(x)) : as_floats(x), weight = as_floats(w),
                 b = bias.defined() ? as_floats(bias) : bias;
    y = at::empty({rows, width}, wide.options());
    if (!x.is_meta()) {
      for (int64_t r = 0; r < rows; ++r)
        b.defined() ? std::copy_n(data(b), width, out_data(y) + r * width)
                    : std::fill_n(out_data(y) + r * width, width, 0.0f);
      each_tap(table, width, [&](int64_t r, int64_t t, int64_t source, int64_t begin, int64_t end) {
        add_tap(out_data(y) + r * width, data(wide) + source * width, data(weight) + t, taps, begin, end);
      });
    }
  }
  return y.to(type);
}

void depthwise_weight_gradient(const Tensor& up, const Tensor& x, const Tensor& table, const Tensor& dw,
                               const Tensor& db, bool silu) {
  const int64_t taps = table.size(0), width = x.size(1);
  const Tensor dy = as_floats(up), wide = silu ? at::silu(as_floats(x)) : as_floats(x);
  if (db.defined()) bias_gradient(db, dy, /*add=*/true);
  if (x.is_meta() || !dw.defined()) return;
  each_tap(table, width, [&](int64_t r, int64_t t, int64_t source, int64_t begin, int64_t end) {
    add_tap_gradient(out_data(dw) + t, taps, data(wide) + source * width, data(dy) + r * width, begin, end);
  });
}

Tensor depthwise_input_gradient(const Tensor& up, const Tensor& table, const Tensor& w, int64_t source_rows,
                                at::ScalarType type, const Tensor& through, Tensor* /*columns*/) {
  const int64_t taps = table.size(0), width = up.size(1);
  Tensor dx;
  {
    const Tensor dy = as_floats(up), weight = as_floats(w);
    dx = at::zeros({source_rows, width}, dy.options());
    if (!dx.is_meta())
      each_tap(table, width, [&](int64_t r, int64_t t, int64_t source, int64_t begin, int64_t end) {
        add_tap(out_data(dx) + source * width, data(dy) + r * width, data(weight) + t, taps, begin, end);
      });
  }
  return (through.defined() ? at::silu_backward(dx, as_floats(through)) : dx).to(type);
}

Tensor unfold(const Tensor& x, const Tensor& table) {
  const int64_t taps = table.size(0), rows = table.size(1), width = x.size(1);
  const Tensor y = at::zeros({rows, width * taps}, x.options());
  if (x.is_meta()) return y;
  const auto copy = [&](auto* to, const auto* from) {
    each_tap(table, width, [&](int64_t r, int64_t t, int64_t source, int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) to[(r * width + c) * taps + t] = from[source * width + c];
    });
  };
  if (x.element_size() == 2)
    copy(static_cast<uint16_t*>(y.mutable_data_ptr()), static_cast<const uint16_t*>(x.const_data_ptr()));
  else
    copy(out_data(y), data(x));
  return y;
}

Tensor unfold_gradient(const Tensor& dy, const Tensor& table, int64_t source_rows) {
  const int64_t taps = table.size(0), width = dy.size(1) / taps;
  const Tensor wide = as_floats(dy);
  const Tensor dx = at::zeros({source_rows, width}, wide.options());
  if (dy.is_meta()) return dx.to(dy.scalar_type());
  each_tap(table, width, [&](int64_t r, int64_t t, int64_t source, int64_t begin, int64_t end) {
    float* to = out_data(dx) + source * width;
    const float* from = data(wide) + r * width * taps + t;
    for (int64_t c = begin; c < end; ++c) to[c] += from[c * taps];
  });
  return dx.to(dy.scalar_type());
}

void drop_rows(const Tensor& x, const Dropout& drop, int64_t first_row) {
  if (!drop.active() || x.is_meta()) return;
  auto* data = static_cast<char*>(x.mutable_data_ptr());
  const int64_t row_bytes = x.stride(0) * static_cast<int64_t>(x.element_size());
  for (const DropRange& range : drop_ranges(drop, first_row, x.size(0), x.size(1), x.stride(0)))
    at::parallel_for(0, range.rows, 16, [&](int64_t begin, int64_t end) {
      DropRange part = range;
      part.rows = end - begin, part.first += static_cast<uint64_t>(begin * range.width);
      drop_range(data + (range.row + begin) * row_bytes, x.scalar_type(), part);
    });
}

}  // namespace tessera::ops::cpu
