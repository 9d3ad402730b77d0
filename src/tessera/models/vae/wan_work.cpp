#include "tessera/base/check.h"
#include "tessera/models/vae/wan_pass.h"

namespace tessera::models::wan_vae {

using Kind = Layer::Kind;

namespace {

/// The pass over a chunk of `t` frames, which halves the sides of its maps as it goes.
class Chunk {
 public:
  Chunk(bool first, int64_t t, int64_t h, int64_t w, PassWork& work)
      : work_(work), first_(first), t_(t), h_(h), w_(w) {}

  void apply(const Layer& layer) {
    const auto& [kind, name, in, out, temporal, scale] = layer;
    switch (kind) {
      case Kind::patchify:
        work_.change(numbers(in));
        h_ /= scale, w_ /= scale;
        return;
      case Kind::conv:
        return causal(name, in);
      case Kind::pointwise:
        return work_.filter(name, cells());
      case Kind::residual:
        norm_silu(in);
        causal(name + ".residual.2", in);
        norm_silu(out);
        causal(name + ".residual.6", out);
        if (in != out) work_.filter(name + ".shortcut", cells());
        return work_.add(numbers(out));
      case Kind::attention:
        return attention(name, in);
      case Kind::down:
        return down(layer);
      case Kind::head:
        norm_silu(in);
        return causal(name + ".2", in);
      case Kind::average:
        if (scale > 1 || temporal || in != out) work_.change(numbers(in));
        return;
      case Kind::join:
        return work_.add(numbers(out));
      case Kind::up:
      case Kind::unpatchify:
      case Kind::keep:
      case Kind::repeat:
        check_internal(false, "models.vae", "a layer of the decoder: " + name);
    }
  }

 private:
  int64_t cells() const { return t_ * h_ * w_; }
  int64_t numbers(int64_t channels) const { return cells() * channels; }

  void norm(int64_t channels) { work_.stream(5 * numbers(channels), 3); }
  void norm_silu(int64_t channels) {
    norm(channels);
    work_.change(numbers(channels));
  }
  /// The frames before it are put in front.
  void causal(const std::string& site, int64_t channels) {
    work_.change((t_ + 2) * h_ * w_ * channels);
    work_.filter(site, cells());
  }
  void attention(const std::string& name, int64_t channels) {
    norm(channels);
    work_.filter(name + ".to_qkv", cells());
    work_.attention(4.0 * static_cast<double>(numbers(channels)) * static_cast<double>(h_ * w_));
    work_.filter(name + ".proj", cells());
    work_.add(numbers(channels));
  }
  void down(const Layer& layer) {
    work_.change(numbers(layer.in));  // a row and a column of zeros beside it
    h_ /= 2, w_ /= 2;
    work_.filter(layer.name + ".resample.1", cells());
    if (!layer.temporal) return;
    work_.change(numbers(layer.out));  // the frames that the next chunk sees
    if (first_) return;
    t_ /= 2;
    work_.filter(layer.name + ".time_conv", cells());
  }

  PassWork& work_;
  const bool first_;
  int64_t t_, h_, w_;
};

}  // namespace

void add_work(const std::vector<Layer>& encoder, int64_t time_stride, int64_t frames, int64_t height, int64_t width,
              PassWork& work) {
  for (int64_t begin = 0; begin < frames; begin += begin == 0 ? 1 : time_stride) {
    Chunk chunk(begin == 0, begin == 0 ? 1 : time_stride, height, width, work);
    for (const Layer& layer : encoder) chunk.apply(layer);
  }
}

}  // namespace tessera::models::wan_vae
