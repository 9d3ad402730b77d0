#include "tessera/engine/signatures.h"

#include <algorithm>
#include <set>

#include "tessera/base/check.h"
#include "tessera/engine/store/store.h"
#include "tessera/net/adapters.h"

namespace tessera::engine {

using at::Tensor;

plan::WorkTable count_work(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch,
                           DType compute) {
  return count_signatures(units, batch, compute).work;
}

BoundaryShapes boundary_shapes(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch) {
  const auto shapes = [](const std::vector<Tensor>& tensors) {
    std::vector<TensorShape> result;
    for (const Tensor& t : tensors) result.push_back({t.sizes().vec(), t.scalar_type()});
    return result;
  };
  BoundaryShapes result;
  std::set<std::string> known;
  plan::UnitWork unused;
  plan::UnitSignatures no_sizes;
  net::Flow flow;
  for (const Tensor& t : batch.inputs) flow.stream.push_back(shape_of(t));
  for (const auto& unit : units) {
    result.stream.push_back(shapes(flow.stream));
    if (!known.insert(unit->spec().kind).second) continue;  // a unit of a known kind leaves the shapes as they are
    net::Flow out = count_unit(*unit, flow, batch.tokens, DType::f32, unused, no_sizes);  // boundaries are fp32
    flow.stream = std::move(out.stream);
    if (!out.cond.empty()) flow.cond = std::move(out.cond);
  }
  result.stream.push_back(shapes(flow.stream));
  result.cond = shapes(flow.cond);
  return result;
}

namespace {

using at::Tensor;

/// Returns tensors of the right shapes and counts the work of computing them.
class CountingContext final : public net::Context {
 public:
  CountingContext(const net::Unit& unit, const net::Tokens& tokens, plan::UnitWork& work, plan::UnitSignatures& sizes,
                  DType compute)
      : unit_(unit),
        tokens_(tokens),
        work_(work),
        sizes_(sizes),
        type_(unit.spec().narrow ? scalar_type(compute) : at::kFloat) {}

  const net::Tokens& tokens() const override { return tokens_; }

  Tensor linear(std::string_view site, const Tensor& input, const net::Linear& how) override {
    if (how.act == net::Act::gelu_tanh) {
      streams("gelu", {input, input}, {input, input, input, input});  // its backward makes gelu(x) again
      read_ = Tensor();
      const size_t index = sizes_.products.size();
      const Tensor y = product(site, input);
      sizes_.results[std::string(site)] = sizes_.products[index];
      work_.results[std::string(site)] = 2 * static_cast<double>(input.numel() * y.size(1));
      return y;
    }
    if (how.act == net::Act::silu_glu || how.act == net::Act::gelu_glu)
      streams("activation", {input, *how.gate, input}, {input, input, *how.gate, input, *how.gate});
    else if (how.act != net::Act::none)
      streams("activation", {input, input}, {input, input, input});
    return product(site, input);
  }
  Tensor norm(std::string_view, const Tensor& x, const net::Norm& how, int) override {
    if (how.kind == net::Norm::rms) {
      const bool turns = how.rope > 0;  // with heads of their own, in a pass of its own
      if (turns && how.heads > 0) same("rope", x, {x, x});
      return same(turns && how.heads == 0 ? "rms_norm_rope" : "rms_norm", x, {x, x, x});
    }
    const Tensor y = result(x, x.sizes());
    streams("norm", {x, y}, {y, x, x, x});  // what the residual sum has of x is added in the same pass
    return y;
  }
  Tensor rope(std::string_view, const Tensor& x, int64_t, net::RopeStyle, int) override {
    return same("rope", x, {x, x});
  }
  Tensor residual(std::string_view, const Tensor& x, const Tensor& y, const Tensor* gate, int,
                  bool multiplied) override {
    std::vector<Tensor> back;
    if (gate)
      back = {x, y, y};
    else if (x.scalar_type() != y.scalar_type())
      back = {x, y};
    std::vector<Tensor> there = {x, y, x};
    if (gate && multiplied && type_ == at::kBFloat16) there.push_back(result(x, x.sizes()));  // rounded for the linears
    streams("residual", there, back);
    read_ = Tensor();
    return made(x, x.sizes());
  }
  Tensor attention(std::string_view site, const Tensor& q, const Tensor&, const Tensor& v, int64_t,
                   const net::Segments& segments, const net::Softmax& softmax) override {
    read_ = Tensor();
    const double of_site = pairs(segments, softmax, q, v), samples = static_cast<double>(tokens_.offsets.size()) - 1;
    work_.attention[std::string(site)] += 4 * of_site * static_cast<double>(q.size(1));
    if (of_site > 0 && samples > 0) {
      const double rows = static_cast<double>(q.size(0));
      sizes_.segments[std::string(site)] = {rows / samples, of_site / rows};
    }
    return made(q, {q.size(0), v.size(1)});
  }
  Tensor linear_attention(std::string_view site, const Tensor& q, const Tensor&, const Tensor& v, int64_t heads, double,
                          const net::Rotated&) override {
    read_ = Tensor();
    // each row adds to a state of [d, d] and is multiplied by the sum
    work_.attention[std::string(site)] += 4 * static_cast<double>(q.numel() * (q.size(1) / heads));
    return made(q, {q.size(0), v.size(1)});
  }
  Tensor conv(std::string_view, const Tensor& x, const net::Conv& how, int) override {
    read_ = Tensor();
    const Tensor y = result(x, x.sizes());
    std::vector<Tensor> back = {y, x, y, x};  // of the weight, and of x
    if (how.silu) back.push_back(x);
    std::vector<Tensor> there = {x, y};
    if (how.value) there.push_back(y), back.insert(back.end(), {x, y, y, y, y});  // computed again, gated and back
    streams("conv", there, back);
    return y;
  }
  Tensor unfold(std::string_view, const Tensor& x, const net::Conv& how, int) override {
    const Tensor y = made(x, {x.size(0), x.size(1) * how.kernel[0] * how.kernel[1] * how.kernel[2]});
    streams("unfold", {x, y}, {x, y});
    return y;
  }
  Tensor param(std::string_view site) override {
    return at::empty(parameter(site, "").shape, at::TensorOptions(at::kFloat).device(at::kMeta));
  }
  Tensor embedding(std::string_view site, const Tensor& ids) override {
    const Tensor rows =
        at::empty({ids.numel(), parameter(site, ".weight").shape[1]}, at::TensorOptions(at::kFloat).device(at::kMeta));
    streams("embedding", {rows, rows}, {rows, rows});
    return rows;
  }

