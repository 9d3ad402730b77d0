// Operators over rows on the device have the bits of their twins (ops/fused.h): every form of operands, widths of a warp and of
// a block with one to three lanes a thread, lanes that are not whole, tokens in several runs, and values that are not finite.
#include "tessera/ops/fused.h"

#include <algorithm>
#include <functional>

#include "half_values.h"

namespace tessera::cuda {
namespace {

using ops::Form;
using ops::RowTable;
using ops::TableRuns;
using ops::TableSums;

constexpr Form kForms[] = {Form::fp32, Form::bf16, Form::fp16};
c10::ScalarType type_of(Form form) { return form == Form::bf16 ? at::kBFloat16 : at::kHalf; }

/// Values around 1, which no sum of squares overflows.
std::vector<float> plain(int64_t n, uint64_t seed) {
  std::vector<float> x(static_cast<size_t>(n));
  RandomKey(seed, Purpose::test).normal(x.data(), 0, x.size());
  return x;
}

/// A matrix in a form, on the host and on the device.
class Matrix {
 public:
  Matrix(const std::vector<float>& values, Form form, size_t offset = 0) : form_(form) {
    if (form == Form::fp32) {
      floats_ = values;
      there_floats_ = std::make_unique<DeviceArray<float>>(values, offset);
    } else {
      halves_ = narrowed(values, type_of(form));
      there_halves_ = std::make_unique<DeviceArray<uint16_t>>(halves_, offset);
    }
  }
  ops::RowsIn in(bool there) { return {data(there), form_}; }
  ops::RowsOut out(bool there) { return {data(there), form_}; }
  void expect_alike(const std::string& what) {
    if (form_ == Form::fp32)
      expect_same(there_floats_->values(), floats_, what);
    else
      expect_same_halves(there_halves_->values(), halves_, type_of(form_), what);
  }

 private:
  void* data(bool there) {
    if (form_ == Form::fp32) return there ? there_floats_->data() : floats_.data();
    return there ? there_halves_->data() : halves_.data();
  }

  Form form_;

 protected:
  std::vector<float> floats_;

