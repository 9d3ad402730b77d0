#include "tessera/engine/work.h"

#include <algorithm>
#include <set>

#include "tessera/base/check.h"
#include "tessera/engine/store/store.h"
#include "tessera/net/adapters.h"

namespace tessera::engine {

namespace {

using at::Tensor;

/// Returns tensors of the right shapes and books what making them would take.
class CountingContext final : public net::Context {
 public:
  CountingContext(const net::Unit& unit, const net::Tokens& tokens, plan::UnitWork& work, DType compute)
      : unit_(unit), tokens_(tokens), work_(work), type_(unit.spec().narrow ? scalar_type(compute) : at::kFloat) {}

  const net::Tokens& tokens() const override { return tokens_; }

  Tensor linear(std::string_view site, const Tensor& x) override {
    const std::vector<int64_t>& shape = parameter(site, ".weight").shape;  // [out, in, ...]
    const plan::ParamSpec& weight = parameter(site, ".weight");
    const int64_t in = numel(shape) / shape[0], rows = x.numel() / in;
    const double flops = 2.0 * static_cast<double>(rows * in);  // for each column of the result
    work_.add_product(flops * static_cast<double>(shape[0]), weight.trainable);
    if (const plan::ParamSpec* a = find(site, net::kLoraA)) {  // x A, and B of that
      const auto rank = static_cast<double>(a->shape[0]);
      work_.add_product(flops * rank, true);
      work_.add_product(2.0 * static_cast<double>(rows * shape[0]) * rank, true);
      streams({result(x, {rows, shape[0]})});
    }
    return result(x, {rows, shape[0]});
  }
  Tensor gelu_linear(std::string_view site, const Tensor& x) override {
    streams({x, x});
    const Tensor y = linear(site, x);
    work_.results[std::string(site)] = 2 * static_cast<double>(x.numel() * y.size(1));
    return y;
  }
  Tensor layer_norm(std::string_view, const Tensor& x, double) override { return normed(x); }
  Tensor rms_norm(std::string_view, const Tensor& x, double) override { return same(x); }
  Tensor rms_norm_rope(std::string_view, const Tensor& x, int64_t, double) override { return same(x); }
  Tensor modulated_norm(std::string_view, const Tensor& x, const Tensor&, const Tensor&, double) override {
    return normed(x);
  }
  Tensor gated_residual(std::string_view, const Tensor& x, const Tensor& y, const Tensor&) override {
    streams({x, y, x});
    return made(x, x.sizes());
  }
  Tensor sum(std::string_view, const Tensor& x, const Tensor& y) override {
    streams({x, y, x});
    return made(x, x.sizes());
  }
  Tensor self_attention(std::string_view site, const Tensor& q, const Tensor&, const Tensor& v, int64_t) override {
    work_.attention[std::string(site)] += 4 * tokens_.pairs() * static_cast<double>(q.size(1));
    return made(q, {q.size(0), v.size(1)});
  }
  Tensor cross_attention(std::string_view site, const Tensor& q, const Tensor&, const Tensor& v, int64_t) override {
    return attention(site, q, v, tokens_.local_offsets(), tokens_.context_offsets);
  }
  Tensor image_attention(std::string_view site, const Tensor& q, const Tensor&, const Tensor& v, int64_t) override {
    return attention(site, q, v, tokens_.local_offsets(), tokens_.image_offsets);
  }
  Tensor frame_norm(std::string_view, const Tensor& x, const Tensor&, const Tensor&, double) override {
    return normed(x);
  }
  Tensor frame_attention(std::string_view site, const Tensor& q, const Tensor&, const Tensor& v, int64_t) override {
    return attention(site, q, v, tokens_.frames.offsets, tokens_.frames.context_offsets);
  }
  Tensor biased_attention(std::string_view site, const Tensor& q, const Tensor&, const Tensor& v, int64_t,
                          const Tensor&) override {
    return attention(site, q, v, tokens_.offsets, {0, v.size(0)});
  }
  Tensor param(std::string_view site) override {
    return at::empty(parameter(site, "").shape, at::TensorOptions(at::kFloat).device(at::kMeta));
  }
  Tensor embedding(std::string_view site, const Tensor& ids) override {
    const Tensor rows =
        at::empty({ids.numel(), parameter(site, ".weight").shape[1]}, at::TensorOptions(at::kFloat).device(at::kMeta));
    streams({rows, rows});
    return rows;
  }

 private:
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
  /// Of an operator whose result is of the type that the unit computes in.
  Tensor result(const Tensor& like, at::IntArrayRef shape) const {
    return at::empty(shape, like.options().dtype(type_));
  }
  /// One operator that reads and writes these.
  void streams(const std::vector<Tensor>& tensors) {
    for (const Tensor& t : tensors) work_.streamed += static_cast<double>(t.numel() * t.element_size());
    ++work_.operators;
  }
  Tensor same(const Tensor& x) {
    streams({x, x});
    return made(x, x.sizes());
  }
  Tensor normed(const Tensor& x) {
    const Tensor y = result(x, x.sizes());
    streams({x, y});
    return y;
  }
  /// Two products of each query with the keys of its sample.
  Tensor attention(std::string_view site, const Tensor& q, const Tensor& v, const std::vector<int64_t>& queries,
                   const std::vector<int64_t>& keys) {
    double pairs = 0;
    for (size_t s = 0; s + 1 < queries.size() && s + 1 < keys.size(); ++s)
      pairs += static_cast<double>(queries[s + 1] - queries[s]) * static_cast<double>(keys[s + 1] - keys[s]);
    work_.attention[std::string(site)] += 4 * pairs * static_cast<double>(q.size(1));
    return made(q, {q.size(0), v.size(1)});
  }

  const net::Unit& unit_;
  const net::Tokens& tokens_;
  plan::UnitWork& work_;
  const at::ScalarType type_;  // of products and attention
};

Tensor shape_of(const Tensor& t) {
  return t.defined() ? at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta)) : t;
}

}  // namespace

plan::WorkTable count_work(const std::vector<std::unique_ptr<net::Unit>>& units, const net::Batch& batch,
                           DType compute) {
  plan::WorkTable work;
  net::Flow flow;
  bool trains = false;  // this unit, or one before it
  for (const Tensor& t : batch.inputs) flow.stream.push_back(shape_of(t));
  for (const auto& unit : units) {
    if (work.contains(unit->spec().kind)) continue;  // a unit of a known kind leaves the shapes as they are
    const auto& params = unit->spec().params;
    trains = trains || std::any_of(params.begin(), params.end(), [](const auto& param) { return param.trainable; });
    work[unit->spec().kind].backward = trains;
    CountingContext context(*unit, batch.tokens, work[unit->spec().kind], compute);
    net::Flow out = unit->forward(context, flow);
    flow.stream = std::move(out.stream);
    if (!out.cond.empty()) flow.cond = std::move(out.cond);
  }
  return work;
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
  net::Flow flow;
  for (const Tensor& t : batch.inputs) flow.stream.push_back(shape_of(t));
  for (const auto& unit : units) {
    result.stream.push_back(shapes(flow.stream));
    if (!known.insert(unit->spec().kind).second) continue;  // a unit of a known kind leaves the shapes as they are
    CountingContext context(*unit, batch.tokens, unused, DType::f32);  // boundaries are
    net::Flow out = unit->forward(context, flow);
    flow.stream = std::move(out.stream);
    if (!out.cond.empty()) flow.cond = std::move(out.cond);
  }
  result.stream.push_back(shapes(flow.stream));
  result.cond = shapes(flow.cond);
  return result;
}

}  // namespace tessera::engine
