#include "tessera/weights/convert_clip.h"

#include <cstring>
#include <map>
#include <memory>

#include "tessera/base/check.h"
#include "tessera/models/encoders/clip_vision.h"

namespace tessera::weights {

namespace {

namespace clip = models::clip;
using checkpoint::TensorInfo;

constexpr const char* kVision = "vision_model.";  // of transformers, in front of every name
constexpr std::string_view kFused = ".attn.to_qkv.", kQuery = ".self_attn.q_proj.";

/// Where the bytes of an output tensor lie: in these, one after the other, from a byte of the first on.
struct Origin {
  std::vector<TensorInfo> from;
  int64_t offset = 0;
};

/// The form that a tensor has without, and with, the leading dimensions of one that the official file has.
std::vector<int64_t> shape_for(const std::string& official, const std::vector<int64_t>& shape, bool to_official) {
  const bool table = official == "visual.cls_embedding" || official == "visual.pos_embedding";
  if (!table) return shape;
  std::vector<int64_t> result;
  for (int64_t size : shape)
    if (size != 1 || !result.empty()) result.push_back(size);
  const size_t dims = official == "visual.cls_embedding" ? 1 : 2;
  while (result.size() > dims) result.erase(result.begin());
  if (to_official) result.insert(result.begin(), 3 - result.size(), 1);
  return result;
}

/// The official name of a stored tensor, with the query standing for the fused one; empty: no place, or part of it.
std::string official_of(const models::Identity& identity, const std::string& stored) {
  std::string name = identity.official(stored).value_or("");
  if (const size_t at = name.find(kQuery); at != name.npos && name.starts_with("encoder.layers."))
    name = "visual.transformer." + name.substr(15, at - 15) + std::string(kFused) + name.substr(at + kQuery.size());
  return name.starts_with("visual.") ? name : "";
}

}  // namespace

Source regroup_clip(const Source& source, const models::Identity& identity, const std::string& to,
                    std::vector<std::string>& left_out) {
  const bool from_official = identity.naming == "official", to_official = to == "official";
  std::map<std::string, TensorInfo> stored;
  for (const TensorInfo& info : source.tensors) stored[info.name] = info;
  auto origins = std::make_shared<std::map<std::string, Origin>>();
  Source result{source.path, {}, source.metadata, source.files, {}};
  std::map<std::string, bool> used;
  for (const TensorInfo& info : source.tensors) {
    const std::string official = official_of(identity, info.name);
    if (official.empty()) continue;
    if (official == "visual.head" && !to_official) continue;  // CLIPVisionModel ends before it
    const bool fused = official.find(kFused) != official.npos;
    Origin origin;
    for (const std::string& part : clip::stored_parts(official, from_official ? "official" : "hf")) {
      const auto found = stored.find(identity.prefix + part);
      check_input(found != stored.end(), "convert", source.path.string() + ": lacks " + identity.prefix + part,
                  "the file is not whole: fetch it again");
      origin.from.push_back(found->second);
      used[found->first] = true;
    }
    std::vector<int64_t> shape = origin.from.front().shape;
    shape.front() = 0;
    for (const TensorInfo& part : origin.from) shape.front() += part.shape.front();
    const std::vector<std::string> names = to_official ? std::vector{official} : clip::stored_parts(official, "hf");
    if (fused)
      shape.front() = div_exact(shape.front(), static_cast<int64_t>(names.size()), "rows of queries, keys, values");
    for (const std::string& name : names) {
      TensorInfo out = info;
      out.name = to_official ? name : kVision + name;
      out.shape = shape_for(official, shape, to_official);
      (*origins)[out.name] = origin;
      origin.offset += out.bytes();
      result.tensors.push_back(out);
    }
  }
  for (const TensorInfo& info : source.tensors)
    if (!used[info.name]) left_out.push_back(info.name);
  result.read = [origins, read = source.read](const TensorInfo& info, void* to_bytes) {
    const Origin& origin = origins->at(info.name);
    std::vector<std::byte> bytes;
    for (const TensorInfo& part : origin.from) {
      const size_t at = bytes.size();
      bytes.resize(at + static_cast<size_t>(part.bytes()));
      read(part, bytes.data() + at);
    }
    std::memcpy(to_bytes, bytes.data() + origin.offset, static_cast<size_t>(info.bytes()));
  };
  return result;
}

}  // namespace tessera::weights