 private:
  std::vector<uint16_t> halves_;
  std::unique_ptr<DeviceArray<float>> there_floats_;
  std::unique_ptr<DeviceArray<uint16_t>> there_halves_;
};

struct Floats : Matrix {
  explicit Floats(const std::vector<float>& values) : Matrix(values, Form::fp32) {}
  float* at(bool there) { return static_cast<float*>(out(there).data); }
  const std::vector<float>& host() const { return floats_; }
};
Floats unset(int64_t n) { return Floats(std::vector<float>(static_cast<size_t>(n), kNaN)); }

/// Where sums over tokens go: a table that has something, and room for groups.
struct Sums {
  Floats table, partials;
  int64_t stride;
  Sums(int64_t rows, int64_t stride, int64_t groups, uint64_t seed)
      : table(plain(rows * stride, seed)), partials(unset(groups * stride)), stride(stride) {}
  TableSums at(bool there) { return {table.at(there), stride, partials.at(there)}; }
  TableSums fresh(bool there, int64_t rows) { return {table.at(there), stride, partials.at(there), rows}; }
};

struct Shape {
  int64_t tokens, width;
  Form x, y;
  size_t offset = 0;  ///< of operands, in values
};
std::vector<Shape> shapes() {
  std::vector<Shape> all;
  int which = 0;
  for (const int64_t width : {2, 30, 64, 256, 258, 1152, 2048, 2050, 3072, 5120})
    all.push_back({width > 2048 ? 70 : 131, width, kForms[which % 3], kForms[which / 2 % 3],
                   which % 4 == 3 ? size_t{1} : size_t{0}}),
        ++which;
  return all;
}
std::string name_of(const Shape& s) {
  return std::to_string(s.tokens) + " x " + std::to_string(s.width) + " of " + std::to_string(static_cast<int>(s.x)) +
         " to " + std::to_string(static_cast<int>(s.y));
}

/// Rows 2, 0, 1 and 0 of a table, in runs of one token, of a whole group and of what is left.
TableRuns runs_of(int64_t tokens) {
  TableRuns runs;
  const int64_t cuts[] = {0, 1, 1 + ops::kGroupTokens, tokens - 3, tokens}, rows[] = {2, 0, 1, 0};
  for (int r = 0; r < 4; ++r) runs.add(rows[r], cuts[r], cuts[r + 1]);
  return runs;
}
constexpr int64_t kTableRows = 3;

/// Twin and kernel of what `make(there)` describes.
template <class Make, class Rows>
void run_both(const Make& make, void (*twin)(const Rows&), cudaError_t (*launch)(const Rows&, cudaStream_t)) {
  twin(make(false));
  check(launch(make(true), nullptr));
}

class Fused : public KernelTest {};

TEST_F(Fused, LayerNormAndItsGradientsHaveTheBitsOfTheTwin) {
  for (const Shape& s : shapes()) {
    SCOPED_TRACE(name_of(s));
    const TableRuns runs = runs_of(s.tokens);
    const int64_t n = s.tokens * s.width, stride = s.width + 3;
    Matrix x(plain(n, 1), s.x, s.offset), y(plain(n, 2), s.y), dy(plain(n, 3), s.y, s.offset), dx(plain(n, 4), s.x),
        beside(plain(n, 5), s.x);
    Floats stats = unset(2 * s.tokens);
    Matrix table(plain(kTableRows * stride, 6), s.y), shift(plain(kTableRows * stride, 7), s.y);
    const auto row_table = [&](Matrix& of, bool there) { return RowTable{of.in(there).data, stride, s.y}; };
    const auto forward = [&](bool known) {
      return [&, known](bool there) {
        return ops::LayerNormRows{s.tokens,
                                  s.width,
                                  x.in(there),
                                  y.out(there),
                                  stats.at(there),
                                  known,
                                  row_table(table, there),
                                  row_table(shift, there),
                                  runs,
                                  1,
                                  1e-6f};
      };
    };
    for (const bool known : {false, true}) {
      run_both(forward(known), ops::layer_norm, launch_layer_norm);
      y.expect_alike("value"), stats.expect_alike("statistics");
    }
    Sums scale_sums(kTableRows, s.width, runs.groups, 8), shift_sums(kTableRows, s.width, runs.groups, 9);
    for (const int which : {0, 1, 2, 3}) {  // all; without another gradient; dx alone; tables alone
      const auto backward = [&](bool there) {
        ops::LayerNormGradients g{
            s.tokens, s.width, dy.in(there), x.in(there), stats.at(there), row_table(table, there), 1, runs,
            {},       {},      {},           {}};
        if (which == 0) g.beside = beside.in(there);
        if (which != 3) g.dx = dx.out(there);
        if (which != 2) g.scale_sums = scale_sums.at(there), g.shift_sums = shift_sums.at(there);
        if (which == 1) g.shift_sums = shift_sums.fresh(there, kTableRows);
        return g;
      };
      run_both(backward, ops::layer_norm_gradients, launch_layer_norm_gradients);
      dx.expect_alike("gradient of x");
      scale_sums.table.expect_alike("of the scale"), shift_sums.table.expect_alike("of the shift");
    }
  }
}

TEST_F(Fused, RmsNormAndItsGradientsHaveTheBitsOfTheTwin) {
  for (const Shape& s : shapes())
    for (const int64_t half : {int64_t{0}, s.width % 64 == 0 ? int64_t{32} : s.width / 2}) {
      SCOPED_TRACE(name_of(s) + ", pairs " + std::to_string(half));
      const int64_t n = s.tokens * s.width;
      Matrix x(plain(n, 1), s.x, s.offset), y(plain(n, 2), s.x), dy(plain(n, 3), s.x, s.offset), dx(plain(n, 4), s.x);
      Matrix w(plain(s.width, 6), s.y, s.offset);
      Floats stats = unset(s.tokens), cos(plain(s.tokens * half, 7)), sin(plain(s.tokens * half, 8)),
             whole(std::vector<float>(static_cast<size_t>(s.tokens), 3.5f));
      const auto angles = [&](bool there) {
        return half ? ops::Angles{cos.at(there), sin.at(there), half} : ops::Angles{};
      };
      for (const int which : {0, 1, 2}) {  // own sums; known; sums of a sharded width
        const auto forward = [&](bool there) {
          return ops::RmsNormRows{s.tokens,
                                  s.width,
                                  x.in(there),
                                  y.out(there),
                                  stats.at(there),
                                  which == 1,
                                  w.in(there),
                                  angles(there),
                                  which == 2 ? whole.at(there) : nullptr,
                                  static_cast<float>(which == 2 ? 2 * s.width : s.width),
                                  1e-6f};
        };
        run_both(forward, ops::rms_norm, launch_rms_norm);
        y.expect_alike("value"), stats.expect_alike("statistics");
      }
      const int64_t groups = (s.tokens + ops::kGroupTokens - 1) / ops::kGroupTokens;
      Sums sums(1, s.width, groups, 9);
      Floats columns = unset(groups * s.width);
      for (const int which :
           {0, 1, 2, 3}) {  // all, of a sharded width; dx alone; the weight alone; it begins, and columns
        const auto backward = [&](bool there) {
          return ops::RmsNormGradients{s.tokens,
                                       s.width,
                                       dy.in(there),
                                       x.in(there),
                                       stats.at(there),
                                       w.in(there),
                                       angles(there),
                                       which == 0 ? whole.at(there) : nullptr,
                                       static_cast<float>(s.width),
                                       which == 2 ? ops::RowsOut{} : dx.out(there),
                                       which == 1   ? TableSums{}
                                       : which == 3 ? sums.fresh(there, 1)
                                                    : sums.at(there),
                                       which == 3 ? columns.at(there) : nullptr};
        };
        run_both(backward, ops::rms_norm_gradients, launch_rms_norm_gradients);
        dx.expect_alike("gradient of x"), sums.table.expect_alike("of the weight"), columns.expect_alike("columns");
      }
    }
}

TEST_F(Fused, SumsWithAGateAndTheirGradientsHaveTheBitsOfTheTwin) {
  for (const Shape& s : shapes()) {
    SCOPED_TRACE(name_of(s));
    const TableRuns runs = runs_of(s.tokens);
    const int64_t n = s.tokens * s.width, stride = s.width + 1;
    Matrix x(plain(n, 1), s.x, s.offset), y(plain(n, 2), s.y, s.offset), out(plain(n, 3), s.x), up(plain(n, 4), s.x),
        rounded(plain(n, 8), Form::bf16);
    Floats gate(plain(kTableRows * stride, 5));
    for (const bool gated : {true, false}) {
      const auto forward = [&](bool there) {
        return ops::GatedRows{s.tokens,
                              s.width,
                              x.in(there),
                              y.in(there),
                              gated ? RowTable{gate.at(there), stride} : RowTable{},
                              gated ? runs : TableRuns{},
                              out.out(there),
                              gated ? rounded.out(there) : ops::RowsOut{}};
      };
      run_both(forward, ops::gated_sum, launch_gated_sum);
      out.expect_alike("sum"), rounded.expect_alike("sum in bf16");
    }
    Sums sums(kTableRows, s.width, runs.groups, 6);
    Matrix dy(plain(n, 7), s.y);
    Floats columns = unset(runs.groups * s.width);
    for (const int which :
         {0, 1, 2, 3, 4, 5}) {  // both; dy alone; the gate alone; both, dy over y; columns too; no gate
      const auto backward = [&](bool there) {
        return ops::GatedGradients{s.tokens,
                                   s.width,
                                   up.in(there),
                                   y.in(there),
                                   which == 5 ? RowTable{} : RowTable{gate.at(there), stride},
                                   runs,
                                   which == 3   ? y.out(there)
                                   : which == 2 ? ops::RowsOut{}
                                                : dy.out(there),
                                   which == 1 || which == 5 ? TableSums{}
                                   : which == 4             ? sums.fresh(there, kTableRows)
                                                            : sums.at(there),
                                   which >= 4 ? columns.at(there) : nullptr};
      };
      run_both(backward, ops::gated_gradients, launch_gated_gradients);
      dy.expect_alike("gradient of y"), y.expect_alike("y"), sums.table.expect_alike("of the gate");
      columns.expect_alike("columns");
    }
  }
}

/// Groups that are none, one, whole turns of what a thread asks for ahead, and more; a weight that begins and one that has values.
TEST_F(Fused, SumsThatBackwardsHaveLeftAreAddedWithTheBitsOfTheTwin) {
  struct Weight {
    int64_t groups, width;
    Form form;
    size_t offset;
  };
  const Weight weights[] = {{0, 9, Form::fp32, 0},   {1, 8, Form::bf16, 0},     {7, 30, Form::fp32, 1},
                            {8, 256, Form::fp16, 0}, {9, 5120, Form::fp32, 0},  {65, 2051, Form::bf16, 1},
                            {40, 1, Form::fp32, 0},  {517, 1536, Form::fp32, 0}};
  std::vector<std::unique_ptr<Matrix>> values, gradients;
  for (const Weight& w : weights) {
    std::vector<float> all = plain(w.groups * w.width, 1 + values.size());
    if (w.groups == 9) all[17] = kNaN, all[40] = kInfinity, all[41] = -0.0f;
    values.push_back(std::make_unique<Matrix>(all, w.form, w.offset));
    gradients.push_back(std::make_unique<Matrix>(plain(w.width, 20 + values.size()), Form::fp32, w.offset));
  }
  for (const bool fresh : {false, true})
    for (const size_t most : {std::size(weights), size_t{1}, size_t{0}}) {
      SCOPED_TRACE(std::to_string(most) + (fresh ? " that begin" : ""));
      const auto make = [&](bool there) {
        ops::ManyGroupSums all;
        for (size_t i = 0; i < most; ++i)
          all.at[all.count++] = {values[i]->in(there), weights[i].groups, weights[i].width,
                                 static_cast<float*>(gradients[i]->out(there).data), fresh != (i % 3 == 1)};
        return all;
      };
      run_both(make, ops::add_sums, launch_add_sums);
      for (size_t i = 0; i < most; ++i) gradients[i]->expect_alike("gradient " + std::to_string(i));
    }
}

/// A norm's backward that leaves the sums of groups to add_sums() gives the gradient of one that adds them itself.
TEST_F(Fused, ABackwardLeavesTheSumsOfItsGroups) {
  for (const Shape& s : shapes()) {
    SCOPED_TRACE(name_of(s));
    const int64_t n = s.tokens * s.width, groups = (s.tokens + ops::kGroupTokens - 1) / ops::kGroupTokens;
    Matrix x(plain(n, 1), s.x), dy(plain(n, 2), s.x), w(plain(s.width, 3), s.y);
    Floats stats(std::vector<float>(static_cast<size_t>(2 * s.tokens), 0.75f));
    Sums adds(1, s.width, groups, 4), leaves(1, s.width, groups, 4), shifts(1, s.width, groups, 4);
    const auto rms = [&](const TableSums& sums, bool there) {
      return ops::RmsNormGradients{s.tokens, s.width, dy.in(there), x.in(there), stats.at(there), w.in(there), {},
                                   nullptr,  1,       {},           sums};
    };
    run_both([&](bool there) { return rms(adds.at(there), there); }, ops::rms_norm_gradients,
             launch_rms_norm_gradients);
    run_both(
        [&](bool there) {
          return rms({nullptr, 0, leaves.at(there).partials}, there);
        },
        ops::rms_norm_gradients, launch_rms_norm_gradients);
    leaves.partials.expect_alike("sums of groups");
    const auto left = [&](Sums& of) {
      return [&](bool there) {
        ops::ManyGroupSums all;
        all.at[all.count++] = {{of.at(there).partials, Form::fp32}, groups, s.width, of.at(there).table, false};
        return all;
      };
    };
    run_both(left(leaves), ops::add_sums, launch_add_sums);
    leaves.table.expect_alike("gradient"), adds.table.expect_alike("gradient");
    expect_same(leaves.table.host(), adds.table.host(), "left and added");
    TableRuns all;
    all.add(0, 0, s.tokens);
    const auto layer = [&](bool there) {
      ops::LayerNormGradients g{
          s.tokens, s.width, dy.in(there), x.in(there), stats.at(there), {w.in(there).data, 0, s.y}, 0, all,
          {},       {},      {},           {}};
      g.scale_sums = {nullptr, 0, leaves.at(there).partials}, g.shift_sums = {nullptr, 0, shifts.at(there).partials};
      return g;
    };
    run_both(layer, ops::layer_norm_gradients, launch_layer_norm_gradients);
    leaves.partials.expect_alike("of the scale"), shifts.partials.expect_alike("of the shift");
  }
}

/// Rows and columns of a line or of many tiles, padded and not; NaN and infinity stay what they are.
TEST_F(Fused, LinesOf8BitsHaveTheCodesOfTheTwin) {
  for (const Shape& s : shapes())
    for (const bool turned : {false, true})
      for (const bool e5m2 : {false, true}) {
        SCOPED_TRACE(name_of(s) + (turned ? " turned" : "") + (e5m2 ? " e5m2" : ""));
        std::vector<float> values = plain(s.tokens * s.width, 1);
        const float odd[] = {kNaN, kInfinity, -kInfinity, 3e30f, kSubnormal, -0.0f};
        for (size_t i = 0; i < std::size(odd) && s.width > 60; ++i) values[i * 17] = odd[i];
        for (int64_t c = 0; c < s.width; ++c) values[static_cast<size_t>(s.width + c)] = 0;
        Matrix x(values, s.x, s.offset);
        const int64_t lines = turned ? s.width : s.tokens, length = turned ? s.tokens : s.width,
                      stride = (length + 15) / 16 * 16;
        std::vector<uint8_t> codes(static_cast<size_t>(lines * stride), 0xee);
        DeviceArray<uint8_t> there_codes(codes);
        Floats scales = unset(lines);
        std::vector<double> counts = {1, 2, 3};  // which it adds to
        DeviceArray<double> there_counts(counts);
        const auto make = [&](bool there) {
          return ops::QuantisedLines{s.tokens,         s.width, x.in(there),
                                     turned,           e5m2,    there ? there_codes.data() : codes.data(),
                                     scales.at(there), stride,  there ? there_counts.data() : counts.data()};
        };
        run_both(make, ops::quantise_lines, launch_quantise_lines);
        expect_same(there_codes.values(), codes, "codes");
        scales.expect_alike("scales");
        EXPECT_EQ(there_counts.values(), counts);
        EXPECT_EQ(counts[0], 1 + static_cast<double>(s.tokens * s.width));
        if (s.width > 60) EXPECT_GT(counts[1], 2) << "beside an infinity all is zero";
      }
}

/// Ranges of a matrix that begin and end within rows, in one row, and between rows.
TEST_F(Fused, CodesOfAShardHaveTheBitsOfTheTwin) {
  for (const Shape& s : shapes())
    for (const bool columns : {false, true})
      for (const auto& [first, left] : {std::array<int64_t, 2>{0, 0}, {s.width, s.width}, {s.width / 2, 3}}) {
        const int64_t count = s.tokens * s.width - first - left;
        SCOPED_TRACE(name_of(s) + (columns ? " columns" : " rows") + " from " + std::to_string(first));
        std::vector<float> values = plain(count, 1);
        const float odd[] = {kNaN, kInfinity, -kInfinity, 3e30f, kSubnormal, -0.0f};
        for (size_t i = 0; i < std::size(odd) && s.width > 60; ++i) values[i * 17] = odd[i];
        const Form form = s.x == Form::fp16 ? Form::bf16 : s.x;
        Matrix x(values, form, s.offset);
        const int64_t rows = (first + count - 1) / s.width - first / s.width + 1, lines = columns ? s.width : rows;
        Floats scales = unset(lines);
        std::vector<uint8_t> codes(static_cast<size_t>(count), 0xee);
        DeviceArray<uint8_t> there_codes(codes);
        const auto make = [&](bool there) {
          return ops::FlatLines{
              first, count, s.width, x.in(there), columns, scales.at(there), there ? there_codes.data() : codes.data()};
        };
        run_both(make, ops::flat_scales, launch_flat_scales);
        scales.expect_alike("scales");
        run_both(make, ops::flat_codes, launch_flat_codes);
        expect_same(there_codes.values(), codes, "codes");
      }
  EXPECT_EQ(launch_flat_scales({0, 0, 4, {}, false, nullptr}, nullptr), cudaSuccess);
  EXPECT_EQ(launch_flat_codes({0, 0, 4, {}, false, nullptr}, nullptr), cudaSuccess);
}

TEST_F(Fused, ScalesOfShardsMergeAndCodesTurnAsTheTwins) {
  std::vector<float> sizes = plain(1000, 1), others = plain(700, 2);
  for (float& x : sizes) x = std::fabs(x) + 1e-12f;
  for (float& x : others) x = std::fabs(x);
  Floats some(sizes), all(others);
  const auto merged = [&](bool there) {
    ops::MergedScales scales;
    scales.at[scales.count++] = {some.at(there), all.at(there), 300};
    scales.at[scales.count++] = {some.at(there) + 300, all.at(there) + 299, 401};  // the line between is of both
    return scales;
  };
  run_both(merged, ops::merge_scales, launch_merge_scales);
  all.expect_alike("scales");
  const auto emptied = [&](bool there) {
    ops::MergedScales scales;
    scales.at[scales.count++] = {nullptr, all.at(there), 10};
    return scales;
  };
  run_both(emptied, ops::merge_scales, launch_merge_scales);
  all.expect_alike("scales that begin anew");
  EXPECT_EQ(launch_merge_scales({}, nullptr), cudaSuccess);
  for (const auto& [rows, width] : {std::array<int64_t, 2>{1, 1}, {64, 64}, {65, 130}, {200, 47}, {3, 500}}) {
    const int64_t stride = (rows + 15) / 16 * 16;
    std::vector<uint8_t> codes(static_cast<size_t>(rows * width)), turned(static_cast<size_t>(width * stride), 0xee);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 7 + 1);
    DeviceArray<uint8_t> there_codes(codes), there_turned(turned);
    const auto make = [&](bool there) {
      return ops::TurnedCodes{rows, width, there ? there_codes.data() : codes.data(),
                              there ? there_turned.data() : turned.data(), stride};
    };
    run_both(make, ops::turn_codes, launch_turn_codes);
    expect_same(there_turned.values(), turned, "turned");
    EXPECT_EQ(turned[static_cast<size_t>((width - 1) * stride + rows - 1)], codes.back());
    if (stride > rows) EXPECT_EQ(turned.back(), 0);
  }
}

/// Values at which GELU is 0, x and in between, largest and smallest ones, and what is not finite.
TEST_F(Fused, GeluAndItsGradientHaveTheBitsOfTheTwin) {
  for (const Shape& s : shapes()) {
    SCOPED_TRACE(name_of(s));
    const int64_t n = s.tokens * s.width, groups = (s.tokens + ops::kGroupTokens - 1) / ops::kGroupTokens;
    std::vector<float> values = plain(n, 1);
    for (size_t i = 0; i < values.size(); ++i) values[i] *= i % 7 == 0 ? 12.0f : 2.0f;
    const float odd[] = {kNaN, kInfinity, -kInfinity, 3e38f, -3e38f, kSubnormal, -0.0f};
    for (size_t i = 0; i < std::size(odd) && s.tokens * s.width > 200; ++i) values[i * 17] = odd[i];
    Matrix x(values, s.y, s.offset), y(plain(n, 2), s.y), dy(plain(n, 3), s.y, s.offset), dx(plain(n, 4), s.y),
        again(plain(n, 5), s.y);
    Floats columns = unset(groups * s.width);
    run_both([&](bool there) { return ops::GeluRows{n, x.in(there), y.out(there)}; }, ops::gelu, launch_gelu);
    y.expect_alike("value");
    for (const int which : {0, 1, 2}) {  // the gradient alone; all; in place, as a linear has it
      const auto backward = [&](bool there) {
        return ops::GeluGradients{s.tokens,
                                  s.width,
                                  dy.in(there),
                                  x.in(there),
                                  which == 2 ? x.out(there) : dx.out(there),
                                  which == 2   ? dy.out(there)
                                  : which == 1 ? again.out(there)
                                               : ops::RowsOut{},
                                  which > 0 ? columns.at(there) : nullptr};
      };
      run_both(backward, ops::gelu_gradients, launch_gelu_gradients);
      dx.expect_alike("gradient"), again.expect_alike("value again"), columns.expect_alike("columns");
      x.expect_alike("over x"), dy.expect_alike("over dy");
    }
  }
}

TEST_F(Fused, AGateThroughSiluAndItsGradientsHaveTheBitsOfTheTwin) {
  for (const Shape& s : shapes()) {
    SCOPED_TRACE(name_of(s));
    const int64_t n = s.tokens * s.width;
    std::vector<float> values = plain(n, 1);
    for (size_t i = 0; i < values.size(); ++i) values[i] *= i % 7 == 0 ? 60.0f : 2.0f;
    const float odd[] = {kNaN, kInfinity, -kInfinity, 3e38f, -3e38f, kSubnormal, -0.0f};
    for (size_t i = 0; i < std::size(odd) && n > 200; ++i) values[i * 17] = odd[i];
    Matrix gate(values, s.y, s.offset), x(plain(n, 2), s.y, s.offset), y(plain(n, 3), s.y), dy(plain(n, 4), s.y),
        dx(plain(n, 5), s.y), dgate(plain(n, 6), s.y);
    run_both(
        [&](bool there) {
          return ops::GluRows{n, x.in(there), gate.in(there), y.out(there)};
        },
        ops::silu_glu, launch_silu_glu);
    y.expect_alike("value");
    run_both(
        [&](bool there) {
          return ops::GluGradients{n, dy.in(there), x.in(there), gate.in(there), dx.out(there), dgate.out(there)};
        },
        ops::silu_glu_gradients, launch_silu_glu_gradients);
    dx.expect_alike("gradient of x"), dgate.expect_alike("gradient of the gate");
  }
}

TEST_F(Fused, PairsTurnWithTheBitsOfTheTwinAndBack) {
  for (const Shape& s : shapes())
    for (const bool half_split : {false, true}) {
      SCOPED_TRACE(name_of(s) + (half_split ? ", halves" : ", neighbours"));
      const int64_t n = s.tokens * s.width, half = s.width % 64 == 0 ? 32 : s.width / 2;
      Matrix x(plain(n, 1), s.x, s.offset), y(plain(n, 2), s.x, s.offset);
      Floats cos(plain(s.tokens * half, 3)), sin(plain(s.tokens * half, 4));
      for (const float sign : {1.0f, -1.0f}) {
        const auto turn = [&](bool there) {
          return ops::RotatedRows{s.tokens,   s.width, x.in(there), y.out(there), {cos.at(there), sin.at(there), half},
                                  half_split, sign};
        };
        run_both(turn, ops::rotate_rows, launch_rotate_rows);
        y.expect_alike("turned");
      }
    }
}

/// A table of taps on both sides.
class Taps {
 public:
  Taps(std::vector<int32_t> entries, int32_t taps, int64_t rows, int64_t sources)
      : here_(std::move(entries)), there_(here_), taps_(taps), rows_(rows), sources_(sources) {}
  /// Windows around each row of a picture so wide, in an order of the rows that is no picture's; nothing beyond its edges. Of
  /// `halo` more sources than rows.
  static Taps window(int32_t taps, int64_t rows, int64_t wide, int64_t halo) {
    std::vector<int32_t> entries;
    for (int32_t t = 0; t < taps; ++t)
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t column = r % wide + t % 3 - 1, source = r + t % 3 - 1 + (taps == 9 ? t / 3 - 1 : 0) * wide + halo;
        const bool inside = column >= 0 && column < wide && source >= 0 && source < rows + halo;
        entries.push_back(inside ? static_cast<int32_t>(source) : -1);
      }
    return Taps(std::move(entries), taps, rows, rows + halo);
  }
  ops::TapTable at(bool there) { return {there ? there_.data() : here_.data(), taps_, rows_, sources_}; }

