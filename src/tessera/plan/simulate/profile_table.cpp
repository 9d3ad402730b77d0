// The shipped nodes, one row each. Peaks are from vendors' data sheets (dense, without sparsity); achieved rates are
// from published measurements, or our estimates marked [E]. Memory is the total that the driver reports in logs: a "80
// GB" device has 79.2 GiB, because ECC and the driver use some.
#include "tessera/plan/simulate/profile.h"

namespace tessera::plan {

namespace {

constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;
constexpr int64_t kGB = 1000000000;
constexpr double kGiB = 1024.0 * 1024 * 1024;

/// One row. TFLOP/s; GB/s in one direction; microseconds.
struct ProfileRow {
  const char* gpu;
  const char* target;
  int devices;
  const char* source;
  struct Products {
    double fp32, tf32, bf16, fp8;  // achieved by large products
  } products;
  struct Attention {
    double forward, backward;  // bf16, head dim 128
  } attention;
  struct Memory {
    double gib, stream;  // total that the driver reports; streaming operators achieve about 0.87 of the data sheet
  } memory;
  struct Link {
    double bus, hop;  // bus bandwidth of a device, latency of a hop
  } link;
  double nic;  // of the node
  struct Host {
    double pcie, bandwidth, gb;  // host link of a device; memory of the node
  } host;
  struct Disk {
    double read, write, gb, drives;  // of all drives together
  } disk;
};

// Small products: a launch and a partial wave cost about 8 microseconds of a full device. [E]
constexpr double kGemmStart = 8e-6, kAttentionStart = 15e-6, kOperatorStart = 5e-6;

// clang-format off
const ProfileRow kRows[] = {
    {.gpu = "h200",
     .target = "sm_90",
     .devices = 8,
     .source = "NVIDIA H200 data sheet (989 TF bf16, 4.8 TB/s, NVLink 450 GB/s); products at 650 TF, attention 600/480 "
     "TF (cuDNN, FlashAttention-3 paper, 16K tokens); NVLink 350 GB/s bus in nccl-tests; PCIe 5 x16 54 GB/s; "
     "NVMe of DeepNVMe's 8 x Gen5 node; 8 x NDR 400 Gb/s at 45 GB/s each",
     .products = {48, 380, 650, 1200}, .attention = {600, 480}, .memory = {139.8, 4200}, .link = {350, 4}, .nic = 360,
     .host = {54, 400, 2000}, .disk = {48, 26, 30000, 8}},
    {.gpu = "h100",
     .target = "sm_90",
     .devices = 8,
     .source = "NVIDIA H100 SXM data sheet (989 TF bf16, 3.35 TB/s, 80 GB); else as h200",
     .products = {48, 380, 640, 1180}, .attention = {595, 470}, .memory = {79.2, 2900}, .link = {350, 4}, .nic = 360,
     .host = {54, 400, 2000}, .disk = {48, 26, 30000, 8}},
    {.gpu = "a100-80",
     .target = "sm_80",
     .devices = 8,
     .source = "NVIDIA A100 80 GB data sheet (312 TF bf16, 2.04 TB/s, NVLink 300 GB/s); products at 0.83, attention of "
     "FlashAttention-2's paper (200/165 TF); 1 TB host memory, 4 TB NVMe RAID of Gen4 drives (DeepNVMe: 10/5 "
     "GB/s), one 200 Gb/s NIC",
     .products = {15, 120, 260, 260}, .attention = {200, 165}, .memory = {79.2, 1750}, .link = {235, 4}, .nic = 23,
     .host = {24, 280, 1000}, .disk = {10, 5, 4000, 4}},
    {.gpu = "l40s",
     .target = "sm_89",
     .devices = 4,
     .source = "NVIDIA L40S data sheet (362 TF bf16, 864 GB/s, 48 GB, PCIe 4 x16), power limit 350 W: products at 0.6 "
     "[E]; no NVLink: rings over PCIe",
     .products = {55, 130, 215, 400}, .attention = {170, 135}, .memory = {44.4, 760}, .link = {18, 12}, .nic = 23,
     .host = {24, 250, 512}, .disk = {10, 5, 4000, 4}},
    {.gpu = "rtx4090",
     .target = "sm_89",
     .devices = 8,
     .source = "NVIDIA Ada whitepaper (165 TF bf16 with fp32 sums, 1,008 GB/s, 24 GB); no peer access: rings go through "
     "host memory [E]",
     .products = {60, 75, 148, 280}, .attention = {135, 105}, .memory = {23.6, 880}, .link = {11, 20}, .nic = 11,
     .host = {24, 250, 512}, .disk = {7, 5, 2000, 1}},
    {.gpu = "rtx3090",
     .target = "sm_86",
     .devices = 4,
     .source = "NVIDIA GA102 whitepaper (71 TF bf16 with fp32 sums, 936 GB/s, 24 GB); PCIe 4, no NVLink bridge [E]",
     .products = {26, 33, 62, 62}, .attention = {55, 44}, .memory = {23.6, 815}, .link = {11, 20}, .nic = 3,
     .host = {22, 150, 256}, .disk = {7, 5, 2000, 1}},
    {.gpu = "rtx5090",
     .target = "sm_120",
     .devices = 1,
     .source = "NVIDIA Blackwell RTX whitepaper (209 TF bf16 with fp32 sums, 1,792 GB/s, 32 GB); PCIe 5 x16",
     .products = {80, 95, 185, 350}, .attention = {165, 130}, .memory = {31.4, 1560}, .link = {25, 20}, .nic = 3,
     .host = {52, 80, 128}, .disk = {10, 8, 2000, 1}},
    {.gpu = "h200-128gib",
     .target = "sm_90",
     .devices = 1,
     .source = "one H200 of a shared node, with 16 of its cores, 128 GiB of its host memory and 64 GiB of its disk: the "
     "GPU and its link as h200's; host memory at an eighth of the node's rate [E]; disk of a cloud machine [E]",
     .products = {48, 380, 650, 1200}, .attention = {600, 480}, .memory = {139.8, 4200}, .link = {350, 4}, .nic = 3,
     .host = {54, 50, 137.438}, .disk = {2, 1, 64, 1}},
};
// clang-format on

Profile profile(const ProfileRow& row, int devices) {
  Profile p;
  p.name = devices == row.devices ? row.gpu : std::to_string(devices) + "x" + row.gpu;
  p.source = row.source;
  p.target = row.target;
  p.devices = devices;
  const double share = static_cast<double>(devices) / row.devices;  // of the node's shared resources
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
  p.link = {row.link.bus * kGiga, row.link.bus * kGiga, row.link.hop * kMicro};
  p.nic = {row.nic * kGiga * share, row.nic * kGiga * share, 2 * row.link.hop * kMicro};
  p.host_link = row.host.pcie * kGiga;
  p.host_bandwidth = row.host.bandwidth * kGiga * share;
  p.host_memory = static_cast<int64_t>(row.host.gb * share * 1000) * (kGB / 1000);
  const double drives =
      devices == row.devices ? 1 : 1 / row.disk.drives;  // one device uses a whole drive, not a part of each
  p.disk_read = row.disk.read * kGiga * drives, p.disk_write = row.disk.write * kGiga * drives;
  p.disk = static_cast<int64_t>(row.disk.gb * drives) * kGB;
  p.steal = 0.06;  // NCCL's kernels take 8 of 132 SMs
  return p;
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
    for (const ProfileRow& row : kRows) {
      list.push_back(profile(row, row.devices));
      if (row.devices > 1) list.push_back(profile(row, 1));
    }
    return list;
  }();
  return all;
}

}  // namespace tessera::plan
