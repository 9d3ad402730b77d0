// The shipped GPUs, one row each. Peaks are from vendors' data sheets (dense, without sparsity); achieved rates are
// from published measurements, or our estimates marked [E]. Memory is the total that the driver reports in logs: a "80
// GB" device has 79.2 GiB, because ECC and the driver use some.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/plan/simulate/profile.h"

namespace tessera::plan {

namespace {

constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;
constexpr int64_t kGB = 1000000000;
constexpr double kGiB = 1024.0 * 1024 * 1024;

/// GPUs of one machine at most; more are machines (--nodes).
constexpr int kMostDevices = 16;
constexpr const char* kFromSheets = "; read from data sheets until probed";

/// One row. TFLOP/s; GB/s in one direction; microseconds.
struct ProfileRow {
  std::string gpu;
  std::string also;  ///< further spellings, as squeezed() leaves them, between spaces
  std::string target;
  int usual;    ///< devices that the name alone means: the node of a data centre, or one card
  int devices;  ///< of the machine that nic, host and disk are of
  std::string source;
  struct Products {
    double fp32, tf32, bf16, fp8;  // achieved by large products
  } products;
  struct Attention {
    double forward, backward;                // by flash; bf16, head dim 128
    double by_cudnn = 0, by_cudnn_back = 0;  // 0: not known, as flash
  } attention;
  struct Memory {
    double gib, stream;  // total that the driver reports; streaming operators achieve about 0.87 of the data sheet
  } memory;
  struct Link {
    double bus, hop;  // bus bandwidth of a device, latency of a hop
  } link;
  double nic;  // of the machine
  struct Host {
    double pcie, bandwidth, gb;  // host link of a device; memory of the machine
  } host;
  struct Disk {
    double read, write, gb, drives;  // of all drives together
  } disk;
};

// Small products: a launch and a partial wave cost about 8 microseconds of a full device. [E]
constexpr double kGemmStart = 8e-6, kAttentionStart = 15e-6, kOperatorStart = 5e-6;

/// What a data sheet says of a GPU: dense TFLOP/s, with fp32 sums; GB/s; `gib` as a driver reports it.
struct Sheet {
  double fp32, bf16, fp8, gbs, gib;
  double reach = 0.85;  ///< share of the bf16 peak that products achieve: less where a power limit holds them back [E]
};
/// The machine around it.
struct Around {
  int usual, devices;
  ProfileRow::Link link;
  double nic;
  ProfileRow::Host host;
  ProfileRow::Disk disk;
};
constexpr ProfileRow::Disk kHomeDisk = {7, 5, 2000, 1}, kNodeDisk = {20, 10, 8000, 8}, kFastDisk = {48, 26, 30000, 8};
/// A card in a PC; eight cards in a server without NVLink; eight in one with it.
constexpr Around kCard4 = {1, 1, {11, 20}, 3, {24, 60, 64}, kHomeDisk};
constexpr Around kCard4x8 = {1, 1, {6, 20}, 3, {12, 60, 64}, kHomeDisk};  // 8 lanes of PCIe 4
constexpr Around kCard5 = {1, 1, {25, 20}, 3, {52, 80, 128}, kHomeDisk};
constexpr Around kServer4 = {8, 8, {18, 12}, 46, {24, 500, 1024}, kNodeDisk};
constexpr Around kServer5 = {8, 8, {40, 12}, 90, {52, 500, 1024}, kNodeDisk};
constexpr Around kNvlink4 = {8, 8, {235, 4}, 23, {24, 280, 1000}, {10, 5, 4000, 4}};
constexpr Around kNvlink5 = {8, 8, {350, 4}, 360, {54, 400, 2000}, kFastDisk};

Around with_bus(Around around, double bus) {
  around.link.bus = bus;
  return around;
}

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value);
  return text;
}