 private:
  std::vector<int32_t> here_;
  DeviceArray<int32_t> there_;
  int32_t taps_;
  int64_t rows_, sources_;
};

TEST_F(Fused, ConvolutionsByTapsAndTheirGradientsHaveTheBitsOfTheTwin) {
  for (const Shape& s : shapes())
    for (const int32_t taps : {3, 9}) {
      SCOPED_TRACE(name_of(s) + ", taps " + std::to_string(taps));
      const int64_t halo = s.width % 4 == 0 ? 13 : 0, sources = s.tokens + halo;
      Taps table = Taps::window(taps, s.tokens, 13, halo);
      Matrix x(plain(sources * s.width, 1), s.x, s.offset), w(plain(s.width * taps, 2), s.y, s.offset),
          bias(plain(s.width, 3), s.y), y(plain(s.tokens * s.width, 4), s.y), dy(plain(s.tokens * s.width, 5), s.x),
          slopes(plain(s.tokens * s.width, 8), s.x, s.offset);
      Floats columns = unset((s.tokens + 63) / 64 * s.width);
      for (const bool silu : {false, true})
        for (const bool back : {false, true}) {
          run_both(
              [&](bool there) {
                return ops::DepthwiseRows{s.width,
                                          table.at(there),
                                          x.in(there),
                                          w.in(there),
                                          bias.in(there),
                                          y.out(there),
                                          silu,
                                          back ? slopes.in(there) : ops::RowsIn{},
                                          back ? columns.at(there) : nullptr};
              },
              ops::depthwise, launch_depthwise);
          y.expect_alike(silu ? "of silu" : "back"), columns.expect_alike("sums of columns");
        }
      for (const bool biased : {true, false}) {
        run_both(
            [&](bool there) {
              return ops::DepthwiseRows{
                  s.width,     table.at(there), x.in(there), w.in(there), biased ? bias.in(there) : ops::RowsIn{},
                  y.out(there)};
            },
            ops::depthwise, launch_depthwise);
        y.expect_alike("value");
      }
      Matrix value(plain(s.tokens * s.width, 9), s.y, s.offset), up(plain(s.tokens * s.width, 10), s.x),
          d_value(plain(s.tokens * s.width, 11), s.y);
      for (const bool back : {false, true}) {
        run_both(
            [&](bool there) {
              ops::DepthwiseRows n{s.width,        table.at(there), x.in(there),  w.in(there),
                                   bias.in(there), y.out(there),    /*silu=*/true};
              n.value = value.in(there);
              if (back) n.up = up.in(there), n.d_value = d_value.out(there);
              return n;
            },
            ops::depthwise, launch_depthwise);
        y.expect_alike(back ? "gradient of a gate" : "gated"), d_value.expect_alike("gradient of what is gated");
      }
      const int64_t size = (taps + 1) * s.width;
      Floats dw(plain(s.width * taps, 6)), db(plain(s.width, 7)), partials = unset((s.tokens + 63) / 64 * size);
      for (const int which : {0, 1, 2, 3}) {  // both; the weight alone; the bias alone; of silu
        run_both(
            [&](bool there) {
              return ops::DepthwiseGradients{s.width,
                                             table.at(there),
                                             dy.in(there),
                                             x.in(there),
                                             which != 2 ? dw.at(there) : nullptr,
                                             which != 1 ? db.at(there) : nullptr,
                                             partials.at(there),
                                             which == 3};
            },
            ops::depthwise_gradients, launch_depthwise_gradients);
        dw.expect_alike("of the weight"), db.expect_alike("of the bias"), partials.expect_alike("groups");
      }
      std::vector<int32_t> inverse(static_cast<size_t>(taps * sources), 7);
      DeviceArray<int32_t> inverse_there(inverse);
      run_both(
          [&](bool there) {
            return ops::InvertedTaps{table.at(there), there ? inverse_there.data() : inverse.data()};
          },
          ops::invert_taps, launch_invert_taps);
      expect_same(inverse_there.values(), inverse, "inverse");
      for (int32_t t = 0; t < taps; ++t)
        for (int64_t r = 0; r < s.tokens; ++r) {
          const int32_t source = table.at(false).source[t * s.tokens + r];
          ASSERT_TRUE(source < 0 || inverse[static_cast<size_t>(t * sources + source)] == r) << t << ", " << r;
        }
    }
}

