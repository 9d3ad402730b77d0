// The work that autoencoders say encode() has, beside the operators that it calls.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tessera/job/codec.h"
#include "tessera/models/vae/dc_ae.h"
#include "tessera/models/vae/haar.h"
#include "tessera/models/vae/hunyuan.h"
#include "tessera/models/vae/opensora12.h"
#include "tessera/models/vae/opensora13.h"
#include "tessera/models/vae/wan.h"

namespace tessera::job {
namespace {

using at::Tensor;
using models::Parameter;
using models::Tiling;
namespace dc_ae = models::dc_ae;
namespace hunyuan_vae = models::hunyuan_vae;
namespace opensora12_vae = models::opensora12_vae;
namespace opensora13_vae = models::opensora13_vae;
namespace wan_vae = models::wan_vae;

double numbers(const Tensor& x) { return static_cast<double>(x.numel()); }

/// FLOPs of the operators that this thread calls, convolutions of single channels left out.
class OperatorFlops {
 public:
  OperatorFlops() {
    counts() = {};
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(began, ended)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~OperatorFlops() { at::removeCallback(handle_); }
  OperatorFlops(const OperatorFlops&) = delete;

  struct Counts {
    double products = 0, attention = 0;
    int filters = 0;
  };
  static Counts& counts() {
    static thread_local Counts all;
    return all;
  }

 private:
  /// A convolution that has begun: its inputs are there at the beginning alone, its result at the end.
  struct Convolution final : at::ObserverContext {
    double of_result = 0;  ///< FLOPs of each number of the result
  };
  static bool is(const at::RecordFunction& function, const char* name) {
    return std::strcmp(function.name(), name) == 0;
  }
  static std::unique_ptr<at::ObserverContext> began(const at::RecordFunction& function) {
    const auto inputs = function.inputs();
    const auto tensor = [&](size_t i) { return inputs[i].toTensor(); };
    if (is(function, "aten::mkldnn_convolution") || is(function, "aten::convolution")) {
      const Tensor kernel = tensor(1);
      if (kernel.size(1) == 1) return nullptr;
      auto convolution = std::make_unique<Convolution>();
      convolution->of_result = 2 * numbers(kernel) / static_cast<double>(kernel.size(0));
      return convolution;
    }
    if (is(function, "aten::linear")) {
      counts().products += 2 * numbers(tensor(0)) * static_cast<double>(tensor(1).size(0));
      ++counts().filters;
    }
    if (is(function, "aten::bmm"))
      counts().attention += 2 * numbers(tensor(0)) * static_cast<double>(tensor(1).size(2));
    if (is(function, "aten::scaled_dot_product_attention")) {
      const auto keys = static_cast<double>(tensor(1).size(-2));
      const bool causal = inputs[5].toBool();  // a query sees as many keys as there are up to its own, 1 to all of them
      counts().attention += 4 * numbers(tensor(0)) * (causal ? (keys + 1) / 2 : keys);
    }
    return nullptr;
  }
  static void ended(const at::RecordFunction& function, at::ObserverContext* context) {
    const auto* convolution = dynamic_cast<const Convolution*>(context);
    if (!convolution) return;
    counts().products += convolution->of_result * numbers(function.outputs()[0].toTensor());
    ++counts().filters;
  }

  at::CallbackHandle handle_;
};

models::ReadWeight values_of(const std::vector<Parameter>& parameters) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const Parameter& p : parameters) shapes[p.name] = p.shape;
  return [shapes](const std::string& name) { return at::full(shapes.at(name), 0.01, at::kFloat); };
}

/// `chunked`: convolutions may run on a part of the frames at a time.
void expect_work(const net::VideoCodec& vae, int64_t frames, int64_t height, int64_t width, bool chunked = false) {
  SCOPED_TRACE(std::to_string(frames) + " frames of " + std::to_string(height) + " x " + std::to_string(width));
  const plan::UnitWork said = codec_work(vae, frames, height, width);
  OperatorFlops::Counts seen;
  {
    const OperatorFlops count;
    vae.encode(at::zeros({3, frames, height, width}, at::kByte));
    seen = OperatorFlops::counts();
  }
  double products = 0, attention = 0;
  for (const double flops : said.products) products += flops;
  for (const auto& [site, flops] : said.attention) attention += flops;
  EXPECT_GT(seen.products, 0);
  EXPECT_DOUBLE_EQ(products, seen.products);
  EXPECT_DOUBLE_EQ(attention, seen.attention);
  if (!chunked) EXPECT_EQ(static_cast<int>(said.products.size()), seen.filters);
  EXPECT_GT(said.streamed, 20.0 * static_cast<double>(3 * frames * height * width)) << "maps are wider than pixels";
  EXPECT_GT(said.operators, 0);
}

class AutoencodersWork : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }  // small maps: threads would wait for each other
  void TearDown() override { at::set_num_threads(threads_); }
  const int threads_ = at::get_num_threads();
};

