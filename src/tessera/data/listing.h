#pragma once
// The rows of a metadata file, whatever its format: names and texts, and where each row stands.
//
//   RowTable table = read_rows("set/metadata.jsonl", problems);
//   table.rows[0].fields.at("video");                    // {"a.mp4"}
//
// | file                       | rows                                                                     |
// |----------------------------|--------------------------------------------------------------------------|
// | .csv                       | a line each after the header (RFC 4180); the header is row 1             |
// | .json, a list of objects   | an object each, from 1: metadata.json, VideoX, videos2caption.json       |
// | .json, an object           | {"a.mp4": "caption" or ["one", "two"]}, from 1: captions.json            |
// | .jsonl                     | an object a line                                                         |
// | .parquet, .arrow           | a row each, from 1, also with pictures; where Arrow is (files/parquet.h) |
// | videos.txt                 | a path a line, its caption on the same line of prompt.txt beside it      |
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/captions.h"
#include "tessera/data/files/problems.h"
#include "tessera/data/item.h"

namespace tessera::data {

using Path = std::filesystem::path;

struct Row {
  std::string where;                                       ///< "set/metadata.csv: row 3"
  std::map<std::string, std::vector<std::string>> fields;  ///< several texts where the file has a list
};

struct RowTable {
  std::vector<std::string> columns;  ///< every name that a row has, in order of appearance
  std::vector<Row> rows;
};

/// Rows that cannot be read go to `problems`. Throws UserError (input) when the file as a whole cannot: not there, of
/// an unknown kind, not JSON, no header.
RowTable read_rows(const Path& file, Problems& problems);

// Comma-separated values as RFC 4180 has them: quoted fields, doubled quotes, line breaks inside quotes, CRLF or LF.
//
//   CsvTable table = parse_csv("video,prompt\na.mp4,\"A cat, asleep\"\n", "metadata.csv");
//   table.rows[0][1];      // A cat, asleep

struct CsvTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  ///< each as long as the header
  std::vector<int> numbers;                    ///< of each row as a spreadsheet counts: the header is row 1
};

/// Empty lines are passed over. Throws UserError (input) naming `file` and row: a quote that does not end, text beside
/// a quoted field, a row with too few or too many fields, no header or a name twice in it. With `problems`, faulty rows
/// go there and reading goes on at the next line; a header must be right all the same.
CsvTable parse_csv(std::string_view text, const std::string& file, Problems* problems = nullptr);

// Clips in archives: WebDataset's .tar shards (a.jpg, a.json, a.npy ...) and .zip files of videos (a.mp4, a.json).
//
//   for (const Path& archive : archives_of("set", problems)) ...                    // by set/wids-meta.json, or by name
//   std::vector<Item> items = read_archive("set/00000.tar", spec, missing, problems);
//
// Files of one name are a sample. Of a tar a name ends at its first dot, as WebDataset has it, of a zip at its last.
// A field may have a name before its ending (a.image.png, a.caption.txt). The captions are those of a.json by name, a.txt
// is its `prompt`; 00000_long.json beside 00000.tar has more of them
// (captions.h).

struct Archive {
  Path path;
  int64_t samples = -1;  ///< as wids-meta.json counts them; -1: it does not
};

/// Whether a folder's clips are in archives: it has a wids-meta.json, or a .tar or .zip and no clips beside them.
bool has_archives(const Path& folder);

/// Of a folder, of its wids-meta.json, or the archive itself. Throws UserError (input) for a wids-meta.json that is not
/// what its name says, naming the entry.
std::vector<Archive> archives_of(const Path& folder);

/// The samples of an archive in its order: its picture, else its video, or with `spec.latents` its .npy. What is wrong
/// with one, or with the archive, goes to `problems`.
std::vector<Item> read_archive(const Archive& archive, const DatasetSpec& spec, MissingFiles& missing,
                               Problems& problems);

}  // namespace tessera::data
