// Format: PKWARE APPNOTE 6.3, sections 4.3 and 4.5.3.
#include "tessera/checkpoint/torch_zip.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/hash.h"
#include "tessera/checkpoint/cursor.h"
#include "tessera/checkpoint/json.h"

namespace tessera::checkpoint {

namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50;
constexpr int64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20;
constexpr int64_t kMaxDirectory = int64_t{64} << 20;  // 600'000 tensors
constexpr uint16_t kZip64Extra = 1, kPaddingExtra = 0x4246, kEncrypted = 1;
constexpr uint16_t kStored = 0, kDeflated = 8;
constexpr uint64_t kMostInflation = 1032;  // a code of two bits for a run of 258 bytes
constexpr uint32_t kIn64 = UINT32_MAX;     // in a 32-bit field: the value is in the zip64 record

std::string read_bytes(const ReadFile& file, int64_t begin, int64_t bytes, const Cursor& at) {
  if (begin < 0 || bytes < 0 || begin > file.size() - bytes)
    at.refuse("bytes [" + std::to_string(begin) + ", +" + std::to_string(bytes) + ") wanted, the file has " +
              std::to_string(file.size()) + " (truncated?)");
  std::string text(static_cast<size_t>(bytes), '\0');
  file.read(begin, bytes, text.data());
  return text;
}

struct Directory {
  uint64_t entries = 0, bytes = 0, begin = 0;
};

/// The last record of the file says where the directory is.
Directory find_directory(const ReadFile& file, const std::string& what) {
  Cursor outside({}, what);
  const int64_t most = std::min<int64_t>(file.size(), kEndBytes + UINT16_MAX);  // a comment may follow it
  const std::string tail = read_bytes(file, file.size() - most, most, outside);
  int64_t place = most - kEndBytes;
  for (; place >= 0; --place) {
    Cursor at(std::string_view(tail).substr(static_cast<size_t>(place)), what);
    if (at.number<uint32_t>() != kEnd) continue;
    at.take(kEndBytes - 6);
    if (at.number<uint16_t>() == at.left()) break;
  }
  if (place < 0) outside.refuse("no zip directory at its end (truncated?)");

  Cursor end(std::string_view(tail).substr(static_cast<size_t>(place)), what);
  end.take(4);
  if (end.number<uint16_t>() != end.number<uint16_t>()) outside.refuse("a zip archive over several disks");
  end.take(2);
  Directory directory;
  directory.entries = end.number<uint16_t>();
  directory.bytes = end.number<uint32_t>();
  directory.begin = end.number<uint32_t>();
  if (directory.entries != UINT16_MAX && directory.bytes != kIn64 && directory.begin != kIn64) return directory;

  const int64_t locator_begin = file.size() - most + place - kLocatorBytes;
  const std::string locator = read_bytes(file, locator_begin, kLocatorBytes, outside);
  Cursor at(locator, what + ": zip64 locator");
  if (at.number<uint32_t>() != kEnd64Locator) return directory;  // the numbers happen to be that large
  at.take(4);
  const uint64_t begin = at.number<uint64_t>();
  if (begin > static_cast<uint64_t>(file.size())) at.refuse("points past the end of the file");
  const std::string record = read_bytes(file, static_cast<int64_t>(begin), kEnd64Bytes, outside);
  Cursor end64(record, what + ": zip64 end record");
  if (end64.number<uint32_t>() != kEnd64) end64.refuse("is not where its locator says");
  end64.take(28);
  directory.entries = end64.number<uint64_t>();
  directory.bytes = end64.number<uint64_t>();
  directory.begin = end64.number<uint64_t>();
  return directory;
}

/// The values of a zip64 record stand in this order, and only those whose 32-bit field is full.
void take_zip64(std::string_view extra, const std::string& what, const std::vector<uint64_t*>& fields) {
  if (std::none_of(fields.begin(), fields.end(), [](const uint64_t* field) { return *field == kIn64; })) return;
  Cursor at(extra, what);
  while (at.left() >= 4) {
    const auto id = at.number<uint16_t>();
    Cursor record(at.take(at.number<uint16_t>()), what + ": zip64 record");
    if (id != kZip64Extra) continue;
    for (uint64_t* field : fields)
      if (*field == kIn64) *field = record.number<uint64_t>();
    return;
  }
}

/// One entry of the directory, and where its data begins, which only its local header tells.
ZipEntry read_entry(const ReadFile& file, Cursor& at, const std::string& path, Deflated deflated,
                    const char* store_again) {
  if (at.number<uint32_t>() != kCentral) at.refuse("an entry without its mark");
  at.take(4);
  const auto flags = at.number<uint16_t>();
  const auto method = at.number<uint16_t>();
  at.take(4);
  ZipEntry entry;
  entry.crc32 = at.number<uint32_t>();
  uint64_t packed = at.number<uint32_t>(), bytes = at.number<uint32_t>();
  const auto name_bytes = at.number<uint16_t>(), extra_bytes = at.number<uint16_t>(),
             comment_bytes = at.number<uint16_t>();
  at.take(8);
  uint64_t header = at.number<uint32_t>();
  entry.name = at.take(name_bytes);
  const std::string what = path + ": zip entry " + shown(entry.name);
  take_zip64(at.take(extra_bytes), what, {&bytes, &packed, &header});
  at.take(comment_bytes);

  const bool inflates = method == kDeflated && deflated == Deflated::take;
  if (flags & kEncrypted || (method != kStored && !inflates))
    throw UserError(Exit::input, "checkpoint.zip",
                    what + " is " + (flags & kEncrypted ? "encrypted" : "compressed") +
                        (deflated == Deflated::take && !(flags & kEncrypted)
                             ? " by method " + std::to_string(method) + ", expected 0 (stored) or 8 (deflated)"
                             : ""),
                    store_again);
  Cursor local_at({}, what);
  if (inflates && bytes / kMostInflation > packed)
    local_at.refuse(std::to_string(packed) + " bytes that would inflate to " + std::to_string(bytes) +
                    ", more than deflated bytes can");
  if (inflates)
    entry.packed = static_cast<int64_t>(packed);
  else if (packed != bytes)
    local_at.refuse(std::to_string(packed) + " bytes stored of " + std::to_string(bytes));
  if (packed > static_cast<uint64_t>(file.size()) || header > static_cast<uint64_t>(file.size()))
    local_at.refuse(std::to_string(packed) + " bytes at byte " + std::to_string(header) + ", the file has " +
                    std::to_string(file.size()) + " (truncated?)");
  const std::string local = read_bytes(file, static_cast<int64_t>(header), kLocalBytes, local_at);
  Cursor names(local, what);
  if (names.number<uint32_t>() != kLocal) local_at.refuse("its header is not where the directory says");
  names.take(22);
  const auto local_name = names.number<uint16_t>(), local_extra = names.number<uint16_t>();
  entry.begin = static_cast<int64_t>(header) + kLocalBytes + local_name + local_extra;
  entry.bytes = static_cast<int64_t>(bytes);
  const auto stored = static_cast<int64_t>(packed);
  if (entry.begin > file.size() - stored)
    local_at.refuse("ends at byte " + std::to_string(entry.begin + stored) + ", the file has " +
                    std::to_string(file.size()) + " (truncated?)");
  return entry;
}

template <class T>
void number(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace

std::vector<ZipEntry> read_zip(const ReadFile& file, Deflated deflated, const char* store_again) {
  const std::string path = file.path().string(), what = path + ": zip directory";
  const Directory directory = find_directory(file, path);
  Cursor outside({}, what);
  if (directory.bytes > static_cast<uint64_t>(kMaxDirectory) ||
      directory.begin > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ||
      directory.entries > directory.bytes / kCentralBytes)
    outside.refuse(std::to_string(directory.entries) + " entries in " + std::to_string(directory.bytes) +
                   " bytes at byte " + std::to_string(directory.begin));
  const std::string bytes =
      read_bytes(file, static_cast<int64_t>(directory.begin), static_cast<int64_t>(directory.bytes), outside);
  Cursor at(bytes, what);
  std::vector<ZipEntry> entries;
  std::set<std::string> names;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    entries.push_back(read_entry(file, at, path, deflated, store_again));
    if (!names.insert(entries.back().name).second) outside.refuse("name " + shown(entries.back().name) + " used twice");
  }
  return entries;
}

ZipWriter::ZipWriter(const Path& path, int64_t bytes_needed, uint32_t zip64_from)
    : file_(path, bytes_needed), zip64_from_(zip64_from) {}

void ZipWriter::put(const std::string& bytes) {
  file_.write(bytes.data(), static_cast<int64_t>(bytes.size()));
  position_ += static_cast<int64_t>(bytes.size());
}

void ZipWriter::add(const std::string& name, const void* data, int64_t bytes) {
  const bool large = static_cast<uint64_t>(bytes) >= zip64_from_;
  std::string extra;
  if (large) {
    number<uint16_t>(extra, kZip64Extra);
    number<uint16_t>(extra, 16);
    number(extra, bytes);
    number(extra, bytes);
  }
  const int64_t bare = position_ + kLocalBytes + static_cast<int64_t>(name.size() + extra.size()) + 4;
  const auto padding = static_cast<uint16_t>(round_up(bare, 64) - bare);
  number(extra, kPaddingExtra);
  number(extra, padding);
  extra.append(padding, 'Z');

  Written entry{{name, bare + padding, bytes, -1, crc32_zip(data, static_cast<size_t>(bytes))}, position_};
  std::string header;
  number(header, kLocal);
  number<uint16_t>(header, large ? 45 : 20);  // version needed
  header.append(2, '\0');                     // flags
  header.append(2, '\0');                     // stored
  header.append(4, '\0');                     // no time: the same weights give the same file
  number(header, entry.entry.crc32);
  for (int i = 0; i < 2; ++i) number<uint32_t>(header, large ? kIn64 : static_cast<uint32_t>(bytes));
  number<uint16_t>(header, static_cast<uint16_t>(name.size()));
  number<uint16_t>(header, static_cast<uint16_t>(extra.size()));
  put(header + name + extra);
  file_.write(data, bytes);
  position_ += bytes;
  written_.push_back(std::move(entry));
}

void ZipWriter::commit() {
  const int64_t begin = position_;
  std::string directory;
  for (const auto& [entry, header] : written_) {
    const bool large = static_cast<uint64_t>(entry.bytes) >= zip64_from_,
               far = static_cast<uint64_t>(header) >= zip64_from_;
    std::string extra;
    if (large || far) {
      number<uint16_t>(extra, kZip64Extra);
      number<uint16_t>(extra, static_cast<uint16_t>(8 * (large ? 2 + far : 1)));
      for (int i = 0; i < 2 && large; ++i) number(extra, entry.bytes);
      if (far) number(extra, header);
    }
    number(directory, kCentral);
    number<uint16_t>(directory, 45);
    number<uint16_t>(directory, large || far ? 45 : 20);
    directory.append(8, '\0');  // flags, stored, time
    number(directory, entry.crc32);
    for (int i = 0; i < 2; ++i) number<uint32_t>(directory, large ? kIn64 : static_cast<uint32_t>(entry.bytes));
    number<uint16_t>(directory, static_cast<uint16_t>(entry.name.size()));
    number<uint16_t>(directory, static_cast<uint16_t>(extra.size()));
    directory.append(10, '\0');  // comment, disk, attributes
    number<uint32_t>(directory, far ? kIn64 : static_cast<uint32_t>(header));
    directory += entry.name + extra;
  }
  put(directory);

  const auto count = written_.size(), bytes = directory.size();
  const bool many = count >= UINT16_MAX, far = static_cast<uint64_t>(begin) >= zip64_from_ || bytes >= zip64_from_;
  std::string end;
  if (many || far) {
    const int64_t place = position_;
    number(end, kEnd64);
    number<uint64_t>(end, kEnd64Bytes - 12);
    number<uint16_t>(end, 45);
    number<uint16_t>(end, 45);
    end.append(8, '\0');  // disks
    number<uint64_t>(end, count);
    number<uint64_t>(end, count);
    number<uint64_t>(end, bytes);
    number<uint64_t>(end, static_cast<uint64_t>(begin));
    number(end, kEnd64Locator);
    number<uint32_t>(end, 0);
    number<uint64_t>(end, static_cast<uint64_t>(place));
    number<uint32_t>(end, 1);  // disks
  }
  number(end, kEnd);
  end.append(4, '\0');  // disks
  for (int i = 0; i < 2; ++i) number<uint16_t>(end, many ? UINT16_MAX : static_cast<uint16_t>(count));
  number<uint32_t>(end, far ? kIn64 : static_cast<uint32_t>(bytes));
  number<uint32_t>(end, far ? kIn64 : static_cast<uint32_t>(begin));
  number<uint16_t>(end, 0);
  put(end);
  file_.commit();
}

// The pickle is what Python's pickler makes of an OrderedDict of tensors in protocol 2, without the memo: a value that
// is used again is written again.

namespace {

/// How torch spells a dtype: a storage class of its own, or an untyped storage and the dtype beside it.
struct TorchType {
  std::string_view storage, dtype;
};
TorchType torch_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return {"DoubleStorage", {}};
    case DType::f32:
      return {"FloatStorage", {}};
    case DType::f16:
      return {"HalfStorage", {}};
    case DType::bf16:
      return {"BFloat16Storage", {}};
    case DType::f8_e4m3:
      return {{}, "float8_e4m3fn"};
    case DType::f8_e5m2:
      return {{}, "float8_e5m2"};
    case DType::i64:
      return {"LongStorage", {}};
    case DType::i32:
      return {"IntStorage", {}};
    case DType::i16:
      return {"ShortStorage", {}};
    case DType::i8:
      return {"CharStorage", {}};
    case DType::u8:
      return {"ByteStorage", {}};
    case DType::boolean:
      return {"BoolStorage", {}};
  }
  throw InternalError("torch.write", "a dtype without a name in torch");
}

