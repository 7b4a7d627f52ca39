/* A cuBLASLt that computes on the host, plainly and in f64, what its descriptors say, after checking that the real one would take them.
 *
 * FAKE_LT_REFUSES: "heuristic" finds nothing, "check" accepts no stored algorithm, "matmul" refuses, "fails" returns an execution error. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { F32 = 0, F16 = 2, BF16 = 14, E4M3 = 28, E5M2 = 29 };
enum { INVALID = 7, FAILED = 13, UNSUPPORTED = 15 };
enum { COMPUTE = 0, SCALE_TYPE = 1, POINTER_MODE = 2, TRANS_A = 3, TRANS_B = 4, EPILOGUE = 7, BIAS = 8, SCALE_A = 17, SCALE_B = 18, FAST = 25, BIAS_TYPE = 26 };

typedef struct { uint64_t set, value[31]; } desc_t;
typedef struct { uint64_t magic, type, rows, cols; int64_t ld; } layout_t;
typedef struct { uint64_t value[8]; } preference_t;
typedef struct { uint64_t data[8]; } algo_t;
typedef struct { algo_t algo; size_t workspace; int state; float waves; int reserved[4]; } result_t;

int fake_lt_products, fake_lt_heuristics, fake_lt_checks;

static int refuses(const char *what) {
  const char *wanted = getenv("FAKE_LT_REFUSES");
  return wanted != NULL && strcmp(wanted, what) == 0;
}

size_t cublasLtGetVersion(void) { return 130100; }
const char *cublasLtGetStatusName(int status) { return (void)status, "FAKE"; }
int cublasLtCreate(void **handle) { return *handle = malloc(1), 0; }
int cublasLtDestroy(void *handle) { return free(handle), 0; }

int cublasLtMatmulDescInit_internal(desc_t *d, size_t size, int compute, int scale) {
  if (size < sizeof *d) return 3;
  memset(d, 0, sizeof *d);
  d->value[COMPUTE] = (uint64_t)compute, d->value[SCALE_TYPE] = (uint64_t)scale, d->value[EPILOGUE] = 1;
  return 0;
}

int cublasLtMatmulDescSetAttribute(desc_t *d, int attribute, const void *value, size_t size) {
  size_t wanted = attribute == BIAS || attribute == SCALE_A || attribute == SCALE_B ? 8 : attribute == FAST ? 1 : 4;
  if (attribute < 0 || attribute > 30 || size != wanted) return INVALID;
  d->value[attribute] = 0;
  memcpy(&d->value[attribute], value, size);
  d->set |= 1ull << attribute;
  return 0;
}

int cublasLtMatrixLayoutInit_internal(layout_t *l, size_t size, int type, uint64_t rows, uint64_t cols, int64_t ld) {
  if (size < 112) return 3;
  memset(l, 0, 112);
  l->magic = 77, l->type = (uint64_t)type, l->rows = rows, l->cols = cols, l->ld = ld;
  return 0;
}

int cublasLtMatmulPreferenceInit_internal(preference_t *p, size_t size) {
  if (size < 96) return 3;
  memset(p, 0, 96);
  p->value[3] = 7;
  p->value[5] = p->value[6] = p->value[7] = 256;
  return 0;
}

static uint64_t max_workspace, align_d;
int cublasLtMatmulPreferenceSetAttribute(preference_t *p, int attribute, const void *value, size_t size) {
  uint64_t v = 0;
  memcpy(&v, value, size);
  if (attribute == 1 && size == 8) return max_workspace = v, 0;
  if (attribute == 8 && size == 4) return align_d = v, 0;
  if (attribute < 3 || attribute > 7 || size != 4) return INVALID;
  return p->value[attribute] = v, 0;
}

static size_t size_of(uint64_t type) { return type == F32 ? 4 : type == F16 || type == BF16 ? 2 : 1; }

/* What the real one demands. m, n: of the column-major result. */
static int acceptable(const desc_t *d, const layout_t *a, const layout_t *b, const layout_t *c, const layout_t *out) {
  uint64_t k = d->value[TRANS_A] ? a->rows : a->cols, kb = d->value[TRANS_B] ? b->cols : b->rows;
  uint64_t m = d->value[TRANS_A] ? a->cols : a->rows, n = d->value[TRANS_B] ? b->rows : b->cols;
  const layout_t *all[4] = {a, b, c, out};
  int i, fp8 = a->type == E4M3 || a->type == E5M2;
  for (i = 0; i < 4; i++)
    if (all[i]->magic != 77 || all[i]->ld < (int64_t)all[i]->rows || all[i]->rows == 0 || all[i]->cols == 0) return 0;
  if (k != kb || out->rows != m || out->cols != n || c->rows != m || c->cols != n || c->type != out->type) return 0;
  if (d->value[COMPUTE] != 68 || d->value[SCALE_TYPE] != F32 || (d->value[EPILOGUE] != 1 && d->value[EPILOGUE] != 4)) return 0;
  if ((d->value[EPILOGUE] == 4) != (d->value[BIAS] != 0)) return 0;
  if (fp8) {
    if (!d->value[TRANS_A] || d->value[TRANS_B] || (a->type == E5M2 && b->type == E5M2) || out->type >= E4M3) return 0;
    if (k % 16 || m % 16 || a->ld % 16 || b->ld % 16 || out->ld * (int64_t)size_of(out->type) % 16 || c->ld * (int64_t)size_of(c->type) % 16) return 0;
    if (d->value[BIAS] && d->value[BIAS_TYPE] != (out->type == F32 ? BF16 : out->type)) return 0;
    return (d->set >> FAST & 1) != 0;
  }
  if (a->type != b->type || (out->type != a->type && out->type != F32) || d->set >> FAST & 1) return 0;
  return !d->value[BIAS] || d->value[BIAS_TYPE] == out->type;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, const desc_t *d, const layout_t *a, const layout_t *b, const layout_t *c, const layout_t *out,
                                   const preference_t *p, int requested, result_t *results, int *found) {
  int i;
  fake_lt_heuristics++;
  *found = 0;
  if (handle == NULL || !acceptable(d, a, b, c, out)) return UNSUPPORTED;
  if (refuses("heuristic")) return UNSUPPORTED;
  /* Slices of K are never added in a narrow output type. */
  if (p->value[3] & 4 || (p->value[3] & 1 && out->type != F32) || max_workspace > 32u << 20 || max_workspace < 1u << 20) abort();
  for (i = 0; i < requested && i < 3; i++) {
    memset(&results[i], 0, sizeof results[i]);
    results[i].algo.data[0] = 1000 + (uint64_t)i;
    results[i].algo.data[1] = p->value[5], results[i].algo.data[2] = p->value[6], results[i].algo.data[3] = p->value[7], results[i].algo.data[4] = align_d;
    results[i].workspace = max_workspace - 4096 * (size_t)i;
    (*found)++;
  }
  return 0;
}