TEST_F(AutoencodersWork, OfDcAeIsThatOfItsOperators) {
  dc_ae::Config config;
  for (auto* stages : {&config.encoder, &config.decoder})
    for (dc_ae::Stage& stage : *stages) stage.width /= 4, stage.depth = 1;
  for (const int64_t tile : {0, 96}) {
    const dc_ae::DcAe vae(config, values_of(dc_ae::parameters(config)), {.size = tile, .overlap = tile / 3});
    expect_work(vae, 2, 32, 64);
    expect_work(vae, 1, 160, 96);  // attention over more cells than a head is wide, and less
  }
}

TEST_F(AutoencodersWork, OfWansIsThatOfTheirOperators) {
  for (wan_vae::Config config : {wan_vae::Config{}, wan_vae::wan22_config()}) {
    config.dim = config.decoder_dim = 16;
    for (const int64_t tile : {0, 32}) {
      const wan_vae::WanVae vae(config, values_of(wan_vae::parameters(config)), {.size = tile, .overlap = tile / 2});
      expect_work(vae, 1, 32, 32);
      expect_work(vae, 5, 48, 64);
    }
  }
}

TEST_F(AutoencodersWork, OfHunyuansIsThatOfItsOperators) {
  hunyuan_vae::Config config;
  config.widths = {32, 32, 32, 32};
  config.layers = 1;
  const Tiling tilings[] = {
      {}, {.size = 32, .overlap = 16}, {.size = 32, .overlap = 8, .frames = 8, .shared_frames = 4}};
  for (const Tiling& tiling : tilings) {
    const hunyuan_vae::HunyuanVae vae(config, values_of(hunyuan_vae::parameters(config)), tiling);
    expect_work(vae, 1, 32, 48);
    expect_work(vae, 13, 32, 48, true);
  }
}

TEST_F(AutoencodersWork, OfOpenSoraOnesIsThatOfTheirOperators) {
  opensora12_vae::Config first;
  first.widths = first.time_widths = {32, 32, 32, 32};
  first.time_first = 32;
  first.layers = first.time_layers = 1;
  opensora13_vae::Config second;
  second.first = 32, second.widths = second.decoder_widths = {32, 32, 32, 32};
  second.layers = second.decoder_layers = 1, second.piece = 9;
  for (const Tiling& tiling : {Tiling{}, Tiling{.size = 32, .overlap = 16}}) {
    const opensora12_vae::OpenSoraVae12 vae12(first, values_of(opensora12_vae::parameters(first)), tiling);
    const opensora13_vae::OpenSoraVae13 vae13(second, values_of(opensora13_vae::parameters(second)), tiling);
    expect_work(vae12, 1, 32, 48);
    expect_work(vae12, 21, 32, 48, true);
    expect_work(vae13, 1, 32, 48);
    expect_work(vae13, 13, 32, 48, true);
  }
}

TEST_F(AutoencodersWork, OfTheVideoDcAeIsThatOfItsOperators) {
  models::dc_ae_video::Config config;
  for (models::dc_ae_video::Stage& stage : config.stages)
    stage.width /= 8, stage.encoder_depth = stage.decoder_depth = 1;
  config.head_dim = 16;
  const Tiling tilings[] = {{}, {.size = 64, .overlap = 32, .frames = 12, .shared_frames = 4}};
  for (const Tiling& tiling : tilings) {
    const models::dc_ae_video::DcAeVideo vae(config, values_of(models::dc_ae_video::parameters(config)), tiling);
    expect_work(vae, 1, 32, 96, true);
    expect_work(vae, 16, 32, 96, true);
  }
}

TEST_F(AutoencodersWork, OfTheWaveletIsAProduct) {
  const models::Haar wavelet(48);
  const plan::UnitWork work = codec_work(wavelet, 16, 64, 96);
  EXPECT_EQ(work.products, std::vector<double>{2.0 * 3 * 16 * 64 * 96 * 48});
}

/// Of the releases, per pixel: Sana's compresses 32 times a side and is the least work.
TEST_F(AutoencodersWork, OfReleasesIsWhatTheirSizesSay) {
  const auto flops = [](const net::VideoCodec& vae, int64_t frames, int64_t side) {
    const std::vector<double> all = codec_work(vae, frames, side, side).products;
    return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(frames * side * side);
  };
  const dc_ae::DcAe sana({}, nullptr, {});
  const wan_vae::WanVae wan({}, nullptr, {});
  EXPECT_DOUBLE_EQ(flops(sana, 1, 1024), flops(sana, 1, 512)) << "linear in pixels";
  EXPECT_DOUBLE_EQ(flops(sana, 3, 512), flops(sana, 1, 512)) << "frame by frame";
  EXPECT_GT(flops(wan, 81, 512), flops(sana, 1, 512));
  EXPECT_GT(flops(wan, 1, 512), flops(wan, 81, 512)) << "the first frame is not halved in time";
}

}  // namespace
}  // namespace tessera::job
