#include "tessera/checkpoint/training.h"

#include <sys/stat.h>
#include <algorithm>
#include <cstdio>

#include "tessera/base/check.h"
#include "tessera/base/hash.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

std::string rank_file(int rank, std::string_view suffix) {
  char name[32];
  std::snprintf(name, sizeof name, "rank-%05d", rank);
  return name + std::string(suffix);
}

/// The piece's record with its one part (none when it is empty). Sets `broken` where it names none yet and a value of the
/// piece is not finite: the pass over the bytes for their checksum sees that too.
TensorRecord describe(const Piece& piece, int rank, std::string& broken) {
  const TensorRange range = resolved(piece.range, "checkpoint.save");
  TensorRecord tensor{range.name, range.kind, range.dtype, range.shape, {}};
  if (range.begin == range.end) return tensor;
  const void* data = piece.fetch ? piece.fetch() : piece.data;
  check_internal(data != nullptr, "checkpoint.save", range.kind + " of " + shown(range.name) + ": no data");
  uint32_t crc = 0;
  constexpr int64_t kBlock = int64_t{16} << 10;  // elements, which stay in the processor's cache for the second look
  for (int64_t at = 0; at < range.end - range.begin; at += kBlock) {
    const int64_t count = std::min(kBlock, range.end - range.begin - at);
    const char* block = static_cast<const char*>(data) + at * size_of(range.dtype);
    crc = crc32c(block, static_cast<size_t>(count * size_of(range.dtype)), crc);
    if (broken.empty() && !all_finite(range.dtype, block, count)) broken = range.kind + " of " + shown(range.name);
  }
  tensor.parts.push_back({rank_file(rank, ".safetensors"), "", range.box, range.begin, range.end, crc});
  return tensor;
}

class Merger {
 public:
  void add(TensorRecord tensor) {
    auto [at, is_new] = index_.emplace(std::pair(tensor.name, tensor.kind), tensors_.size());
    if (is_new) return tensors_.push_back(std::move(tensor));
    TensorRecord& merged = tensors_[at->second];
    check_internal(merged.dtype == tensor.dtype && merged.shape == tensor.shape, "checkpoint.commit",
                   tensor.kind + " of " + shown(tensor.name) + ": one rank has " + shape_text(merged.shape) + " " +
                       std::string(dtype_name(merged.dtype)) + ", another " + shape_text(tensor.shape) + " " +
                       std::string(dtype_name(tensor.dtype)));
    merged.parts.insert(merged.parts.end(), tensor.parts.begin(), tensor.parts.end());
  }
  std::vector<TensorRecord> take() { return std::move(tensors_); }

 private:
  std::vector<TensorRecord> tensors_;
  std::map<std::pair<std::string, std::string>, size_t> index_;
};

std::vector<TensorRecord> merge_ranks(const Path& partial, int world) {
  Merger merger;
  for (int rank = 0; rank < world; ++rank) {
    const Path path = partial / rank_file(rank, ".parts.json");
    if (!await_file(path))
      throw UserError(Exit::disk, "checkpoint.commit",
                      path.string() + ": rank " + std::to_string(rank) + " left no record of its parts",
                      "checkpoints must go to a folder that all nodes share");
    Json json = parse_json(read_text(path), path.string());
    for (TensorRecord& tensor : parse_tensors(json, path.string())) merger.add(std::move(tensor));
  }
  std::vector<TensorRecord> tensors = merger.take();
  for (const TensorRecord& tensor : tensors)
    if (auto problem = tiling_problem(tensor))
      throw InternalError("checkpoint.commit", tensor.kind + " of " + shown(tensor.name) + ": " + *problem);
  return tensors;
}

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

TensorRange resolved(TensorRange range, std::string_view where) {
  const std::string what = range.kind + " of " + shown(range.name) + ": ";
  check_internal(byte_count(range.shape, range.dtype).has_value(), where, what + "shape " + shape_text(range.shape));
  if (range.box.empty()) range.box = whole_box(range.shape);
  const std::string box = "box " + box_text(range.box) + " of " + shape_text(range.shape);
  check_internal(fits(range.box, range.shape), where, what + box);
  if (range.end < 0) range.end = volume(range.box);
  check_internal(0 <= range.begin && range.begin <= range.end && range.end <= volume(range.box), where,
                 what + "elements [" + std::to_string(range.begin) + ", " + std::to_string(range.end) + ") of " + box);
  return range;
}

bool save_rank(const Path& partial, int rank, const std::vector<Piece>& pieces, const Agree& agree) {
  std::vector<TensorRecord> records;
  std::vector<TensorData> tensors;
  std::map<std::string, int> used;  // a rank may hold several ranges of one tensor
  std::string broken;
  for (const Piece& piece : pieces) {
    TensorRecord record = describe(piece, rank, broken);
    for (Part& part : record.parts) {
      part.key = record.kind + "/" + record.name;
      if (int n = used[part.key]++) part.key += "#" + std::to_string(n);
      tensors.push_back({part.key, record.dtype, {part.end - part.begin}, piece.data, piece.fetch});
    }
    records.push_back(std::move(record));
  }
  if (agree && !agree(broken)) return false;
  std::error_code error;
  fs::create_directories(partial, error);
  if (error)
    throw UserError(Exit::disk, "checkpoint.save", partial.string() + ": cannot create: " + error.message(),
                    "check [run] out");
  if (!tensors.empty())
    write_safetensors(partial / rank_file(rank, ".safetensors"), tensors,
                      {{"format", "tessera"}, {"rank", std::to_string(rank)}});
  write_text(partial / rank_file(rank, ".parts.json"), dump_json(to_json(records)));
  return true;
}

