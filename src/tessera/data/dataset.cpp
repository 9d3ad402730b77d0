#include "tessera/data/dataset.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/data/camera.h"
#include "tessera/data/files/archive.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/files/parquet.h"
#include "tessera/data/frame_folder.h"
#include "tessera/data/listing.h"
#include "tessera/data/text/text.h"
#include "tessera/families/registry.h"

namespace tessera::data {

namespace fs = std::filesystem;

namespace {

using Names = std::vector<std::string>;

// The columns that today's trainers write, most specific first.
const Names kPathColumns = {"video", "image", "file_name", "file_path", "path", "video_path", "image_path"};
const Names kCaptionColumns = {"prompt", "text", "caption", "cap"};
const Names kFirstColumns = {"input_image", "first_image", "first_frame", "image"};
const Names kLastColumns = {"end_image", "last_image", "last_frame"};
const Names kSoundColumns = {"audio", "input_audio", "audio_path"};
const Names kMaskColumns = {"mask", "mask_path", "mask_file", "loss_mask"};
const Names kPoseColumns = families::column_names({"pose", "pose_video"}, "pose");
const Names kFaceColumns = families::column_names({"face_video", "face_file_path"}, "face");
// What a clip is made from, which of that is to change, what it follows frame by frame, what it shows, how its camera moves.
const Names kGuideColumns = families::column_names({}, "guide");
const Names kGuideMaskColumns = families::column_names({}, "guide_mask");
const Names kControlColumns = {"control_video", "control_file_path"};
const Names kReferenceColumns = families::column_names({"reference_image"}, "references");
const Names kDirectionColumns = {"camera_control_direction"};
const Names kSpeedColumns = {"camera_control_speed"};
// Files that another program encoded.
const Names kLatentColumns = families::column_names({}, "latents");
const Names kContextColumns = families::column_names({}, "context");
const Names kPooledColumns = families::column_names({}, "pooled");
// Facts that are read from the clip itself.
const Names kKnownColumns = {"type", "num_frames", "height", "width", "aspect_ratio", "resolution", "fps", "duration"};
const Names kTables = {"metadata.csv",  "metadata.json", "metadata.jsonl", "metadata.parquet", "videos2caption.json",
                       "captions.json", "videos.txt",    "meta_data.json", "wids-meta.json"};
const Names kFolders = {"", "videos", "train"};  // where a relative path is looked for
const Names kSoundEndings = {".wav", ".mp3", ".flac", ".m4a", ".ogg"};
constexpr const char* kMend = "fix or remove the row";

std::string joined(const Names& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

bool contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void check_caption(const std::string& text, const std::string& where) {
  constexpr size_t kMost = size_t{1} << 20;  // models read 512 tokens of it, and tokenisers take memory by its length
  check_input(
      text.size() <= kMost, "data.dataset",
      where + ": the caption has " + std::to_string(text.size()) + " bytes, expected at most " + std::to_string(kMost),
      "shorten it: models read its first tokens alone");
  const size_t bad = invalid_utf8(text);
  check_input(bad == std::string::npos, "data.dataset",
              where + ": the caption is not UTF-8 at byte " + std::to_string(bad), "save the file as UTF-8");
}

/// Captions of a folder by the names of their clips, whatever form of Unicode a file system gave them and in whichever
/// case their ending is written. The first of the endings goes before the others.
class CaptionsBeside {
 public:
  explicit CaptionsBeside(const CaptionRules& rules)
      : endings_(rules.endings.empty() ? caption_endings() : rules.endings) {}

  /// a.txt of a.mp4, and of the folder a: the one that is there, else the one that is expected.
  Path of(const Path& clip) {
    const Path stem = is_folder(clip) ? clip : Path(clip).replace_extension();
    for (const std::string& ending : endings_)
      if (Path file = Path(stem) += ending; is_file(file)) return file;
    if (!is_archive(clip.parent_path())) {
      const auto& captions = in_folder(clip.parent_path());
      if (const auto found = captions.find(compose_name(stem)); found != captions.end()) return found->second;
    }
    return Path(stem) += endings_.front();
  }

 private:
  static std::string compose_name(const Path& path) {
    const std::string name = path.filename().string();
    return invalid_utf8(name) == std::string::npos ? compose(name) : name;
  }

  const std::map<std::string, Path>& in_folder(const Path& folder) {
    const auto [known, fresh] = folders_.emplace(folder, std::map<std::string, Path>());
    std::error_code unseen;
    std::vector<Path> files;
    if (fresh)
      for (const fs::directory_entry& entry : fs::directory_iterator(folder.empty() ? "." : folder, unseen))
        if (!is_hidden(entry.path()) && contains(endings_, ending_of(entry.path()))) files.push_back(entry.path());
    std::ranges::sort(files);
    for (const std::string& ending : endings_)
      for (const Path& file : files)
        if (ending_of(file) == ending && is_file(file))
          known->second.emplace(compose_name(Path(file).replace_extension()), file);
    return known->second;
  }

  const Names endings_;
  std::map<Path, std::map<std::string, Path>> folders_;
};

std::string caption_beside(const Path& clip, const Path& file, const std::string& otherwise) {
  if (!otherwise.empty() && !is_file(file)) return otherwise;
  check_input(is_file(file), "data.dataset", clip.string() + ": no caption, expected " + file.string(),
              "write the caption into that file, list clips and captions in a metadata.csv, or set data.caption");
  std::string text = checkpoint::read_text(file);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  check_caption(text, file.string());
  return text;
}

Path sound_beside(const Path& clip) {
  for (const std::string& ending : kSoundEndings)
    if (const Path file = Path(clip).replace_extension(ending); is_file(file)) return file;
  return {};
}

/// What the clips of one folder share while it is read.
struct Folder {
  const DatasetSpec& spec;
  Problems& problems;
  MissingFiles missing = {};
  CaptionsBeside captions{spec.captions};
  bool first_line = false;  ///< of a caption's file, no more
  bool is_table = false;    ///< its captions are columns, not files
};

/// The default one of an object with captions by name.
std::string caption_of(const NamedCaptions& named, const Path& file) {
  for (const std::string& name : kCaptionColumns)
    if (const auto found = named.find(name); found != named.end()) {
      check_caption(found->second, file.string());
      return found->second;
    }
  throw UserError(Exit::input, "data.dataset",
                  file.string() + ": no caption, expected a text named " + joined(kCaptionColumns),
                  "name one of its texts so, or choose other files by data.caption_ext");
}

/// Those with a word in them; none: one empty caption.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of("\r\n", at), text.size());
    if (end > at) lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines.empty() ? std::vector<std::string>{""} : lines;
}

void add_clip(const Path& clip, Items& items, Folder& folder) {
  try {
    const Path beside = folder.captions.of(clip);
    std::string caption = caption_beside(clip, beside, folder.spec.caption);
    NamedCaptions of_json;
    if (ending_of(beside) == ".json" && is_file(beside)) {
      of_json = named_captions(checkpoint::parse_json(caption, beside.string()));
      caption = caption_of(of_json, beside);
    }
    if (folder.first_line) caption = caption.substr(0, caption.find_first_of("\r\n"));
    Item item{clip, {caption}, clip.string()};
    if (folder.spec.captions.lines) item.captions = lines_of(caption);
    if (folder.spec.captions.any()) {
      const CaptionFiles files(Path(clip).replace_extension(), folder.spec.captions);
      folder.missing.count(files);
      NamedCaptions named = of_json;
      named["prompt"] = caption;
      const std::string key = clip.stem().string();
      if (files.drops(key)) return folder.missing.dropped();
      files.add_captions(key, /*renames=*/false, named);
      Captions captions = choose_captions(named, files.scores(key), folder.spec.captions, item.where);
      const std::string motion = files.motion(key);
      for (std::string& text : captions.texts) text += motion;
      item.captions = std::move(captions.texts), item.weights = std::move(captions.weights);
    }
    item.sound = sound_beside(clip);
    items.push_back(item);
  } catch (const UserError& error) {
    folder.problems.add(clip.string(), error);
  }
}

/// Folders beside the clips may be anything (masks, previews): one of frames is a clip when it has a caption.
bool captioned(const Path& frames, Folder& folder) {
  const Path caption = folder.captions.of(frames);
  if (is_file(caption) || !folder.spec.caption.empty()) return true;
  folder.problems.note(frames.string() + ": numbered frames, not used without a caption, " + caption.string());
  return false;
}

/// Folders in the data set's are not read: those that hold clips, at any depth, are told.
void tell_subfolder(const Path& inner, Folder& folder) {
  constexpr int64_t kMost = 100'000;  // files that are looked at
  std::error_code unseen;
  int64_t clips = 0, files = 0;
  for (fs::recursive_directory_iterator entry(inner, fs::directory_options::skip_permission_denied, unseen), end;
       !unseen && entry != end && files < kMost; entry.increment(unseen), ++files) {
    if (is_hidden(entry->path()) && is_folder(entry->path())) entry.disable_recursion_pending();
    clips += folder.spec.latents ? is_npy(entry->path()) : is_clip(entry->path()) || is_archive(entry->path());
  }
  if (clips > 0)
    folder.problems.note(inner.string() + ": a folder with " + std::to_string(clips) +
                         (clips == 1 ? " clip" : " clips") +
                         ", not read: give it as data.path, or list the clips of all folders in a metadata.csv");
}

/// Whether a file beside clips is no clip, as its name says: a caption, a sound, a table, a text about the data set.
bool goes_with_clips(const Path& file) {
  const Names known = {".json", ".jsonl",   ".csv",   ".tsv", ".md",  ".toml", ".yaml",
                       ".yml",  ".parquet", ".arrow", ".db",  ".ini", ""};
  const std::string ending = ending_of(file);
  for (const Names& names : {known, caption_endings(), tensor_endings(), kSoundEndings})
    if (contains(names, ending)) return true;
  return is_clip(file) || is_archive(file);
}

/// "3 files are no clips, by their endings: .docx (1), .psd (2)"
void tell_left_out(const Path& path, const std::map<std::string, int>& endings, Problems& problems) {
  int count = 0;
  std::string list;
  for (const auto& [ending, files] : endings) {
    count += files;
    list += (list.empty() ? "" : ", ") + ending + " (" + std::to_string(files) + ")";
  }
  if (count > 0)
    problems.note(path.string() + ": " + std::to_string(count) +
                  (count == 1 ? " file is not used, as its ending is no clip's: "
                              : " files are not used, as their endings are no clips': ") +
                  list);
}

Items read_folder(const Path& path, Folder& folder) {
  std::vector<Path> clips;
  std::map<std::string, int> others;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const Path& clip = entry.path();
    if (is_hidden(clip)) continue;
    const std::string& of_masks = folder.spec.masks.suffix;
    if (!of_masks.empty() && clip.filename().string().ends_with(of_masks)) continue;
    const auto is = [&](const Path& other) { return clip.lexically_normal() == other.lexically_normal(); };
    if (is(folder.spec.masks.folder) || is(folder.spec.controls)) continue;
    const auto wanted = [&] { return folder.spec.latents ? is_npy(clip) : is_clip(clip); };
    const bool file = is_file(clip);
    if (!file && !is_folder(clip) && wanted())
      folder.problems.add(clip.string(), "is no file: a link to nowhere or to itself, a pipe or a device", "remove it");
    else if (file ? wanted() : is_frame_folder(clip) && captioned(clip, folder))
      clips.push_back(clip);
    else if (is_folder(clip) && !is_frame_folder(clip))
      tell_subfolder(clip, folder);
    else if (const std::string command = unpacking(clip); file && !command.empty())
      folder.problems.add(clip.string(), "is packed, and only members of a plain .tar are read in their places",
                          "unpack it: " + command);
    else if (file && !goes_with_clips(clip))
      ++others[ending_of(clip)];
  }
  tell_left_out(path, others, folder.problems);
  std::sort(clips.begin(), clips.end(), [](const Path& a, const Path& b) { return a.native() < b.native(); });
  Items items;
  for (const Path& clip : clips) add_clip(clip, items, folder);
  return items;
}

/// {"img_names": ["a", "b.jpg"]}: pictures beside the file, each with the first line of its .txt.
Items read_names(const Path& file, const Path& path, Folder& folder) {
  const std::string what = file.string();
  const checkpoint::Json json = checkpoint::parse_json(checkpoint::read_text(file), what);
  const checkpoint::Json& names =
      checkpoint::json_array(checkpoint::json_member(json, "img_names", what), what + ": img_names");
  folder.first_line = true;
  Items items;
  size_t number = 0;
  for (const checkpoint::Json& value : names) {
    const std::string where = what + ": img_names[" + std::to_string(number++) + "]";
    try {
      const Path named = path / checkpoint::json_string(value, where);
      std::vector<std::string> endings = folder.spec.latents ? Names{".npy"} : image_endings();
      if (!folder.spec.latents && is_image(named)) endings = {named.extension().string()};
      const Path stem = is_image(named) ? Path(named).replace_extension() : named;
      const auto there = std::find_if(endings.begin(), endings.end(),
                                      [&](const std::string& e) { return fs::is_regular_file(Path(stem) += e); });
      check_input(there != endings.end(), "data.dataset",
                  where + ": " + named.string() + ": no such file with the ending " + joined(endings), kMend);
      add_clip(Path(stem) += *there, items, folder);
    } catch (const UserError& error) {
      folder.problems.add(where, error);
    }
  }
  return items;
}

Items read_archives(const Path& path, Folder& folder) {
  Items items;
  if (is_folder(path))
    for (const fs::directory_entry& inner : fs::directory_iterator(path))
      if (is_folder(inner.path()) && !is_hidden(inner.path())) tell_subfolder(inner.path(), folder);
  for (const Archive& archive : archives_of(path)) {
    for (const Item& item : read_archive(archive, folder.spec, folder.missing, folder.problems)) items.push_back(item);
  }
  return items;
}

/// The first of these columns that the row has something in; its texts.
const std::vector<std::string>* filled(const Row& row, const Names& columns, std::string* name) {
  for (const std::string& column : columns) {
    const auto found = row.fields.find(column);
    if (found == row.fields.end()) continue;
    if (name->empty()) *name = column;  // to be named when all are empty
    const bool empty = std::all_of(found->second.begin(), found->second.end(), [](auto& text) { return text.empty(); });
    if (empty) continue;
    *name = column;
    return &found->second;
  }
  return nullptr;
}

Path find_clip(const std::string& name, const Path& folder, const std::string& where) {
  for (const std::string& inner : kFolders) {
    const Path path = inner.empty() ? folder / name : folder / inner / name;  // an absolute name replaces the folder
    if (is_file(path) || is_frame_folder(path)) return path;
  }
  const Path path = folder / name;
  check_input(!is_folder(path), "data.dataset", where + ": " + path.string() + ": is a folder, expected a clip",
              "a folder of frames has numbered images: frame_0001.png, frame_0002.png, ...");
  throw UserError(Exit::input, "data.dataset", where + ": " + path.string() + ": no such file",
                  "paths are relative to " + folder.string() + "; fix or remove the row");
}

/// A picture of the row, where a column other than the clip's own names one.
Path picture_of(const Row& row, const Names& columns, const std::string& clip_column, const Path& folder) {
  for (const std::string& column : columns) {
    const auto found = row.fields.find(column);
    if (column == clip_column || found == row.fields.end() || found->second.empty() || found->second[0].empty())
      continue;
    const Path path = find_clip(found->second[0], folder, row.where);
    check_input(is_image(path), "data.dataset",
                row.where + ": " + path.string() + " in column " + column + " is no image, expected one of " +
                    joined(image_endings()),
                kMend);
    return path;
  }
  return {};
}

/// All pictures of the row in the first of these columns that has some.
std::vector<Path> pictures_of(const Row& row, const Names& columns, const Path& folder) {
  std::vector<Path> pictures;
  std::string column;
  const auto* names = filled(row, columns, &column);
  for (const std::string& name : names ? *names : Names()) {
    pictures.push_back(find_clip(name, folder, row.where));
    check_input(is_image(pictures.back()), "data.dataset",
                row.where + ": " + pictures.back().string() + " in column " + column +
                    " is no image, expected one of " + joined(image_endings()),
                kMend);
  }
  return pictures;
}

/// A file of the row beside its clip.
Path file_of(const Row& row, const Names& columns, const Path& folder) {
  std::string column;
  const auto* names = filled(row, columns, &column);
  return names ? find_clip(names->front(), folder, row.where) : Path();
}

/// VideoX's `type` says which kind a clip is; where the file's name says otherwise, one of the two is wrong.
void check_type(const Row& row, const Path& clip) {
  const auto found = row.fields.find("type");
  if (found == row.fields.end() || found->second.empty() || found->second[0].empty()) return;
  const std::string& type = found->second[0];
  check_input(type == "video" || type == "image", "data.dataset",
              row.where + ": type is '" + type + "', expected video or image", kMend);
  check_input((type == "image") == is_image(clip) || !is_clip(clip), "data.dataset",
              row.where + ": " + clip.string() + ": type says " + type + ", the file's name says otherwise", kMend);
}

/// A file of tensors of the row, which another program encoded.
Path tensor_of(const Row& row, const Names& columns, const Path& folder) {
  const Path file = file_of(row, columns, folder);
  check_input(!file.empty(), "data.dataset", row.where + ": no file in column " + joined(columns),
              "fill it in or remove the row");
  check_input(is_latent(file), "data.dataset",
              row.where + ": " + file.string() + ": expected a file of one tensor, " + joined(tensor_endings()), kMend);
  return file;
}

/// A control "video" whose name ends in .txt has the parameters of a camera: VideoX-Fun's tables have one column for both.
void read_controls(const Row& row, const Path& folder, Item& item) {
  item.control = file_of(row, kControlColumns, folder);
  if (item.control.extension() == ".txt") item.camera = std::exchange(item.control, Path());
  std::string column;
  if (const auto* direction = filled(row, kDirectionColumns, &column)) item.direction = direction->front();
  item.camera_speed = kCameraSpeed;
  if (const auto* speed = filled(row, kSpeedColumns, &column)) {
    const std::string& text = speed->front();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), item.camera_speed);
    check_input(error == std::errc() && end == text.data() + text.size() && std::abs(item.camera_speed) < 1e6,
                "data.dataset",
                row.where + ": column " + kSpeedColumns.front() + " has '" + text + "', expected a number", kMend);
  }
  if (!item.direction.empty())
    check_input(std::ranges::count(camera_directions(), item.direction) == 1, "data.dataset",
                row.where + ": column " + kDirectionColumns.front() + " has '" + item.direction +
                    "', expected one of " + joined(camera_directions()),
                kMend);
}