 private:
  Tensor product(std::string_view site, const Tensor& x) {
    const std::vector<int64_t>& shape = parameter(site, ".weight").shape;  // [out, in, ...]
    const plan::ParamSpec& weight = parameter(site, ".weight");
    const int64_t in = numel(shape) / shape[0], rows = x.numel() / in;
    const double flops = 2.0 * static_cast<double>(rows * in);  // for each column of the result
    const auto r = static_cast<double>(rows), i = static_cast<double>(in), o = static_cast<double>(shape[0]);
    work_.add_product(flops * o, weight.trainable);
    const bool streams_halves =
        type_ == at::kBFloat16 && x.scalar_type() == type_ && plan::is_block(unit_.spec());  // as ops::takes_fp8()
    add_sizes({r, i, o, streams_halves, streams_halves && x.is_same(read_)}, weight.trainable);
    if (streams_halves) read_ = x;  // as ops::Fp8Inputs, which operators between products clear
    if (const plan::ParamSpec* a = find(site, net::kLoraA)) {  // A x, then B (A x)
      const auto rank = static_cast<double>(a->shape[0]);
      work_.add_product(flops * rank, true);
      add_sizes({r, i, rank}, true), add_sizes({r, rank, o}, true);
      work_.add_product(2.0 * static_cast<double>(rows * shape[0]) * rank, true);
      const Tensor y = result(x, {rows, shape[0]});
      streams("adapter", {y}, {y, y});
    }
    add_change(site, r, i, o);
    return result(x, {rows, shape[0]});
  }
  /// Of LoHa: the weight's change, made and multiplied as a weight that is trained; of LoKr its two products.
  void add_change(std::string_view site, double rows, double in, double out) {
    const auto has = [&](const std::string& ending) { return find(site, ending); };
    const net::ChangeKind* kind = net::change_kind(has);
    if (!kind) return;
    const auto add = [&](double m, double k, double n) {
      work_.add_product(2 * m * k * n, true);
      add_sizes({m, k, n}, true);
    };
    if (kind->kind == ops::Adapter::Kind::elementwise) {
      const auto rank = static_cast<double>(parameter(site, std::string(kind->first) + net::kRight).shape[0]);
      add(rows, in, out), add(out, rank, in), add(out, rank, in);
    } else {
      const std::string name = kind->second;
      const plan::ParamSpec *whole = find(site, name), *left = find(site, name + net::kLeft),
                            *right = find(site, name + net::kRight);
      const auto k = static_cast<double>((whole ? whole : left)->shape[0]),
                 n = static_cast<double>((whole ? whole : right)->shape[1]);
      add(rows * in / n, n, k), add(out / k, in / n, rows * k);
    }
    const Tensor y = at::empty({static_cast<int64_t>(rows), static_cast<int64_t>(out)},
                               at::TensorOptions(at::kFloat).device(at::kMeta));
    streams("adapter", {y, y}, {y, y, y, y});
  }
  static int64_t numel(const std::vector<int64_t>& shape) {
    int64_t product = 1;
    for (int64_t n : shape) product *= n;
    return product;
  }
  const plan::ParamSpec* find(std::string_view site, std::string_view suffix) const {
    const std::string name = unit_.prefix() + std::string(site) + std::string(suffix);
    for (const auto& param : unit_.spec().params)
      if (param.name == name) return &param;
    return nullptr;
  }
  const plan::ParamSpec& parameter(std::string_view site, std::string_view suffix) const {
    const plan::ParamSpec* param = find(site, suffix);
    check_internal(param, "engine.work",
                   "unit " + unit_.spec().name + " has no parameter " + std::string(site) + std::string(suffix));
    return *param;
  }
  static Tensor made(const Tensor& like, at::IntArrayRef shape) { return at::empty(shape, like.options()); }
  /// The result of an operator in the unit's compute dtype.
  Tensor result(const Tensor& like, at::IntArrayRef shape) const {
    return at::empty(shape, like.options().dtype(type_));
  }
  void add_sizes(const plan::Product& product, bool trained) {
    sizes_.products.push_back(product);
    if (trained) sizes_.weight_grads.push_back(product);
  }
  static double bytes_of(const std::vector<Tensor>& tensors) {
    double bytes = 0;
    for (const Tensor& t : tensors) bytes += static_cast<double>(t.numel() * t.element_size());
    return bytes;
  }
  /// Counts one operator of the kind that reads or writes these tensors in a forward and in a backward.
  void streams(const std::string& kind, const std::vector<Tensor>& tensors, const std::vector<Tensor>& backward) {
    const double bytes = bytes_of(tensors), back = bytes_of(backward);
    work_.streamed += bytes, ++work_.operators;
    plan::Streams &of_kind = sizes_.kinds[kind], &of_backward = sizes_.kinds[plan::of_backward(kind)];
    of_kind.bytes += bytes, ++of_kind.operators;
    of_backward.bytes += back, ++of_backward.operators;
  }
  Tensor same(const std::string& kind, const Tensor& x, const std::vector<Tensor>& backward) {
    streams(kind, {x, x}, backward);
    return made(x, x.sizes());
  }
  /// Query-key pairs of this rank.
  double pairs(const net::Segments& segments, const net::Softmax& softmax, const Tensor& q, const Tensor& v) const {
    if (softmax.bias) return static_cast<double>(q.size(0) * v.size(0));
    if (segments.q == 0 && segments.k == 0 && segments.ranges.empty()) return tokens_.pairs();
    const net::Space& queries = tokens_.space(segments.q);
    const net::SegmentOffsets offsets = net::segment_offsets(tokens_, segments);
    const bool ordered = segments.order.defined();  // then a rank's tokens are spread evenly over the segments
    double sum = 0;
    for (size_t s = 0; s + 1 < offsets.q_offsets.size(); ++s) {
      const auto here = [&](int64_t at) {
        return ordered ? at : std::clamp(at, queries.begin, queries.begin + queries.count());
      };
      sum += static_cast<double>(here(offsets.q_offsets[s + 1]) - here(offsets.q_offsets[s])) *
             static_cast<double>(offsets.k_offsets[s + 1] - offsets.k_offsets[s]);
    }
    return ordered ? sum * static_cast<double>(queries.count()) / static_cast<double>(queries.total()) : sum;
  }

