#include "tessera/checkpoint/manifest.h"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/check.h"
#include "tessera/checkpoint/folders.h"

namespace tessera::checkpoint {

namespace {

constexpr int64_t kVersion = 1;
constexpr std::string_view kOtherRelease = "use the release that wrote it";
const std::set<std::string> kOwnFields = {"format", "version", "step",        "mesh",   "tensors",
                                          "data",   "rng",     "schedule_lr", "experts"};

[[noreturn]] void refuse_manifest(const std::string& what,
                                  std::string_view hint = "resume from an earlier checkpoint") {
  throw UserError(Exit::input, "checkpoint.load", what, hint);
}

Json mesh_json(const Mesh& mesh) {
  Json json;
  for (Axis axis : kAllAxes) json[std::string(axis_name(axis))] = mesh[axis];
  return json;
}

Mesh parse_mesh(const Json& json, const std::string& what) {
  Mesh mesh;
  for (Axis axis : kAllAxes) {
    int64_t size = json_integer(json_member(json, std::string(axis_name(axis)).c_str(), what), what);
    if (size < 1 || size > 1 << 24)
      refuse_manifest(what + ": " + std::string(axis_name(axis)) + " = " + std::to_string(size));
    mesh[axis] = static_cast<int>(size);
  }
  return mesh;
}

std::pair<int64_t, int64_t> parse_range(const Json& json, const std::string& what) {
  Shape pair = json_shape(json, what);
  if (pair.size() != 2 || pair[0] > pair[1])
    refuse_manifest(what + ": expected [first, last], found " + shape_text(pair));
  return {pair[0], pair[1]};
}

Part parse_part(const Json& json, const std::string& what) {
  Part part;
  part.file = json_string(json_member(json, "file", what), what + ": file");
  if (Path(part.file).filename() != Path(part.file) || part.file == "." || part.file == "..")
    refuse_manifest(what + ": file " + shown(part.file) + ", expected a plain file name");
  part.key = json_string(json_member(json, "key", what), what + ": key");
  for (const Json& side : json_array(json_member(json, "box", what), what + ": box"))
    part.box.push_back(parse_range(side, what + ": box"));
  std::tie(part.begin, part.end) = parse_range(json_member(json, "flat", what), what + ": flat");
  int64_t crc = json_integer(json_member(json, "crc32c", what), what + ": crc32c");
  if (crc < 0 || crc > UINT32_MAX)
    refuse_manifest(what + ": crc32c " + std::to_string(crc) + " is not a 32-bit number");
  part.crc32c = static_cast<uint32_t>(crc);
  return part;
}

TensorRecord parse_tensor(const Json& json, const std::string& file) {
  TensorRecord tensor;
  tensor.name = json_string(json_member(json, "name", file + ": a tensor"), file + ": name");
  tensor.kind = json_string(json_member(json, "kind", file + ": a tensor"), file + ": kind");
  const std::string what = file + ": " + tensor.kind + " of " + shown(tensor.name);
  std::string dtype = json_string(json_member(json, "dtype", what), what + ": dtype");
  std::optional<DType> known = parse_dtype(dtype);
  if (!known) refuse_manifest(what + ": unknown dtype " + shown(dtype));
  tensor.dtype = *known;
  tensor.shape = json_shape(json_member(json, "shape", what), what + ": shape");
  for (const Json& part : json_array(json_member(json, "parts", what), what + ": parts"))
    tensor.parts.push_back(parse_part(part, what + ": part"));
  return tensor;
}

}  // namespace

const TensorRecord* Manifest::find(const std::string& name, const std::string& kind) const {
  auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name && t.kind == kind; });
  return found == tensors.end() ? nullptr : &*found;
}

