#include "tessera/base/check.h"
#include "tessera/models/vae/opensora13_pass.h"

namespace tessera::models::opensora13_vae {

using Kind = Layer::Kind;

void add_work(const std::vector<Layer>& encoder, int64_t frames, int64_t height, int64_t width, PassWork& work) {
  MapWork map{work, frames, height, width};
  for (const auto& [kind, name, in, out, norm_name] : encoder) {
    switch (kind) {
      case Kind::conv:
        map.conv(name, in);
        break;
      case Kind::residual:
        map.residual(name + ".conv1.conv", name + ".conv2.conv", name + ".nin_shortcut.conv", in, out);
        break;
      case Kind::attention: {  // each cell sees itself and those before it
        const auto cells = static_cast<double>(map.cells());
        map.attention({name + ".q.conv", name + ".k.conv", name + ".v.conv", name + ".proj_out.conv"},
                      cells * (cells + 1) / 2, in);
        break;
      }
      case Kind::down:
      case Kind::down_time:
        work.change(map.cells() * in);
        if (kind == Kind::down_time) map.frames = (map.frames - 1) / 2 + 1;
        for (int64_t* side : {&map.height, &map.width}) *side = (*side + (kind == Kind::down_time ? 1 : 0)) / 2;
        work.filter(name, map.cells());
        break;
      case Kind::head:
        map.norm(in);
        map.conv(name, in);
        break;
      case Kind::up:
      case Kind::up_time:
        check_internal(false, "models.vae", "a layer of the decoder: " + name);
    }
  }
}

}  // namespace tessera::models::opensora13_vae
