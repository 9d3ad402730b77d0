#include "tessera/models/vae/layer_runner.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/models/common/initial.h"
#include "tessera/ops/convolution.h"

namespace tessera::models {

uint64_t hash_tensor(uint64_t hash, const Tensor& tensor) {
  const Tensor dense = tensor.cpu().contiguous();
  const auto* bytes = static_cast<const char*>(dense.const_data_ptr());
  const size_t count = dense.nbytes();
  for (size_t i = 0; i < count; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min<size_t>(8, count - i));
    hash = (hash ^ word) * 0x100000001B3;
    hash ^= hash >> 29;  // a product alone never carries high bits into low ones
  }
  return hash;
}

WeightsOnDemand::WeightsOnDemand(std::vector<Parameter> parameters, ReadWeight read)
    : parameters_(std::move(parameters)), read_(std::move(read)) {}

const net::WeightMap& WeightsOnDemand::loaded() const {
  if (!weights_.empty() && weights_.begin()->second.device() != device::here()) weights_.clear();
  if (weights_.empty())
    for (const Parameter& p : parameters_) weights_.emplace(p.name, read_(p.name).to(device::here()));
  return weights_;
}

const net::WeightMap& WeightsOnDemand::meta() const {
  if (meta_.empty())
    for (const Parameter& p : parameters_)
      meta_.emplace(p.name, at::empty(p.shape, at::TensorOptions(at::kFloat).device(at::kMeta)));
  return meta_;
}

int64_t WeightsOnDemand::bytes() const {
  int64_t numel = 0;
  for (const Parameter& p : parameters_) numel += c10::multiply_integers(p.shape);
  return numel * static_cast<int64_t>(sizeof(float));
}

uint64_t WeightsOnDemand::hash() const {
  std::vector<std::string> names;
  for (const Parameter& p : parameters_) names.push_back(p.name);
  std::ranges::sort(names);  // an order that does not depend on the version of this code
  uint64_t hash = kHashStart;
  for (const std::string& name : names)  // one at a time: the hash does not need all of them in memory
    hash = hash_tensor(hash, weights_.empty() ? read_(name) : weights_.find(name)->second);
  return hash;
}

namespace {

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

}  // namespace

bool has_tensor(const WeightSource& weights, const std::string& name) {
  return std::ranges::find(weights.names, name) != weights.names.end();
}

void expect_tensor(const WeightSource& weights, const std::string& name, const std::vector<int64_t>& shape,
                   const std::string& hint) {
  const std::string tensor = weights.file + ": tensor '" + name + "' ";
  check_input(has_tensor(weights, name), "models.vae", tensor + "is missing",
              "fetch the file again, or give a whole one");
  const std::vector<int64_t> found = weights.shape(name);
  check_input(found == shape, "models.vae", tensor + "has shape " + text_of(found) + ", expected " + text_of(shape),
              hint);
}

Tensor random_tensor(const std::string& name, const std::vector<int64_t>& shape) {
  constexpr uint64_t kSeed = 0;
  Tensor value = at::empty(shape, at::kFloat);
  const int64_t rows = shape.empty() ? 1 : shape[0];
  const int64_t inputs = rows > 0 ? value.numel() / rows : 0;
  const Initial initial = name.ends_with(".bias") ? Initial::constant(0)
                          : inputs <= 1           ? Initial::constant(1)
                                                  : Initial::normal(1 / std::sqrt(static_cast<double>(inputs)));
  draw_initial(initial, kSeed, name, 0, value.numel(), value.mutable_data_ptr<float>());
  return value;
}

ReadWeight random_weights(const std::vector<Parameter>& parameters) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const Parameter& parameter : parameters) shapes[parameter.name] = parameter.shape;
  return [shapes = std::move(shapes)](const std::string& name) { return random_tensor(name, shapes.at(name)); };
}

StoredWeights::StoredWeights(const WeightSource& source, const std::vector<std::string>& marks,
                             const std::string& naming, const KeyMap& diffusers)
    : source_(source) {
  const auto foreign = [&](const std::string& name, const std::string& to) {
    return to == naming ? name : to_foreign(diffusers, name);
  };
  std::vector<std::string> namings = {naming};
  if (!diffusers.empty()) namings.push_back("diffusers");
  const Naming found = detect_naming(marks, foreign, namings, source.names, source.file);
  prefix_ = found.prefix;
  if (found.naming != naming) map_ = diffusers;
}

ShapeOf StoredWeights::shapes() const {
  return [this](const std::string& name) {
    return has_tensor(source_, full(name)) ? source_.shape(full(name)) : std::vector<int64_t>{};
  };
}