Item item_of(const Row& row, const Path& folder, const DatasetSpec& spec) {
  const std::string& otherwise = spec.caption;
  std::string column;
  const Names& paths = spec.latent_column ? kLatentColumns : kPathColumns;
  const auto* path = filled(row, paths, &column);
  check_input(
      path != nullptr, "data.dataset",
      row.where + (column.empty() ? ": no path, expected one of " + joined(paths) : ": no path in column " + column),
      "fill it in or remove the row");
  check_input(path->size() == 1, "data.dataset",
              row.where + ": " + std::to_string(path->size()) + " paths in column " + column + ", expected one", kMend);
  const std::string clip_column = column;
  column.clear();
  const auto* captions = filled(row, kCaptionColumns, &column);
  const std::vector<std::string> one = {otherwise};
  if (!captions && !otherwise.empty()) captions = &one;
  check_input(captions != nullptr, "data.dataset",
              row.where + ": " + path->front() +
                  (column.empty() ? ": no caption, expected one of " + joined(kCaptionColumns)
                                  : ": no caption in column " + column),
              "fill it in or remove the row");
  for (const std::string& caption : *captions) {
    check_input(!caption.empty(), "data.dataset",
                row.where + ": " + path->front() + ": one of its captions in column " + column + " is empty", kMend);
    check_caption(caption, row.where);
  }
  Item item{spec.latent_column ? tensor_of(row, paths, folder) : find_clip(path->front(), folder, row.where), *captions,
            row.where};
  if (!spec.latent_column) check_type(row, item.path);
  if (spec.text_columns) item.context = tensor_of(row, kContextColumns, folder);
  if (spec.text_columns && row.fields.contains(kPooledColumns.front()))
    item.pooled = tensor_of(row, kPooledColumns, folder);
  item.first_image = picture_of(row, kFirstColumns, clip_column, folder);
  item.last_image = picture_of(row, kLastColumns, clip_column, folder);
  item.sound = file_of(row, kSoundColumns, folder);
  item.pose = file_of(row, kPoseColumns, folder);
  item.face = file_of(row, kFaceColumns, folder);
  if (spec.masks.column) item.mask = file_of(row, kMaskColumns, folder);
  item.guide = file_of(row, kGuideColumns, folder);
  item.guide_mask = file_of(row, kGuideMaskColumns, folder);
  item.references = pictures_of(row, kReferenceColumns, folder);
  read_controls(row, folder, item);
  return item;
}

