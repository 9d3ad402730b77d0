#include "tessera/optim/adamw.h"

#include <gtest/gtest.h>

#include "tessera/base/random.h"
#include "tessera/device/backend.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/blockwise.h"

namespace tessera::optim {
namespace {

using plan::Masters;
using plan::Moments;

/// One tensor's masters and states in buffers of their own, updated in slices as ranks would hold them.
class Tensor {
 public:
  Tensor(AdamWOptions options, int64_t count) : adamw_(options), count_(count), specs_(adamw_.states({"w", {count}})) {
    const at::Tensor start = at::linspace(-2, 2, count);
    param_.resize(count * plan::master_bytes(options.format.masters));
    for (const auto& spec : specs_) states_.emplace_back(spec.values(0, count) * size_of(spec.type));
    if (options.format.masters == Masters::fp32)
      std::memcpy(param_.data(), start.const_data_ptr<float>(), param_.size());
    else
      ops::to_bf16(reinterpret_cast<uint16_t*>(param_.data()), start.const_data_ptr<float>(), count);
  }

  void step(int64_t step, const std::vector<int64_t>& cuts) {
    this->step(step, cuts, at::sin(at::arange(count_).to(at::kFloat) * static_cast<double>(step)));
  }
  void step(int64_t step, const std::vector<int64_t>& cuts, const at::Tensor& grad) {
    for (size_t c = 0; c + 1 < cuts.size(); ++c) {
      net::Slice slice;
      slice.tensor = hash_text("w");
      slice.numel = count_;
      slice.begin = cuts[c], slice.end = cuts[c + 1];
      slice.param = param_.data() + slice.begin * static_cast<int64_t>(param_.size()) / count_;
      slice.grad = grad.const_data_ptr<float>() + slice.begin;
      slice.specs = &specs_;
      for (size_t s = 0; s < specs_.size(); ++s)
        slice.states.push_back(states_[s].data() + specs_[s].values(0, slice.begin) * size_of(specs_[s].type));
      adamw_.update(slice, {step, 1e-2, 1.0});
    }
  }

  const std::vector<uint8_t>& param() const { return param_; }
  const std::vector<std::vector<uint8_t>>& states() const { return states_; }

