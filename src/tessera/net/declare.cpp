#include "tessera/net/declare.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "tessera/base/check.h"

namespace tessera::net {

namespace {

using plan::Split;

Tensor shaped(at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  return at::empty(shape, at::TensorOptions(type).device(at::kMeta));
}

/// Returns tensors of the right shapes and notes the parameters that are asked for.
class DeclaringContext final : public Context {
 public:
  DeclaringContext(const Unit& unit, const Tokens& tokens) : unit_(unit), tokens_(tokens) {}

  const Tokens& tokens() const override { return tokens_; }

  Tensor linear(std::string_view site, const Tensor& x, const Linear& how) override {
    const int64_t out = how.out > 0 ? how.out : x.size(1);
    const int64_t taps = std::accumulate(how.kernel.begin(), how.kernel.end(), int64_t{1}, std::multiplies<>());
    std::vector<int64_t> shape = {out, x.size(1) / taps};
    shape.insert(shape.end(), how.kernel.begin(), how.kernel.end());
    add(site, ".weight", std::move(shape), how.split, how.space);
    if (how.bias) add(site, ".bias", {out}, columns(how.split), how.space);
    return shaped({x.size(0), out});
  }
  Tensor norm(std::string_view site, const Tensor& x, const Norm& how, int space) override {
    const int64_t width = x.size(1) / std::max<int64_t>(how.heads, 1);
    if (!how.scale) add(site, ".weight", {width}, how.split, space);
    if (!how.scale && how.kind == Norm::layer) add(site, ".bias", {width}, how.split, space);
    return shaped(x.sizes());
  }
  Tensor conv(std::string_view site, const Tensor& x, const Conv& how, int space) override {
    std::vector<int64_t> shape = {x.size(1), 1};
    shape.insert(shape.end(), how.kernel.begin() + (how.kernel[0] == 1 ? 1 : 0), how.kernel.end());
    add(site, ".weight", std::move(shape), how.split, space);
    add(site, ".bias", {x.size(1)}, how.split, space);
    return shaped(x.sizes());
  }
  Tensor param(std::string_view site) override { return shaped(found(site, "").shape); }
  Tensor embedding(std::string_view site, const Tensor& ids) override {
    return shaped({ids.numel(), found(site, ".weight").shape[1]});
  }

  Tensor rope(std::string_view, const Tensor& x, int64_t, RopeStyle, int) override { return shaped(x.sizes()); }
  Tensor residual(std::string_view, const Tensor& x, const Tensor&, const Tensor*, int, bool) override {
    return shaped(x.sizes());
  }
  Tensor attention(std::string_view, const Tensor& q, const Tensor&, const Tensor& v, int64_t, const Segments&,
                   const Softmax&) override {
    return shaped({q.size(0), v.size(1)});
  }
  Tensor linear_attention(std::string_view, const Tensor& q, const Tensor&, const Tensor& v, int64_t, double,
                          const Rotated&) override {
    return shaped({q.size(0), v.size(1)});
  }
  Tensor unfold(std::string_view, const Tensor& x, const Conv& how, int) override {
    return shaped({x.size(0), x.size(1) * how.kernel[0] * how.kernel[1] * how.kernel[2]});
  }

  std::vector<plan::ParamSpec> in_order() {
    const std::vector<std::string_view> order = unit_.order();
    const auto place = [&](const plan::ParamSpec& param) {
      const std::string_view site = std::string_view(param.name).substr(unit_.prefix().size());
      return std::ranges::find_if(order, [&](std::string_view start) { return site.starts_with(start); });
    };
    std::ranges::stable_sort(params_, {}, place);
    return std::move(params_);
  }

 protected:
  void declare(std::string_view site, std::string_view suffix, at::IntArrayRef shape) override {
    add(site, suffix, shape.vec(), Split::none, 0);
  }

 private:
  static Split columns(Split split) { return split == Split::column_parallel ? split : Split::none; }

  std::string name(std::string_view site, std::string_view suffix) const {
    return unit_.prefix() + std::string(site) + std::string(suffix);
  }
  const plan::ParamSpec& found(std::string_view site, std::string_view suffix) const {
    const auto param = std::ranges::find(params_, name(site, suffix), &plan::ParamSpec::name);
    check_internal(param != params_.end(), "net.declare", name(site, suffix) + " is asked for without its shape");
    return *param;
  }
  void add(std::string_view site, std::string_view suffix, std::vector<int64_t> shape, Split split, int space) {
    const std::string full = name(site, suffix);
    check_internal(std::ranges::find(params_, full, &plan::ParamSpec::name) == params_.end(), "net.declare",
                   full + " is declared twice");
    const bool whole = split == Split::column_parallel && space != 0 && tokens_.space(space).ranges.empty();
    params_.push_back({.name = full, .shape = std::move(shape), .split = split, .whole_input = whole});
  }

  const Unit& unit_;
  const Tokens& tokens_;
  std::vector<plan::ParamSpec> params_;
};

}  // namespace

Tensor sizes_of(int64_t rows, int64_t width) { return shaped({rows, width}); }
Tensor id_without_memory() { return shaped({1}, at::kLong); }

void declare(const std::vector<std::unique_ptr<Unit>>& units, Flow inputs, const Tokens& tokens) {
  for (const auto& unit : units) {
    DeclaringContext ctx(*unit, tokens);
    Flow out = unit->forward(ctx, inputs);
    unit->set_parameters(ctx.in_order());
    inputs.stream = std::move(out.stream);
    if (!out.cond.empty()) inputs.cond = std::move(out.cond);
  }
}

void declare_frozen(const std::vector<std::unique_ptr<Unit>>& units, Flow inputs, int64_t rows) {
  Tokens tokens;
  tokens.offsets = {0, rows};
  declare(units, std::move(inputs), tokens);
  for (const auto& unit : units) {
    std::vector<plan::ParamSpec> params = unit->spec().params;
    for (plan::ParamSpec& param : params) param.trainable = false;
    unit->set_parameters(std::move(params));
  }
}

}  // namespace tessera::net
