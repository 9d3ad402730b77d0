#pragma once
// What decoders of pictures leave unsaid: how a picture is turned to be seen upright, and whether its file ends early.
//
//   const PictureHeader header = read_picture_header(read_bytes("a.jpg"));
//   header.orientation;                                     // 6: lying on its left side
//   header.cut;                                             // a JPEG without its end
#include <string_view>

namespace tessera::data {

struct PictureHeader {
  int orientation = 1;    ///< 1 to 8, as EXIF numbers them: of JPEG, PNG, WebP and TIFF
  bool cut = false;       ///< a JPEG whose data end before its end marker; decoders fill the rest with grey
  bool animated = false;  ///< a WebP of several frames
};

/// Of the bytes of a file; of what is none of these pictures nothing is known. Numbers that point outside of the bytes
/// are passed over.
PictureHeader read_picture_header(std::string_view bytes);

}  // namespace tessera::data
