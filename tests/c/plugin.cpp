// A plugin linked with -lnvte and opened after a library that exports the same names (tests/clash.rs).
#include <cmath>

#include "nvte.hpp"

// Straight through the linker: whichever library came first answers.
extern "C" int plugin_direct(void) { return nvte_context_trim(nullptr); }

// Through the table: 0 if our library did the work.
extern "C" int plugin_table(void) {
  try {
    if (nvte::version() != NVTE_VERSION_WANTED) return 1;
    const nvte::context ctx = nvte::context::cpu();
    const float x[4] = {1.0f, -2.0f, 448.0f, 1e9f};
    unsigned char q[4] = {0, 0, 0, 0};
    float amax = 0;
    nvte::cast_to_fp8(ctx, nvte::tensor(x, 2, 2), nvte::tensor(nvte::dtype::e4m3, q, 2, 2).amax(&amax));
    if (q[0] != 0x38 || q[1] != 0xC0 || q[2] != 0x7E || q[3] != 0x7E || amax != 1e9f) return 2;
    try {
      nvte::cast_to_fp8(ctx, nvte::tensor(x, 2, 2), nvte::tensor(nvte::dtype::e4m3, q, 2, 3));
      return 3;
    } catch (const nvte::error &e) {
      return e.status() == NVTE_ERROR_INVALID_SHAPE ? 0 : 4;
    }
  } catch (const std::exception &) {
    return 5;
  }
}