/// What the row's numbers end its captions in. A picture has no rate.
std::string end_of_captions(const Row& row, const Path& clip, const CaptionRules& rules) {
  NamedNumbers numbers;
  for (const std::string& column : rules.columns) {
    const auto found = row.fields.find(column);
    const bool rate = column == "fps";
    if (found == row.fields.end() || found->second.empty() || found->second[0].empty() || (rate && is_image(clip)))
      continue;
    const std::string& text = found->second[0];
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (text == "nan" || text == "NaN") continue;
    check_input(error == std::errc() && end == text.data() + text.size() && std::abs(number) < 1e9, "data.dataset",
                row.where + ": column " + column + " has '" + text + "', expected a number", kMend);
    numbers.emplace_back(column, rate && rules.fps > 0 ? rules.fps : number);
  }
  return column_ending(numbers);
}

void check_columns(const RowTable& table, const Path& file, const DatasetSpec& spec, Problems& problems) {
  const auto has_one = [&](const Names& names) {
    return std::any_of(names.begin(), names.end(), [&](auto& name) { return contains(table.columns, name); });
  };
  std::vector<const Names*> needed = {spec.latent_column ? &kLatentColumns : &kPathColumns, &kCaptionColumns};
  if (spec.text_columns) needed.push_back(&kContextColumns);
  for (const Names* names : needed)
    check_input(table.columns.empty() || has_one(*names) || (names == &kCaptionColumns && !spec.caption.empty()),
                "data.dataset",
                file.string() + ": expected a column " + joined(*names) + ", found " + joined(table.columns),
                "rename the column");
  std::vector<const Names*> read = {&kPathColumns,      &kCaptionColumns,   &kFirstColumns,   &kLastColumns,
                                    &kSoundColumns,     &kPoseColumns,      &kKnownColumns,   &kGuideColumns,
                                    &kGuideMaskColumns, &kReferenceColumns, &kControlColumns, &kDirectionColumns,
                                    &kSpeedColumns,     &kFaceColumns};
  if (spec.latent_column) read.push_back(&kLatentColumns);
  if (spec.masks.column) read.push_back(&kMaskColumns);
  if (spec.text_columns) read.insert(read.end(), {&kContextColumns, &kPooledColumns});
  for (const std::string& column : spec.captions.columns)
    if (!contains(table.columns, column))
      problems.note(file.string() + ": no column " + column + ", with which data.caption_columns ends captions");
  Names unused;
  for (const std::string& column : table.columns)
    if (std::none_of(read.begin(), read.end(), [&](const Names* names) { return contains(*names, column); }) &&
        !contains(spec.captions.columns, column))
      unused.push_back(column);
  if (!unused.empty()) problems.note(file.string() + ": columns that are not used: " + joined(unused));
}

