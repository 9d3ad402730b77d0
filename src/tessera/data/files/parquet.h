#pragma once
// Tables of Parquet and of Arrow, by Arrow in a library of its own (tessera/data/files/parquet_rows.h), and the pictures that they hold:
// a picture is named as if the table were a folder, "data/train-0.parquet/image/000000012.jpg".
//
//   read_parquet("set/metadata.parquet", {.columns = ..., .row = ..., .text = ..., .file = ...});
//   if (const auto picture = find_in_table("data/train-0.parquet/image/000000012.jpg")) read_picture(*picture);
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

/// Why this build reads no Parquet; empty: it does. libtessera_parquet.so beside the program is opened at the first call.
const std::string& parquet_absence();

/// Called in the order of the file.
struct ParquetRows {
  std::function<void(std::vector<std::string>)> columns;           ///< once, before the first row
  std::function<void()> row;                                       ///< a row begins
  std::function<void(size_t column, std::string_view text)> text;  ///< of this row; several where it has a list
  /// Of this row, in a column of {bytes, path}: the path, which may be empty where the table has the bytes (`inside`).
  std::function<void(size_t column, std::string_view path, bool inside)> file = {};
};

/// A picture in a table: its column and its row, from 0.
struct InTable {
  std::filesystem::path table;
  std::string column;
  int64_t row = 0;
};

bool is_picture_table(const std::filesystem::path& path);  ///< by its ending: .parquet, .arrow
/// The path of a picture; `named` is what the table calls it, by whose ending its kind is known: .png where it has none.
std::filesystem::path path_in_table(const InTable& picture, std::string_view named);
/// What such a path means; nothing for any other. Whether there is such a row is not looked at.
std::optional<InTable> find_in_table(const std::filesystem::path& path);
/// Its bytes. Of the rows that follow some are kept, since they are asked for next. Throws UserError (input).
std::string read_picture(const InTable& picture);

/// Columns of texts, numbers, flags and lists of texts; what else there is is left out. Throws UserError (input) for what is
/// damaged or no Parquet, and where this build reads none, with the command that makes a .csv of it.
void read_parquet(const std::filesystem::path& file, const ParquetRows& rows);

}  // namespace tessera::data
