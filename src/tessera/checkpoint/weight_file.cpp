#include "tessera/checkpoint/weight_file.h"

#include <algorithm>
#include <array>
#include <set>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/json.h"

namespace tessera::checkpoint {

bool is_weight_file(const Path& path) {
  constexpr std::array<std::string_view, 4> kEndings = {".safetensors", ".pth", ".pt", ".bin"};
  const std::string name = path.filename().string();
  return std::ranges::any_of(kEndings, [&](std::string_view ending) { return name.ends_with(ending); });
}

std::string without_wrappers(std::string_view name) {
  constexpr std::array<std::string_view, 3> kWrappers = {"_orig_mod.", "_checkpoint_wrapped_module.",
                                                         "_fsdp_wrapped_module."};
  std::string plain;
  while (!name.empty()) {
    const auto wrapper = std::ranges::find_if(kWrappers, [&](std::string_view word) { return name.starts_with(word); });
    const size_t dot = std::min(name.find('.'), name.size() - 1) + 1;
    if (wrapper == kWrappers.end()) plain += name.substr(0, dot);
    name.remove_prefix(dot);
  }
  return plain;
}

WeightFile::WeightFile(std::variant<SafetensorsFile, TorchFile> file) : file_(std::move(file)) {
  std::visit(
      [&](const auto& opened) {
        for (const auto& entry : opened.entries()) infos_.push_back({entry.name, entry.dtype, entry.shape});
      },
      file_);
  std::set<std::string> names;
  for (const TensorInfo& info : infos_) names.insert(without_wrappers(info.name));
  for (size_t i = 0; i < infos_.size(); ++i) {
    std::string plain = without_wrappers(infos_[i].name);
    if (plain != infos_[i].name && names.size() == infos_.size())  // else a tensor would take the place of another
      wrapped_[plain] = std::exchange(infos_[i].name, plain);
    index_[infos_[i].name] = i;
  }
}

WeightFile WeightFile::open(const Path& path, bool averaged) {
  const ReadFile file(path);
  if (TorchFile::recognises(file)) return WeightFile(TorchFile::open(path, averaged));
  check_input(!averaged, "weights.open",
              path.string() + ": no file of torch.save, so no average lies beside its weights", "leave --ema away");
  if (const std::string other = what_else(file); !other.empty())
    throw UserError(Exit::input, "weights.open", path.string() + " is " + other + ", expected weights of a model",
                    "give a .safetensors, .pth, .pt or .bin file, or the folder that holds one");
  return WeightFile(SafetensorsFile::open(path));
}

const Path& WeightFile::path() const {
  return std::visit([](const auto& file) -> const Path& { return file.path(); }, file_);
}

std::string_view WeightFile::format() const { return file_.index() == 0 ? "safetensors" : "pth"; }

const Metadata& WeightFile::metadata() const {
  return std::visit([](const auto& file) -> const Metadata& { return file.metadata(); }, file_);
}

const TensorInfo* WeightFile::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &infos_[found->second];
}

const std::string& WeightFile::stored(std::string_view name) const {
  const auto found = wrapped_.find(std::string(name));
  return found == wrapped_.end() ? infos_[index_.at(std::string(name))].name : found->second;
}

void WeightFile::read(std::string_view name, int64_t first, int64_t count, void* to) const {
  check_input(find(name), "checkpoint.read", path().string() + ": no tensor " + shown(name), "is it the right file?");
  if (const auto* file = std::get_if<SafetensorsFile>(&file_)) return file->read(stored(name), first, count, to);
  const auto& file = std::get<TorchFile>(file_);
  const TorchFile::Entry* entry = file.find(stored(name));
  file.read(*entry, first, count, to);
}

void WeightFile::read_f32(std::string_view name, int64_t first, int64_t count, float* to) const {
  const TensorInfo* info = find(name);
  if (const auto* file = std::get_if<SafetensorsFile>(&file_); file && info)
    return file->read_f32(stored(name), first, count, to);
  if (!info || info->dtype == DType::f32) return read(name, first, count, to);
  check_input(is_floating(info->dtype), "checkpoint.read",
              path().string() + ": tensor " + shown(name) + ": expected a floating dtype, found " +
                  std::string(dtype_name(info->dtype)));
  // A view with strides is read as a whole whatever is asked of it, so it is asked once.
  const bool contiguous = std::get<TorchFile>(file_).find(stored(name))->contiguous;
  const int64_t chunk = contiguous ? int64_t{1} << 16 : std::max<int64_t>(count, 1);
  std::vector<char> raw(static_cast<size_t>(std::clamp<int64_t>(count, 0, chunk) * size_of(info->dtype)));
  int64_t done = 0;
  do {  // at least once, so that a wrong range is refused also when it is empty
    const int64_t now = std::min(chunk, count - done);
    read(name, first + done, now, raw.data());
    to_f32(info->dtype, raw.data(), now, to + done);
    done += now;
  } while (done < count);
}

}  // namespace tessera::checkpoint