void StoredWeights::expect(const std::vector<Parameter>& parameters, const std::string& title) const {
  for (const Parameter& parameter : parameters)
    expect_tensor(source_, full(parameter.name), parameter.shape, "these are not weights of " + title);
}

ReadWeight StoredWeights::reader() const {
  return [prefix = prefix_, map = map_, read = source_.read](const std::string& name) {
    return read(prefix + to_foreign(map, name));
  };
}

void PassWork::filter(const Tensor& kernel, int64_t cells) {
  if (kernel.size(1) == 1) return change(kernel.size(0) * cells);
  sum_.products.push_back(2.0 * static_cast<double>(kernel.numel()) * static_cast<double>(cells));
}

void PassWork::stream(int64_t numbers, int operators) {
  sum_.streamed += static_cast<double>(sizeof(float)) * static_cast<double>(numbers);
  sum_.operators += operators;
}

void PassWork::append(const plan::UnitWork& more) {
  sum_.products.insert(sum_.products.end(), more.products.begin(), more.products.end());
  for (const auto& [site, flops] : more.attention) sum_.attention[site] += flops;
  sum_.streamed += more.streamed;
  sum_.operators += more.operators;
}

int64_t MapInput::frames() const {
  const int64_t t = map.size(0);
  return time == Time::kept ? t : time == Time::doubled ? 2 * t : 2 * t - 1;
}

void MapInput::copy_frame(int64_t i, const Tensor& to) const {
  const int64_t at = time == Time::kept ? i : time == Time::doubled ? i / 2 : (i + 1) / 2;
  const Tensor frame = map.select(0, at);
  if (channel_norm.defined()) {
    Tensor y = channel_normed(frame, channel_norm);
    to.copy_(at::silu_(y));
  } else if (norm.scale.defined()) {
    Tensor y = at::addcmul(norm.shift, frame, norm.scale);
    to.copy_(at::silu_(y));
  } else if (doubled) {
    const int64_t h = frame.size(0), w = frame.size(1), c = frame.size(2);
    to.unflatten(1, {w, 2}).unflatten(0, {h, 2}).copy_(frame.view({h, 1, w, 1, c}));
  } else {
    to.copy_(frame);
  }
}

int64_t FeatureCache::bytes() const {
  int64_t total = 0;
  for (const auto& [site, tensor] : frames) total += static_cast<int64_t>(tensor.nbytes());
  return total;
}

Tensor on_device(const Tensor& x) { return x.is_meta() ? x : x.to(device::here()); }

Tensor in_range(const Tensor& pixels) {
  if (pixels.scalar_type() != at::kByte) return pixels.to(at::kFloat);
  return pixels.to(at::kFloat).div_(127.5).sub_(1);
}

std::vector<Parameter> parameters_of(std::initializer_list<std::vector<Layer>> lists) {
  std::vector<Parameter> all;
  for (const std::vector<Layer>& layers : lists)
    for (const Layer& layer : layers) all.insert(all.end(), layer.parameters.begin(), layer.parameters.end());
  return all;
}

namespace {

/// The border of [H, W, C] becomes its neighbours, or zeros.
void fill_border(const Tensor& frame, const Border& border) {
  for (const int64_t dim : {0, 1}) {
    const int64_t size = frame.size(dim);
    if (!border.repeats) {
      frame.narrow(dim, 0, border.before).zero_();
      frame.narrow(dim, size - border.after, border.after).zero_();
      continue;
    }
    if (border.before > 0) frame.select(dim, 0).copy_(frame.select(dim, 1));
    if (border.after > 0) frame.select(dim, size - 1).copy_(frame.select(dim, size - 2));
  }
}

/// Of a side of so many cells, with those of the border.
int64_t result_side(int64_t cells, int64_t kernel, int64_t stride) { return (cells - kernel) / stride + 1; }

/// Allocates as the convolution does: a reordered kernel and one packed in blocks of 16 channels, oneDNN's bookkeeping
/// (8 KiB were measured), and the result.
Tensor conv_on_meta(const Tensor& x, const Tensor& kernel, at::IntArrayRef padding, at::IntArrayRef stride,
                    int64_t groups) {
  constexpr int64_t kNotes = 64 << 10;
  const int64_t out = kernel.size(0), in = kernel.size(1), taps = kernel[0][0].numel();
  const int64_t blocks = groups > 1 ? in * out : round_up(in, 16) * round_up(out, 16);
  const Tensor scratch = at::empty({(in * out + blocks) * taps * 4 + kNotes}, x.options().dtype(at::kByte));
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = out;
  const size_t first = sizes.size() - 1 - padding.size();  // a picture has a frame before its sides
  for (size_t i = 0; i < padding.size(); ++i)
    sizes[first + i] =
        result_side(sizes[first + i] + 2 * padding[i], kernel.size(static_cast<int64_t>(i) + 2), stride[i]);
  return at::empty(sizes, x.options());
}

}  // namespace