/// Attention of a row made of a data sheet, whose products achieve `bf16`. The best kernel achieves 0.88 of them, 0.70 in its
/// backward: on Hopper cuDNN's, where flash achieves 0.57 and 0.49; Blackwell of data centres is taken as Hopper. Elsewhere
/// flash's; cuDNN's has 0.82 of it on an A100, 0.88 on an RTX PRO 6000 (huggingface/transformers#48163). [E]
ProfileRow::Attention attention_of(const std::string& target, double bf16) {
  if (target == "sm_90" || target == "sm_100") return {0.57 * bf16, 0.49 * bf16, 0.88 * bf16, 0.70 * bf16};
  const double cudnn = target == "sm_80" ? 0.82 : target == "sm_120" ? 0.88 : 0;
  return {0.88 * bf16, 0.70 * bf16, cudnn * 0.88 * bf16, cudnn * 0.70 * bf16};
}

/// A row made of a data sheet: fp32 achieves 0.73 of its peak and operators 0.87 of the memory's rate, as on the GPUs that
/// were measured. [E]
ProfileRow row_of(const std::string& gpu, const std::string& also, const std::string& target, const Sheet& sheet,
                  const Around& around) {
  const double bf16 = sheet.reach * sheet.bf16;
  return {.gpu = gpu,
          .also = also,
          .target = target,
          .usual = around.usual,
          .devices = around.devices,
          .source = "NVIDIA's data sheet (" + short_number(sheet.bf16) + " TF bf16 with fp32 sums, " +
                    short_number(sheet.gbs) + " GB/s, " + short_number(sheet.gib) +
                    " GiB as drivers report); products at " + short_number(sheet.reach) +
                    ", the rest in proportion [E]",
          .products = {0.73 * sheet.fp32, 0.5 * bf16, bf16, sheet.reach * sheet.fp8},
          .attention = attention_of(target, bf16),
          .memory = {sheet.gib, 0.87 * sheet.gbs},
          .link = around.link,
          .nic = around.nic,
          .host = around.host,
          .disk = around.disk};
}

