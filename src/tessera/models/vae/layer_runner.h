#pragma once
// The weights of an autoencoder: looked up in a file, with errors that name file, tensor and shapes; read when they are
// needed first, and released again; hashed for cache keys.
//
//   const StoredWeights stored(source, {"encoder.conv_in.conv.weight"}, "official");
//   Config config = config_of_weights(stored.shapes(), source.file);
//   stored.expect(parameters(config), "Open-Sora 1.3's autoencoder");
//   WeightsOnDemand weights(parameters(config), stored.reader());
//   LayerRunner(weights).run(encoder, pixels);               // on the device of this rank
//   weights.release();
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/models/vae/file_sizes.h"
#include "tessera/net/plain_context.h"
#include "tessera/plan/simulate/work.h"

namespace tessera::models {

using at::Tensor;

/// The tensors of a file, whatever its format.
struct WeightSource {
  std::string file;  ///< for messages
  std::vector<std::string> names;
  std::function<std::vector<int64_t>(const std::string& name)> shape;
  std::function<Tensor(const std::string& name)> read;  ///< fp32, of that shape; the autoencoder keeps the function
};

inline constexpr uint64_t kHashStart = 0xCBF29CE484222325;
/// FNV-1a over 8 bytes at a time: half a gigabyte in a fraction of a second.
uint64_t hash_tensor(uint64_t hash, const at::Tensor& tensor);

struct Parameter {
  std::string name;  ///< by which the code calls it: official, or diffusers'
  std::vector<int64_t> shape;
};

/// The values of a parameter by its name, fp32.
using ReadWeight = std::function<at::Tensor(const std::string& name)>;

class WeightsOnDemand {
 public:
  WeightsOnDemand(std::vector<Parameter> parameters, ReadWeight read);

  /// On the device that the calling thread computes on; reads all where they are not there. One thread encodes.
  const net::WeightMap& loaded() const;
  const net::WeightMap& meta() const;  ///< shapes without values, to count a pass
  /// Those that a pass over `clip` needs.
  const net::WeightMap& of(const Tensor& clip) const { return clip.is_meta() ? meta() : loaded(); }
  int64_t bytes() const;
  /// Of all values, in the order of names, for cache keys. Reads one at a time where they are not loaded.
  uint64_t hash() const;
  void release() const { weights_.clear(); }

 private:
  const std::vector<Parameter> parameters_;
  const ReadWeight read_;
  mutable net::WeightMap weights_, meta_;  // empty until they are needed
};

bool has_tensor(const WeightSource& weights, const std::string& name);

/// Throws UserError (input) where it is missing, or with `hint` where it has another shape.
void expect_tensor(const WeightSource& weights, const std::string& name, const std::vector<int64_t>& shape,
                   const std::string& hint);

/// What stands for a released tensor where there is no file: factors of norms (one dimension that is not 1) are 1,
/// biases 0, others normal with a deviation of the inputs' number to the power of -1/2. The same in every process.
Tensor random_tensor(const std::string& name, const std::vector<int64_t>& shape);

/// Such tensors for all of these parameters.
ReadWeight random_weights(const std::vector<Parameter>& parameters);

/// The tensors of a file that calls them as the code does, or as diffusers does, behind a prefix that all share.
class StoredWeights {
 public:
  /// `marks` tell the prefix, and which names they are where `diffusers` has others. Throws UserError (input) where the
  /// file has none of them.
  StoredWeights(const WeightSource& source, const std::vector<std::string>& marks, const std::string& naming,
                const KeyMap& diffusers = {});

  /// What the file calls it.
  std::string full(const std::string& name) const { return prefix_ + to_foreign(map_, name); }
  ShapeOf shapes() const;  ///< while this lives
  /// Throws UserError (input) where one is missing or of another shape: these are not weights of `title`.
  void expect(const std::vector<Parameter>& parameters, const std::string& title) const;
  ReadWeight reader() const;  ///< for as long as it is kept

