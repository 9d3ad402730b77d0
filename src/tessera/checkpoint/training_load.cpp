#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/checkpoint/crc32c.h"
#include "tessera/checkpoint/damaged.h"
#include "tessera/checkpoint/training.h"

namespace tessera::checkpoint {

namespace {

constexpr std::string_view kOther =
    "this is the checkpoint of another model or optimiser: name the right one, or start at step 0 with run.resume = \"no\"";

[[noreturn]] void refuse_checkpoint(const std::string& what, std::string_view hint) {
  throw UserError(Exit::input, "checkpoint.load", what, hint);
}

/// Scales of quantised moments belong to blocks of what tensor parallelism cuts, so another tp has others.
std::string hint_for(const TensorRange& missing, const Manifest& manifest) {
  if (!missing.kind.ends_with("_scale") || !manifest.find(missing.name, "param")) return std::string(kOther);
  return "quantised moments go on under the tp that they were saved with: --mesh.tp " +
         std::to_string(manifest.mesh[Axis::tp]);
}

SafetensorsFile open_part(const Path& folder, const std::string& file) {
  try {
    return SafetensorsFile::open(folder / file);
  } catch (const UserError& error) {
    if (error.code() != Exit::input) throw;
    throw damaged(error, folder);
  }
}

}  // namespace

TrainingCheckpoint::TrainingCheckpoint(const Path& folder) : folder_(folder), manifest_(load_manifest(folder)) {
  std::set<std::string> files;
  for (const TensorRecord& tensor : manifest_.tensors) {
    index_[{tensor.name, tensor.kind}] = &tensor;
    for (const Part& part : tensor.parts) files.insert(part.file);
  }
  for (const std::string& file : files)
    if (!std::filesystem::exists(folder_ / file))
      refuse_checkpoint((folder_ / file).string() + ": missing, manifest.json names it", earlier_than(folder_));
}

const TensorRecord& TrainingCheckpoint::record(const TensorRange& range) const {
  auto found = index_.find({range.name, range.kind});
  if (found != index_.end()) {
    const TensorRecord& tensor = *found->second;
    if (tensor.shape != range.shape)
      refuse_checkpoint(folder_.string() + ": " + range.kind + " of " + shown(range.name) + ": expected " +
                            shape_text(range.shape) + ", file has " + shape_text(tensor.shape),
                        hint_for(range, manifest_));
    return tensor;
  }
  std::vector<std::string> names;
  for (const auto& [key, tensor] : index_)
    if (key.second == range.kind) names.push_back(key.first);
  std::vector<std::string> near = nearest(range.name, names);
  refuse_checkpoint(folder_.string() + ": no " + range.kind + " of " + shown(range.name) +
                        (near.empty() ? ", nor of any other tensor" : ", the nearest is " + shown(near[0])),
                    hint_for(range, manifest_));
}

const SafetensorsFile& TrainingCheckpoint::verified(const TensorRecord& tensor, const Part& part) {
  auto opened = files_.find(part.file);
  if (opened == files_.end()) opened = files_.emplace(part.file, open_part(folder_, part.file)).first;
  const SafetensorsFile& file = opened->second;
  if (verified_.count({part.file, part.key})) return file;

  const std::string what = file.path().string() + ": " + tensor.kind + " of " + shown(tensor.name);
  const SafetensorsFile::Entry& entry = file.at(part.key);
  if (entry.dtype != tensor.dtype || entry.count() != part.end - part.begin)
    refuse_checkpoint(what + ": expected " + std::to_string(part.end - part.begin) + " elements of " +
                          std::string(dtype_name(tensor.dtype)) + ", file has " + std::to_string(entry.count()) +
                          " of " + std::string(dtype_name(entry.dtype)),
                      earlier_than(folder_));
  constexpr int64_t kChunk = 1 << 20;  // elements
  std::vector<char> buffer(static_cast<size_t>(std::min(kChunk, entry.count()) * size_of(entry.dtype)));
  uint32_t crc = 0;
  for (int64_t at = 0; at < entry.count(); at += kChunk) {
    int64_t now = std::min(kChunk, entry.count() - at);
    file.read(part.key, at, now, buffer.data());
    crc = crc32c(buffer.data(), static_cast<size_t>(now * size_of(entry.dtype)), crc);
  }
  if (crc != part.crc32c)
    refuse_checkpoint(what + ": checksum " + std::to_string(crc) + ", expected " + std::to_string(part.crc32c) +
                          ": the file was damaged",
                      earlier_than(folder_));
  verified_.emplace(part.file, part.key);
  return file;
}

void TrainingCheckpoint::read(const TensorRange& wanted, void* to) {
  const TensorRecord& tensor = record(wanted);
  const TensorRange range = resolved(wanted, "checkpoint.load");
  const std::string what = folder_.string() + ": " + range.kind + " of " + shown(range.name);
  if (tensor.dtype != range.dtype)
    refuse_checkpoint(what + ": expected " + std::string(dtype_name(range.dtype)) + ", file has " +
                          std::string(dtype_name(tensor.dtype)),
                      "resume with the dtypes it was saved with");

  const int64_t size = size_of(tensor.dtype);
  int64_t filled = 0;
  for (const Part& part : tensor.parts)
    for_each_run(range.box, part.box, [&](int64_t ours, int64_t theirs, int64_t length) {
      int64_t first = std::max({range.begin - ours, part.begin - theirs, int64_t{0}});
      int64_t last = std::min({range.end - ours, part.end - theirs, length});
      if (first >= last) return;
      verified(tensor, part)
          .read(part.key, theirs + first - part.begin, last - first,
                static_cast<char*>(to) + (ours + first - range.begin) * size);
      filled += last - first;
    });
  check_internal(filled == range.end - range.begin, "checkpoint.load", what + ": the parts left a hole");
}

void TrainingCheckpoint::read_f32(const TensorRange& wanted, float* to) {
  TensorRange range = wanted;
  range.dtype = record(wanted).dtype;
  if (range.dtype == DType::f32) return read(range, to);
  if (!is_floating(range.dtype))
    refuse_checkpoint(folder_.string() + ": " + range.kind + " of " + shown(range.name) +
                          ": expected a floating dtype, file has " + std::string(dtype_name(range.dtype)),
                      kOther);
  range = resolved(range, "checkpoint.load");
  std::vector<char> raw(static_cast<size_t>((range.end - range.begin) * size_of(range.dtype)));
  read(range, raw.data());
  to_f32(range.dtype, raw.data(), range.end - range.begin, to);
}

}  // namespace tessera::checkpoint