std::vector<const Path*> files_of(const Item& item) {
  std::vector<const Path*> files = {&item.path,    &item.first_image, &item.last_image, &item.sound,
                                    &item.pose,    &item.context,     &item.guide,      &item.guide_mask,
                                    &item.control, &item.camera,      &item.mask,       &item.face};
  for (const Path& picture : item.references) files.push_back(&picture);
  return files;
}

/// Folders beside a table of which none of its rows has a file.
void tell_unlisted(const Path& path, const Items& items, Folder& folder) {
  std::set<Path> used;
  for (const Item& item : items)
    for (const Path* file : files_of(item))
      if (const Path inner = file->lexically_relative(path); !inner.empty()) used.insert(*inner.begin());
  std::error_code unseen;
  for (const fs::directory_entry& inner : fs::directory_iterator(path, unseen))
    if (is_folder(inner.path()) && !is_hidden(inner.path()) && !used.contains(inner.path().filename()))
      tell_subfolder(inner.path(), folder);
}

Items read_table(const Path& file, const Path& path, Folder& folder) {
  if (file.filename() == "wids-meta.json") return read_archives(file, folder);
  if (file.filename() == "meta_data.json") return read_names(file, path, folder);
  folder.is_table = true;
  const RowTable table = read_rows(file, folder.problems);
  check_columns(table, file, folder.spec, folder.problems);
  Items items;
  for (const Row& row : table.rows) {
    try {
      Item item = item_of(row, path, folder.spec);
      const std::string ending = end_of_captions(row, item.path, folder.spec.captions);
      for (std::string& caption : item.captions) caption += ending;
      items.push_back(item);
    } catch (const UserError& error) {
      folder.problems.add(row.where, error);
    }
  }
  tell_unlisted(path, items, folder);
  return items;
}

