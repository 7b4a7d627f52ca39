// The library as a C++17 program uses it, through nvte.hpp.
#include "nvte.h"
#include "nvte.hpp"
#include "nvte.hpp"

#include <cmath>
#include <type_traits>
#include <vector>

#include "check.h"

extern "C" int second_unit_knows_the_abi(void);

static_assert(!std::is_copy_constructible_v<nvte::context> && std::is_nothrow_move_constructible_v<nvte::context>);

// `call` throws `status`, and its message holds `text`.
template <class F>
static void throws(nvte_status_t status, const char *text, F call) {
  try {
    call();
  } catch (const nvte::error &e) {
    if (e.status() == status && std::string(e.what()).find(text) != std::string::npos) return;
    std::fprintf(stderr, "status %d, message \"%s\"\n", e.status(), e.what());
  }
  std::exit(1);
}

static void test_base() {
  CHECK(second_unit_knows_the_abi());
  CHECK(nvte::version() == nvte_version() && nvte::abi_version() == NVTE_ABI_VERSION);
  nvte::context first = nvte::context::cpu();
  nvte::context second = std::move(first);
  CHECK(first.get() == nullptr && second.get() != nullptr);
  first = std::move(second);
  CHECK(first.capability().device_type == NVTE_DEVICE_CPU);
  CHECK(first.info().find("\"device\": \"cpu\"") != std::string::npos && nvte::info().back() == '}');
  first.trim();
  first.synchronize();
  throws(NVTE_ERROR_INVALID_ENUM, "device_type", [] { nvte::context(42, 0); });
  throws(NVTE_ERROR_INVALID_HANDLE, "NVTE_ERROR_INVALID_HANDLE: context", [&] { second.trim(); });
}

static void test_cast(const nvte::context &ctx) {
  const std::vector<float> x = {1, 2, 3, 4, 5, 600};
  std::vector<unsigned char> q(8, 0xFF), qt(6, 0xFF);
  const float scale = 2;
  float scale_inv = NAN, amax = 0;
  nvte::cast_to_fp8(ctx, nvte::tensor(x.data(), 2, 3),
                    nvte::tensor(nvte::dtype::e5m2, q.data(), 2, 3).stride(4).transposed(qt.data()).scale(&scale).scale_inv(&scale_inv).amax(&amax));
  CHECK(scale_inv == 0.5f && amax == 600);
  CHECK(q[0] == 0x40 && q[3] == 0xFF && qt[0] == 0x40 && qt[1] == q[4] && qt[5] == q[6]);
  throws(NVTE_ERROR_INVALID_DTYPE, "output.dtype", [&] {
    nvte::cast_to_fp8(ctx, nvte::tensor(x.data(), 2, 3), nvte::tensor(nvte::dtype::bf16, q.data(), 2, 3));
  });
}

int main() {
  test_base();
  const nvte::context ctx = nvte::context::cpu();
  test_cast(ctx);
  std::puts("passed");
}
