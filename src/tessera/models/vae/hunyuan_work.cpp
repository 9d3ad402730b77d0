#include "tessera/base/check.h"
#include "tessera/models/vae/hunyuan_pass.h"

namespace tessera::models::hunyuan_vae {

using Kind = Layer::Kind;

void add_work(const std::vector<Layer>& encoder, int64_t frames, int64_t height, int64_t width, PassWork& work) {
  MapWork map{work, frames, height, width};
  int64_t &t = map.frames, &h = map.height, &w = map.width;
  for (const auto& [kind, name, in, out, temporal] : encoder) {
    switch (kind) {
      case Kind::conv:
        map.conv(name + ".conv", in);
        break;
      case Kind::pointwise:
        work.filter(name, map.cells());
        break;
      case Kind::residual:
        map.residual(name + ".conv1.conv", name + ".conv2.conv", name + ".conv_shortcut.conv", in, out);
        break;
      case Kind::attention: {
        const auto cells = static_cast<double>(h * w), pairs = cells * cells * static_cast<double>(t * (t + 1) / 2);
        map.attention({name + ".to_q", name + ".to_k", name + ".to_v", name + ".to_out.0"}, pairs, in);
        break;
      }
      case Kind::down:
        work.change(map.cells() * in);
        if (temporal) t = (t - 1) / 2 + 1;
        h /= 2, w /= 2;
        work.filter(name + ".conv", map.cells());
        break;
      case Kind::head:
        map.norm(in);
        map.conv(name + ".conv_out.conv", in);
        break;
      case Kind::up:
        check_internal(false, "models.vae", "a layer of the decoder: " + name);
    }
  }
}

}  // namespace tessera::models::hunyuan_vae