/// A table by itself, named in place of its folder. One of archives is read by archives_of().
bool is_table(const Path& path) {
  return contains({".csv", ".json", ".jsonl", ".parquet", ".arrow"}, ending_of(path)) && is_file(path) &&
         !is_archive(path) && path.filename() != "wids-meta.json";
}

/// Tables with pictures, as Hugging Face's data sets have them: data/train-00000-of-00004.parquet, or data-*.arrow where
/// datasets' save_to_disk wrote them. Of several splits the one for training; the others are told.
std::vector<Path> tables_in(const Path& path, Problems& problems) {
  std::vector<Path> found, others;
  for (const char* inner : {"", "data", "train"}) {
    std::error_code unseen;
    for (const fs::directory_entry& entry : fs::directory_iterator(path / inner, unseen)) {
      const std::string name = entry.path().filename().string();
      const bool cached = name.starts_with("cache-") && is_picture_table(name);  // datasets' own, of map and filter
      if (is_picture_table(name) && !cached && is_file(entry.path())) found.push_back(entry.path());
    }
    if (!found.empty()) break;
  }
  const auto trains = [](const Path& table) { return table.filename().string().starts_with("train"); };
  if (std::ranges::any_of(found, trains))
    std::erase_if(found, [&](const Path& table) {
      if (!trains(table)) others.push_back(table);
      return !trains(table);
    });
  std::ranges::sort(found);
  if (!others.empty())
    problems.note(path.string() + ": " + std::to_string(others.size()) +
                  " tables of other splits are not read, such as " + others.front().string());
  return found;
}

