#pragma once
// What libtessera_parquet.so gives the program: the rows of a Parquet file, or of an .arrow file as datasets' save_to_disk
// writes it, as texts, and the files (pictures) that a column holds. The library is built where Arrow's C++ library is found,
// and opened at the first such file (data/files/parquet.h), so that the program runs without either.
//
//   const TesseraParquetRows rows = {&table, add_columns, begin_row, add_text, add_file};
//   char why[512];
//   if (tessera_read_parquet("set/metadata.parquet", &rows, why, sizeof why) != 0) refuse(why);
#include <cstdint>

extern "C" {

/// Functions that are called in the order of the file; `to` is their first argument.
struct TesseraParquetRows {
  void* to;
  /// Once, before the first row: the columns that have a text form.
  void (*columns)(void* to, const char* const* names, int64_t count);
  void (*row)(void* to);  ///< a row begins
  /// Of this row: a text, a number or flag as JSON writes it, or an item of a list of texts. Nulls and what is no number
  /// have none.
  void (*text)(void* to, int64_t column, const char* data, int64_t bytes);
  /// Of this row, in a column of {bytes, path}, which is how Hugging Face's data sets hold pictures: the path, which may be
  /// empty. `inside`: the table has the bytes; otherwise the path is where they are.
  void (*file)(void* to, int64_t column, const char* path, int64_t bytes, int inside);
};

/// The bytes of the files of a column, from row `first` on, in order.
struct TesseraParquetFiles {
  void* to;
  /// The bytes of the next row's file; not 0: enough.
  int (*file)(void* to, const char* data, int64_t bytes);
};

/// 0, or 1 and in `why`, a buffer of `bytes`, what is wrong with the file. An exception of a function above ends it likewise.
int tessera_read_parquet(const char* file, const TesseraParquetRows* rows, char* why, int64_t bytes);

/// The same of the files of `column` from row `first` on, to the end of the group of rows that it is in, or until it is
/// enough.
int tessera_read_parquet_files(const char* file, const char* column, int64_t first, const TesseraParquetFiles* files,
                               char* why, int64_t bytes);

}  // extern "C"
