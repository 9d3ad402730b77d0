#pragma once
// The published tables of aspect ratios as lists of buckets.
//
//   std::vector<Bucket> buckets = aspect_buckets("ASPECT_RATIO_1024");           // 1x1024x1024, 1x512x2048, ...
//   std::vector<Bucket> buckets = aspect_buckets("81xASPECT_RATIO_VIDEO_480_MS");
//   std::vector<Bucket> buckets = aspect_buckets("129x256px");                   // 129x256x256, 129x160x400, ...
#include <string>
#include <vector>

#include "tessera/data/buckets.h"

namespace tessera::data {

/// Whether an item of data.buckets means a table rather than a shape.
bool names_aspect_ratios(const std::string& text);

/// [FRAMESx]TABLE: ASPECT_RATIO_256, 512, 1024, 2048 and 4096, ASPECT_RATIO_VIDEO_480_MS and 720_MS, also by diffusers'
/// names with _BIN; Open-Sora 1.2's ASPECT_RATIO_144P, 240P, 360P, 480P, 720P, 1080P, 2K, 4K, 2880 and, of 40 ratios,
/// ASPECT_RATIO_256_40, 512_40 and 1024_40; any of them with _16D, sides rounded down to multiples of 16, as in 1.3;
/// Open-Sora 2.0's sizes by their pixels, 256px or 480p; shapes of an area, AREA_832x480, RATIOS_512_0.5_2_7 and CELLS_640. The square comes
/// first, because samples have the first shape. Throws UserError (usage) naming the nearest table.
std::vector<Bucket> aspect_buckets(const std::string& text);

/// The shapes of an item of data.buckets, one or those of a table. Throws UserError (usage) as these do.
std::vector<Bucket> buckets_of(const std::string& shape);

}  // namespace tessera::data
