#include "tessera/checkpoint/weight_file.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file_kind.h"
#include "tessera/checkpoint/json.h"

namespace tessera::checkpoint {

WeightFile::WeightFile(std::variant<SafetensorsFile, TorchFile> file) : file_(std::move(file)) {
  std::visit(
      [&](const auto& opened) {
        for (const auto& entry : opened.entries()) infos_.push_back({entry.name, entry.dtype, entry.shape});
      },
      file_);
  for (size_t i = 0; i < infos_.size(); ++i) index_[infos_[i].name] = i;
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

void WeightFile::read(std::string_view name, int64_t first, int64_t count, void* to) const {
  if (const auto* file = std::get_if<SafetensorsFile>(&file_)) return file->read(name, first, count, to);
  const auto& file = std::get<TorchFile>(file_);
  const TorchFile::Entry* entry = file.find(name);
  check_input(entry, "checkpoint.read", path().string() + ": no tensor " + shown(name), "is it the right file?");
  file.read(*entry, first, count, to);
}

void WeightFile::read_f32(std::string_view name, int64_t first, int64_t count, float* to) const {
  if (const auto* file = std::get_if<SafetensorsFile>(&file_)) return file->read_f32(name, first, count, to);
  const TensorInfo* info = find(name);
  if (!info || info->dtype == DType::f32) return read(name, first, count, to);
  check_input(is_floating(info->dtype), "checkpoint.read",
              path().string() + ": tensor " + shown(name) + ": expected a floating dtype, found " +
                  std::string(dtype_name(info->dtype)));
  // A view with strides is read as a whole whatever is asked of it, so it is asked once.
  const bool contiguous = std::get<TorchFile>(file_).find(name)->contiguous;
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
