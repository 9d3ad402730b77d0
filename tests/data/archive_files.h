#pragma once
// Archives and arrays as other programs write them: tar and zip by Python's standard library, .npy by NEP 1.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::data {

inline bool has_python() { return std::system("python3 -c 'import tarfile, zipfile' >/dev/null 2>&1") == 0; }

/// What a line of Python does in `folder`; whether it ended well.
inline bool run_python(const std::filesystem::path& folder, const std::string& code) {
  return std::system(("cd '" + folder.string() + "' && python3 -c \"" + code + "\"").c_str()) == 0;
}

/// Archives the files of `folder`/from, by name, in `folder`/archive. `form`: USTAR, GNU or PAX of tarfile.
inline bool make_tar(const std::filesystem::path& folder, const std::string& from, const std::string& archive,
                     const std::string& form = "PAX") {
  return run_python(folder, "import os, tarfile\nt = tarfile.open('" + archive + "', 'w', format=tarfile." + form +
                                "_FORMAT)\nfor n in sorted(os.listdir('" + from + "')): t.add('" + from +
                                "/' + n, n)\nt.close()");
}
inline bool make_zip(const std::filesystem::path& folder, const std::string& from, const std::string& archive,
                     const std::string& method = "ZIP_STORED") {
  return run_python(folder, "import os, zipfile\nz = zipfile.ZipFile('" + archive + "', 'w', zipfile." + method +
                                ")\nfor n in sorted(os.listdir('" + from + "')): z.write('" + from +
                                "/' + n, n)\nz.close()");
}

/// What numpy.save writes of a float16 or float32 array ("<f2" takes the bits).
template <class T>
std::string npy_bytes(const std::string& type, const std::string& shape, const std::vector<T>& values) {
  std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 11, ' ');
  header += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += '\x01', bytes += '\0';
  bytes += static_cast<char>(header.size() & 255), bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return bytes;
}

}  // namespace tessera::data