Path table_in(const Path& folder) {
  Path found;
  for (const std::string& name : kTables) {
    if (!fs::exists(folder / name)) continue;
    check_input(found.empty(), "data.dataset",
                folder.string() + ": both " + found.filename().string() + " and " + name + " are there",
                "set data.metadata to the one you mean");
    found = folder / name;
  }
  return found;
}

Items read_once(const DatasetSpec& spec, Folder& folder) {
  if (!spec.metadata.empty())
    return read_table(spec.metadata, spec.path.empty() ? spec.metadata.parent_path() : spec.path, folder);
  check_input(!spec.path.empty(), "data.path", "is empty, and so is data.metadata: no clips are named",
              "set data.path to the folder of your clips, each with a .txt beside it");
  check_input(fs::exists(spec.path), "data.dataset", spec.path.string() + ": no such folder or file",
              "check data.path; relative paths start at the current folder, " + fs::current_path().string());
  if (const std::string command = unpacking(spec.path); !command.empty())
    throw UserError(Exit::input, "data.dataset",
                    spec.path.string() + ": is packed, and only members of a plain .tar are read in their places",
                    "unpack it: " + command);
  if (is_table(spec.path)) return read_table(spec.path, spec.path.parent_path(), folder);
  if (spec.latent_column || spec.text_columns) {
    const Path table = is_folder(spec.path) ? table_in(spec.path) : Path();
    check_input(!table.empty(), "data.dataset",
                spec.path.string() + ": no table, and data." + (spec.latent_column ? "latents" : "texts") +
                    " = \"column\" takes files from the columns of one",
                "give the table as data.path or data.metadata");
    return read_table(table, spec.path, folder);
  }
  const bool is_clip_itself = is_frame_folder(spec.path) && is_file(folder.captions.of(spec.path));
  if (!is_clip_itself && (is_archive(spec.path) || is_folder(spec.path))) {
    if (!is_folder(spec.path)) return read_archives(spec.path, folder);
    const Path table = table_in(spec.path);
    if (!table.empty()) return read_table(table, spec.path, folder);
    if (has_archives(spec.path)) return read_archives(spec.path, folder);
    Items items = read_folder(spec.path, folder);
    if (!items.empty() || !folder.problems.empty()) return items;
    for (const Path& pictures : tables_in(spec.path, folder.problems)) {
      items.append(read_table(pictures, spec.path, folder));
    }
    return items;
  }
  Items items;
  add_clip(spec.path, items, folder);
  return items;
}