TEST_F(Fused, LinearAttentionAndItsGradientsHaveTheBitsOfTheTwin) {
  constexpr int64_t kHead = ops::kStateHead, kState = (kHead + 1) * kHead, tokens = 131;
  int which = 0;
  for (const int64_t heads : {1, 3, 10})
    for (const bool same : {true, false}) {
      const Form form = kForms[which++ % 3];
      SCOPED_TRACE(std::to_string(heads) + " heads of " + std::to_string(static_cast<int>(form)) +
                   (same ? "" : ", turned"));
      const int64_t n = tokens * heads * kHead, size = heads * kState;
      const TableRuns runs = runs_of(tokens);
      const auto keys = [&](uint64_t seed) {  // two thirds are above 0, and some are 0
        std::vector<float> x = plain(n, seed);
        for (size_t i = 0; i < x.size(); ++i) x[i] = i % 7 == 0 ? 0 : i % 3 == 0 ? x[i] : std::abs(x[i]);
        return x;
      };
      Matrix k(keys(1), form), q(keys(2), form), v(plain(n, 3), form), turned_k(plain(n, 4), form),
          turned_q(plain(n, 5), form), out(plain(n, 6), form), dy(plain(n, 7), form), da(plain(n, 8), form),
          db(plain(n, 9), form), dc(plain(n, 10), form);
      Sums states(kTableRows, size, runs.groups, 11), d_states(kTableRows, size, runs.groups, 12);
      Floats down = unset(tokens * heads), slope = unset(tokens * heads);
      Matrix &a = same ? k : turned_k, &left = same ? q : turned_q;
      run_both(
          [&](bool there) {
            return ops::StateSums{tokens,  heads,   a.in(there), v.in(there),     same ? ops::RowsIn{} : k.in(there),
                                  nullptr, nullptr, runs,        states.at(there)};
          },
          ops::add_states, launch_add_states);
      states.table.expect_alike("states");
      const auto table = [&](bool there) { return RowTable{states.table.at(there), size}; };
      run_both(
          [&](bool there) {
            return ops::StateResults{tokens,      heads,          same ? ops::RowsIn{} : left.in(there),
                                     q.in(there), table(there),   runs,
                                     1e-3f,       out.out(there), down.at(there)};
          },
          ops::state_results, launch_state_results);
      out.expect_alike("result"), down.expect_alike("divisors");
      run_both(
          [&](bool there) {
            return ops::StateResultGradients{tokens,        heads,          dy.in(there),
                                             out.in(there), q.in(there),    down.at(there),
                                             table(there),  runs,           same ? ops::RowsOut{} : da.out(there),
                                             db.out(there), slope.at(there)};
          },
          ops::state_result_gradients, launch_state_result_gradients);
      da.expect_alike("gradient of turned q"), db.expect_alike("of q"), slope.expect_alike("slopes");
      run_both(
          [&](bool there) {
            return ops::StateSums{
                tokens,         heads,           left.in(there), dy.in(there),      same ? ops::RowsIn{} : q.in(there),
                down.at(there), slope.at(there), runs,           d_states.at(there)};
          },
          ops::add_states, launch_add_states);
      d_states.table.expect_alike("gradient of the states");
      run_both(
          [&](bool there) {
            return ops::StateGradients{tokens,
                                       heads,
                                       a.in(there),
                                       v.in(there),
                                       same ? ops::RowsIn{} : k.in(there),
                                       {d_states.table.at(there), size},
                                       runs,
                                       da.out(there),
                                       db.out(there),
                                       same ? ops::RowsOut{} : dc.out(there)};
          },
          ops::state_gradients, launch_state_gradients);
      da.expect_alike("gradient of turned k"), db.expect_alike("of v"), dc.expect_alike("of k");
    }
}