Tensor LayerRunner::pass(const std::vector<Layer>& layers, const Tensor& clip) {
  weights_ = &all_weights_.of(clip);
  now_ = {};
  Tensor numbers = in_range(on_device(clip));
  Tensor x = numbers.permute({1, 2, 3, 0}).contiguous();
  if (cache_) numbers.reset();
  for (const Layer& layer : layers) x = layer.apply(*this, std::move(x));
  if (cache_) ++cache_->chunks;
  return x.permute({3, 0, 1, 2});
}

Tensor LayerRunner::run(const std::vector<Layer>& layers, const Tensor& clip, FeatureCache* cache) {
  cache_ = cache;
  if (!works_) return pass(layers, clip);
  std::vector<int64_t> sizes = clip.sizes().vec();
  sizes.push_back(cache && cache->chunks == 0);  // which has no frames before it
  const auto [place, is_new] = known_.try_emplace({&layers, std::move(sizes)});
  Known& known = place->second;
  if (is_new) {
    known.sizes = pass(layers, clip).sizes().vec();
    known.work = now_.sum();
  } else if (cache) {
    ++cache->chunks;
  }
  whole_.append(known.work);
  return at::empty(known.sizes, clip.options().dtype(at::kFloat));
}

const Tensor& LayerRunner::weight(const std::string& name) const {
  const auto it = weights_->find(name);
  check_internal(it != weights_->end(), "models.vae", "no weight " + name);
  return it->second;
}

Tensor LayerRunner::bias(const std::string& site) const {
  const auto it = weights_->find(site + ".bias");
  return it == weights_->end() ? Tensor() : it->second;
}

Tensor LayerRunner::linear(const std::string& site, const Tensor& x) {
  const Tensor& kernel = weight(site + ".weight");
  now_.filter(kernel, x.numel() / x.size(3));
  return at::linear(x, kernel.flatten(1), bias(site));
}

Affine LayerRunner::norm(const GroupNorm& form, const std::string& site, const Tensor& x) {
  const int64_t c = x.size(3), groups = form.groups;
  now_.stream(x.numel());
  now_.stream(4 * x.numel(), 2);
  const Tensor grouped = x.view({-1, groups, c / groups});
  const Tensor none = at::empty({groups}, x.options());
  const auto [variance, mean] = x.is_meta()  // which lacks this operator
                                    ? std::tuple(none, none)
                                    : at::var_mean(grouped, at::IntArrayRef{0, 2}, /*correction=*/0, /*keepdim=*/false);
  const auto each = [&](const Tensor& of_group) {
    return of_group.view({groups, 1}).expand({groups, c / groups}).reshape(c);
  };
  const Tensor scale = each((variance + form.eps).rsqrt_()) * weight(site + ".weight");
  return {scale, weight(site + ".bias") - each(mean) * scale};
}

/// x with its channels last -> the result alike.
Tensor LayerRunner::convolution(const Tensor& x, const Tensor& kernel, const Tensor& bias, at::IntArrayRef padding,
                                at::IntArrayRef stride, int64_t groups) const {
  if (x.is_meta()) return conv_on_meta(x, kernel, padding, stride, groups);
  const bool picture = padding.size() == 2;
  const Tensor in = picture ? x.permute({0, 3, 1, 2}) : x.unsqueeze(0).permute({0, 4, 1, 2, 3});
  const std::vector<int64_t> dilation(padding.size(), 1);
  // LibTorch picks an im2col with a copy of its input for each tap for small single samples; oneDNN has no need of one
  const Tensor out = x.is_cpu() && at::globalContext().hasMKLDNN()
                         ? at::mkldnn_convolution(in, kernel, bias, padding, stride, dilation, groups)
                     : picture ? at::conv2d(in, kernel, bias, stride, padding, dilation, groups)
                               : ops::convolution(in, kernel, bias, stride, padding, groups);
  return (picture ? out.permute({0, 2, 3, 1}) : out.squeeze(0).permute({1, 2, 3, 0})).contiguous();
}