/// A clip's path without its ending; a folder of frames has none.
Path stem_of(const Item& item) { return is_folder(item.path) ? item.path : Path(item.path).replace_extension(); }

/// The pictures and clips of a folder that belong to the clips of a data set, by their names.
class Companions {
 public:
  /// `key` names the folder in messages, `what` is one of its files: "mask".
  Companions(const Path& folder, const char* key, const std::string& what, Problems& problems) {
    if (folder.empty()) return;
    check_input(is_folder(folder), key, folder.string() + ": there is no such folder",
                "give the folder of " + what + "s");
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const Path& file = entry.path();
      if (is_hidden(file) || !(is_file(file) ? is_clip(file) : is_frame_folder(file))) continue;
      const std::string name = is_file(file) ? file.stem().string() : file.filename().string();
      const auto [other, fresh] = by_name_.emplace(name, file);
      if (!fresh)
        problems.add(file.string(), "is a " + what + " of the same name as " + other->second.filename().string(),
                     "leave one of them");
    }
  }
  /// Empty where the clip has none.
  Path of(const Item& item) const {
    const auto found = by_name_.find(stem_of(item).filename().string());
    return found == by_name_.end() ? Path() : found->second;
  }

 private:
  std::map<std::string, Path> by_name_;
};

/// The mask of each clip, by the name of its file. A clip may have none.
void find_masks(const MaskFiles& masks, Items& items, Problems& problems) {
  if (masks.folder.empty() && masks.suffix.empty()) return;
  const Companions in_folder(masks.folder, "data.mask_path", "mask", problems);
  items.edit([&](Item& item) {
    if (Path file = in_folder.of(item); !file.empty()) item.mask = std::move(file);
    if (masks.suffix.empty()) return true;
    if (Path file = stem_of(item) += masks.suffix; is_file(file)) item.mask = std::move(file);
    return true;
  });
}

