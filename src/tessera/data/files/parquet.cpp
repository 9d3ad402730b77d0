#include "tessera/data/files/parquet.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "tessera/base/check.h"
#include "tessera/parquet/rows.h"

namespace tessera::data {

namespace fs = std::filesystem;

namespace {

struct ParquetLibrary {
  decltype(&tessera_read_parquet) read = nullptr;
  std::string absence;
};

ParquetLibrary open_parquet() {
  std::error_code ignored;
  const fs::path file = fs::read_symlink("/proc/self/exe", ignored).parent_path() / "libtessera_parquet.so";
  if (!fs::exists(file, ignored)) return {nullptr, "Arrow's C++ library was not there when it was built"};
  void* library = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!library) return {nullptr, std::string("its library does not open: ") + dlerror()};
  const auto read = reinterpret_cast<decltype(&tessera_read_parquet)>(dlsym(library, "tessera_read_parquet"));
  if (!read) return {nullptr, file.string() + " is from another build"};
  return {read, ""};
}

/// Never closed: Arrow has threads and pools of its own.
const ParquetLibrary& parquet_library() {
  static const ParquetLibrary library = open_parquet();
  return library;
}

/// A file of some bytes can say that a value stands there a thousand million times. Rows of data sets have a path of their
/// own, which takes a byte or more.
struct Told {
  const ParquetRows& rows;
  int64_t left;  ///< bytes of what is told

  void take(int64_t bytes) {
    left -= bytes;
    if (left < 0) throw std::length_error("its rows are thousands of times as large as the file");
  }
};
constexpr int64_t kBytesOfARow = 256, kMostOfAByte = 4096, kAlways = int64_t{64} << 20;

Told& told(void* to) { return *static_cast<Told*>(to); }
void tell_columns(void* to, const char* const* names, int64_t count) { told(to).rows.columns({names, names + count}); }
void tell_row(void* to) {
  told(to).take(kBytesOfARow);
  told(to).rows.row();
}
void tell_text(void* to, int64_t column, const char* data, int64_t bytes) {
  told(to).take(bytes);
  told(to).rows.text(static_cast<size_t>(column), {data, static_cast<size_t>(bytes)});
}

}  // namespace

const std::string& parquet_absence() { return parquet_library().absence; }

void read_parquet(const fs::path& file, const ParquetRows& rows) {
  const std::string name = file.string(), csv = fs::path(file).replace_extension(".csv").string();
  const std::string convert = "convert it: python3 -c 'import pandas; pandas.read_parquet(\"" + name + "\").to_csv(\"" +
                              csv + "\", index=False)', and give " + csv;
  if (!parquet_absence().empty())
    throw UserError(Exit::input, "data.dataset", name + ": this build reads no Parquet, " + parquet_absence(), convert);
  std::array<char, 512> why{};
  std::error_code none;
  const auto size = static_cast<int64_t>(fs::file_size(file, none));
  Told all{rows, kAlways + (none ? 0 : std::min(size, int64_t{1} << 40) * kMostOfAByte)};
  const TesseraParquetRows functions = {&all, tell_columns, tell_row, tell_text};
  if (parquet_library().read(name.c_str(), &functions, why.data(), why.size()) != 0)
    throw UserError(Exit::input, "data.dataset", name + ": damaged, or no Parquet: " + why.data(),
                    "copy it again; or " + convert);
}

}  // namespace tessera::data
