#pragma once
// Comma-separated values as RFC 4180 has them: quoted fields, doubled quotes, line breaks inside quotes, CRLF or LF.
//
//   CsvTable table = parse_csv("video,prompt\na.mp4,\"A cat, asleep\"\n", "metadata.csv");
//   table.rows[0][1];      // A cat, asleep
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/files/problems.h"

namespace tessera::data {

struct CsvTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  ///< each as long as the header
  std::vector<int> numbers;                    ///< of each row as a spreadsheet counts: the header is row 1
};

/// Empty lines are passed over. Throws UserError (input) naming `file` and row: a quote that does not end, text beside
/// a quoted field, a row with too few or too many fields, no header or a name twice in it. With `problems`, faulty rows
/// go there and reading goes on at the next line; a header must be right all the same.
CsvTable parse_csv(std::string_view text, const std::string& file, Problems* problems = nullptr);

}  // namespace tessera::data