int cublasLtMatmulAlgoCheck(void *handle, const desc_t *d, const layout_t *a, const layout_t *b, const layout_t *c, const layout_t *out, const algo_t *algo,
                            result_t *result) {
  fake_lt_checks++;
  if (handle == NULL || algo->data[0] < 1000 || refuses("check") || !acceptable(d, a, b, c, out)) return UNSUPPORTED;
  memset(result, 0, sizeof *result);
  result->algo = *algo;
  result->workspace = 4096;
  return 0;
}

int cublasLtMatmulAlgoConfigGetAttribute(const algo_t *algo, int attribute, void *value, size_t size, size_t *written) {
  int v = attribute == 0 ? (int)algo->data[0] : 1;
  if (size != 4) return INVALID;
  memcpy(value, &v, 4);
  *written = 4;
  return 0;
}

static double decode_small(unsigned bits, int exponent_bits, int mantissa_bits, int has_infinity) {
  unsigned mantissa = bits & ((1u << mantissa_bits) - 1), exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
  int bias = (1 << (exponent_bits - 1)) - 1, e = (int)exponent - bias - mantissa_bits;
  double v, sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1.0 : 1.0;
  if (has_infinity && exponent == (1u << exponent_bits) - 1) return mantissa ? 0.0 / 0.0 : sign / 0.0;
  if (!has_infinity && (bits & 0x7F) == 0x7F) return 0.0 / 0.0;
  v = exponent ? mantissa + (double)(1u << mantissa_bits) : (e++, (double)mantissa);
  for (; e > 0; e--) v *= 2;
  for (; e < 0; e++) v /= 2;
  return sign * v;
}