void commit(const Path& partial, const Path& final, int world, Manifest manifest) {
  commit_with(partial, final, world, std::move(manifest), {});
}

void commit_with(const Path& partial, const Path& final, int world, Manifest manifest,
                 const std::function<void()>& beside) {
  manifest.tensors = merge_ranks(partial, world);
  std::set<std::string> files;
  for (const TensorRecord& tensor : manifest.tensors)
    for (const Part& part : tensor.parts) files.insert(part.file);
  // the ranks' records have done their work; others may be remains of a larger world that crashed here
  for (const auto& item : fs::directory_iterator(partial)) {
    std::error_code error;
    if (!files.count(item.path().filename().string())) fs::remove_all(item.path(), error);
  }
  const std::string text = dump_json(to_json(manifest));
  write_text(partial / "manifest.json", text);
  if (beside) {
    beside();
    write_text(partial / "manifest.json", text);
  }
  publish(partial, final);
}

TrainingCheckpoint::TrainingCheckpoint(const Path& folder) : folder_(folder), manifest_(load_manifest(folder)) {
  std::set<std::string> files;
  for (const TensorRecord& tensor : manifest_.tensors) {
    index_[{tensor.name, tensor.kind}] = &tensor;
    for (const Part& part : tensor.parts) files.insert(part.file);
  }
  for (const std::string& file : files)
    if (!await_file(folder_ / file))
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

namespace fs = std::filesystem;

namespace {

/// As manifests keep it: within the run relative to it, so that a run may be moved.
std::string name_of(const Path& folder, const Path& run) {
  const Path there = fs::weakly_canonical(fs::absolute(folder)) / "",
             here = fs::weakly_canonical(fs::absolute(run)) / "";
  const Path inside = there.lexically_relative(here);
  const bool outside = inside.empty() || *inside.begin() == "..";
  return (outside ? there : inside).parent_path().string();
}

std::string line_of(const Manifest& manifest) {
  const auto found = manifest.extra.find(kResumedFrom);
  return found != manifest.extra.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Whether a checkpoint was saved at `time`, in seconds since 1970, or later.
bool saved_since(const Path& checkpoint, double time) {
  struct stat manifest {};
  if (stat((checkpoint / "manifest.json").c_str(), &manifest) != 0) return false;
  return static_cast<double>(manifest.st_mtim.tv_sec) + 1e-9 * static_cast<double>(manifest.st_mtim.tv_nsec) >= time;
}

/// Whole checkpoints of later steps.
std::vector<Path> behind(const Path& checkpoints, int64_t step) {
  std::vector<Path> found;
  for (const Path& whole : whole_checkpoints(checkpoints))
    if (step_of(whole.filename().string()) > step) found.push_back(whole);
  return found;
}

}  // namespace

bool has_gone_on(const std::string& asked, const Path& run) {
  const std::vector<Path> whole = whole_checkpoints(run / "checkpoints");
  for (auto newest = whole.rbegin(); newest != whole.rend(); ++newest) {
    try {
      return line_of(load_manifest(*newest)) == name_of(asked, run);
    } catch (const UserError&) {  // damaged: the one before it tells which line this is
    }
  }
  return false;
}

Resume choose_resume(const std::string& asked, const Path& run, std::optional<double> launched, bool diverged) {
  const Path checkpoints = run / "checkpoints";
  const std::optional<Path> newest = latest(checkpoints);
  if (asked == "no" && !(launched && newest && saved_since(*newest, *launched)))
    return {std::nullopt, whole_checkpoints(checkpoints), "", false};
  const bool named = asked != "no" && asked != "auto";
  std::error_code none;
  const bool own =
      named && fs::exists(Path(asked) / "manifest.json", none) && fs::equivalent(Path(asked) / "..", checkpoints, none);
  const bool gone_on = named && !(diverged && own) && has_gone_on(asked, run);
  if (diverged && (!named || gone_on)) {
    const std::optional<Path> proved = newest_proved(checkpoints);
    return {proved, behind(checkpoints, proved ? load_manifest(*proved).step : -1),
            proved ? line_of(load_manifest(*proved)) : "", gone_on, /*back=*/true};
  }
  if (!named) return {newest, {}, newest ? line_of(load_manifest(*newest)) : "", false};
  if (gone_on) return {newest, {}, name_of(asked, run), /*gone_on=*/true};
  // What begins elsewhere and diverged before its first checkpoint would do so again.
  return {Path(asked), behind(checkpoints, load_manifest(asked).step), name_of(asked, run), false, diverged && !own};
}

std::string describe(const Resume& resume) {
  if (!resume.from) return "none";
  const std::string text = read_text(*resume.from / "manifest.json");
  char sum[16];
  std::snprintf(sum, sizeof sum, "%08x", crc32c(text.data(), text.size()));
  return resume.from->string() + " (manifest.json " + sum + ")";
}

bool is_trainer_folder(const std::filesystem::path& folder) {
  std::error_code none;
  return std::filesystem::is_regular_file(folder / "running_states.json", none);
}

}  // namespace tessera::checkpoint
