#include "tessera/data/files/parquet.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <list>
#include <mutex>
#include <stdexcept>

#include "tessera/base/check.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/files/parquet_rows.h"

namespace tessera::data {

namespace fs = std::filesystem;

namespace {

struct ParquetLibrary {
  decltype(&tessera_read_parquet) read = nullptr;
  decltype(&tessera_read_parquet_files) read_files = nullptr;
  std::string absence;
};

ParquetLibrary open_parquet() {
  std::error_code ignored;
  const fs::path file = fs::read_symlink("/proc/self/exe", ignored).parent_path() / "libtessera_parquet.so";
  if (!fs::exists(file, ignored))
    return {
        nullptr, nullptr,
        "Arrow's C++ library was not there when it was built. In its sources one command adds it: .venv/bin/python -m pip "
        "install pyarrow && scripts/build -DTESSERA_PARQUET=ON tessera_parquet"};
  void* library = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!library) return {nullptr, nullptr, std::string("its library does not open: ") + dlerror()};
  const auto read = reinterpret_cast<decltype(&tessera_read_parquet)>(dlsym(library, "tessera_read_parquet"));
  const auto files =
      reinterpret_cast<decltype(&tessera_read_parquet_files)>(dlsym(library, "tessera_read_parquet_files"));
  if (!read || !files) return {nullptr, nullptr, file.string() + " is from another build"};
  return {read, files, ""};
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
void tell_file(void* to, int64_t column, const char* path, int64_t bytes, int inside) {
  told(to).take(bytes);
  if (told(to).rows.file)
    told(to).rows.file(static_cast<size_t>(column), {path, static_cast<size_t>(bytes)}, inside != 0);
}

/// Pictures of a column from a row on: a group of rows is read as a whole, so those that follow are kept.
struct Window {
  InTable first;
  std::string stamp;
  std::vector<std::string> pictures;

  bool has(const InTable& wanted, const std::string& now) const {
    return wanted.table == first.table && wanted.column == first.column && now == stamp && wanted.row >= first.row &&
           wanted.row - first.row < static_cast<int64_t>(pictures.size());
  }
};
constexpr int64_t kWindowBytes = int64_t{64} << 20;
constexpr size_t kWindows = 8;  // of several readers, each in its own place

struct Taken {
  std::vector<std::string>& pictures;
  int64_t bytes = 0;
};
int take_picture(void* to, const char* data, int64_t bytes) {
  Taken& taken = *static_cast<Taken*>(to);
  taken.pictures.emplace_back(data, static_cast<size_t>(bytes));
  taken.bytes += bytes;
  return taken.bytes >= kWindowBytes ? 1 : 0;
}

/// Size and time of change, by which a table that was replaced is known.
std::string table_stamp(const fs::path& table) {
  std::error_code unseen;
  const auto time = fs::last_write_time(table, unseen).time_since_epoch().count();
  return std::to_string(fs::file_size(table, unseen)) + "@" + std::to_string(time);
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
  const TesseraParquetRows functions = {&all, tell_columns, tell_row, tell_text, tell_file};
  if (parquet_library().read(name.c_str(), &functions, why.data(), why.size()) != 0)
    throw UserError(Exit::input, "data.dataset", name + ": damaged, or no Parquet: " + why.data(),
                    "copy it again; or " + convert);
}

bool is_picture_table(const fs::path& path) { return ending_of(path) == ".parquet" || ending_of(path) == ".arrow"; }

fs::path path_in_table(const InTable& picture, std::string_view named) {
  char number[32];
  std::snprintf(number, sizeof number, "%09lld", static_cast<long long>(picture.row));
  const fs::path name(named);
  return picture.table / picture.column / (number + (is_clip(name) ? ending_of(name) : std::string(".png")));
}

std::optional<InTable> find_in_table(const fs::path& path) {
  const fs::path column = path.parent_path(), table = column.parent_path();
  std::error_code unseen;
  if (!is_picture_table(table) || !fs::is_regular_file(table, unseen)) return std::nullopt;
  InTable picture{table, column.filename().string()};
  const std::string number = path.stem().string();
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), picture.row);
  if (error != std::errc() || end != number.data() + number.size() || picture.row < 0) return std::nullopt;
  return picture;
}

std::string read_picture(const InTable& picture) {
  static std::mutex lock;
  static std::list<Window> windows;  // the one that was used last comes first
  const std::string name = picture.table.string() + ": row " + std::to_string(picture.row + 1),
                    stamp = table_stamp(picture.table);
  check_input(parquet_absence().empty(), "data.dataset", name + ": this build reads no Parquet, " + parquet_absence());
  const std::lock_guard guard(lock);
  auto window = std::ranges::find_if(windows, [&](const Window& w) { return w.has(picture, stamp); });
  if (window == windows.end()) {
    Window read{picture, stamp, {}};
    Taken taken{read.pictures};
    const TesseraParquetFiles files = {&taken, take_picture};
    std::array<char, 512> why{};
    if (parquet_library().read_files(picture.table.c_str(), picture.column.c_str(), picture.row, &files, why.data(),
                                     why.size()) != 0)
      throw UserError(Exit::input, "data.dataset", name + ": damaged: " + why.data(), "copy the file again");
    check_input(!read.pictures.empty(), "data.dataset", name + ": no such row", "copy the file again");
    windows.push_front(std::move(read));
    if (windows.size() > kWindows) windows.pop_back();
    window = windows.begin();
  } else {
    windows.splice(windows.begin(), windows, window);
  }
  const std::string& bytes = window->pictures[static_cast<size_t>(picture.row - window->first.row)];
  check_input(!bytes.empty(), "data.dataset", name + ": column " + picture.column + " has no bytes", "remove the row");
  return bytes;
}

}  // namespace tessera::data
