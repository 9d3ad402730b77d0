#pragma once
// The few LibTorch headers the operators need (precompiled).
#include "tessera/torch_headers.h"
