// Stands in for a library of NVIDIA: LibTorch names it, and calls nothing of it before there is a device.
