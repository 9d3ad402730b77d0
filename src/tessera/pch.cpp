// Holds the precompiled header that every room with LibTorch reuses.
