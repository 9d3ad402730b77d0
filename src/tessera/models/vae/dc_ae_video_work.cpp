#include "tessera/base/check.h"
#include "tessera/models/vae/dc_ae_video_pass.h"

namespace tessera::models::dc_ae_video {

using Kind = Layer::Kind;

namespace {

/// A norm that reads its map for the length, and changes it three times.
void norm(int64_t numbers, PassWork& work) { work.stream(7 * numbers, 4); }

/// A convolution whose input is read into a map with a border.
void conv(const std::string& site, int64_t cells, int64_t channels, PassWork& work) {
  work.change(cells * channels);
  work.filter(site, cells);
}

void attention(const std::string& name, int64_t head_dim, int64_t cells, int64_t channels, PassWork& work) {
  const int64_t all = cells * channels;
  work.filter(name + ".qkv.conv", cells);
  conv(name + ".aggreg.0.0", cells, 3 * channels, work);
  conv(name + ".aggreg.0.1", cells, 3 * channels, work);
  work.change(6 * all);     // joined
  work.stream(8 * all, 2);  // queries and keys, not below 0
  const auto n = static_cast<double>(cells), d = static_cast<double>(head_dim);
  work.attention(static_cast<double>(2 * channels) * n * (4 * d + 2));  // of two scales
  work.filter(name + ".proj.conv", cells);
  norm(all, work);
  work.add(all);
}

void gated_conv(const std::string& name, int64_t cells, int64_t channels, PassWork& work) {
  const int64_t all = cells * channels;
  work.filter(name + ".inverted_conv.conv", cells);
  work.change(8 * all);
  conv(name + ".depth_conv.conv", cells, 8 * channels, work);
  work.change(4 * all), work.add(4 * all);  // a half, activated, times the other
  work.filter(name + ".point_conv.conv", cells);
  norm(all, work);
  work.add(all);
}

}  // namespace

void add_work(const std::vector<Layer>& encoder, int64_t head_dim, int64_t frames, int64_t height, int64_t width,
              PassWork& work) {
  int64_t t = frames, cells = frames * height * width;
  for (const auto& [kind, name, in, out, temporal] : encoder) {
    switch (kind) {
      case Kind::conv:
        conv(name, cells, in, work);
        break;
      case Kind::residual:
        conv(name + ".main.conv1.conv", cells, in, work);
        work.change(cells * out);
        conv(name + ".main.conv2.conv", cells, out, work);
        norm(cells * out, work);
        work.add(cells * out);
        break;
      case Kind::attention:
        attention(name + ".context_module.main", head_dim, cells, in, work);
        gated_conv(name + ".local_module.main", cells, in, work);
        break;
      case Kind::down: {
        const int64_t step = temporal && t > 1 ? 2 : 1;
        work.change(cells * in);
        work.change(cells * in);  // blocks, whose mean is added
        t /= step, cells /= 4 * step;
        work.filter(name, cells);
        work.add(cells * out);
        break;
      }
      case Kind::squeeze:
        conv(name, cells, in, work);
        work.stream(cells * (in + out));
        work.add(cells * out);
        break;
      case Kind::up:
      case Kind::widen:
      case Kind::head:
        check_internal(false, "models.vae", "a layer of the decoder: " + name);
    }
  }
}

}  // namespace tessera::models::dc_ae_video