const std::vector<ProfileRow>& rows() {
  // clang-format off
  static const std::vector<ProfileRow> all = {
    {.gpu = "h200", .also = " h200141 ",
     .target = "sm_90",
     .usual = 8, .devices = 8,
     .source = "NVIDIA H200 data sheet (989 TF bf16, 4.8 TB/s, NVLink 450 GB/s); products at 650 TF, attention 600/480 "
     "TF (cuDNN) and 370/320 (flash), FlashAttention-3 paper, 16K tokens; NVLink 350 GB/s bus in nccl-tests; PCIe 5 x16 54 GB/s; "
     "NVMe of DeepNVMe's 8 x Gen5 node; 8 x NDR 400 Gb/s at 45 GB/s each",
     .products = {48, 380, 650, 1200}, .attention = {370, 320, 600, 480}, .memory = {139.8, 4200}, .link = {350, 4}, .nic = 360,
     .host = {54, 400, 2000}, .disk = {48, 26, 30000, 8}},
    {.gpu = "h100", .also = " h10080 ",
     .target = "sm_90",
     .usual = 8, .devices = 8,
     .source = "NVIDIA H100 SXM data sheet (989 TF bf16, 3.35 TB/s, 80 GB); else as h200",
     .products = {48, 380, 640, 1180}, .attention = {365, 315, 595, 470}, .memory = {79.2, 2900}, .link = {350, 4}, .nic = 360,
     .host = {54, 400, 2000}, .disk = {48, 26, 30000, 8}},
    {.gpu = "a100-80", .also = " a100 a100pcie a100pcie80 a10080pcie ",
     .target = "sm_80",
     .usual = 8, .devices = 8,
     .source = "NVIDIA A100 80 GB data sheet (312 TF bf16, 2.04 TB/s, NVLink 300 GB/s); products at 0.83, attention of "
     "FlashAttention-2's paper (200/165 TF); 1 TB host memory, 4 TB NVMe RAID of Gen4 drives (DeepNVMe: 10/5 "
     "GB/s), one 200 Gb/s NIC",
     .products = {15, 120, 260, 260}, .attention = {200, 165}, .memory = {79.2, 1750}, .link = {235, 4}, .nic = 23,
     .host = {24, 280, 1000}, .disk = {10, 5, 4000, 4}},
    {.gpu = "l40s", .also = " l40s48 ",
     .target = "sm_89",
     .usual = 8, .devices = 8,
     .source = "NVIDIA L40S data sheet (362 TF bf16, 864 GB/s, 48 GB, PCIe 4 x16), power limit 350 W: products at 0.6 "
     "[E]; no NVLink: rings over PCIe",
     .products = {55, 130, 215, 400}, .attention = {170, 135}, .memory = {44.4, 760}, .link = {18, 12}, .nic = 46,
     .host = {24, 500, 1024}, .disk = {20, 10, 8000, 8}},
    {.gpu = "rtx4090", .also = " 409024 ",
     .target = "sm_89",
     .usual = 1, .devices = 8,
     .source = "NVIDIA Ada whitepaper (165 TF bf16 with fp32 sums, 1,008 GB/s, 24 GB); no peer access: rings go through "
     "host memory [E]",
     .products = {60, 75, 148, 280}, .attention = {135, 105}, .memory = {23.6, 880}, .link = {11, 20}, .nic = 11,
     .host = {24, 250, 512}, .disk = {7, 5, 2000, 1}},
    {.gpu = "rtx3090", .also = " 309024 ",
     .target = "sm_86",
     .usual = 1, .devices = 4,
     .source = "NVIDIA GA102 whitepaper (71 TF bf16 with fp32 sums, 936 GB/s, 24 GB); PCIe 4, no NVLink bridge [E]",
     .products = {26, 33, 62, 62}, .attention = {55, 44}, .memory = {23.6, 815}, .link = {11, 20}, .nic = 3,
     .host = {22, 150, 256}, .disk = {7, 5, 2000, 1}},
    {.gpu = "rtx5090", .also = " 509032 ",
     .target = "sm_120",
     .usual = 1, .devices = 1,
     .source = "NVIDIA Blackwell RTX whitepaper (209 TF bf16 with fp32 sums, 1,792 GB/s, 32 GB); PCIe 5 x16",
     .products = {80, 95, 185, 350}, .attention = {165, 130}, .memory = {31.4, 1560}, .link = {25, 20}, .nic = 3,
     .host = {52, 80, 128}, .disk = {10, 8, 2000, 1}},
    //                                                                fp32   bf16   fp8   GB/s   GiB
    row_of("rtx3060", " 306012 ", "sm_86",                          {12.7,  25.4,  25.4,  360,  11.7}, kCard4),
    row_of("rtx4060ti-16", " 4060ti ", "sm_89",                     {22.1,  44.1,  88.3,  288,  15.6}, kCard4x8),
    row_of("rtx4070", " 407012 ", "sm_89",                          {29.1,  58.3, 116.6,  504,  11.7}, kCard4),
    row_of("rtx4080", " 408016 ", "sm_89",                          {48.7,  97.5, 195,    717,  15.7}, kCard4),
    row_of("rtx4090d", " 4090d24 ", "sm_89",                        {73.5, 147,   294,   1008,  23.6}, kCard4),
    row_of("rtx4090-48", "", "sm_89",                               {82.6, 165,   330,   1008,  47.4}, kCard4),
    row_of("rtx5070ti", " 5070ti16 ", "sm_120",                     {43.9,  87.9, 175.8,  896,  15.5}, kCard5),
    row_of("rtx5080", " 508016 ", "sm_120",                         {56.3, 112.6, 225,    960,  15.5}, kCard5),
    row_of("a6000", " a600048 6000ampere ", "sm_86",                {38.7, 154.8, 154.8,  768,  47.4, 0.75}, kCard4),
    row_of("rtx6000ada", " 6000ada48 ", "sm_89",                    {91.1, 364,   728,    960,  47.4, 0.65}, kCard4),
    row_of("rtxpro6000", " pro600096 6000pro ", "sm_120",           {125,  504,  1007,   1792,  94.9, 0.75}, kCard5),
    row_of("l4", " l424 ", "sm_89",                                 {30.3, 121,   242,    300,  22.0, 0.5}, kServer4),
    row_of("l20", " l2048 ", "sm_89",                               {59.8, 119.5, 239,    864,  44.4, 0.85}, kServer4),
    row_of("a10", " a1024 ", "sm_86",                               {31.2, 125,   125,    600,  22.0, 0.6}, kServer4),
    row_of("a100-40", " a100pcie40 a10040pcie ", "sm_80",           {19.5, 312,   312,   1555,  39.4, 0.83}, kNvlink4),
    row_of("a800", " a80080 a800pcie a80080pcie ", "sm_80",         {19.5, 312,   312,   2039,  79.2, 0.83}, with_bus(kNvlink4, 160)),
    row_of("h20", " h2096 ", "sm_90",                               {44,   148,   296,   4000,  95.0, 0.9}, kNvlink5),
    row_of("h100-pcie", " h100pcie80 h10080pcie ", "sm_90",         {51,   756,  1513,   2039,  79.2, 0.6}, kServer5),
    row_of("h100-nvl", " h100nvl94 h10094 ", "sm_90",               {60,   835,  1671,   3938,  93.1, 0.65}, kServer5),
    row_of("h800", " h80080 h800sxm ", "sm_90",                     {67,   989,  1979,   3350,  79.2, 0.65}, with_bus(kNvlink5, 160)),
    row_of("b200", " b200180 b200192 ", "sm_100",                   {75,  2250,  4500,   7700, 178.4, 0.7}, with_bus(kNvlink5, 700)),
    row_of("gb200", " gb200nvl72 gb200186 ", "sm_100",              {80,  2500,  5000,   8000, 184.0, 0.7},
           {8, 8, {700, 4}, 360, {200, 2000, 1920}, kFastDisk}),
    {.gpu = "h200-128gib", .also = "",
     .target = "sm_90",
     .usual = 1, .devices = 1,
     .source = "one H200 of a shared node, with 16 of its cores, 128 GiB of its host memory and 64 GiB of its disk: the "
     "GPU and its link as h200's; host memory at an eighth of the node's rate [E]; disk of a cloud machine [E]",
     .products = {48, 380, 650, 1200}, .attention = {370, 320, 600, 480}, .memory = {139.8, 4200}, .link = {350, 4}, .nic = 3,
     .host = {54, 50, 137.438}, .disk = {2, 1, 64, 1}},
  };
  // clang-format on
  return all;
}

