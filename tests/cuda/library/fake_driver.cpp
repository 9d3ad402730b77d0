// An NVIDIA driver that only answers: CUINIT is what cuInit gives, VERSION the CUDA version that it knows.
extern "C" int cuInit(unsigned) { return CUINIT; }
extern "C" int cuDriverGetVersion(int* version) { return *version = VERSION, 0; }
