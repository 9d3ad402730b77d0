#pragma once
// What libtessera_parquet.so gives the program: the rows of a Parquet file as texts. The library is built where Arrow's C++
// library is found, and opened at the first such file (data/files/parquet.h), so that the program runs without either.
//
//   const TesseraParquetRows rows = {&table, add_columns, begin_row, add_text};
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
};

/// 0, or 1 and in `why`, a buffer of `bytes`, what is wrong with the file. An exception of a function above ends it likewise.
int tessera_read_parquet(const char* file, const TesseraParquetRows* rows, char* why, int64_t bytes);

}  // extern "C"