/// What is not finite stays in its row and in the columns of its sums, as on the CPU.
TEST_F(Fused, ValuesThatAreNotFinitePass) {
  const int64_t tokens = 131, width = 1152, n = tokens * width;
  const TableRuns runs = runs_of(tokens);
  std::vector<float> odd = plain(n, 1);
  odd[5 * width + 7] = kNaN, odd[70 * width + 1151] = kInfinity, odd[100 * width] = -kInfinity;
  odd[3] = std::numeric_limits<float>::max(), odd[9 * width] = kSubnormal;
  Matrix x(odd, Form::fp32), dy(plain(n, 2), Form::bf16), y(plain(n, 3), Form::bf16), dx(plain(n, 4), Form::fp32);
  Floats stats = unset(2 * tokens), rstd = unset(tokens), table(plain(kTableRows * width, 5));
  run_both(
      [&](bool there) {
        return ops::LayerNormRows{tokens,
                                  width,
                                  x.in(there),
                                  y.out(there),
                                  stats.at(there),
                                  false,
                                  {table.at(there), width},
                                  {table.at(there), width},
                                  runs,
                                  0,
                                  1e-6f};
      },
      ops::layer_norm, launch_layer_norm);
  y.expect_alike("norm"), stats.expect_alike("statistics");
  Sums scale_sums(kTableRows, width, runs.groups, 6), shift_sums(kTableRows, width, runs.groups, 7);
  run_both(
      [&](bool there) {
        return ops::LayerNormGradients{
            tokens, width, dy.in(there), x.in(there),   stats.at(there),      {table.at(there), width},
            0,      runs,  {},           dx.out(there), scale_sums.at(there), shift_sums.at(there)};
      },
      ops::layer_norm_gradients, launch_layer_norm_gradients);
  dx.expect_alike("gradient of x"), scale_sums.table.expect_alike("of the scale");
  run_both(
      [&](bool there) {
        return ops::RmsNormRows{tokens, width,           x.in(there), dx.out(there), rstd.at(there),
                                false,  table.in(there), {},          nullptr,       static_cast<float>(width),
                                1e-6f};
      },
      ops::rms_norm, launch_rms_norm);
  dx.expect_alike("root mean square"), rstd.expect_alike("its statistics");
  run_both(
      [&](bool there) {
        return ops::GatedGradients{tokens, width,        x.in(there),         dy.in(there), {table.at(there), width},
                                   runs,   y.out(there), scale_sums.at(there)};
      },
      ops::gated_gradients, launch_gated_gradients);
  y.expect_alike("gradient of y"), scale_sums.table.expect_alike("of the gate");
  Taps taps = Taps::window(9, tokens, 13, 0);
  Floats weights(plain(9 * width, 8)), dw(plain(9 * width, 9)), db(plain(width, 10)),
      of_taps = unset(runs.groups * 10 * width);
  run_both(
      [&](bool there) {
        return ops::DepthwiseRows{width, taps.at(there), x.in(there), weights.in(there), {}, y.out(there)};
      },
      ops::depthwise, launch_depthwise);
  y.expect_alike("convolution");
  run_both(
      [&](bool there) {
        return ops::DepthwiseGradients{width,        taps.at(there), x.in(there),      dy.in(there),
                                       dw.at(there), db.at(there),   of_taps.at(there)};
      },
      ops::depthwise_gradients, launch_depthwise_gradients);
  dw.expect_alike("gradient of its weight"), db.expect_alike("of its bias");
  const int64_t heads = width / ops::kStateHead, size = heads * (ops::kStateHead + 1) * ops::kStateHead;
  Sums states(kTableRows, size, runs.groups, 11);
  run_both(
      [&](bool there) {
        return ops::StateSums{tokens,  heads,   x.in(there), dy.in(there),    x.in(there),
                              nullptr, nullptr, runs,        states.at(there)};
      },
      ops::add_states, launch_add_states);
  states.table.expect_alike("states");
  Floats down = unset(tokens * heads);
  run_both(
      [&](bool there) {
        return ops::StateResults{tokens, heads, {},           x.in(there),   {states.table.at(there), size},
                                 runs,   1e-3f, y.out(there), down.at(there)};
      },
      ops::state_results, launch_state_results);
  y.expect_alike("result"), down.expect_alike("divisors");
  run_both(
      [&](bool there) {
        return ops::StateGradients{
            tokens,        heads,        x.in(there), dy.in(there), {}, {states.table.at(there), size}, runs,
            dx.out(there), y.out(there), {}};
      },
      ops::state_gradients, launch_state_gradients);
  dx.expect_alike("gradient of keys"), y.expect_alike("gradient of values");
}