 private:
  const WeightSource& source_;
  std::string prefix_;
  KeyMap map_;  // empty: the code's own names
};

// Autoencoders as lists of layers. A layer lists its parameters and runs on a feature map; as it runs, it tells what its
// operators do. So a list gives a result; on meta tensors the bytes of its pass, those of oneDNN's convolutions on a CPU
// included; and its work.
//
//   std::vector<Layer> encoder = {conv({"encoder.conv_in.conv", 3, 128}), ...};
//   const WeightsOnDemand weights(parameters_of({encoder}), read);
//   Tensor moments = LayerRunner(weights).run(encoder, pixels);         // [3, F, H, W] -> [C, f, h, w]
//
// Feature maps are [T, H, W, C]: 1x1x1 convolutions are products of matrices, norms read neighbours in memory, and
// convolutions need no copy into another layout. Operands are freed as soon as they are read: at full size each of them
// has gigabytes.

/// What a pass does, added up operator by operator.
class PassWork {
 public:
  /// A convolution of any size, or a projection: the kernel [out, in of a group, ...] at each of `cells` cells of its
  /// result. One of single channels is no product.
  void filter(const Tensor& kernel, int64_t cells);
  /// Operators that read and write so many fp32 numbers in all.
  void stream(int64_t numbers, int operators = 1);
  /// x + y of so many numbers.
  void add(int64_t numbers) { stream(3 * numbers); }
  /// An operator that changes each of so many numbers.
  void change(int64_t numbers) { stream(2 * numbers); }
  void attention(double flops) { sum_.attention["vae"] += flops; }

  void append(const plan::UnitWork& more);
  const plan::UnitWork& sum() const { return sum_; }

 private:
  plan::UnitWork sum_;
};

/// A norm over groups of channels as one product and one sum for each channel, [C]; undefined: none.
struct Affine {
  Tensor scale, shift;
};

/// What a convolution reads: a feature map, normalised and activated (SiLU), or with its cells repeated.
struct MapInput {
  enum class Time { kept, doubled, doubled_after_first };
  const Tensor& map;  // [T, H, W, C]
  Affine norm = {};
  bool doubled = false;  ///< rows and columns
  Time time = Time::kept;
  /// Of a norm over the channels of each cell, the factor of each; undefined: another norm or none.
  Tensor channel_norm = {};

  int64_t frames() const;
  int64_t height() const { return map.size(1) * (doubled ? 2 : 1); }
  int64_t width() const { return map.size(2) * (doubled ? 2 : 1); }
  /// Writes frame `i` of them to `to` [H, W, C].
  void copy_frame(int64_t i, const Tensor& to) const;
};

/// What lies around a map: frames in front of and behind it, rows and columns before and after.
struct Border {
  int64_t front = 2, behind = 0, before = 1, after = 1;
  bool repeats = false;  ///< the nearest cell again (of one row and column at most); else zeros
};

struct ConvForm {
  Border border = {};
  int64_t time_stride = 1, stride = 1;  ///< of frames; of rows and columns
  int64_t groups = 1;
};

struct GroupNorm {
  int64_t groups;
  double eps;
};

inline constexpr int64_t kMapChunk = int64_t{8} << 20;  ///< numbers of the frames that a convolution makes at a time

/// The state of causal convolutions between the chunks of one clip: their last input frames [1 or 2, h, w, C], by site.
/// Chunks overwrite it in place, so it can be moved and not copied.
struct FeatureCache {
  std::map<std::string, Tensor, std::less<>> frames;
  int64_t chunks = 0;  ///< run so far

  FeatureCache() = default;
  FeatureCache(FeatureCache&&) = default;
  FeatureCache& operator=(FeatureCache&&) = default;
  int64_t bytes() const;
};

/// On the device that the calling thread computes on, or on meta as it is.
Tensor on_device(const Tensor& x);
/// Bytes as numbers in [-1, 1]; numbers as they are. fp32.
Tensor in_range(const Tensor& pixels);

class LayerRunner;

struct Layer {
  std::vector<Parameter> parameters;
  std::function<Tensor(LayerRunner& run, Tensor x)> apply;
};

std::vector<Parameter> parameters_of(std::initializer_list<std::vector<Layer>> lists);

/// Runs lists of layers over the clips, tiles or chunks of one encoding or decoding, and is what layers call.
class LayerRunner {
 public:
  /// `works`: it runs on meta tensors, for the work of all that it runs.
  explicit LayerRunner(const WeightsOnDemand& weights, bool works = false, int64_t chunk = kMapChunk)
      : all_weights_(weights), works_(works), chunk_(chunk) {}

  /// A clip [C, F, H, W], pixels (bytes, too) or latents in host memory or on the device -> [C of the last layer, ...] on
  /// the device. `cache`: it is a chunk of a clip.
  Tensor run(const std::vector<Layer>& layers, const Tensor& clip, FeatureCache* cache = nullptr);
  const plan::UnitWork& work() const { return whole_.sum(); }
  /// How many of frames that are alike have to be run: one where bytes are counted.
  int64_t alike(const Tensor& clip, int64_t frames) const { return clip.is_meta() && !works_ ? 1 : frames; }