Tensor LayerRunner::conv_whole(const std::string& site, const Tensor& x, at::IntArrayRef padding,
                               at::IntArrayRef stride, int64_t groups) {
  const Tensor& given = weight(site + ".weight");
  const Tensor kernel = given.dim() < static_cast<int64_t>(padding.size()) + 2 ? given.unsqueeze(2) : given;
  const Tensor y = convolution(x, kernel, bias(site), padding, stride, groups);
  now_.filter(kernel, y.numel() / y.size(3));
  return y;
}

/// Frames of the result from `begin` on, `count` of them, with stride and border done here.
Tensor LayerRunner::chunk(const Tensor& kernel, const Tensor& bias, const MapInput& in, const ConvForm& form,
                          int64_t begin, int64_t count) const {
  const Border& border = form.border;
  const int64_t frames = (count - 1) * form.time_stride + kernel.size(2), h = in.height(), w = in.width();
  const int64_t around = border.before + border.after;
  Tensor padded = at::empty({frames, h + around, w + around, in.map.size(3)}, in.map.options());
  for (int64_t i = 0; i < (padded.is_meta() ? 1 : frames); ++i) {
    const Tensor frame = padded.select(0, i);
    const int64_t at = begin * form.time_stride + i - border.front, last = in.frames() - 1;
    if (!border.repeats && !padded.is_meta() && (at < 0 || at > last)) {
      frame.zero_();
      continue;
    }
    in.copy_frame(std::clamp<int64_t>(at, 0, last), frame.narrow(0, border.before, h).narrow(1, border.before, w));
    fill_border(frame, border);
  }
  return convolution(padded, kernel, bias, {0, 0, 0}, {form.time_stride, form.stride, form.stride}, form.groups);
}

Tensor LayerRunner::conv(const std::string& site, const MapInput& in, const ConvForm& form, const Tensor& over) {
  check_internal(!over.defined() || form.border.behind == 0, "models.vae", site + " would read what it has written");
  const Tensor& given = weight(site + ".weight");
  const Tensor kernel = given.dim() == 4 ? given.unsqueeze(2) : given;  // of pictures: one frame
  const Tensor added = bias(site);
  const Border& border = form.border;
  const int64_t around = border.before + border.after, channels = kernel.size(0);
  const int64_t frames = result_side(in.frames() + border.front + border.behind, kernel.size(2), form.time_stride);
  const int64_t h = result_side(in.height() + around, kernel.size(3), form.stride);
  const int64_t w = result_side(in.width() + around, kernel.size(4), form.stride);
  now_.change(in.map.numel());
  now_.filter(kernel, frames * h * w);
  const int64_t frame = std::max(in.height() * in.width() * in.map.size(3), h * w * channels);
  const int64_t most = std::max<int64_t>(1, chunk_ / frame);
  if (most >= frames) return chunk(kernel, added, in, form, 0, frames);
  Tensor out = over.defined() ? over : at::empty({frames, h, w, channels}, in.map.options());
  for (int64_t end = frames; end > 0; end -= std::min(most, end)) {
    const int64_t count = std::min(most, end);
    out.narrow(0, end - count, count).copy_(chunk(kernel, added, in, form, end - count, count));
    if (out.is_meta()) break;  // the others are no larger
  }
  return out;
}

Tensor LayerRunner::add_input(Tensor y, const Tensor& x, const std::string& shortcut) {
  const int64_t numbers = y.numel();
  if (shortcut.empty()) {
    y.add_(x);
  } else {
    const Tensor& kernel = weight(shortcut + ".weight");
    now_.filter(kernel, x.numel() / x.size(3));
    for (int64_t i = 0; i < (x.is_meta() ? 1 : x.size(0)); ++i)
      y.select(0, i).add_(at::linear(x.select(0, i), kernel.flatten(1), bias(shortcut)));
  }
  now_.add(numbers);
  return y;
}

ParameterList& ParameterList::one(const std::string& name, std::vector<int64_t> shape) {
  all.push_back({name, std::move(shape)});
  return *this;
}

ParameterList& ParameterList::kernel(const Kernel& kernel) {
  std::vector<int64_t> shape = {kernel.out, kernel.in};
  shape.insert(shape.end(), kernel.sides.begin(), kernel.sides.end());
  one(kernel.site + ".weight", std::move(shape));
  return kernel.biased ? one(kernel.site + ".bias", {kernel.out}) : *this;
}

ParameterList& ParameterList::norm(const std::string& site, int64_t channels) {
  return one(site + ".weight", {channels}).one(site + ".bias", {channels});
}

Layer conv(const Kernel& kernel, const ConvForm& form) {
  return {ParameterList().kernel(kernel).all,
          [site = kernel.site, form](LayerRunner& run, const Tensor& x) { return run.conv(site, {x}, form); }};
}