/// Appends pickle instructions (their letters in Python's pickletools).
class PickleText {
 public:
  std::string bytes = "\x80\x02";  // PROTO 2

  void op(std::string_view code) { bytes += code; }
  void global(std::string_view module, std::string_view name) {
    op("c");
    op(module);
    op("\n");
    op(name);
    op("\n");
  }
  void text(std::string_view value) {  // BINUNICODE
    op("X");
    raw(static_cast<uint32_t>(value.size()));
    op(value);
  }
  void integer(int64_t value) {
    if (value == static_cast<int32_t>(value)) {  // BININT
      op("J");
      raw(static_cast<int32_t>(value));
    } else {  // LONG1 of eight bytes
      op("\x8a\x08");
      raw(value);
    }
  }
  void integers(const Shape& values) {
    op("(");
    for (const int64_t value : values) integer(value);
    op("t");
  }

 private:
  template <class T>
  void raw(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
};

Shape contiguous_strides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i > 1; --i) strides[i - 2] = strides[i - 1] * std::max<int64_t>(shape[i - 1], 1);
  return strides;
}

void pickle_tensor(PickleText& out, const TensorInfo& tensor, size_t key) {
  const TorchType type = torch_type(tensor.dtype);
  out.global("torch._utils", type.dtype.empty() ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  out.op("((");
  out.text("storage");
  if (type.dtype.empty())
    out.global("torch", type.storage);
  else
    out.global("torch.storage", "UntypedStorage");
  out.text(std::to_string(key));
  out.text("cpu");
  out.integer(type.dtype.empty() ? tensor.count() : tensor.bytes());
  out.op("tQ");  // the persistent id of the storage
  out.integer(0);
  out.integers(tensor.shape);
  out.integers(contiguous_strides(tensor.shape));
  out.op("\x89");  // no gradient
  out.global("collections", "OrderedDict");
  out.op(")R");  // no hooks
  if (!type.dtype.empty()) out.global("torch", type.dtype);
  out.op("tR");
}

std::string pickle_of(const std::vector<TensorInfo>& tensors) {
  PickleText out;
  out.global("collections", "OrderedDict");
  out.op(")R(");
  for (size_t i = 0; i < tensors.size(); ++i) {
    out.text(tensors[i].name);
    pickle_tensor(out, tensors[i], i);
  }
  out.op("u.");
  return out.bytes;
}

int64_t total_bytes(const std::vector<TensorInfo>& tensors) {
  constexpr int64_t kAround = 512;  // headers, padding and pickle of a tensor
  return std::accumulate(tensors.begin(), tensors.end(), int64_t{4096},
                         [&](int64_t sum, const TensorInfo& tensor) { return sum + tensor.bytes() + kAround; });
}

}  // namespace

TorchWriter::TorchWriter(const Path& path, std::vector<TensorInfo> tensors)
    : tensors_(std::move(tensors)), zip_(path, total_bytes(tensors_)) {
  const std::string pickle = pickle_of(tensors_);
  zip_.add("archive/data.pkl", pickle.data(), static_cast<int64_t>(pickle.size()));
  zip_.add("archive/byteorder", "little", 6);
}

void TorchWriter::write(const void* data) {
  check_internal(next_ < tensors_.size(), "torch.write", "more tensors than announced");
  zip_.add("archive/data/" + std::to_string(next_), data, tensors_[next_].bytes());
  ++next_;
}

void TorchWriter::commit() {
  check_internal(next_ == tensors_.size(), "torch.write",
                 std::to_string(tensors_.size() - next_) + " tensors are missing");
  zip_.add("archive/version", "3\n", 2);
  zip_.commit();
}

}  // namespace tessera::checkpoint
