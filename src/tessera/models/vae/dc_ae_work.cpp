#include "tessera/base/check.h"
#include "tessera/models/vae/dc_ae_pass.h"

namespace tessera::models::dc_ae {

using Kind = Layer::Kind;

namespace {

/// A norm that reads its map for the length, and changes it three times.
void norm(int64_t numbers, PassWork& work) { work.stream(7 * numbers, 4); }

void attention(const std::string& name, int64_t head_dim, int64_t cells, int64_t channels, PassWork& work) {
  const int64_t heads = 2 * channels / head_dim, all = cells * channels;  // of two scales
  for (const char* site : {".to_q", ".to_k", ".to_v"}) work.filter(name + site, cells);
  work.change(3 * all);  // joined
  work.filter(name + ".to_qkv_multiscale.0.proj_in", cells);
  work.filter(name + ".to_qkv_multiscale.0.proj_out", cells);
  work.change(6 * all);
  work.stream(8 * all, 2);  // queries and keys, not below 0
  const auto n = static_cast<double>(cells), d = static_cast<double>(head_dim), h = static_cast<double>(heads);
  work.attention(cells > head_dim ? h * n * d * (4 * d + 2) : h * n * n * 4 * d);
  work.filter(name + ".to_out", cells);
  norm(all, work);
  work.add(all);
}

void gated_conv(const std::string& name, int64_t cells, int64_t channels, PassWork& work) {
  const int64_t all = cells * channels;
  work.filter(name + ".conv_inverted", cells);
  work.change(8 * all);
  work.filter(name + ".conv_depth", cells);
  work.change(4 * all), work.add(4 * all);  // a half, activated, times the other
  work.filter(name + ".conv_point", cells);
  norm(all, work);
  work.add(all);
}

}  // namespace

void add_work(const std::vector<Layer>& encoder, int64_t head_dim, int64_t height, int64_t width, PassWork& work) {
  int64_t cells = height * width;
  for (const auto& [kind, name, in, out] : encoder) {
    switch (kind) {
      case Kind::conv:
        work.filter(name, cells);
        break;
      case Kind::residual:
        work.filter(name + ".conv1", cells);
        work.change(cells * out);
        work.filter(name + ".conv2", cells);
        norm(cells * out, work);
        work.add(cells * out);
        break;
      case Kind::attention:
        attention(name + ".attn", head_dim, cells, in, work);
        gated_conv(name + ".conv_out", cells, in, work);
        break;
      case Kind::down:
        work.stream(cells * in + cells / 4 * out);  // the pixels' mean
        cells /= 4;
        work.filter(name + ".conv", cells);
        work.add(cells * out);
        break;
      case Kind::squeeze:
        work.filter(name, cells);
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

}  // namespace tessera::models::dc_ae