Profile profile(const ProfileRow& row, int devices) {
  Profile p;
  p.name = devices == row.usual ? row.gpu : std::to_string(devices) + "x" + row.gpu;
  p.source = row.source + kFromSheets;
  p.target = row.target;
  p.devices = devices;
  const double share = static_cast<double>(devices) / row.devices;  // of the machine's shared resources
  p.device.memory = static_cast<int64_t>(row.memory.gib * kGiB);
  p.device.bandwidth = p.device.stream = {row.memory.stream * kGiga, row.memory.stream * kGiga * kOperatorStart};
  const auto rate = [](double teraflops, double start) { return Rate{teraflops * kTera, teraflops * kTera * start}; };
  p.device.gemm = {{"fp32", rate(row.products.fp32, kGemmStart)},
                   {"tf32", rate(row.products.tf32, kGemmStart)},
                   {"bf16", rate(row.products.bf16, kGemmStart)},
                   {"fp8", rate(row.products.fp8, kGemmStart)}};
  p.device.attention = {{"bf16", rate(row.attention.forward, kAttentionStart)},
                        {"fp32", rate(row.products.fp32 * 0.6, kAttentionStart)}};
  p.device.attention_backward = {{"bf16", rate(row.attention.backward, kAttentionStart)},
                                 {"fp32", rate(row.products.fp32 * 0.5, kAttentionStart)}};
  if (const std::string by_cudnn = "bf16" + std::string(kByCudnn); row.attention.by_cudnn > 0) {
    p.device.attention[by_cudnn] = rate(row.attention.by_cudnn, kAttentionStart);
    p.device.attention_backward[by_cudnn] = rate(row.attention.by_cudnn_back, kAttentionStart);
  }
  p.link = {row.link.bus * kGiga, row.link.bus * kGiga, row.link.hop * kMicro};
  p.nic = {row.nic * kGiga * share, row.nic * kGiga * share, 2 * row.link.hop * kMicro};
  p.host_link = row.host.pcie * kGiga;
  p.host_bandwidth = row.host.bandwidth * kGiga * share;
  p.host_memory = static_cast<int64_t>(row.host.gb * share * 1000) * (kGB / 1000);
  // one device uses a whole drive, not a part of each
  const double drives = std::clamp(std::floor(row.disk.drives * share), 1.0, row.disk.drives) / row.disk.drives;
  p.disk_read = row.disk.read * kGiga * drives, p.disk_write = row.disk.write * kGiga * drives;
  p.disk = static_cast<int64_t>(row.disk.gb * drives) * kGB;
  p.steal = 0.06;  // NCCL's kernels take 8 of 132 SMs
  return p;
}

