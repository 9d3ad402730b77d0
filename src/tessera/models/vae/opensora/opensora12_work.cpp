#include "tessera/base/check.h"
#include "tessera/models/vae/opensora/opensora12_pass.h"

namespace tessera::models::opensora12_vae {

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
      case Kind::pointwise:
        work.filter(name, t * h * w);
        break;
      case Kind::residual: {
        const bool time = name.find("res_blocks.") != name.npos;
        const std::string suffix = time ? ".conv" : "";
        norm(in);
        conv(name + ".conv1" + suffix, in);
        norm(out);
        conv(name + ".conv2" + suffix, out);
        if (in != out) work.filter(name + (time ? ".conv3.conv" : ".conv_shortcut"), t * h * w);
        work.add(t * h * w * out);
        break;
      }
      case Kind::attention: {
        const auto cells = static_cast<double>(h * w), pairs = cells * cells * static_cast<double>(t);
        norm(in);
        for (const char* site : {".to_q", ".to_k", ".to_v", ".to_out.0"}) work.filter(name + site, t * h * w);
        work.attention(4 * pairs * static_cast<double>(in));
        work.add(t * h * w * in);
        break;
      }
      case Kind::down:
        work.change(t * h * w * in);
        h /= 2, w /= 2;
        work.filter(name, t * h * w);
        break;
      case Kind::shrink:
        work.change(t * h * w * in);
        t /= 2;
        work.filter(name, t * h * w);
        break;
      case Kind::head:
      case Kind::point_head:
        norm(in);
        conv(name, in);
        break;
      case Kind::up:
      case Kind::stretch:
        check_internal(false, "models.vae", "a layer of the decoder: " + name);
    }
  }
}

}  // namespace tessera::models::opensora12_vae