Json to_json(const std::vector<TensorRecord>& tensors) {
  Json list = Json::array();
  for (const TensorRecord& tensor : tensors) {
    Json parts = Json::array();
    for (const Part& part : tensor.parts)
      parts.push_back({{"file", part.file},
                       {"key", part.key},
                       {"box", part.box},
                       {"flat", {part.begin, part.end}},
                       {"crc32c", part.crc32c}});
    list.push_back({{"name", tensor.name},
                    {"kind", tensor.kind},
                    {"dtype", dtype_name(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"parts", parts}});
  }
  return list;
}

Json to_json(const Manifest& m) {
  Json json = m.extra;
  json["format"] = "tessera";
  json["version"] = kVersion;
  json["step"] = m.step;
  json["mesh"] = mesh_json(m.mesh);
  json["tensors"] = to_json(m.tensors);
  json["data"] = {{"epoch", m.epoch}, {"cursor", m.cursor}};
  if (!m.sets.is_null()) json["data"]["sets"] = m.sets;
  json["rng"] = {{"seed", m.seed}};
  json["schedule_lr"] = m.schedule_lr;
  json["experts"] = m.experts;
  return json;
}

std::vector<TensorRecord> parse_tensors(const Json& json, const std::string& what) {
  std::vector<TensorRecord> tensors;
  for (const Json& tensor : json_array(json, what + ": tensors")) tensors.push_back(parse_tensor(tensor, what));
  return tensors;
}

Manifest parse_manifest(const Json& json, const std::string& what) {
  if (json_member(json, "format", what) != "tessera") refuse_manifest(what + ": not a checkpoint of this program");
  int64_t version = json_integer(json_member(json, "version", what), what + ": version");
  if (version != kVersion)
    refuse_manifest(what + ": expected version " + std::to_string(kVersion) + ", found " + std::to_string(version),
                    kOtherRelease);

  Manifest m;
  m.step = json_integer(json_member(json, "step", what), what + ": step");
  m.mesh = parse_mesh(json_member(json, "mesh", what), what + ": mesh");
  m.tensors = parse_tensors(json_member(json, "tensors", what), what);
  const Json& data = json_member(json, "data", what);
  m.epoch = json_integer(json_member(data, "epoch", what), what + ": data.epoch");
  m.cursor = json_integer(json_member(data, "cursor", what), what + ": data.cursor");
  if (const auto sets = data.find("sets"); sets != data.end()) m.sets = *sets;
  const Json& seed = json_member(json_member(json, "rng", what), "seed", what);
  if (!seed.is_number_unsigned()) refuse_manifest(what + ": rng.seed: expected a whole number of 0 and more");
  m.seed = seed.get<uint64_t>();
  const Json& lr = json_member(json, "schedule_lr", what);
  if (!lr.is_number()) refuse_manifest(what + ": schedule_lr: expected a number");
  m.schedule_lr = lr.get<double>();
  m.experts = json_member(json, "experts", what);
  for (const auto& [key, value] : json.items())
    if (!kOwnFields.count(key)) m.extra[key] = value;
  return m;
}

std::optional<std::string> tiling_problem(const TensorRecord& tensor) {
  if (!byte_count(tensor.shape, tensor.dtype)) return "shape " + shape_text(tensor.shape) + " has more than 2^63 bytes";
  std::map<Box, std::vector<std::pair<int64_t, int64_t>>> ranges;
  for (const Part& part : tensor.parts) {
    if (!fits(part.box, tensor.shape))
      return "part " + box_text(part.box) + " lies outside " + shape_text(tensor.shape);
    ranges[part.box].emplace_back(part.begin, part.end);
  }
  for (auto a = ranges.begin(); a != ranges.end(); ++a)
    for (auto b = std::next(a); b != ranges.end(); ++b)
      if (overlap(a->first, b->first)) return "boxes " + box_text(a->first) + " and " + box_text(b->first) + " overlap";
  int64_t covered = 0;  // of disjoint boxes, so it cannot pass the tensor's own count
  for (auto& [box, flat] : ranges) {
    std::sort(flat.begin(), flat.end());
    int64_t end = 0;
    for (auto [first, last] : flat) {
      if (first != end)
        return std::string(first < end ? "overlap" : "hole") + " at element " + std::to_string(std::min(first, end)) +
               " of box " + box_text(box);
      end = last;
    }
    if (end != volume(box))
      return "box " + box_text(box) + " has " + std::to_string(volume(box)) + " elements, its parts " +
             std::to_string(end);
    covered += end;
  }
  if (covered != *element_count(tensor.shape))
    return "its parts hold " + std::to_string(covered) + " elements, shape " + shape_text(tensor.shape) + " has " +
           std::to_string(*element_count(tensor.shape));
  return std::nullopt;
}

namespace {

Manifest read_manifest(const Path& path) {
  Manifest manifest = parse_manifest(parse_json(read_text(path), path.string()), path.string());
  std::set<std::pair<std::string, std::string>> seen;
  for (const TensorRecord& tensor : manifest.tensors) {
    std::string what = path.string() + ": " + tensor.kind + " of " + shown(tensor.name);
    if (!seen.emplace(tensor.name, tensor.kind).second) refuse_manifest(what + " is listed twice");
    if (auto problem = tiling_problem(tensor)) refuse_manifest(what + ": " + *problem);
  }
  return manifest;
}

}  // namespace

Manifest load_manifest(const Path& folder) {
  const Path path = folder / "manifest.json";
  if (!std::filesystem::exists(path))
    refuse_manifest(folder.string() + ": no manifest.json, this is not a complete checkpoint");
  try {
    return read_manifest(path);
  } catch (const UserError& error) {
    if (error.code() != Exit::input || error.hint() == kOtherRelease) throw;
    throw damaged(error, folder);
  }
}

}  // namespace tessera::checkpoint