/// "NVIDIA GeForce RTX 4090" and "rtx-4090" are both 4090: small letters and digits, without makers, series and units.
std::string squeezed(std::string_view name) {
  constexpr const char* kSilent[] = {"nvidia", "geforce", "tesla",      "quadro", "blackwell", "workstation",
                                     "server", "edition", "generation", "sxm",    "sxm4",      "sxm5",
                                     "hbm2",   "hbm2e",   "hbm3",       "hbm3e"};
  std::string text, word;
  for (const char c : std::string(name) + " ") {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    if (std::ranges::find(kSilent, std::string_view(word)) == std::end(kSilent)) text += word;
    word.clear();
  }
  for (const char* begin : {"nvidia", "geforce", "rtx"})
    if (text.starts_with(begin)) text.erase(0, std::strlen(begin));
  for (const char* unit : {"gib", "gb"})  // behind a number: gb200 begins with a name
    if (text.ends_with(unit) || text.find(std::string(unit) + "pcie") != text.npos)
      if (const size_t at = text.rfind(unit); at > 0 && std::isdigit(static_cast<unsigned char>(text[at - 1])))
        text.erase(at, std::strlen(unit));
  return text;
}

/// GPUs that have a name and no profile, with the reason. `begins`: what a squeezed name begins with.
struct Unsupported {
  const char* begins;
  const char* why;
};
constexpr const char* kOld = "LibTorch 2.11 or our kernels have no code for GPUs older than sm_80 (A100, RTX 30)";
constexpr const char* kAmd = "AMD's GPUs are not supported: there is no code for them";
constexpr const char* kApple = "Apple's GPUs are not supported: there is no code for them";
constexpr Unsupported kUnsupported[] = {
    {"v100", kOld}, {"p100", kOld}, {"p40", kOld},    {"m40", kOld}, {"t4", kOld},      {"titan", kOld},
    {"gtx", kOld},  {"20", kOld},   {"10", kOld},     {"16", kOld},  {"amd", kAmd},     {"mi1", kAmd},
    {"mi2", kAmd},  {"mi3", kAmd},  {"radeon", kAmd}, {"rx", kAmd},  {"apple", kApple}, {"m1", kApple},
    {"m2", kApple}, {"m3", kApple}, {"m4", kApple}};

/// "16GiB,90TFLOPs,600GB/s", in any order.
Profile described_gpu(const std::string& text, int devices) {
  const auto fail = [&](const std::string& what) {
    throw UserError(Exit::usage, "plan.profile", "'" + text + "': " + what,
                    "write the memory, the TFLOP/s of bf16 products and the memory's rate: \"16GiB,90TFLOPs,600GB/s\"");
  };
  double tera = 0, rate = 0, gib = 0;
  std::string rest = text + ",";
  for (size_t comma; (comma = rest.find(',')) != rest.npos; rest.erase(0, comma + 1)) {
    std::string item;
    for (const char c : rest.substr(0, comma))
      if (c != ' ') item += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    char* unit = nullptr;
    const double value = std::strtod(item.c_str(), &unit);
    const std::string_view of = unit;
    if (unit == item.c_str() || !(value > 0) || value > 1e6) fail("'" + item + "' is no amount above zero");
    double* known = of == "tflops" || of == "tflop/s" || of == "tf" ? &tera
                    : of == "gb/s" || of == "gib/s" || of == "tb/s" ? &rate
                    : of == "gib" || of == "gb" || of == "g"        ? &gib
                                                                    : nullptr;
    if (!known) fail("'" + item + "' has no unit that is known here");
    if (*known > 0) fail("'" + item + "' says a second time what stands before it");
    *known = of == "tb/s" ? 1000 * value : of == "gib/s" ? 1.073741824 * value : value;
    if (known == &gib) gib = static_cast<double>(parse_bytes(item, "plan.profile")) / kGiB;
  }
  if (tera == 0 || rate == 0 || gib == 0) fail("one of its three numbers is missing");
  Profile p = profile(row_of("gpu", "", "sm_90", {tera / 2, tera, tera, rate, gib, 1}, kCard4), devices);
  p.name = (devices > 1 ? std::to_string(devices) + "x" : "") + text;
  p.source = "one GPU as it was described [E]";
  return p;
}

