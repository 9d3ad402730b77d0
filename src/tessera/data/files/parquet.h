#pragma once
// Tables of Parquet, by Arrow in a library of its own (tessera/parquet/rows.h).
//
//   read_parquet("set/metadata.parquet", {.columns = ..., .row = ..., .text = ...});
#include <filesystem>
#include <functional>
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
};

/// Columns of texts, numbers, flags and lists of texts; what else there is is left out. Throws UserError (input) for what is
/// damaged or no Parquet, and where this build reads none, with the command that makes a .csv of it.
void read_parquet(const std::filesystem::path& file, const ParquetRows& rows);

}  // namespace tessera::data
