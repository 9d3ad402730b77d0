#include "tessera/base/check.h"
#include "tessera/models/vae/opensora12_pass.h"

namespace tessera::models::opensora12_vae {

using Kind = Layer::Kind;

void add_work(const std::vector<Layer>& encoder, int64_t frames, int64_t height, int64_t width, PassWork& work) {
  MapWork map{work, frames, height, width};
  int64_t &t = map.frames, &h = map.height, &w = map.width;
  for (const auto& [kind, name, in, out, norm_name] : encoder) {
    switch (kind) {
      case Kind::conv:
        map.conv(name, in);
        break;
      case Kind::pointwise:
        work.filter(name, map.cells());
        break;
      case Kind::residual: {
        const bool time = name.find("res_blocks.") != name.npos;
        const std::string suffix = time ? ".conv" : "";
        map.residual(name + ".conv1" + suffix, name + ".conv2" + suffix,
                     name + (time ? ".conv3.conv" : ".conv_shortcut"), in, out);
        break;
      }
      case Kind::attention: {
        const auto cells = static_cast<double>(h * w), pairs = cells * cells * static_cast<double>(t);
        map.attention({name + ".to_q", name + ".to_k", name + ".to_v", name + ".to_out.0"}, pairs, in);
        break;
      }
      case Kind::down:
        work.change(map.cells() * in);
        h /= 2, w /= 2;
        work.filter(name, map.cells());
        break;
      case Kind::shrink:
        work.change(map.cells() * in);
        t /= 2;
        work.filter(name, map.cells());
        break;
      case Kind::head:
      case Kind::point_head:
        map.norm(in);
        map.conv(name, in);
        break;
      case Kind::up:
      case Kind::stretch:
        check_internal(false, "models.vae", "a layer of the decoder: " + name);
    }
  }
}

}  // namespace tessera::models::opensora12_vae