Layer pointwise(const Kernel& kernel) {
  return {ParameterList().kernel(kernel).all,
          [site = kernel.site](LayerRunner& run, const Tensor& x) { return run.linear(site, x); }};
}

Layer enlarged(const Kernel& kernel, const ConvForm& form, MapInput::Time time) {
  return {ParameterList().kernel(kernel).all, [site = kernel.site, form, time](LayerRunner& run, const Tensor& x) {
            return run.conv(site, {.map = x, .doubled = true, .time = time}, form);
          }};
}

Layer head(const GroupNorm& form, const std::string& norm, const Kernel& kernel, const ConvForm& conv) {
  return {ParameterList().norm(norm, kernel.in).kernel(kernel).all,
          [form, norm, site = kernel.site, conv](LayerRunner& run, const Tensor& x) {
            return run.conv(site, {x, run.norm(form, norm, x)}, conv);
          }};
}

Layer residual(const GroupNorm& form, const std::string& norm1, const Kernel& conv1, const std::string& norm2,
               const Kernel& conv2, const Kernel& shortcut, const ConvForm& conv) {
  ParameterList parameters;
  parameters.norm(norm1, conv1.in).kernel(conv1).norm(norm2, conv2.in).kernel(conv2);
  const bool widens = conv1.in != conv1.out;
  if (widens) parameters.kernel(shortcut);
  return {parameters.all, [form, norm1, site1 = conv1.site, norm2, site2 = conv2.site,
                           projected = widens ? shortcut.site : "", conv](LayerRunner& run, const Tensor& x) {
            Tensor y = run.conv(site1, {x, run.norm(form, norm1, x)}, conv);
            y = run.conv(site2, {y, run.norm(form, norm2, y)}, conv, y);
            return run.add_input(y, x, projected);
          }};
}

double mix_seen(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mixed, int64_t cells) {
  const int64_t frames = q.size(2) / cells;
  for (int64_t i = 0; i < frames; ++i) {
    const Tensor to = mixed.narrow(2, i * cells, cells);
    if (q.is_meta()) {  // the kernel's tiles are small
      at::empty(to.sizes(), to.options());
      break;
    }
    const auto seen = [&](const Tensor& all) { return all.narrow(2, 0, (i + 1) * cells); };
    to.copy_(at::scaled_dot_product_attention(q.narrow(2, i * cells, cells), seen(k), seen(v)));
  }
  return static_cast<double>(cells) * static_cast<double>(cells) * static_cast<double>(frames * (frames + 1) / 2);
}

Tensor channel_normed(const Tensor& x, const Tensor& factor) {
  const Tensor length = at::linalg_vector_norm(x, 2, at::IntArrayRef{-1}, /*keepdim=*/true).clamp_min_(1e-12);
  return at::div(x, length).mul_(factor);
}

Layer attention(const GroupNorm& form, const std::string& norm, const std::array<std::string, 4>& sites,
                int64_t channels, const std::vector<int64_t>& sides, Mix mix) {
  const auto normed = [form, norm](LayerRunner& run, const Tensor& x) {
    const Affine affine = run.norm(form, norm, x);
    return at::addcmul(affine.shift, x, affine.scale);
  };
  return attention(ParameterList().norm(norm, channels), normed, sites, channels, sides, mix);
}

Layer attention(ParameterList norm, const std::function<Tensor(LayerRunner& run, const Tensor& x)>& normed,
                const std::array<std::string, 4>& sites, int64_t channels, const std::vector<int64_t>& sides, Mix mix) {
  ParameterList parameters;
  for (const std::string& site : sites) parameters.kernel({site, channels, channels, sides});
  parameters.all.insert(parameters.all.end(), norm.all.begin(), norm.all.end());
  return {parameters.all, [normed, sites, mix](LayerRunner& run, const Tensor& x) {
            const int64_t c = x.size(3);
            Tensor in = normed(run, x);
            const auto project = [&](const std::string& site) { return run.linear(site, in).view({1, 1, -1, c}); };
            Tensor q = project(sites[0]), k = project(sites[1]), v = project(sites[2]);
            in.reset();
            Tensor mixed = at::empty_like(q);
            const double pairs = mix(q, k, v, mixed, x.size(1) * x.size(2));
            run.now().attention(4 * pairs * static_cast<double>(c));
            for (Tensor* used : {&q, &k, &v}) used->reset();
            const Tensor y = run.linear(sites[3], mixed.view(x.sizes()));
            return run.add_input(y, x, "");
          }};
}

}  // namespace tessera::models
