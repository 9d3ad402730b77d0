#include "tessera/device/nccl_ways.h"

#include "tessera/base/units.h"

namespace tessera::device {

void Ways::read(std::string_view log) {
  while (!log.empty()) {
    const size_t end = log.find('\n');
    read_line(log.substr(0, end));
    log = end == log.npos ? "" : log.substr(end + 1);
  }
}

void Ways::read_line(std::string_view line) {
  // "Pattern 4, crossNic 0, nChannels 4, bw 24.000000/24.000000, type NVL/PIX, sameChannels 0": within machines, between them
  if (line.find("Pattern ") != line.npos && line.find(", type NV") != line.npos) nvlink_ = true;
  constexpr std::string_view kVia = " via ";
  const size_t at = line.find(kVia);
  if (at == line.npos || line.find(" -> ") == line.npos) return;
  const std::string_view way = line.substr(at + kVia.size());
  if (way.starts_with("P2P/")) found_.insert(Way::peers);
  if (way.starts_with("SHM/")) found_.insert(Way::host);
  if (!way.starts_with("NET/")) return;
  found_.insert(way.starts_with("NET/Socket")     ? Way::sockets
                : way.find("/GDRDMA") != way.npos ? Way::rdma
                                                  : Way::rdma_by_host);
}

std::string Ways::text() const {
  std::string text;
  for (const Way way : found_) {
    const char* word = "";
    switch (way) {
      case Way::peers:
        word = nvlink_ ? "NVLink" : "PCIe from GPU to GPU";
        break;
      case Way::host:
        word = "host memory";
        break;
      case Way::rdma:
        word = "RDMA into GPU memory";
        break;
      case Way::rdma_by_host:
        word = "RDMA through host memory";
        break;
      case Way::sockets:
        word = "sockets";
    }
    text += (text.empty() ? "" : ", ") + std::string(word);
  }
  return text;
}

std::string Ways::warning(bool one_machine) const {
  if (found_.contains(Way::sockets) && one_machine)
    return "GPUs of one machine send by sockets: NCCL takes them for those of several; ranks in containers need one /dev/shm "
           "and the host's network";
  if (found_.contains(Way::sockets))
    return "GPUs of several machines send by TCP sockets: with RDMA (InfiniBand, RoCE, or the cloud's plugin of NCCL) they "
           "would be several times as fast; NCCL_DEBUG=INFO tells what it found";
  if (found_.contains(Way::rdma_by_host))
    return "RDMA is staged through host memory: with GPUDirect RDMA (the kernel module nvidia_peermem, or dma-buf) it would "
           "go from GPU to GPU";
  if (found_.contains(Way::host))
    return "GPUs of this machine send through host memory: they have no peer-to-peer access (nvidia-smi topo -p2p r), as "
           "with consumer GPUs, with PCIe's ACS on, or with NCCL_P2P_DISABLE";
  return "";
}

std::string small_shared_memory(int64_t bytes, int ranks) {
  constexpr int64_t kEnough = int64_t{1} << 30;  // what NVIDIA's documentation asks of a container
  if (ranks < 2 || bytes >= kEnough) return "";
  return "/dev/shm has " + format_bytes(bytes) +
         ", by which NCCL connects GPUs of one machine: it may fail to; give a "
         "container 1 GiB (docker run --shm-size=1g, or --ipc=host)";
}

}  // namespace tessera::device