  // What layers call.
  const Tensor& weight(const std::string& name) const;
  Tensor bias(const std::string& site) const;  ///< undefined where there is none
  PassWork& now() { return now_; }             ///< the work of this pass
  FeatureCache& cache() { return *cache_; }
  Tensor kept;  ///< by a layer, for a later one of the same pass

  /// A 1x1x1 convolution.
  Tensor linear(const std::string& site, const Tensor& x);
  /// Statistics over each group of channels in all frames; what reads the map applies and activates it.
  Affine norm(const GroupNorm& form, const std::string& site, const Tensor& x);
  /// A whole map at a time with zeros around it, by two sides a picture, by three a clip (each frame where the kernel
  /// has two).
  Tensor conv_whole(const std::string& site, const Tensor& x, at::IntArrayRef padding, at::IntArrayRef stride,
                    int64_t groups = 1);
  /// A chunk of frames at a time: what these read is normalised, enlarged and given its border, so that a pass needs the
  /// memory of two maps, or three where the channels change. `over`: a map of the result's shape that `in` reads, which
  /// becomes the result: the last frames are made first, and no later one reads them, so there is no border behind.
  Tensor conv(const std::string& site, const MapInput& in, const ConvForm& form = {}, const Tensor& over = {});
  /// y + x, or what a 1x1x1 convolution makes of x where `shortcut` names one, written over y.
  Tensor add_input(Tensor y, const Tensor& x, const std::string& shortcut);

 private:
  Tensor convolution(const Tensor& x, const Tensor& kernel, const Tensor& bias, at::IntArrayRef padding,
                     at::IntArrayRef stride, int64_t groups) const;
  Tensor chunk(const Tensor& kernel, const Tensor& bias, const MapInput& in, const ConvForm& form, int64_t begin,
               int64_t count) const;
  Tensor pass(const std::vector<Layer>& layers, const Tensor& clip);

  struct Known {
    plan::UnitWork work;
    std::vector<int64_t> sizes;  // of the result
  };

  const WeightsOnDemand& all_weights_;
  const net::WeightMap* weights_ = nullptr;  // of this pass
  const bool works_;
  const int64_t chunk_;
  FeatureCache* cache_ = nullptr;
  PassWork now_, whole_;
  std::map<std::pair<const void*, std::vector<int64_t>>, Known> known_;  // passes over clips of the same sizes
};

/// A kernel [out, in, sides ...] and its bias; `in` of a group.
struct Kernel {
  std::string site;
  int64_t in, out;
  std::vector<int64_t> sides = {3, 3, 3};
  bool biased = true;
};

/// The parameters of a layer, listed one after the other.
struct ParameterList {
  std::vector<Parameter> all;
  ParameterList& one(const std::string& name, std::vector<int64_t> shape);
  ParameterList& kernel(const Kernel& kernel);
  ParameterList& norm(const std::string& site, int64_t channels);  ///< weight and bias
};

/// Mixes values [1, 1, T * H * W, C] of frames of so many cells into `to`, which has their shape; returns of how many
/// pairs of cells.
using Mix = double (*)(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& to, int64_t cells);

// Layers that autoencoders with norms over groups of channels share.
Layer conv(const Kernel& kernel, const ConvForm& form = {});
Layer pointwise(const Kernel& kernel);  ///< 1x1x1
/// Cells are repeated, then conv.
Layer enlarged(const Kernel& kernel, const ConvForm& form, MapInput::Time time = MapInput::Time::kept);
/// Norm, SiLU, conv.
Layer head(const GroupNorm& form, const std::string& norm, const Kernel& kernel, const ConvForm& conv = {});
/// Norm, SiLU, conv, norm, SiLU, conv, added to the input, which goes through the shortcut where the channels change.
Layer residual(const GroupNorm& form, const std::string& norm1, const Kernel& conv1, const std::string& norm2,
               const Kernel& conv2, const Kernel& shortcut, const ConvForm& conv = {});
/// Over the cells of a frame and of those before it.
double mix_seen(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mixed, int64_t cells);
/// x / |x| times `factor`, of the channels of each cell.
Tensor channel_normed(const Tensor& x, const Tensor& factor);

/// Norm, one head, added to the input; `sites` of q, k, v and the result's projection, whose kernels have these sides.
Layer attention(const GroupNorm& form, const std::string& norm, const std::array<std::string, 4>& sites,
                int64_t channels, const std::vector<int64_t>& sides, Mix mix);
/// The same behind another norm, which `normed` applies.
Layer attention(ParameterList norm, const std::function<Tensor(LayerRunner& run, const Tensor& x)>& normed,
                const std::array<std::string, 4>& sites, int64_t channels, const std::vector<int64_t>& sides, Mix mix);

}  // namespace tessera::models
