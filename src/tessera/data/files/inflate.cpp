#include "tessera/data/files/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <memory>

#include "tessera/base/check.h"
#include "tessera/base/hash.h"

namespace tessera::data {

namespace {

constexpr int64_t kInflateChunk = int64_t{1} << 16;

struct EndInflate {
  void operator()(z_stream* stream) const { ::inflateEnd(stream); }
};

}  // namespace

bool has_inflate() { return true; }

std::string inflated(const checkpoint::ReadFile& file, const DeflatedBytes& deflated, const std::string& name,
                     int64_t most) {
  const auto refuse = [&](const std::string& what) {
    throw UserError(Exit::input, "data.archive", name + ": " + what,
                    "fetch the archive again, or archive its files again (zip -0 stores them as they are)");
  };
  if (deflated.bytes > most)
    refuse("would inflate to " + std::to_string(deflated.bytes) + " bytes, expected at most " + std::to_string(most));
  z_stream stream{};
  if (::inflateInit2(&stream, -MAX_WBITS) != Z_OK)  // negative: without zlib's own header
    throw Error(Exit::memory, "data.archive", name + ": no memory to inflate it");
  const std::unique_ptr<z_stream, EndInflate> ended(&stream);

  std::string packed(static_cast<size_t>(std::min(deflated.packed, kInflateChunk)), '\0');
  std::string text;
  int64_t read = 0, made = 0;
  for (int status = Z_OK; status != Z_STREAM_END;) {
    if (stream.avail_in == 0 && read < deflated.packed) {
      const int64_t now = std::min(deflated.packed - read, kInflateChunk);
      file.read(deflated.begin + read, now, packed.data());
      read += now;
      stream.next_in = reinterpret_cast<Bytef*>(packed.data()), stream.avail_in = static_cast<uInt>(now);
    }
    // one byte more than was said, so that a longer content is found
    text.resize(static_cast<size_t>(std::min(deflated.bytes + 1, std::max(2 * made, kInflateChunk))));
    const int64_t room = std::min(static_cast<int64_t>(text.size()) - made, kMostInflated);
    stream.next_out = reinterpret_cast<Bytef*>(text.data() + made), stream.avail_out = static_cast<uInt>(room);
    status = ::inflate(&stream, Z_NO_FLUSH);
    made += room - stream.avail_out;
    if (made > deflated.bytes) refuse("inflates to more than the " + std::to_string(deflated.bytes) + " bytes it has");
    if (status == Z_MEM_ERROR) throw Error(Exit::memory, "data.archive", name + ": no memory to inflate it");
    if (status != Z_OK && status != Z_STREAM_END)
      refuse("its deflated bytes are damaged after " + std::to_string(made) + " of " + std::to_string(deflated.bytes));
  }
  if (made != deflated.bytes)
    refuse("inflates to " + std::to_string(made) + " bytes, expected " + std::to_string(deflated.bytes));
  text.resize(static_cast<size_t>(made));
  if (crc32_zip(text.data(), text.size()) != deflated.crc32) refuse("its content is not the one of its checksum");
  return text;
}

}  // namespace tessera::data
