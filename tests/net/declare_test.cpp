#include "tessera/net/declare.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"

namespace tessera::net {
namespace {

using plan::Split;

constexpr int kText = 1, kPart = 2;

/// A unit whose forward is `run`.
class Asking final : public Unit {
 public:
  using Run = std::function<Tensor(Context&, const Tensor&)>;
  Asking(const std::string& name, Run run, std::vector<std::string_view> order = {})
      : Unit({.name = name, .kind = name, .params = {}, .cost = {}}), run_(std::move(run)), order_(std::move(order)) {}
  Flow forward(Context& ctx, const Flow& in) const override { return {{run_(ctx, in.stream[0])}, {}}; }
  std::vector<std::string_view> order() const override { return order_; }

 private:
  const Run run_;
  const std::vector<std::string_view> order_;
};

std::string text_of(const plan::ParamSpec& param) {
  std::string text = param.name;
  for (const int64_t size : param.shape) text += " " + std::to_string(size);
  if (param.split == Split::column_parallel) text += param.whole_input ? " columns of a whole input" : " columns";
  if (param.split == Split::row_parallel) text += " rows";
  return text;
}

/// The parameters of units that run one after the other on [2, 8].
std::vector<std::string> declared(std::vector<std::unique_ptr<Unit>> units) {
  Tokens tokens;
  tokens.spaces.resize(kPart);
  tokens.spaces[kPart - 1].ranges = {{0, 2}};
  declare(units, {{sizes_of(2, 8)}, {}}, tokens);
  std::vector<std::string> all;
  for (const auto& unit : units)
    for (const plan::ParamSpec& param : unit->spec().params) all.push_back(text_of(param));
  return all;
}
std::vector<std::string> declared(Asking::Run run, std::vector<std::string_view> order = {}) {
  std::vector<std::unique_ptr<Unit>> units;
  units.push_back(std::make_unique<Asking>("u", std::move(run), std::move(order)));
  return declared(std::move(units));
}
using Names = std::vector<std::string>;

TEST(Declare, ALinearIsAsWideAsItsInputUnlessItSaysOtherwise) {
  EXPECT_EQ(declared([](Context& ctx, const Tensor& x) {
              return ctx.linear("c", ctx.linear("b", ctx.linear("a", x), {.out = 6, .bias = false}));
            }),
            (Names{"u.a.weight 8 8", "u.a.bias 8", "u.b.weight 6 8", "u.c.weight 6 6", "u.c.bias 6"}));
}

TEST(Declare, AConvolutionHasItsKernelBehindTheChannels) {
  EXPECT_EQ(declared([](Context& ctx, const Tensor& x) {
              const Tensor y = ctx.linear("patch", x, {.out = 3, .bias = false, .kernel = {1, 2, 2}});
              ctx.conv("frame", y, {.kernel = {1, 3, 5}});
              return ctx.linear("taps", ctx.unfold("rows", y, {.kernel = {3, 1, 1}}), {.out = 3, .kernel = {3, 1}});
            }),
            (Names{"u.patch.weight 3 2 1 2 2", "u.frame.weight 3 1 3 5", "u.frame.bias 3", "u.taps.weight 3 3 3 1",
                   "u.taps.bias 3"}));
  EXPECT_EQ(declared([](Context& ctx, const Tensor& x) {
              return ctx.conv("clip", x, {.kernel = {3, 3, 3}});
            })[0],
            "u.clip.weight 8 1 3 3 3");
}

TEST(Declare, ASplitByRowsLeavesTheBiasWholeAndOneByColumnsDoesNot) {
  EXPECT_EQ(declared([](Context& ctx, const Tensor& x) {
              const Tensor y = ctx.linear("a", x, {.out = 16, .split = Split::column_parallel});
              const Tensor z = ctx.norm("norm", y, {.kind = Norm::rms, .split = Split::column_parallel});
              return ctx.linear("b", z, {.out = 8, .split = Split::row_parallel});
            }),
            (Names{"u.a.weight 16 8 columns", "u.a.bias 16 columns", "u.norm.weight 16 columns", "u.b.weight 8 16 rows",
                   "u.b.bias 8"}));
}

TEST(Declare, RowsOfTheirOwnAreWholeOnEveryRankAndThoseAmongTheTokensAreNot) {
  const auto of_space = [](int space) {
    return declared([space](Context& ctx, const Tensor& x) {
      return ctx.linear("k", x, {.space = space, .split = Split::column_parallel, .bias = false});
    })[0];
  };
  EXPECT_EQ(of_space(0), "u.k.weight 8 8 columns");
  EXPECT_EQ(of_space(kText), "u.k.weight 8 8 columns of a whole input");
  EXPECT_EQ(of_space(kPart), "u.k.weight 8 8 columns");
}

TEST(Declare, NormsHaveWeightsUnlessTheyAreModulated) {
  EXPECT_EQ(declared([](Context& ctx, const Tensor& x) {
              const Tensor y = ctx.norm("b", ctx.norm("a", x, {.shift = &x, .scale = &x}), {});
              return ctx.norm("c", y, {.kind = Norm::rms, .heads = 4});
            }),
            (Names{"u.b.weight 8", "u.b.bias 8", "u.c.weight 2"}));
}

TEST(Declare, TablesHaveTheShapeThatTheyAreAskedWith) {
  EXPECT_EQ(declared([](Context& ctx, const Tensor& x) {
              EXPECT_EQ(ctx.param("modulation", {1, 6, 8}).sizes(), (at::IntArrayRef{1, 6, 8}));
              const Tensor ids = at::zeros({5}, at::kLong);
              EXPECT_EQ(ctx.embedding("words", ids, {40, 8}).sizes(), (at::IntArrayRef{5, 8}));
              return x;
            }),
            (Names{"u.modulation 1 6 8", "u.words.weight 40 8"}));
}

TEST(Declare, AnOrderHoldsWhateverTheOrderOfUse) {
  const auto run = [](Context& ctx, const Tensor& x) {
    for (const char* site : {"last", "q", "norm_q", "k", "first"}) ctx.linear(site, x, {.bias = false});
    return x;
  };
  EXPECT_EQ(declared(run, {"first", "q", "k", "norm"}), (Names{"u.first.weight 8 8", "u.q.weight 8 8", "u.k.weight 8 8",
                                                               "u.norm_q.weight 8 8", "u.last.weight 8 8"}));
}

TEST(Declare, AUnitRunsOnWhatTheOneBeforeItReturns) {
  std::vector<std::unique_ptr<Unit>> units;
  units.push_back(std::make_unique<Asking>(
      "stem", [](Context& ctx, const Tensor& x) { return ctx.linear("in", x, {.out = 5, .bias = false}); }));
  units.push_back(std::make_unique<Asking>(
      "head", [](Context& ctx, const Tensor& x) { return ctx.linear("out", x, {.bias = false}); }));
  EXPECT_EQ(declared(std::move(units)), (Names{"stem.in.weight 5 8", "head.out.weight 5 5"}));
}

TEST(Declare, ASiteThatIsUsedTwiceOrATableWithoutShapeIsAFault) {
  EXPECT_THROW(declared([](Context& ctx, const Tensor& x) { return ctx.linear("a", ctx.linear("a", x)); }),
               InternalError);
  EXPECT_THROW(declared([](Context& ctx, const Tensor&) { return ctx.param("modulation"); }), InternalError);
}

}  // namespace
}  // namespace tessera::net