  const net::Unit& unit_;
  const net::Tokens& tokens_;
  plan::UnitWork& work_;
  plan::UnitSignatures& sizes_;
  const at::ScalarType type_;  // of products and attention
  Tensor read_;                // what the product before read, where it is in 8 bits
};

}  // namespace

net::Flow count_unit(const net::Unit& unit, const net::Flow& flow, const net::Tokens& tokens, DType compute,
                     plan::UnitWork& work, plan::UnitSignatures& sizes) {
  CountingContext context(unit, tokens, work, sizes, compute);
  return unit.forward(context, flow);
}

Tensor shape_of(const Tensor& t) {
  return t.defined() ? at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta)) : t;
}

Counted count_signatures(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch, DType compute) {
  Counted counted;
  plan::WorkTable& work = counted.work;
  net::Flow flow;
  bool trains = false;  // this unit or an earlier one has a trained parameter
  for (const Tensor& t : batch.inputs) flow.stream.push_back(shape_of(t));
  for (const auto& unit : units) {
    if (work.contains(unit->spec().kind)) continue;  // a unit of a known kind leaves the shapes as they are
    const auto& params = unit->spec().params;
    trains = trains || std::any_of(params.begin(), params.end(), [](const auto& param) { return param.trainable; });
    work[unit->spec().kind].backward = trains;
    net::Flow out =
        count_unit(*unit, flow, batch.tokens, compute, work[unit->spec().kind], counted.signatures[unit->spec().kind]);
    flow.stream = std::move(out.stream);
    if (!out.cond.empty()) flow.cond = std::move(out.cond);
  }
  return counted;
}

}  // namespace tessera::engine