/// What each clip follows, whatever the model calls it, where its row names nothing.
void find_controls(const Path& folder, Items& items, Problems& problems) {
  if (folder.empty()) return;
  const Companions controls(folder, "data.control_path", "control", problems);
  int64_t without = 0;
  items.edit([&](Item& item) {
    const Path file = controls.of(item);
    without += file.empty() && item.control.empty() && item.guide.empty() && item.pose.empty();
    for (Path* place : {&item.control, &item.guide, &item.pose})
      if (place->empty()) *place = file;
    return true;
  });
  check_input(without < static_cast<int64_t>(items.size()), "data.control_path",
              folder.string() + ": no file there has the name of a clip of the data set",
              "name each as its clip is named");
  if (without > 0)
    problems.note(std::to_string(without) + " of " + std::to_string(items.size()) +
                  " clips have nothing to follow in " + folder.string());
}

/// Keys that say where captions are, in a data set that has them elsewhere.
void tell_unused_rules(const Folder& folder) {
  const CaptionRules& rules = folder.spec.captions;
  Names unused;
  const auto set = [&](bool is_set, const char* key) {
    if (is_set) unused.push_back(key);
  };
  if (folder.is_table) {
    set(!rules.shares.empty(), "data.captions"), set(!rules.files.empty(), "data.caption_files");
    set(!rules.score_files.empty(), "data.score_files"), set(rules.drop_below > 0, "data.score_drop");
    set(!rules.motion_files.empty(), "data.motion_files");
  } else {
    set(!rules.columns.empty(), "data.caption_columns");
  }
  if (!unused.empty())
    folder.problems.note(
        joined(unused) + (unused.size() == 1 ? " has" : " have") + " no effect: the captions are " +
        (folder.is_table ? "columns of a table, not files beside clips" : "files, not columns of a table"));
}

/// Captions without a word are allowed: the clip trains without text, which few mean.
void tell_blank_captions(const Items& items, Problems& problems) {
  int64_t blank = 0;
  std::string first;
  for (const Item& item : items)
    for (const std::string& caption : item.captions)
      if (caption.find_first_not_of(" \t\r\n\f\v") == caption.npos && blank++ == 0) first = item.where;
  if (blank > 0)
    problems.note(std::to_string(blank) + (blank == 1 ? " caption is" : " captions are") +
                  " empty or blank, so that these clips train without text; the first: " + first);
}

}  // namespace

Items read_dataset(const DatasetSpec& spec, Problems& problems) {
  check_input(spec.repeats >= 1, "data.dataset",
              "data.repeats is " + std::to_string(spec.repeats) + ", expected 1 or more");
  Folder folder{spec, problems};
  Items once = read_once(spec, folder);
  once.edit([&](Item& item) {
    Captions captions = dressed({item.captions, item.weights}, spec.captions);
    const bool changed = captions.texts != item.captions;
    item.captions = std::move(captions.texts), item.weights = std::move(captions.weights);
    return changed;
  });
  find_masks(spec.masks, once, problems);
  find_controls(spec.controls, once, problems);
  folder.missing.tell(problems, "clips or archives");
  tell_unused_rules(folder);
  const std::string from = (spec.metadata.empty() ? spec.path : spec.metadata).string();
  check_input(!once.empty() || problems.empty(), "data.dataset", from + ": no usable clips, " + problems.text());
  std::string unused;
  for (const std::string& note : problems.notes()) unused += "\n  " + note;
  check_input(!once.empty(), "data.dataset", from + ": no clips" + unused,
              "put clips (" + joined(video_endings()) + ", " + joined(image_endings()) +
                  ") with a .txt beside each there, or a metadata.csv");
  tell_blank_captions(once, problems);
  constexpr int64_t kMostItems = 20'000'000;
  const int64_t count = checked_product({static_cast<int64_t>(once.size()), spec.repeats}, "data.repeats");
  check_input(count <= kMostItems, "data.dataset",
              from + ": " + std::to_string(once.size()) + " clips, repeated " + std::to_string(spec.repeats) +
                  " times, are more than " + std::to_string(kMostItems),
              "lower data.repeats: an epoch has no end that training needs");
  const size_t each = once.size();
  for (int repeat = 1; repeat < spec.repeats; ++repeat) once.append(once, 0, each);
  return once;
}

Items read_dataset(const DatasetSpec& spec) {
  Problems problems(/*strict=*/true);
  return read_dataset(spec, problems);
}

}  // namespace tessera::data