 private:
  AdamW adamw_;
  int64_t count_;
  std::vector<plan::StateSpec> specs_;
  std::vector<uint8_t> param_;
  std::vector<std::vector<uint8_t>> states_;
};

class AdamWFormats : public ::testing::TestWithParam<plan::StateFormat> {};

TEST_P(AdamWFormats, GiveTheSameBitsHoweverTheTensorIsCut) {
  Tensor whole({.format = GetParam(), .seed = 3}, 5000), cut({.format = GetParam(), .seed = 3}, 5000);
  for (int64_t step = 1; step <= 5; ++step) {
    whole.step(step, {0, 5000});
    cut.step(step, {0, 256, 2048, 4864, 5000});
  }
  EXPECT_EQ(whole.param(), cut.param());
  EXPECT_EQ(whole.states(), cut.states());
}

INSTANTIATE_TEST_SUITE_P(, AdamWFormats, ::testing::ValuesIn([] {
                           std::vector<plan::StateFormat> all;
                           for (Masters masters : {Masters::fp32, Masters::split, Masters::bf16})
                             for (Moments moments : {Moments::fp32, Moments::bf16, Moments::int8})
                               all.push_back({masters, moments});
                           return all;
                         }()),
                         [](const auto& info) {
                           return "masters_" + std::string(name(info.param.masters)) + "_moments_" +
                                  std::string(name(info.param.moments));
                         });

TEST(AdamWRounding, DependsOnSeedAndStep) {
  const plan::StateFormat format{Masters::bf16, Moments::fp32};
  Tensor one({.format = format, .seed = 1}, 1000), same({.format = format, .seed = 1}, 1000);
  Tensor other({.format = format, .seed = 2}, 1000);
  for (Tensor* t : {&one, &same, &other}) t->step(1, {0, 1000});
  EXPECT_EQ(one.param(), same.param());
  EXPECT_NE(one.param(), other.param());
}

// As bitsandbytes stores them: a small negative value beside a large one becomes the code below 0, not 0 itself.
TEST(AdamWMoments, OfEightBitsKeepTheirSignWhereThatIsAskedFor) {
  const int64_t count = plan::kLeastQuantised;
  const at::Tensor grad = at::full({count}, -1e-9, at::kFloat);
  for (int64_t i = 0; i < count; i += ops::kQuantBlock) grad[i] = 1;
  const at::Tensor moment = grad * 0.25;
  const ops::DynamicMap& map = ops::DynamicMap::with_sign();
  std::vector<uint8_t> of[2];
  for (const bool keep : {false, true}) {
    const plan::StateFormat format{Masters::fp32, Moments::int8};
    Tensor tensor({.betas = {0.75, 0.5}, .format = format, .keep_sign = keep}, count);
    tensor.step(1, {0, count}, grad);
    of[keep].resize(static_cast<size_t>(count));
    float scale = 0;
    for (int64_t i = 0; i < count; i += ops::kQuantBlock)
      map.quantise(&of[keep][static_cast<size_t>(i)], &scale, moment.const_data_ptr<float>() + i, ops::kQuantBlock,
                   keep);
    const auto& states = tensor.states();
    EXPECT_NE(std::ranges::find(states, of[keep]), states.end()) << keep;
  }
  EXPECT_NE(of[0], of[1]);
}

// Of a device: its table is given the numbers of the step, and the gradient in the type that it is stored in.
TEST(AdamWOfADevice, GetsGradientsInTheTypeThatTheyAreStoredIn) {
  struct Given {
    ops::GradientRange gradient;
    ops::AdamWStep step;
  };
  static Given given;
  const auto in_a_process_of_its_own = [] {  // which table is used holds for all of a process
    static device::Backend table = {};
    table.place = [](int) {};
    table.adamw = [](const ops::MasterRange&, const ops::MomentRange&, const ops::MomentRange&,
                     const ops::GradientRange& gradient, int64_t, const ops::AdamWStep& step) {
      given = {gradient, step};
    };
    device::use(table, 0);
    const AdamW adamw({.betas = {0.7, 0.8}, .eps = 0.3, .weight_decay = 0.2, .decay_last = true, .keep_sign = true});
    const plan::ParamSpec spec{"w", {4}};
    const auto specs = adamw.states(spec);
    float values[3][4] = {};
    net::Slice slice;
    slice.spec = &spec, slice.numel = slice.end = 4, slice.on_device = true, slice.specs = &specs;
    slice.param = values[0], slice.states = {values[1], values[2]};
    const uint16_t half[4] = {};
    slice.half_grad = half;
    bool right = true;
    for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
      slice.half_type = type;
      adamw.update(slice, {3, 0.5, 0.25});
      right = right && (type == at::kHalf ? given.gradient.fp16 : given.gradient.bf16) == half &&
              (type == at::kHalf ? given.gradient.bf16 : given.gradient.fp16) == nullptr;
    }
    const ops::AdamWStep& s = given.step;
    right = right && s.step == 3 && s.lr == 0.5 && s.grad_scale == 0.25 && s.beta1 == 0.7 && s.beta2 == 0.8 &&
            s.eps == 0.3 && s.weight_decay == 0.2 && s.decay_last && s.keep_sign;
    std::_Exit(right ? 0 : 1);
  };
  EXPECT_EXIT(in_a_process_of_its_own(), ::testing::ExitedWithCode(0), "");
}

TEST(ClipCoefficient, IsOneUnderTheBoundAndWithoutOne) {
  EXPECT_EQ(clip_coefficient(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_coefficient(1e-6, 100), 1.0) << "nothing is scaled up to it";
  EXPECT_EQ(clip_coefficient(100, 0), 1.0);
  EXPECT_NEAR(clip_coefficient(4, 1.0), 0.25, 1e-6);
}

}  // namespace
}  // namespace tessera::optim
