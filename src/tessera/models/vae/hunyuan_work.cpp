#include "tessera/base/check.h"
#include "tessera/models/vae/hunyuan_pass.h"

namespace tessera::models::hunyuan_vae {

using Kind = Layer::Kind;

void add_work(const std::vector<Layer>& encoder, int64_t frames, int64_t height, int64_t width, PassWork& work) {
  int64_t t = frames, h = height, w = width;
  const auto conv = [&](const std::string& site, int64_t channels) {
    work.change(t * h * w * channels);  // read into a map with a border
    work.filter(site, t * h * w);
  };
  const auto norm = [&](int64_t channels) {  // statistics; applied and activated as the convolution reads
    work.stream(t * h * w * channels);
    work.stream(4 * t * h * w * channels, 2);
  };
  for (const auto& [kind, name, in, out, temporal] : encoder) {
    switch (kind) {
      case Kind::conv:
        conv(name + ".conv", in);
        break;
      case Kind::pointwise:
        work.filter(name, t * h * w);
        break;
      case Kind::residual:
        norm(in);
        conv(name + ".conv1.conv", in);
        norm(out);
        conv(name + ".conv2.conv", out);
        if (in != out) work.filter(name + ".conv_shortcut.conv", t * h * w);
        work.add(t * h * w * out);
        break;
      case Kind::attention: {
        const auto cells = static_cast<double>(h * w), pairs = cells * cells * static_cast<double>(t * (t + 1) / 2);
        norm(in);
        for (const char* site : {".to_q", ".to_k", ".to_v", ".to_out.0"}) work.filter(name + site, t * h * w);
        work.attention(4 * pairs * static_cast<double>(in));
        work.add(t * h * w * in);
        break;
      }
      case Kind::down:
        work.change(t * h * w * in);
        if (temporal) t = (t - 1) / 2 + 1;
        h /= 2, w /= 2;
        work.filter(name + ".conv", t * h * w);
        break;
      case Kind::head:
        norm(in);
        conv(name + ".conv_out.conv", in);
        break;
      case Kind::up:
        check_internal(false, "models.vae", "a layer of the decoder: " + name);
    }
  }
}

}  // namespace tessera::models::hunyuan_vae
