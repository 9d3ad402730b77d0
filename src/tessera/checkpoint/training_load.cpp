#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/checkpoint/crc32c.h"
#include "tessera/checkpoint/training.h"

namespace tessera::checkpoint {

namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& hint) {
  throw UserError(Exit::input, "checkpoint.load", what, hint);
}
const std::string kOther = "this is the checkpoint of another model or another optimiser; start with run.resume = \"no\" or name the right one";
const std::string kEarlier = "resume from an earlier checkpoint (run.resume = DIR)";

}  // namespace

TrainingCheckpoint::TrainingCheckpoint(const Path& folder) : folder_(folder), manifest_(load_manifest(folder)) {
  std::set<std::string> files;
  for (const TensorRecord& tensor : manifest_.tensors) {
    index_[{tensor.name, tensor.kind}] = &tensor;
    for (const Part& part : tensor.parts) files.insert(part.file);
  }
  for (const std::string& file : files)
    if (!std::filesystem::exists(folder_ / file)) refuse((folder_ / file).string() + ": missing, manifest.json names it", kEarlier);
}

const TensorRecord& TrainingCheckpoint::record(const TensorRange& range) const {
  auto found = index_.find({range.name, range.kind});
  if (found != index_.end()) {
    const TensorRecord& tensor = *found->second;
    if (tensor.shape != range.shape)
      refuse(folder_.string() + ": " + range.kind + " of " + shown(range.name) + ": expected " + shape_text(range.shape) +
                 ", file has " + shape_text(tensor.shape), kOther);
    return tensor;
  }
  std::vector<std::string> names;
  for (const auto& [key, tensor] : index_)
    if (key.second == range.kind) names.push_back(key.first);
  std::vector<std::string> near = nearest(range.name, names);
  refuse(folder_.string() + ": no " + range.kind + " of " + shown(range.name) +
             (near.empty() ? ", nor of any other tensor" : ", the nearest is " + shown(near[0])), kOther);
}

const SafetensorsFile& TrainingCheckpoint::verified(const TensorRecord& tensor, const Part& part) {
  auto opened = files_.find(part.file);
  if (opened == files_.end()) opened = files_.emplace(part.file, SafetensorsFile::open(folder_ / part.file)).first;
  const SafetensorsFile& file = opened->second;
  if (!verified_.emplace(part.file, part.key).second) return file;

  const std::string what = file.path().string() + ": " + tensor.kind + " of " + shown(tensor.name);
  const SafetensorsFile::Entry& entry = file.at(part.key);
  if (entry.dtype != tensor.dtype || entry.count() != part.end - part.begin)
    refuse(what + ": expected " + std::to_string(part.end - part.begin) + " elements of " + std::string(dtype_name(tensor.dtype)) +
               ", file has " + std::to_string(entry.count()) + " of " + std::string(dtype_name(entry.dtype)), kEarlier);
  constexpr int64_t kChunk = 1 << 20;  // elements
  std::vector<char> buffer(static_cast<size_t>(std::min(kChunk, entry.count()) * dtype_size(entry.dtype)));
  uint32_t crc = 0;
  for (int64_t at = 0; at < entry.count(); at += kChunk) {
    int64_t now = std::min(kChunk, entry.count() - at);
    file.read(part.key, at, now, buffer.data());
    crc = crc32c(buffer.data(), static_cast<size_t>(now * dtype_size(entry.dtype)), crc);
  }
  if (crc != part.crc32c) {
    verified_.erase({part.file, part.key});
    refuse(what + ": checksum " + std::to_string(crc) + ", expected " + std::to_string(part.crc32c) + ": the file was damaged", kEarlier);
  }
  return file;
}

void TrainingCheckpoint::read(const TensorRange& range, void* to) {
  const TensorRecord& tensor = record(range);
  const std::string what = folder_.string() + ": " + range.kind + " of " + shown(range.name);
  if (tensor.dtype != range.dtype)
    refuse(what + ": expected " + std::string(dtype_name(range.dtype)) + ", file has " + std::string(dtype_name(tensor.dtype)),
           "resume with the dtypes it was saved with");
  const Box box = range.box.empty() ? whole_box(range.shape) : range.box;
  check_internal(fits(box, range.shape), "checkpoint.load", what + ": box " + box_text(box) + " of " + shape_text(range.shape));
  const int64_t begin = range.begin, end = range.end < 0 ? volume(box) : range.end;
  check_internal(0 <= begin && begin <= end && end <= volume(box), "checkpoint.load",
                 what + ": elements [" + std::to_string(begin) + ", " + std::to_string(end) + ") of box " + box_text(box));

  const int64_t size = dtype_size(tensor.dtype);
  int64_t filled = 0;
  for (const Part& part : tensor.parts)
    for_each_run(box, part.box, [&](int64_t ours, int64_t theirs, int64_t length) {
      int64_t first = std::max({begin - ours, part.begin - theirs, int64_t{0}});
      int64_t last = std::min({end - ours, part.end - theirs, length});
      if (first >= last) return;
      verified(tensor, part).read(part.key, theirs + first - part.begin, last - first,
                                  static_cast<char*>(to) + (ours + first - begin) * size);
      filled += last - first;
    });
  check_internal(filled == end - begin, "checkpoint.load", what + ": the parts left a hole");  // load_manifest saw to it
}

void TrainingCheckpoint::read_f32(const TensorRange& range, float* to) {
  TensorRange stored = range;
  stored.dtype = record(range).dtype;
  if (stored.dtype == DType::f32) return read(stored, to);
  if (!is_floating(stored.dtype))
    refuse(folder_.string() + ": " + range.kind + " of " + shown(range.name) + ": expected a floating dtype, file has " +
               std::string(dtype_name(stored.dtype)), kOther);
  int64_t count = (range.end < 0 ? volume(range.box.empty() ? whole_box(range.shape) : range.box) : range.end) - range.begin;
  std::vector<char> raw(static_cast<size_t>(std::max<int64_t>(count, 0) * dtype_size(stored.dtype)));
  read(stored, raw.data());
  to_f32(stored.dtype, raw.data(), count, to);
}

}  // namespace tessera::checkpoint