static double load(const void *p, int64_t at, uint64_t type) {
  const uint16_t *h = p;
  const uint8_t *q = p;
  uint32_t w;
  float f;
  switch (type) {
    case F32: return ((const float *)p)[at];
    case F16: return decode_small(h[at], 5, 10, 1);
    case E4M3: return decode_small(q[at], 4, 3, 0);
    case E5M2: return decode_small(q[at], 5, 2, 1);
  }
  w = (uint32_t)h[at] << 16;
  memcpy(&f, &w, 4);
  return f;
}

/* Nearest even. f16: the results of the tests are well inside its range. */
static void store(void *p, int64_t at, uint64_t type, float v) {
  uint32_t w;
  memcpy(&w, &v, 4);
  if (type == F32) {
    ((float *)p)[at] = v;
  } else if (type == BF16) {
    ((uint16_t *)p)[at] = (uint16_t)((w + 0x7FFF + (w >> 16 & 1)) >> 16);
  } else {
    uint32_t sign = w >> 16 & 0x8000, a = w & 0x7FFFFFFF, r;
    if (a < 113u << 23) {
      /* Adding 1/2 leaves the multiples of 2^-24. */
      float x;
      memcpy(&x, &a, 4);
      x += 0.5f;
      memcpy(&r, &x, 4);
      r -= 0x3F000000;
    } else {
      r = (a + 0xFFF + (a >> 13 & 1)) >> 13;
      r -= 112u << 10;
    }
    ((uint16_t *)p)[at] = (uint16_t)(sign | r);
  }
}

static int aligned(const void *p, uint64_t to) { return (uintptr_t)p % to == 0; }

int cublasLtMatmul(void *handle, const desc_t *d, const float *alpha, const void *a, const layout_t *la, const void *b, const layout_t *lb, const float *beta,
                   const void *c, const layout_t *lc, void *out, const layout_t *ld, const algo_t *algo, void *workspace, size_t bytes, void *stream) {
  int64_t m = (int64_t)ld->rows, n = (int64_t)ld->cols, k = (int64_t)(d->value[TRANS_A] ? la->rows : la->cols), i, j, l;
  const float *sa = (const float *)d->value[SCALE_A], *sb = (const float *)d->value[SCALE_B];
  double scale = (double)*alpha * (sa ? *sa : 1.0f) * (sb ? *sb : 1.0f);
  (void)stream;
  fake_lt_products++;
  if (refuses("matmul")) return UNSUPPORTED;
  if (refuses("fails")) return FAILED;
  if (handle == NULL || algo->data[0] < 1000 || !acceptable(d, la, lb, lc, ld)) return INVALID;
  /* What the plan was made for. */
  if (!aligned(a, algo->data[1]) || !aligned(b, algo->data[2]) || !aligned(c, algo->data[3]) || !aligned(out, algo->data[4])) abort();
  if (!aligned(workspace, 256) || (d->value[BIAS] && !aligned((void *)d->value[BIAS], 16))) abort();
  memset(workspace, 0xEE, bytes);
  for (j = 0; j < n; j++) {
    for (i = 0; i < m; i++) {
      double sum = 0;
      float v;
      for (l = 0; l < k; l++) {
        sum += load(a, d->value[TRANS_A] ? l + i * la->ld : i + l * la->ld, la->type) * load(b, d->value[TRANS_B] ? j + l * lb->ld : l + j * lb->ld, lb->type);
      }
      v = (float)(scale * sum);
      if (d->value[BIAS]) v += (float)load((void *)d->value[BIAS], i, d->value[BIAS_TYPE]);
      if (*beta != 0) v += *beta * (float)load(c, i + j * lc->ld, lc->type);
      store(out, i + j * ld->ld, ld->type, v);
    }
  }
  return 0;
}