/// "8" of "8x4090"; what remains is the name.
int count_before(std::string& name) {
  const size_t digits = name.find_first_not_of("0123456789");
  if (digits == 0 || digits > 3 || digits == name.npos) return 0;
  const size_t x = name.find_first_not_of(' ', digits);
  if (x == name.npos || (name[x] != 'x' && name[x] != 'X') || x + 1 == name.size()) return 0;
  const int count = std::atoi(name.substr(0, digits).c_str());
  name.erase(0, name.find_first_not_of(' ', x + 1));
  return std::max(count, 1);
}

/// One thread of a server CPU for each rank, Gloo within a machine. Values are of the size that `tessera probe`
/// measured on an EPYC; probe your own machine.
Profile cpu() {
  Profile p;
  p.name = "cpu";
  p.source = "one thread of an AMD EPYC a rank, as tessera probe measured it; run tessera probe on your machine";
  p.device.bandwidth = {12e9, 20e3};
  p.device.stream = {6e9, 20e3};
  p.device.gemm = {{"fp32", {100e9, 1e6}}};
  p.device.attention = {{"fp32", {70e9, 1e6}}};
  p.device.attention_backward = {{"fp32", {65e9, 1e6}}};
  p.link = {3e9, 1.5e9, 60e-6};
  p.nic = {1e9, 1e9, 200e-6};
  p.host_link = 6e9, p.host_bandwidth = 20e9;
  p.disk_read = 1e9, p.disk_write = 0.5e9;
  p.steal = 0.5;
  return p;
}

}  // namespace

const std::vector<Profile>& shipped_profiles() {
  static const std::vector<Profile> all = [] {
    std::vector<Profile> list = {cpu()};
    for (const ProfileRow& row : rows()) {
      list.push_back(profile(row, row.usual));
      if (row.gpu.find("gib") == row.gpu.npos) list.push_back(profile(row, row.usual == 1 ? 8 : 1));
    }
    return list;
  }();
  return all;
}

std::optional<Profile> shipped_profile(std::string_view spelling) {
  std::string name(spelling);
  if (name == "cpu") return cpu();
  const int count = count_before(name);
  if (count > kMostDevices)
    throw UserError(Exit::usage, "plan.profile",
                    "'" + std::string(spelling) + "': a machine has at most " + std::to_string(kMostDevices) + " GPUs",
                    "plan several machines: --gpu " + name + " --nodes N");
  std::error_code unseen;
  if (std::filesystem::exists(std::string(spelling), unseen) && name.find_first_of("/.,") != name.npos)
    return std::nullopt;  // a file of tessera probe
  if (name.find(',') != name.npos) return described_gpu(name, std::max(count, 1));
  const std::string wanted = squeezed(name);
  if (wanted.empty() || name.find_first_of("/.") != name.npos) return std::nullopt;
  for (const ProfileRow& row : rows())
    if (squeezed(row.gpu) == wanted || row.also.find(" " + wanted + " ") != row.also.npos)
      return profile(row, count > 0 ? count : row.usual);
  if (std::filesystem::exists(name, unseen)) return std::nullopt;
  for (const Unsupported& gpu : kUnsupported)
    if (wanted.starts_with(gpu.begins) && (wanted.size() > 3 || !std::isdigit(static_cast<unsigned char>(wanted[0]))))
      throw UserError(Exit::usage, "plan.profile", "'" + std::string(spelling) + "': " + gpu.why,
                      "tessera list profiles names the GPUs that are supported");
  return std::nullopt;
}

std::string nearest_profile(std::string_view spelling) {
  std::vector<std::string> known;
  for (const ProfileRow& row : rows()) known.push_back(squeezed(row.gpu));
  const std::string near = nearest(squeezed(spelling), known).front();
  for (const ProfileRow& row : rows())
    if (squeezed(row.gpu) == near) return row.gpu;
  return near;
}

}  // namespace tessera::plan