TEST_F(Fused, RowsThatDoNotFitAreRefusedAndNoRowsAreNothing) {
  ops::RmsNormRows wide{};
  wide.tokens = 1, wide.width = ops::kMostRowWidth + 8;
  EXPECT_EQ(launch_rms_norm(wide, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(launch_layer_norm(ops::LayerNormRows{}, nullptr), cudaSuccess);
  EXPECT_EQ(launch_layer_norm_gradients(ops::LayerNormGradients{}, nullptr), cudaSuccess);
  EXPECT_EQ(launch_rms_norm_gradients(ops::RmsNormGradients{}, nullptr), cudaSuccess);
  EXPECT_EQ(launch_gated_gradients(ops::GatedGradients{}, nullptr), cudaSuccess);
  EXPECT_EQ(launch_gelu(ops::GeluRows{}, nullptr), cudaSuccess);
  EXPECT_EQ(launch_gelu_gradients(ops::GeluGradients{}, nullptr), cudaSuccess);
  EXPECT_EQ(launch_quantise_lines(ops::QuantisedLines{}, nullptr), cudaSuccess);
  EXPECT_EQ(launch_rotate_rows(ops::RotatedRows{}, nullptr), cudaSuccess);
  EXPECT_EQ(launch_depthwise(ops::DepthwiseRows{}, nullptr), cudaSuccess);
  EXPECT_EQ(launch_depthwise_gradients(ops::DepthwiseGradients{}, nullptr), cudaSuccess);
  ops::DepthwiseRows five{};
  five.table.taps = 5, five.table.rows = 1;
  EXPECT_EQ(launch_depthwise(five, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace tessera::cuda
