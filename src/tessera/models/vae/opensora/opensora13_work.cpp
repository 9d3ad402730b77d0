#include "tessera/base/check.h"
#include "tessera/models/vae/opensora/opensora13_pass.h"

namespace tessera::models::opensora13_vae {

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
  for (const auto& [kind, name, in, out, norm_name] : encoder) {
    switch (kind) {
      case Kind::conv:
        conv(name, in);
        break;
      case Kind::residual:
        norm(in);
        conv(name + ".conv1.conv", in);
        norm(out);
        conv(name + ".conv2.conv", out);
        if (in != out) work.filter(name + ".nin_shortcut.conv", t * h * w);
        work.add(t * h * w * out);
        break;
      case Kind::attention: {
        const auto cells = static_cast<double>(t * h * w);
        norm(in);
        for (const char* site : {".q.conv", ".k.conv", ".v.conv", ".proj_out.conv"})
          work.filter(name + site, t * h * w);
        work.attention(2 * cells * (cells + 1) * static_cast<double>(in));
        work.add(t * h * w * in);
        break;
      }
      case Kind::down:
      case Kind::down_time:
        work.change(t * h * w * in);
        if (kind == Kind::down_time) t = (t - 1) / 2 + 1;
        h /= 2, w /= 2;
        work.filter(name, t * h * w);
        break;
      case Kind::head:
        norm(in);
        conv(name, in);
        break;
      case Kind::up:
      case Kind::up_time:
        check_internal(false, "models.vae", "a layer of the decoder: " + name);
    }
  }
}

}  // namespace tessera::models::opensora13_vae
