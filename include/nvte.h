/* nvte: FP8 training of Transformers as one small library. Generated from src/capi by tests/header.rs; do not edit.
 * SPDX-License-Identifier: Apache-2.0
 *
 * CONVENTIONS
 *
 * - Every function returns nvte_status_t, 0 for success; nvte_last_error() then tells, per thread, which argument, which value, which rule.
 *   Nothing throws, aborts, exits or prints (unless NVTE_DEBUG is set; nvte_set_log takes those lines). On an error outputs are untouched.
 * - Inputs come first and are const, outputs last. Enums cross as int32_t and are checked. An option that cannot be honoured is an error.
 * - Structs start with struct_size. Zero-initialise them, set struct_size = sizeof, and fields you do not know stay 0.
 * - Handles end with their _destroy function, which accepts NULL. A destroyed handle is an error, not a crash. Threads may share handles.
 * - All memory is the caller's: tensors, scales, histories, workspaces. The library keeps no device state and frees nothing of yours.
 *   Pointers in nvte_tensor_t and all scale, amax and workspace pointers are device pointers (host pointers on a CPU context);
 *   structs themselves are on the host and may go once the call has returned.
 * - Calls are stream-ordered: they check, enqueue on the caller's stream and return; no allocation, synchronisation or compilation on the
 *   hot path, no branch on device values: safe to capture into a CUDA graph. What is not loaded yet cannot be loaded during a capture:
 *   make the same call ahead with NVTE_STREAM_PREPARE. On a CPU context the work is done when the call returns.
 * - Sizes and strides are int64_t, in elements unless the name says bytes. Any size >= 0, any row stride >= the row, any base address
 *   that its element type allows: nothing has to be a multiple of 16. Where arguments must not overlap, a matrix is all that lies between
 *   its first and its last element, gaps between rows included.
 * - Other libraries may export names of this one: NVIDIA's does. Where it may be loaded in the same process, call through nvte_api().
 *
 * NUMERICS (the same bits on every back end)
 *
 * 1. Formats
 *      format   largest       least normal  least subnormal  infinity     NaN
 *      E4M3     448   = 0x7E  2^-6          2^-9             none         0x7F, 0xFF   ("fn"; forward operands)
 *      E5M2     57344 = 0x7B  2^-14         2^-16            0x7C, 0xFC   0x7D..0x7F   (gradients; with the sign bit likewise)
 *
 * 2. Casts: q = encode(f32(x) * scale): one f32 multiplication, then one rounding to nearest, ties to even, saturating.
 *    - Above the largest finite value, and for +-infinity: +-largest finite (in E5M2 too). NaN is written as 0x7F in both formats.
 *      The sign of zero stays. FP8 subnormals are produced and consumed; subnormal inputs are not flushed.
 *    - An f32 input is rounded once, never through bf16 or f16. FP8 to FP8 casts are refused.
 *    - scale_inv = 1/scale, correctly rounded; dequantize: f32(q) * scale_inv, rounded once to the output type.
 *    - A quantized tensor travels with the scale_inv of the codes it holds, written beside them by the cast. A later update of the scale
 *      does not change the meaning of codes already written.
 *
 * 3. amax: the largest |v| of the f32 values given to the cast, before scaling; valid elements only; exact. Bit patterns of |v| compare as
 *    unsigned integers, so NaN > infinity > every finite value: bad input is seen, not hidden. Recording (delayed scaling) takes the maximum
 *    with what the slot holds, and a tensor with no elements records nothing. Current scaling writes amax, scale and scale_inv
 *    (for a tensor with no elements 0, 1, 1).
 *
 * 4. Scale from amax: one function, used everywhere.
 *      scale_from_amax(amax, format_max, margin, epsilon, power_of_two, previous):
 *          a = max(amax, epsilon)                    (epsilon is a floor; it does not replace NaN)
 *          if a is NaN, infinite or 0: return previous        (current scaling: previous = 1)
 *          s = (format_max * 2^-margin) / a          (f32, IEEE division)
 *          if s is infinite: s = FLT_MAX
 *          if power_of_two: s = s rounded down to a power of two
 *          return s
 *    E4M3, margin 0: amax 0 gives previous; 3.0 gives 149.33333; 1e-40 gives FLT_MAX; infinity and NaN give previous.
 *
 *    Current scaling: the amax of this tensor, previous = 1.
 *
 *    Delayed scaling: each slot has `live` (the amax recorded in the current period), `scale`, and the L-1 older amaxes in `history`.
 *    Initially live 0, history 0, scale 1. Casts take live and scale by pointer; live = NULL records nothing. The update does for each slot:
 *          a0 = live
 *          if a0 == 0: nothing was recorded: the slot is unchanged (not rolled, scale kept)
 *          else if a0 is infinite or NaN: live = 0; scale kept; nonfinite += 1 (it does not enter the window)
 *          else: A = (most recent) ? a0 : max(a0, history)
 *                shift the history by one, a0 becomes its newest entry; live = 0
 *                scale = scale_from_amax(A, ..., previous = scale)
 *    With interval k (a counter on the device) the scale changes at every k-th update. Across ranks reduce live first: a MAX all-reduce of
 *    the array viewed as int32 (a float MAX loses NaN).
 *    A scale never changes between a forward pass and the backward pass that belongs to it: the one update for all slots is due when the
 *    next training pass begins and no earlier one still waits for its backward.
 */


#ifndef NVTE_H
#define NVTE_H

#include <stddef.h>
#include <stdint.h>

/* Not a stream: a call made with it checks its arguments, compiles and loads what it will need, and enqueues nothing. */
#define NVTE_STREAM_PREPARE ((nvte_stream_t)(intptr_t)-1)

typedef struct nvte_api_t nvte_api_t;

// No error.
#define NVTE_OK 0

// A required pointer is NULL.
#define NVTE_ERROR_NULL_POINTER 100

// A data type is not accepted here.
#define NVTE_ERROR_INVALID_DTYPE 101

// A size is negative, or sizes do not fit each other.
#define NVTE_ERROR_INVALID_SHAPE 102

// A row stride is smaller than the row.
#define NVTE_ERROR_INVALID_STRIDE 103

// An enum argument holds an unknown number.
#define NVTE_ERROR_INVALID_ENUM 104

// The workspace is smaller than the query says.
#define NVTE_ERROR_WORKSPACE_TOO_SMALL 105

// Two arguments share memory where they must not.
#define NVTE_ERROR_OVERLAP 106

// A handle is NULL, destroyed or never was one.
#define NVTE_ERROR_INVALID_HANDLE 107

// A pointer does not belong to the context's device.
#define NVTE_ERROR_WRONG_DEVICE 108

// A number is outside its range.
#define NVTE_ERROR_INVALID_VALUE 109

// A struct's struct_size is not one this library knows.
#define NVTE_ERROR_INVALID_STRUCT_SIZE 110

// A pointer is not aligned to its element type.
#define NVTE_ERROR_MISALIGNED 111

// A size in bytes does not fit 63 bits.
#define NVTE_ERROR_SIZE_OVERFLOW 112

// The combination of options has no path here.
#define NVTE_ERROR_UNSUPPORTED 200

// The call would have to compile or load while its stream is capturing. Nothing was enqueued, and the capture stays valid.
#define NVTE_ERROR_NOT_CAPTURABLE 201

// No CUDA driver was found.
#define NVTE_ERROR_NO_DRIVER 300

// The CUDA driver lacks a function this library needs.
#define NVTE_ERROR_DRIVER_TOO_OLD 301

// The driver reports no such device.
#define NVTE_ERROR_NO_DEVICE 302

// The CUDA driver returned an error; see nvte_last_error_code.
#define NVTE_ERROR_CUDA 303

// NVRTC was not found.
#define NVTE_ERROR_NVRTC_NOT_FOUND 400

// NVRTC refused a kernel; see nvte_last_error_code.
#define NVTE_ERROR_NVRTC 401

// cuBLASLt was not found.
#define NVTE_ERROR_CUBLASLT_NOT_FOUND 500

// cuBLASLt returned an error; see nvte_last_error_code.
#define NVTE_ERROR_CUBLASLT 501

// A defect of this library: a panic was caught at its border.
#define NVTE_ERROR_INTERNAL 900

// Memory could not be allocated.
#define NVTE_ERROR_OUT_OF_MEMORY 901

// IEEE binary32.
#define NVTE_F32 0

// IEEE binary16.
#define NVTE_F16 1

// bfloat16.
#define NVTE_BF16 2

// FP8 E4M3 ("fn": no infinity, largest finite 448).
#define NVTE_E4M3 3

// FP8 E5M2 (largest finite 57344).
#define NVTE_E5M2 4

// High precision: no scale.
#define NVTE_SCALING_NONE 0

// One scale for the whole tensor. Every FP8 tensor has it; other numbers are reserved.
#define NVTE_SCALING_PER_TENSOR 1

// The CPU: results have the same bits as on CUDA wherever NUMERICS says so.
#define NVTE_DEVICE_CPU 0

// A CUDA device.
#define NVTE_DEVICE_CUDA 1

// Number of the ABI a program is written against: pass it to nvte_api. It changes only if something existing changes.
#define NVTE_ABI_VERSION 1

// x * sigmoid(2u), u = 0.79788456 (x + 0.044715 x^3): the tanh form, evaluated without cancellation.
#define NVTE_ACTIVATION_GELU 0

// x * Phi(x), with the normal distribution function.
#define NVTE_ACTIVATION_GELU_ERF 1

// x * sigmoid(x).
#define NVTE_ACTIVATION_SILU 2

// max(x, 0).
#define NVTE_ACTIVATION_RELU 3

// x * sigmoid(1.702 x).
#define NVTE_ACTIVATION_QGELU 4

// max(x, 0)^2.
#define NVTE_ACTIVATION_SRELU 5

// gelu(a) * b: gated forms take [rows, 2H], whose first half a is activated and whose second half b multiplies.
#define NVTE_ACTIVATION_GEGLU 16

// gelu_erf(a) * b.
#define NVTE_ACTIVATION_GEGLU_ERF 17

// silu(a) * b.
#define NVTE_ACTIVATION_SWIGLU 18

// relu(a) * b.
#define NVTE_ACTIVATION_REGLU 19

// qgelu(a) * b.
#define NVTE_ACTIVATION_QGEGLU 20

// srelu(a) * b.
#define NVTE_ACTIVATION_SREGLU 21

// Losses stay what they are, one per token.
#define NVTE_REDUCTION_NONE 0

// Their sum.
#define NVTE_REDUCTION_SUM 1

// Their sum over the number of targets that are not ignored; gradients are divided by it too.
#define NVTE_REDUCTION_MEAN 2

// Targets are int64_t.
#define NVTE_TARGET_I64 0

// Targets are int32_t.
#define NVTE_TARGET_I32 1

// FP8 products keep the tensor core's own accumulator for the whole K (about 14 bits on sm_89 and sm_90).
#define NVTE_ACCUMULATE_FAST 1

// FP8 products are promoted to f32 as K goes on.
#define NVTE_ACCUMULATE_PRECISE 2

// Nothing is applied to the result. Numbers 1 to 6 are kept for activations and refused for now.
#define NVTE_EPILOGUE_NONE 0

// No FP8: products run in the layer's type.
#define NVTE_RECIPE_NONE 0

// Delayed scaling: casts read scale and record amaxes in live; nvte_scaling_update makes new scales.
#define NVTE_RECIPE_DELAYED 1

// Current scaling: each cast takes the scale from its own tensor's amax.
#define NVTE_RECIPE_CURRENT 2

// E4M3 forward, E5M2 for gradients.
#define NVTE_FORMAT_HYBRID 0

// E4M3 everywhere.
#define NVTE_FORMAT_E4M3 1

// Backward will be asked for the gradient of x. Of the four NVTE_LAYER_NEEDS_* those that ask for what a kind of layer has not are ignored.
#define NVTE_LAYER_NEEDS_DX 1

// Backward will be asked for the gradient of the first weight, or of its bias where another product follows.
#define NVTE_LAYER_NEEDS_DW 2

// Backward will be asked for the gradient of the second weight.
#define NVTE_LAYER_NEEDS_DW2 4

// Backward will be asked for the gradient of gamma or beta.
#define NVTE_LAYER_NEEDS_DNORM 8

// Backward adds to what the weights' gradients hold.
#define NVTE_LAYER_ACCUMULATE_DW 16

// Products run without FP8, and the amaxes of their operands are recorded. Needs a recipe.
#define NVTE_LAYER_CALIBRATE 32

// Weights were replaced (loaded, made new): their cast takes its scale from their own amax.
#define NVTE_LAYER_WEIGHT_SCALE_DUE 64

// With NVTE_LAYER_WEIGHT_SCALE_DUE: that scale is written to the weight's slot, and the amax recorded. Nothing is for a weight that is not
// cast, as its copies in a cache are filled: set valid to 0 when weights are replaced. (Where skip_refresh keeps the cast away, the scale
// stays and the amax is recorded all the same.)
#define NVTE_LAYER_WEIGHT_SCALE_KEEP 128

// Forward makes both layouts of a weight that the gradient of its product's input will need, in one pass over it, and leaves the transposed
// one in saved: a byte more for each of its elements, and backward does not read the weight, which may then be NULL, and casts nothing of
// it. Without the flag backward casts it again. With a weight cache, which holds both layouts, the room is asked for and not used: leave the
// flag out.
#define NVTE_LAYER_SAVE_WEIGHT 256

// A row of packed QKV holds all query heads, then all key heads, then all value heads.
#define NVTE_QKV_CONCATENATED 0

// A row of packed QKV holds, for each key head, the query heads that share it, the key head and its value head.
#define NVTE_QKV_GROUPED 1

// The amax of a period is the largest of its window.
#define NVTE_AMAX_MAX 0

// The amax of a period is the newest.
#define NVTE_AMAX_MOST_RECENT 1

// Opaque: one device and its caches.
typedef struct nvte_context nvte_context;

// Opaque: the description of a layer.
typedef struct nvte_layer nvte_layer;

// Result of every function: 0, or an NVTE_ERROR_* number. Numbers are append-only.
typedef int32_t nvte_status_t;

// A context. Made by nvte_context_create, ended by nvte_context_destroy; shared by threads and streams.
typedef struct nvte_context *nvte_context_t;

// What a context's device can do. Set struct_size before the call; fields beyond it are not written.
typedef struct nvte_capability_t {
  // sizeof(nvte_capability_t).
  uint32_t struct_size;
  // NVTE_DEVICE_CPU or NVTE_DEVICE_CUDA.
  int32_t device_type;
  // Number of the device, as the driver counts.
  int32_t ordinal;
  // Compute capability times ten (90 for an H200); 0 on the CPU.
  int32_t arch;
  // Multiprocessors; threads on the CPU.
  int32_t multiprocessors;
  // 1: FP8 conversion in hardware; 0: in software, same bits.
  int32_t fp8_cast_hardware;
  // 1: FP8 products on tensor cores; 0: codes are decoded and multiplied in f16 (CUDA) or f32 (CPU).
  int32_t fp8_gemm_hardware;
  // 1: the hardware multiplies FP8 only with both operands K-major; other layouts go another way.
  int32_t fp8_gemm_k_major_only;
  // Device memory in bytes; 0 on the CPU.
  uint64_t total_memory;
  // Name of the device, cut to fit, ended by a zero.
  char name[128];
} nvte_capability_t;

// How a context is made. Zero-initialise it and set struct_size; every field may stay 0.
typedef struct nvte_context_options_t {
  // sizeof(nvte_context_options_t).
  uint32_t struct_size;
  // Threads of a CPU context, 1024 at most: more are taken as that; 0: NVTE_NUM_THREADS, else all cores.
  uint32_t num_threads;
  // Folder of compiled kernels (host string); NULL: NVTE_CACHE_DIR, else XDG_CACHE_HOME/nvte, else HOME/.cache/nvte; "": off.
  const char *cache_dir;
  // Folders, separated by ':', searched for NVRTC and cuBLASLt after those already loaded in the process (host string); NULL: none.
  const char *library_dirs;
} nvte_context_options_t;

// A CUstream / cudaStream_t (NULL: the legacy default stream). CPU contexts ignore it. NVTE_STREAM_PREPARE is no stream: a call
// with it checks its arguments, compiles and loads what it will need, and enqueues nothing on a stream of yours. (cuBLASLt loads a kernel
// when it first runs: a product is run once, on memory of its size and a stream that the library makes and frees, and waited for.)
typedef void *nvte_stream_t;

// Receives one line of what NVTE_DEBUG asks for; user is what was given with it. May be called from any thread.
typedef void (*nvte_log_fn)(const char *line, void *user);

// A matrix in the caller's memory, row-major, and what travels beside FP8 codes.
//
// Sizes and strides are in elements; pointers are device pointers of the context's device (for a CPU context: host pointers), aligned
// to their element type. A struct made by zero-initialisation plus struct_size is valid and empty.
typedef struct nvte_tensor_t {
  // sizeof(nvte_tensor_t).
  uint32_t struct_size;
  // NVTE_F32, ...
  int32_t dtype;
  // NVTE_SCALING_NONE, or for FP8 NVTE_SCALING_PER_TENSOR.
  int32_t scaling;
  // Reserved: 0.
  uint32_t flags;
  // [rows, cols] with row stride ld; NULL: this layout is absent.
  void *data;
  // Rows (tokens, for activations).
  int64_t rows;
  // Columns (features).
  int64_t cols;
  // Row stride of data, in elements, at least cols.
  int64_t ld;
  // The transposed copy [cols, rows] with row stride ld_t; NULL: absent.
  void *data_t;
  // Row stride of data_t, in elements, at least rows.
  int64_t ld_t;
  // Casts: the multiplier, one f32 (NULL: 1). Written only by current scaling.
  const float *scale;
  // One f32, written by casts beside the codes (1/scale), read by GEMM and dequantize.
  void *scale_inv;
  // Reserved for block formats: 0.
  int64_t scale_inv_ld;
  // Reserved for block formats: NULL.
  void *scale_inv_t;
  // Reserved for block formats: 0.
  int64_t scale_inv_t_ld;
  // One f32, recorded as a maximum by casts (NULL: not recorded).
  float *amax;
} nvte_tensor_t;

// Arguments of nvte_activation_bwd. Zero-initialise it and set struct_size.
typedef struct nvte_activation_bwd_args_t {
  // sizeof(nvte_activation_bwd_args_t).
  uint32_t struct_size;
  // NVTE_ACTIVATION_GELU, ...
  int32_t kind;
  // The gradient of the output, [rows, H].
  const nvte_tensor_t *dy;
  // The input of the forward pass, [rows, H]; gated: [rows, 2H].
  const nvte_tensor_t *input;
  // The gradient of the input, of its shape.
  const nvte_tensor_t *output;
  // Column sums of the gradient, one per column of output (device); NULL: not wanted.
  void *dbias;
  // NVTE_F32, NVTE_F16 or NVTE_BF16.
  int32_t dbias_dtype;
  // 1: add to what dbias holds; 0: replace it.
  int32_t accumulate;
  // Scratch memory (device), aligned to 16 bytes; used for dbias only.
  void *workspace;
  // Its size in bytes: at least what nvte_activation_bwd_workspace says.
  uint64_t workspace_bytes;
} nvte_activation_bwd_args_t;

// The tensors of an nvte_adamw_list: arrays of count pointers to tensors. Zero-initialise it and set struct_size.
//
// The tensors of one index have one shape [rows, cols] with rows side by side (ld = cols).
typedef struct nvte_adamw_list_args_t {
  // sizeof(nvte_adamw_list_args_t).
  uint32_t struct_size;
  // 0.
  uint32_t reserved;
  // Number of tensors.
  int64_t count;
  // f32, f16 or bf16: written, and read where there is no master.
  const nvte_tensor_t *const *weights;
  // f32, f16 or bf16: read.
  const nvte_tensor_t *const *gradients;
  // f32: the weights in full, of which weights are the rounded copies; the array or single entries may be NULL.
  const nvte_tensor_t *const *masters;
  // First moments, f32 or bf16.
  const nvte_tensor_t *const *exp_avgs;
  // Second moments, of the same type as the first.
  const nvte_tensor_t *const *exp_avg_sqs;
  // FP8: copies of the new weights, data, data_t or both, with scale read, scale_inv written and amax recorded as nvte_cast_to_fp8 would;
  // the array or single entries may be NULL. A row stride is allowed here.
  const nvte_tensor_t *const *fp8s;
} nvte_adamw_list_args_t;

// A list of tensors, in two parts: this struct on the host, and a table in device memory of yours that data points to.
//
// Set struct_size, data and bytes and hand it to the function that makes the list (nvte_adamw_list, nvte_grad_list, nvte_cast_list): it writes the other
// fields here, and the table in stream order. The operation then takes the struct as it is. The table holds the tensors' addresses, so it
// serves as long as these stay; gradients can be exchanged (nvte_list_gradients). One list is used by one stream at a time. It owns
// nothing: there is nothing to destroy.
typedef struct nvte_list_t {
  // sizeof(nvte_list_t).
  uint32_t struct_size;
  // Written: which operation it is for.
  int32_t kind;
  // Device memory, 16-byte aligned, of bytes.
  void *data;
  // Its size, at least what the workspace query says.
  uint64_t bytes;
  // Written: number of tensors.
  int64_t count;
  // Written: blocks of work.
  uint64_t blocks;
  // Written: blocks of work that write FP8 codes; of a list of casts, those of its largest tensor.
  uint64_t tiles;
} nvte_list_t;

// Arguments of nvte_adamw. Zero-initialise it and set struct_size.
typedef struct nvte_adamw_args_t {
  // sizeof(nvte_adamw_args_t).
  uint32_t struct_size;
  // 1: weight_decay acts on the weights (AdamW). 0: on the gradients (L2).
  int32_t decoupled;
  // 1: the moments are corrected for their start at 0. Else 0.
  int32_t bias_correction;
  // 0.
  uint32_t reserved;
  // Made by nvte_adamw_list.
  const nvte_list_t *list;
  // Device, one f32: the steps taken so far. The call uses step + 1, and writes it.
  float *step;
  // Device, one f32: the learning rate; NULL: lr.
  const float *lr_ptr;
  // Device, one f32: where it is not 0 the step is skipped, and nothing is written (step neither); NULL: never.
  const float *found_inf;
  // Device, one f32: gradients are divided by it (the factor of a scaled loss); NULL: 1.
  const float *grad_scale;
  // Device, one f32: gradients are multiplied by it (nvte_grad_norm's clip); NULL: 1.
  const float *clip;
  // The learning rate where lr_ptr is NULL. Finite, not negative.
  double lr;
  // Decay of the first moment: at least 0, below 1.
  double beta1;
  // Decay of the second moment: at least 0, below 1.
  double beta2;
  // Added to the root of the corrected second moment. Finite, not negative.
  double eps;
  // Finite, not negative.
  double weight_decay;
} nvte_adamw_args_t;

// Arguments of nvte_cast_to_fp8_current. Zero-initialise it and set struct_size; margin, epsilon and power_of_two may stay 0.
typedef struct nvte_cast_current_args_t {
  // sizeof(nvte_cast_current_args_t).
  uint32_t struct_size;
  // The scale is divided by 2^margin; -64 to 64.
  int32_t margin;
  // Floor of the amax; finite, not negative.
  float epsilon;
  // 1: the scale is rounded down to a power of two. Else 0.
  int32_t power_of_two;
  // f32, f16 or bf16 [rows, cols].
  const nvte_tensor_t *input;
  // FP8 [rows, cols]: data, data_t or both; amax, scale and scale_inv are written where they are not NULL.
  const nvte_tensor_t *output;
  // Device memory, 16-byte aligned.
  void *workspace;
  // Its size, at least what nvte_cast_to_fp8_current_workspace says.
  uint64_t workspace_bytes;
} nvte_cast_current_args_t;

// Arguments of nvte_cast_dbias. Zero-initialise it and set struct_size.
typedef struct nvte_cast_dbias_args_t {
  // sizeof(nvte_cast_dbias_args_t).
  uint32_t struct_size;
  // NVTE_F32, NVTE_F16 or NVTE_BF16: type of dbias.
  int32_t dbias_dtype;
  // The gradient: f32, f16 or bf16 [rows, cols].
  const nvte_tensor_t *input;
  // FP8 [rows, cols]: data, data_t or both; NULL: only the bias gradient is wanted.
  const nvte_tensor_t *output;
  // Receives the column sums, [cols].
  void *dbias;
  // 1: the sums are added to what dbias holds. Else 0.
  int32_t accumulate;
  // 1: current scaling (output.amax, scale, scale_inv are written). 0: output.scale is read and output.amax recorded.
  int32_t current;
  // Current scaling: the scale is divided by 2^margin.
  int32_t margin;
  // Current scaling: floor of the amax.
  float epsilon;
  // Current scaling: 1: the scale is rounded down to a power of two.
  int32_t power_of_two;
  // Reserved: 0.
  uint32_t reserved;
  // Device memory, 16-byte aligned.
  void *workspace;
  // Its size, at least what nvte_cast_dbias_workspace says.
  uint64_t workspace_bytes;
} nvte_cast_dbias_args_t;

// Arguments of nvte_cross_entropy.
typedef struct nvte_cross_entropy_args_t {
  // sizeof(nvte_cross_entropy_args_t).
  uint32_t struct_size;
  // NVTE_TARGET_I64 or NVTE_TARGET_I32.
  int32_t target_type;
  // f32, f16 or bf16 [tokens, vocabulary].
  const nvte_tensor_t *logits;
  // [tokens, vocabulary] of the same type: receives the gradient; may be the logits themselves. NULL: none is computed.
  const nvte_tensor_t *dlogits;
  // Device, [tokens].
  const void *target;
  // Tokens with this target do not count (PyTorch's default is -100).
  int64_t ignore_index;
  // Device, f32: gradient of total (one value), or of each token's loss, multiplied into dlogits. NULL: 1.
  const float *dloss;
  // 0: dloss is one value. 1: one per token.
  int64_t dloss_stride;
  // Device, f32 [tokens]: receives each token's loss; NULL: not written.
  float *loss;
  // Device, f32 [tokens]: receives each token's logsumexp; NULL: not written.
  float *logsumexp;
  // Device, one f32: receives the reduced loss; NULL: not written. NVTE_REDUCTION_NONE: NULL.
  float *total;
  // Device memory, aligned to 16 bytes; its contents before and after mean nothing. NULL with NVTE_REDUCTION_NONE.
  void *workspace;
  // Its size, at least what nvte_cross_entropy_workspace says.
  uint64_t workspace_bytes;
  // From 0 to 1.
  float label_smoothing;
  // NVTE_REDUCTION_NONE, ...
  int32_t reduction;
} nvte_cross_entropy_args_t;

// Arguments of nvte_cross_entropy_partial and nvte_cross_entropy_gradient: a slice of the vocabulary.
typedef struct nvte_cross_entropy_slice_args_t {
  // sizeof(nvte_cross_entropy_slice_args_t).
  uint32_t struct_size;
  // NVTE_TARGET_I64 or NVTE_TARGET_I32.
  int32_t target_type;
  // f32, f16 or bf16 [tokens, n]: classes start .. start + n of the vocabulary.
  const nvte_tensor_t *logits;
  // _gradient: [tokens, n] of the same type, receives the gradient; may be the logits themselves. _partial: NULL.
  const nvte_tensor_t *dlogits;
  // Device, [tokens]: classes of the whole vocabulary.
  const void *target;
  // Tokens with this target do not count.
  int64_t ignore_index;
  // First class of the slice.
  int64_t start;
  // Classes of all slices.
  int64_t vocabulary;
  // _partial: device, f32 [tokens, 4] on 16 bytes, receives the slice's numbers. _gradient: NULL.
  float *partial;
  // _gradient: device, f32 [tokens, 4] on 16 bytes, as nvte_cross_entropy_combine wrote it. _partial: NULL.
  const float *combined;
  // _gradient: as in nvte_cross_entropy_args_t.
  const float *dloss;
  // _gradient: 0: dloss is one value. 1: one per token.
  int64_t dloss_stride;
  // _gradient: as in nvte_cross_entropy_args_t.
  void *workspace;
  // Its size.
  uint64_t workspace_bytes;
  // From 0 to 1; the same in all calls that belong together.
  float label_smoothing;
  // NVTE_REDUCTION_NONE, ...; the same in all calls that belong together.
  int32_t reduction;
} nvte_cross_entropy_slice_args_t;

// Arguments of nvte_cross_entropy_combine.
typedef struct nvte_cross_entropy_combine_args_t {
  // sizeof(nvte_cross_entropy_combine_args_t).
  uint32_t struct_size;
  // NVTE_TARGET_I64 or NVTE_TARGET_I32.
  int32_t target_type;
  // Device, f32 [ranks, tokens, 4] on 16 bytes: what nvte_cross_entropy_partial wrote for each slice, in any order that is the same
  // everywhere.
  const float *partials;
  // Slices, at least 1.
  int64_t ranks;
  // Elements from one slice's numbers to the next, a multiple of 4; 0: dense.
  int64_t rank_stride;
  // Tokens.
  int64_t tokens;
  // Classes of all slices.
  int64_t vocabulary;
  // Device, [tokens].
  const void *target;
  // Tokens with this target do not count.
  int64_t ignore_index;
  // Device, f32 [tokens, 4] on 16 bytes: for nvte_cross_entropy_gradient. May be partials where ranks is 1.
  float *combined;
  // As in nvte_cross_entropy_args_t.
  float *loss;
  // As in nvte_cross_entropy_args_t.
  float *logsumexp;
  // As in nvte_cross_entropy_args_t.
  float *total;
  // As in nvte_cross_entropy_args_t.
  void *workspace;
  // Its size.
  uint64_t workspace_bytes;
  // From 0 to 1.
  float label_smoothing;
  // NVTE_REDUCTION_NONE, ...
  int32_t reduction;
} nvte_cross_entropy_combine_args_t;

// Arguments of nvte_dropout_fwd. Zero-initialise it and set struct_size, x, y, p and rng; the rest may stay 0.
typedef struct nvte_dropout_fwd_args_t {
  // sizeof(nvte_dropout_fwd_args_t).
  uint32_t struct_size;
  // 0.
  uint32_t reserved;
  // Probability of dropping an element, from 0 to 1.
  double p;
  // f32, f16 or bf16 [rows, cols].
  const nvte_tensor_t *x;
  // f32, f16 or bf16 [1, cols], added to each row of x; NULL: none.
  const nvte_tensor_t *bias;
  // [rows, cols] of the type of x, added at the end; NULL: none.
  const nvte_tensor_t *residual;
  // [rows, cols] of the type of x. It may be x or residual: same data, same ld.
  const nvte_tensor_t *y;
  // Device, [rows, ceil(cols / 8)] bytes: bit (c mod 8) of byte (c div 8) of a row is 1 if element c of the row was kept; bits past the last
  // column are 0. NULL: not written; the backward pass then draws again.
  uint8_t *mask;
  // Bytes from row to row of the mask.
  int64_t mask_ld;
  // Device, two uint64_t: seed and offset. Not read where p is 0 or 1, and may then be NULL.
  const uint64_t *rng;
  // Tells draws with the same seed and offset apart.
  uint64_t rng_stream;
} nvte_dropout_fwd_args_t;

// Arguments of nvte_dropout_bwd. Zero-initialise it and set struct_size, dy, dx, p and mask or rng; the rest may stay 0.
typedef struct nvte_dropout_bwd_args_t {
  // sizeof(nvte_dropout_bwd_args_t).
  uint32_t struct_size;
  // NVTE_F32, NVTE_F16 or NVTE_BF16; looked at only where there is a dbias.
  int32_t dbias_dtype;
  // The forward pass'.
  double p;
  // Gradient of y: f32, f16 or bf16 [rows, cols]. It is also the gradient of the residual.
  const nvte_tensor_t *dy;
  // Gradient of x, of the type and shape of dy. It may be dy: same data, same ld.
  const nvte_tensor_t *dx;
  // Device: what the forward pass wrote; NULL: drawn again from rng.
  const uint8_t *mask;
  // Bytes from row to row of the mask.
  int64_t mask_ld;
  // The forward pass' seed and offset. Not read with a mask, nor where p is 0 or 1, and may then be NULL.
  const uint64_t *rng;
  // The forward pass'.
  uint64_t rng_stream;
  // Device: column sums of dx before it is rounded, one per column: the gradient of the bias; NULL: not wanted.
  void *dbias;
  // 1: add to what dbias holds; 0: replace it.
  int32_t accumulate;
  // 0.
  uint32_t reserved;
  // Scratch memory (device), aligned to 16 bytes; used for dbias only.
  void *workspace;
  // Its size in bytes: at least what nvte_dropout_bwd_workspace says.
  uint64_t workspace_bytes;
} nvte_dropout_bwd_args_t;

// A product: D[M,N] = alpha * scale_inv_A * scale_inv_B * (A[M,K] B[N,K]^T) + bias[N] + beta * C[M,N].
//
// Zero-initialise it and set struct_size, accumulate, alpha, a, b and d; the rest may stay 0.
typedef struct nvte_gemm_args_t {
  // sizeof(nvte_gemm_args_t).
  uint32_t struct_size;
  // NVTE_ACCUMULATE_FAST or NVTE_ACCUMULATE_PRECISE; 0 is an error. Operands of 16 and 32 bits are accumulated in f32 either way.
  int32_t accumulate;
  // 0: a is [M, K]; 1: a is [K, M].
  int32_t transpose_a;
  // 0: b is [N, K]; 1: b is [K, N].
  int32_t transpose_b;
  // NVTE_EPILOGUE_NONE.
  int32_t epilogue;
  // NVTE_F32, NVTE_F16 or NVTE_BF16; looked at only where there is a bias.
  int32_t bias_dtype;
  // Factor of the product, on the host: usually 1. With 0, A and B are not read.
  float alpha;
  // Factor of C, on the host. With 0, C is not read.
  float beta;
  // The first operand. FP8: scale_inv is read (NULL: 1). Where data and data_t are both present they hold the same values, and the
  // one whose rows run along K is read.
  const nvte_tensor_t *a;
  // The second operand; likewise.
  const nvte_tensor_t *b;
  // Device: N elements; NULL: none.
  const void *bias;
  // f32, f16 or bf16 [M, N]; NULL where beta is 0. It may be d itself: same data, ld and dtype.
  const nvte_tensor_t *c;
  // The output [M, N]: f32, f16 or bf16; or FP8, with scale read (NULL: 1), scale_inv written, and the amax of the values before scaling recorded.
  const nvte_tensor_t *d;
  // Device memory that the call may use until the stream has passed; its contents do not matter.
  void *workspace;
  // Its size, at least what nvte_gemm_workspace says.
  uint64_t workspace_bytes;
} nvte_gemm_args_t;

// Arguments of nvte_grad_norm. Zero-initialise it and set struct_size.
typedef struct nvte_grad_norm_args_t {
  // sizeof(nvte_grad_norm_args_t).
  uint32_t struct_size;
  // 0.
  uint32_t reserved;
  // Made by nvte_grad_list.
  const nvte_list_t *list;
  // Device, one f32: the norm is divided by it (the factor of a scaled loss); NULL: 1.
  const float *grad_scale;
  // For clip: what the norm is to be at most. Not negative, not NaN.
  double max_norm;
  // Device, one f32: receives the norm.
  float *norm;
  // Device, one f32: receives min(1, max_norm / (norm + 1e-6)), NaN where the norm is; NULL: not wanted.
  float *clip;
  // Device, one f32: receives 1 where a gradient is infinite or NaN, else 0; NULL: not wanted.
  float *found_inf;
} nvte_grad_norm_args_t;

// What all layers are described by. Zero-initialise it and set struct_size, types and sizes.
typedef struct nvte_layer_config_t {
  // sizeof(nvte_layer_config_t).
  uint32_t struct_size;
  // NVTE_F32, NVTE_F16 or NVTE_BF16: x, y, dy and dx.
  int32_t dtype;
  // The same: weights, biases, gamma, beta and the gradients of all but the weights. Where products run without FP8 it must be dtype.
  int32_t param_dtype;
  // NVTE_RECIPE_NONE, NVTE_RECIPE_DELAYED or NVTE_RECIPE_CURRENT.
  int32_t recipe;
  // NVTE_FORMAT_HYBRID or NVTE_FORMAT_E4M3.
  int32_t format;
  // Current scaling, and delayed scaling for replaced weights: scales are divided by 2^margin.
  int32_t margin;
  // Likewise: floor of the amax.
  float epsilon;
  // Likewise: 1 rounds scales down to powers of two.
  int32_t power_of_two;
  // Accumulation of fprop: NVTE_ACCUMULATE_FAST or NVTE_ACCUMULATE_PRECISE; 0: the default, fast.
  int32_t accumulate_fprop;
  // Of dgrad; 0: the default, precise.
  int32_t accumulate_dgrad;
  // Of wgrad; 0: the default, precise.
  int32_t accumulate_wgrad;
  // 1: RMSNorm. 0: LayerNorm. Linear: 0.
  int32_t rmsnorm;
  // 1: the norm's weight is 1 + gamma. Linear: 0.
  int32_t zero_centered_gamma;
  // NVTE_ACTIVATION_*; looked at only for the MLP.
  int32_t activation;
  // Added to the variance. Linear: 0.
  float eps;
  // 0.
  uint32_t reserved;
  // Features of x (hidden size).
  int64_t in_features;
  // Features of y. The MLP: in_features, or 0 for it.
  int64_t out_features;
  // The MLP: features behind the activation; fc1_weight has twice as many rows where the activation is gated. Others: 0.
  int64_t ffn_features;
} nvte_layer_config_t;

// A layer's description, immutable, shared by all equal layers, threads and streams. Ended by nvte_layer_destroy; lives on its own when
// the context it was made with is destroyed.
typedef struct nvte_layer *nvte_layer_t;

// FP8 copies of a layer's weights, in memory of the caller's. The struct lies on the host; calls read and write valid.
typedef struct nvte_weight_cache_t {
  // sizeof(nvte_weight_cache_t).
  uint32_t struct_size;
  // Two bits per weight, row-wise and transposed: which copies are filled. Set it to 0 when a weight has changed.
  uint32_t valid;
  // Device memory, aligned to 16 bytes.
  void *data;
  // Its size, at least what nvte_layer_sizes says.
  uint64_t bytes;
} nvte_weight_cache_t;

// Arguments of nvte_linear_fwd. Zero-initialise it; every row stride of a present matrix counts elements and is at least its row.
typedef struct nvte_linear_fwd_args_t {
  // sizeof(nvte_linear_fwd_args_t).
  uint32_t struct_size;
  // NVTE_LAYER_*.
  uint32_t flags;
  // Rows of x.
  int64_t tokens;
  // What backward will read: device memory, aligned to 16 bytes; NULL where the flags need nothing.
  void *saved;
  // Its size.
  uint64_t saved_bytes;
  // Device memory for this call alone, aligned to 16 bytes.
  void *workspace;
  // Its size.
  uint64_t workspace_bytes;
  // Device: the layer's slots that record amaxes; NULL: nothing is recorded.
  float *live;
  // Device: the layer's scales; written only for replaced weights; NULL: 1.
  float *scale;
  // Host: FP8 copies of the weights; NULL: they are made for this call.
  nvte_weight_cache_t *weight_cache;
  // Device: where it is not 0 a cached weight is not cast again; NULL: as 0. Needs a weight cache.
  const uint32_t *skip_refresh;
  // Device: [tokens, in_features], row stride ldx in elements.
  const void *x;
  // Its row stride.
  int64_t ldx;
  // Device: [out_features, in_features].
  const void *weight;
  // Its row stride in elements.
  int64_t ldw;
  // Device: [out_features]; NULL: none.
  const void *bias;
  // Device: [tokens, out_features].
  void *y;
  // Its row stride in elements.
  int64_t ldy;
} nvte_linear_fwd_args_t;

// Arguments of nvte_linear_bwd. Flags, tokens and weight_cache are those of the forward call; NVTE_LAYER_ACCUMULATE_DW may be added.
typedef struct nvte_linear_bwd_args_t {
  // sizeof(nvte_linear_bwd_args_t).
  uint32_t struct_size;
  // NVTE_LAYER_*.
  uint32_t flags;
  // Rows of x.
  int64_t tokens;
  // What backward will read: device memory, aligned to 16 bytes; NULL where the flags need nothing.
  const void *saved;
  // Its size.
  uint64_t saved_bytes;
  // Device memory for this call alone, aligned to 16 bytes.
  void *workspace;
  // Its size.
  uint64_t workspace_bytes;
  // Device: the layer's slots that record amaxes; NULL: nothing is recorded.
  float *live;
  // Device: the layer's scales; written only for replaced weights; NULL: 1.
  float *scale;
  // Host: FP8 copies of the weights; NULL: found in saved (NVTE_LAYER_SAVE_WEIGHT), or made for this call with the scale that forward used.
  nvte_weight_cache_t *weight_cache;
  // Device: where it is not 0 a cached weight is not cast again; NULL: as 0. Needs a weight cache.
  const uint32_t *skip_refresh;
  // Device: [tokens, out_features].
  const void *dy;
  // Its row stride in elements.
  int64_t lddy;
  // Device: as in forward; with FP8 it is not read.
  const void *x;
  // Its row stride in elements.
  int64_t ldx;
  // Device: as in forward.
  const void *weight;
  // Its row stride in elements.
  int64_t ldw;
  // Device: receives the gradient of x [tokens, in_features]; not NULL where the flags ask for it.
  void *dx;
  // Its row stride in elements.
  int64_t lddx;
  // Device: receives the gradient of weight, of dw_dtype; NULL: not wanted.
  void *dw;
  // Its row stride in elements.
  int64_t lddw;
  // Device: receives the gradient of bias; NULL: not wanted.
  void *db;
  // NVTE_F32, NVTE_F16 or NVTE_BF16: type of the weights' gradients.
  int32_t dw_dtype;
  // 0.
  uint32_t reserved;
} nvte_linear_bwd_args_t;

// Arguments of nvte_layernorm_linear_fwd. Zero-initialise it; every row stride of a present matrix counts elements and is at least its row.
typedef struct nvte_layernorm_linear_fwd_args_t {
  // sizeof(nvte_layernorm_linear_fwd_args_t).
  uint32_t struct_size;
  // NVTE_LAYER_*.
  uint32_t flags;
  // Rows of x.
  int64_t tokens;
  // What backward will read: device memory, aligned to 16 bytes; NULL where the flags need nothing.
  void *saved;
  // Its size.
  uint64_t saved_bytes;
  // Device memory for this call alone, aligned to 16 bytes.
  void *workspace;
  // Its size.
  uint64_t workspace_bytes;
  // Device: the layer's slots that record amaxes; NULL: nothing is recorded.
  float *live;
  // Device: the layer's scales; written only for replaced weights; NULL: 1.
  float *scale;
  // Host: FP8 copies of the weights; NULL: they are made for this call.
  nvte_weight_cache_t *weight_cache;
  // Device: where it is not 0 a cached weight is not cast again; NULL: as 0. Needs a weight cache.
  const uint32_t *skip_refresh;
  // Device: [tokens, in_features], row stride ldx in elements.
  const void *x;
  // Its row stride.
  int64_t ldx;
  // Device: [in_features]; NULL: 1.
  const void *gamma;
  // Device: [in_features]; NULL: 0. RMSNorm: NULL.
  const void *beta;
  // Device: [out_features, in_features].
  const void *weight;
  // Its row stride in elements.
  int64_t ldw;
  // Device: [out_features]; NULL: none.
  const void *bias;
  // Device: [tokens, out_features].
  void *y;
  // Its row stride in elements.
  int64_t ldy;
  // Device: receives the norm's output [tokens, in_features]; NULL: not wanted.
  void *norm_out;
  // Its row stride in elements.
  int64_t ld_norm_out;
} nvte_layernorm_linear_fwd_args_t;

// Arguments of nvte_layernorm_linear_bwd. Flags, tokens and weight_cache are those of the forward call; NVTE_LAYER_ACCUMULATE_DW may be added.
typedef struct nvte_layernorm_linear_bwd_args_t {
  // sizeof(nvte_layernorm_linear_bwd_args_t).
  uint32_t struct_size;
  // NVTE_LAYER_*.
  uint32_t flags;
  // Rows of x.
  int64_t tokens;
  // What backward will read: device memory, aligned to 16 bytes; NULL where the flags need nothing.
  const void *saved;
  // Its size.
  uint64_t saved_bytes;
  // Device memory for this call alone, aligned to 16 bytes.
  void *workspace;
  // Its size.
  uint64_t workspace_bytes;
  // Device: the layer's slots that record amaxes; NULL: nothing is recorded.
  float *live;
  // Device: the layer's scales; written only for replaced weights; NULL: 1.
  float *scale;
  // Host: FP8 copies of the weights; NULL: found in saved (NVTE_LAYER_SAVE_WEIGHT), or made for this call with the scale that forward used.
  nvte_weight_cache_t *weight_cache;
  // Device: where it is not 0 a cached weight is not cast again; NULL: as 0. Needs a weight cache.
  const uint32_t *skip_refresh;
  // Device: [tokens, out_features].
  const void *dy;
  // Its row stride in elements.
  int64_t lddy;
  // Device: as in forward.
  const void *x;
  // Its row stride in elements.
  int64_t ldx;
  // Device: as in forward.
  const void *gamma;
  // Device: as in forward.
  const void *weight;
  // Its row stride in elements.
  int64_t ldw;
  // Device: a gradient that reached norm_out by itself, [tokens, in_features]; NULL: none.
  const void *dnorm_out;
  // Its row stride in elements.
  int64_t ld_dnorm_out;
  // Device: receives the gradient of x [tokens, in_features]; not NULL where the flags ask for it.
  void *dx;
  // Its row stride in elements.
  int64_t lddx;
  // Device: receives [in_features]; NULL: not wanted.
  void *dgamma;
  // Device: receives [in_features]; NULL: not wanted. RMSNorm: NULL.
  void *dbeta;
  // Device: receives the gradient of weight, of dw_dtype; NULL: not wanted.
  void *dw;
  // Its row stride in elements.
  int64_t lddw;
  // Device: receives the gradient of bias; NULL: not wanted.
  void *db;
  // NVTE_F32, NVTE_F16 or NVTE_BF16: type of the weights' gradients.
  int32_t dw_dtype;
  // 0.
  uint32_t reserved;
} nvte_layernorm_linear_bwd_args_t;

// Arguments of nvte_layernorm_mlp_fwd. Zero-initialise it; every row stride of a present matrix counts elements and is at least its row.
typedef struct nvte_layernorm_mlp_fwd_args_t {
  // sizeof(nvte_layernorm_mlp_fwd_args_t).
  uint32_t struct_size;
  // NVTE_LAYER_*.
  uint32_t flags;
  // Rows of x.
  int64_t tokens;
  // What backward will read: device memory, aligned to 16 bytes; NULL where the flags need nothing.
  void *saved;
  // Its size.
  uint64_t saved_bytes;
  // Device memory for this call alone, aligned to 16 bytes.
  void *workspace;
  // Its size.
  uint64_t workspace_bytes;
  // Device: the layer's slots that record amaxes; NULL: nothing is recorded.
  float *live;
  // Device: the layer's scales; written only for replaced weights; NULL: 1.
  float *scale;
  // Host: FP8 copies of the weights; NULL: they are made for this call.
  nvte_weight_cache_t *weight_cache;
  // Device: where it is not 0 a cached weight is not cast again; NULL: as 0. Needs a weight cache.
  const uint32_t *skip_refresh;
  // Device: [tokens, in_features], row stride ldx in elements.
  const void *x;
  // Its row stride.
  int64_t ldx;
  // Device: [in_features]; NULL: 1.
  const void *gamma;
  // Device: [in_features]; NULL: 0. RMSNorm: NULL.
  const void *beta;
  // Device: [ffn_features, in_features], or [2 * ffn_features, in_features] where gated.
  const void *fc1_weight;
  // Its row stride in elements.
  int64_t ld_fc1_weight;
  // Device: one element per row of fc1_weight; NULL: none.
  const void *fc1_bias;
  // Device: [in_features, ffn_features].
  const void *fc2_weight;
  // Its row stride in elements.
  int64_t ld_fc2_weight;
  // Device: [in_features]; NULL: none.
  const void *fc2_bias;
  // Device: [tokens, out_features].
  void *y;
  // Its row stride in elements.
  int64_t ldy;
  // Device: receives the norm's output [tokens, in_features]; NULL: not wanted.
  void *norm_out;
  // Its row stride in elements.
  int64_t ld_norm_out;
} nvte_layernorm_mlp_fwd_args_t;

// Arguments of nvte_layernorm_mlp_bwd. Flags, tokens and weight_cache are those of the forward call; NVTE_LAYER_ACCUMULATE_DW may be added.
typedef struct nvte_layernorm_mlp_bwd_args_t {
  // sizeof(nvte_layernorm_mlp_bwd_args_t).
  uint32_t struct_size;
  // NVTE_LAYER_*.
  uint32_t flags;
  // Rows of x.
  int64_t tokens;
  // What backward will read: device memory, aligned to 16 bytes; NULL where the flags need nothing.
  const void *saved;
  // Its size.
  uint64_t saved_bytes;
  // Device memory for this call alone, aligned to 16 bytes.
  void *workspace;
  // Its size.
  uint64_t workspace_bytes;
  // Device: the layer's slots that record amaxes; NULL: nothing is recorded.
  float *live;
  // Device: the layer's scales; written only for replaced weights; NULL: 1.
  float *scale;
  // Host: FP8 copies of the weights; NULL: found in saved (NVTE_LAYER_SAVE_WEIGHT), or made for this call with the scale that forward used.
  nvte_weight_cache_t *weight_cache;
  // Device: where it is not 0 a cached weight is not cast again; NULL: as 0. Needs a weight cache.
  const uint32_t *skip_refresh;
  // Device: [tokens, out_features].
  const void *dy;
  // Its row stride in elements.
  int64_t lddy;
  // Device: as in forward.
  const void *x;
  // Its row stride in elements.
  int64_t ldx;
  // Device: as in forward.
  const void *gamma;
  // Device: as in forward.
  const void *fc1_weight;
  // Its row stride in elements.
  int64_t ld_fc1_weight;
  // Device: as in forward.
  const void *fc2_weight;
  // Its row stride in elements.
  int64_t ld_fc2_weight;
  // Device: a gradient that reached norm_out by itself, [tokens, in_features]; NULL: none.
  const void *dnorm_out;
  // Its row stride in elements.
  int64_t ld_dnorm_out;
  // Device: receives the gradient of x [tokens, in_features]; not NULL where the flags ask for it.
  void *dx;
  // Its row stride in elements.
  int64_t lddx;
  // Device: receives [in_features]; NULL: not wanted.
  void *dgamma;
  // Device: receives [in_features]; NULL: not wanted. RMSNorm: NULL.
  void *dbeta;
  // Device: receives the gradient of fc1_weight, of dw_dtype; NULL: not wanted.
  void *dfc1_weight;
  // Its row stride in elements.
  int64_t ld_dfc1_weight;
  // Device: receives the gradient of fc1_bias; NULL: not wanted.
  void *dfc1_bias;
  // Device: receives the gradient of fc2_weight, of dw_dtype; NULL: not wanted.
  void *dfc2_weight;
  // Its row stride in elements.
  int64_t ld_dfc2_weight;
  // Device: receives the gradient of fc2_bias; NULL: not wanted.
  void *dfc2_bias;
  // NVTE_F32, NVTE_F16 or NVTE_BF16: type of the weights' gradients.
  int32_t dw_dtype;
  // 0.
  uint32_t reserved;
} nvte_layernorm_mlp_bwd_args_t;

// Sizes that a layer asks for: bytes are per_token * tokens + fixed, an upper bound for every number of tokens.
typedef struct nvte_layer_sizes_t {
  // sizeof(nvte_layer_sizes_t), set by the caller.
  uint32_t struct_size;
  // Consecutive scaling slots: x, w, dy; the MLP: x1, w1, x2, w2, dy2, dy1.
  uint32_t slots;
  // What forward leaves for backward.
  uint64_t saved_per_token;
  // What forward leaves for backward, whatever the number of tokens.
  uint64_t saved_fixed;
  // Forward's workspace.
  uint64_t forward_workspace_per_token;
  // Forward's workspace.
  uint64_t forward_workspace_fixed;
  // Backward's workspace.
  uint64_t backward_workspace_per_token;
  // Backward's workspace.
  uint64_t backward_workspace_fixed;
  // FP8 copies of the weights, both layouts.
  uint64_t weight_cache;
} nvte_layer_sizes_t;

// Arguments of nvte_multi_cast_to_fp8. Zero-initialise it and set struct_size and list.
typedef struct nvte_multi_cast_args_t {
  // sizeof(nvte_multi_cast_args_t).
  uint32_t struct_size;
  // 1: current scaling (amax, scale, scale_inv of every output are written). 0: scales are read and amaxes recorded.
  int32_t current;
  // Made by nvte_cast_list.
  const nvte_list_t *list;
  // Device, one u32: where it is not 0 nothing is written; NULL: never.
  const uint32_t *skip;
  // Current scaling: scales are divided by 2^margin; -64 to 64.
  int32_t margin;
  // Current scaling: floor of the amaxes; finite, not negative.
  float epsilon;
  // Current scaling: 1: scales are rounded down to powers of two. Else 0.
  int32_t power_of_two;
  // 0.
  uint32_t reserved;
} nvte_multi_cast_args_t;

// Arguments of nvte_layernorm_fwd and nvte_rmsnorm_fwd.
//
// Parameters (gamma, beta) are tensors of one row, [1, hidden], whose stride means nothing, each f32, f16 or bf16 whatever the other types are.
typedef struct nvte_norm_fwd_args_t {
  // sizeof(nvte_norm_fwd_args_t).
  uint32_t struct_size;
  // 1: the weight is 1 + gamma, formed in f32. 0: it is gamma.
  int32_t zero_centered_gamma;
  // f32, f16 or bf16 [rows, hidden].
  const nvte_tensor_t *x;
  // The weight; NULL: 1.
  const nvte_tensor_t *gamma;
  // The shift; NULL: 0. RMSNorm: NULL.
  const nvte_tensor_t *beta;
  // [rows, hidden]: f32, f16 or bf16, its data; or E4M3 or E5M2, its data, its data_t or both. The layouts of one call hold the same codes; a
  // call for another choice of layouts may round a few to the neighbouring code. (Layers do not: a pass that is run again gives the same codes.)
  const nvte_tensor_t *y;
  // Device, f32 [rows]: receives the mean of each row; NULL: not written. RMSNorm: NULL.
  float *mu;
  // Device, f32 [rows]: receives 1/sqrt(var + eps); NULL: not written.
  float *rsigma;
  // Added to the variance (RMSNorm: to the mean square). Finite, not negative.
  float eps;
  // 0.
  uint32_t reserved;
  // [rows, hidden], of x's type: added to x before the norm; NULL: nothing is.
  const nvte_tensor_t *residual;
  // [rows, hidden], of x's type: receives x + residual, rounded once; of what it receives the norm is taken. NULL with residual, and
  // only with it.
  const nvte_tensor_t *sum;
} nvte_norm_fwd_args_t;

// Arguments of nvte_layernorm_bwd and nvte_rmsnorm_bwd.
//
// dy, x, gamma, dx, dgamma and dbeta are f32, f16 or bf16 each, in any combination.
typedef struct nvte_norm_bwd_args_t {
  // sizeof(nvte_norm_bwd_args_t).
  uint32_t struct_size;
  // As in the forward pass.
  int32_t zero_centered_gamma;
  // [rows, hidden]: gradient of the output.
  const nvte_tensor_t *dy;
  // [rows, hidden]: the forward pass' input; its sum where it had a residual.
  const nvte_tensor_t *x;
  // [1, hidden]: the forward pass' weight; NULL: 1.
  const nvte_tensor_t *gamma;
  // Device, f32 [rows], written by the forward pass. RMSNorm: NULL.
  const float *mu;
  // Device, f32 [rows], written by the forward pass.
  const float *rsigma;
  // [rows, hidden]: receives the gradient of x.
  const nvte_tensor_t *dx;
  // [1, hidden]: receives the gradient of gamma (0 if there are no rows); NULL: not wanted.
  const nvte_tensor_t *dgamma;
  // [1, hidden]: receives the gradient of beta (0 if there are no rows); NULL: not wanted. RMSNorm: NULL.
  const nvte_tensor_t *dbeta;
  // Device memory, aligned to 16 bytes; its contents before and after mean nothing. NULL if dgamma and dbeta are NULL.
  void *workspace;
  // Its size, at least what nvte_norm_bwd_workspace says.
  uint64_t workspace_bytes;
  // [rows, hidden]: the gradient that reached x by another way than the norm, as that of a residual stream does; added to dx before it
  // is rounded. NULL: there is none.
  const nvte_tensor_t *dsum;
} nvte_norm_bwd_args_t;

// The angles of a rotary position embedding: which elements make a pair, the table, and the position of each token.
//
// A token's row of the table is start + place + start_positions[sequence]; one outside the table gives NaN. Zero-initialise it and set
// struct_size, rotary_dim, cos, sin, table_rows and table_ld; the rest may stay 0.
typedef struct nvte_rope_angles_t {
  // sizeof(nvte_rope_angles_t).
  uint32_t struct_size;
  // 0: the pairs of a head are (i, i + rotary_dim / 2), as in GPT-NeoX; 1: (2i, 2i + 1), as in GPT-J.
  int32_t interleaved;
  // Elements of a head that are rotated, from its first on; the others are copied. Even, at most head_dim.
  int64_t rotary_dim;
  // Device, f32 [table_rows, rotary_dim / 2]: cosine of the angle of pair i at each position.
  const float *cos;
  // Likewise: sines.
  const float *sin;
  // Positions in the table.
  int64_t table_rows;
  // Row stride of both tables, in elements.
  int64_t table_ld;
  // Added to every position.
  int64_t start;
  // Device: the place of each token, int32_t or int64_t; NULL: its number within its sequence.
  const void *positions;
  // 1: positions are int64_t; 0: int32_t.
  int32_t positions_i64;
  // 0.
  uint32_t reserved;
  // Elements of positions from one token of a sequence to the next.
  int64_t positions_seq_stride;
  // Elements of positions from one sequence of the batch to the next; 0: all share theirs.
  int64_t positions_batch_stride;
  // Device, int32_t [batch], with cu_seqlens [sequences]: added to the positions of a sequence; NULL: 0.
  const int32_t *start_positions;
  // Device, int32_t [sequences + 1], ascending: where each of the sequences packed along seq begins, and where the last one ends; batch is
  // then 1. Tokens of no sequence are copied. NULL: sequences are not packed.
  const int32_t *cu_seqlens;
  // Sequences of cu_seqlens.
  int64_t sequences;
} nvte_rope_angles_t;

// Arguments of nvte_rope_fwd and nvte_rope_bwd. Strides are in elements; those of a head lie side by side.
typedef struct nvte_rope_args_t {
  // sizeof(nvte_rope_args_t).
  uint32_t struct_size;
  // NVTE_F32, NVTE_F16 or NVTE_BF16: of x and y.
  int32_t dtype;
  // Tokens of a sequence; of all sequences where they are packed.
  int64_t seq;
  // Sequences of this length.
  int64_t batch;
  // Heads of a token.
  int64_t heads;
  // Elements of a head.
  int64_t head_dim;
  // Device: input; backward: gradient of the output.
  const void *x;
  // From token to token of a sequence of x.
  int64_t x_seq_stride;
  // From sequence to sequence of x.
  int64_t x_batch_stride;
  // From head to head of x.
  int64_t x_head_stride;
  // Device: output; backward: gradient of the input. It may be x itself: same address, same strides.
  void *y;
  // From token to token of a sequence of y.
  int64_t y_seq_stride;
  // From sequence to sequence of y.
  int64_t y_batch_stride;
  // From head to head of y.
  int64_t y_head_stride;
  // Pairs, table, positions.
  const nvte_rope_angles_t *angles;
} nvte_rope_args_t;

// Arguments of nvte_rope_qkv_fwd and nvte_rope_qkv_bwd. Strides are in elements; the heads of a token lie side by side.
typedef struct nvte_rope_qkv_args_t {
  // sizeof(nvte_rope_qkv_args_t).
  uint32_t struct_size;
  // NVTE_F32, NVTE_F16 or NVTE_BF16: of all tensors.
  int32_t dtype;
  // NVTE_QKV_CONCATENATED or NVTE_QKV_GROUPED.
  int32_t order;
  // 0.
  uint32_t reserved;
  // Tokens of a sequence; of all sequences where they are packed.
  int64_t seq;
  // Sequences of this length.
  int64_t batch;
  // Query heads; grouped: a multiple of kv_heads.
  int64_t q_heads;
  // Key heads, and value heads.
  int64_t kv_heads;
  // Elements of a head.
  int64_t head_dim;
  // Device: packed QKV. Read by the forward pass, written by the backward pass.
  void *qkv;
  // From token to token of a sequence of qkv.
  int64_t qkv_seq_stride;
  // From sequence to sequence of qkv.
  int64_t qkv_batch_stride;
  // Device: queries, rotated. Written by the forward pass, read by the backward pass, as are k and v.
  void *q;
  // From token to token of a sequence of q.
  int64_t q_seq_stride;
  // From sequence to sequence of q.
  int64_t q_batch_stride;
  // Device: keys, rotated.
  void *k;
  // Device: values, copied.
  void *v;
  // From token to token of a sequence of k, and of v.
  int64_t kv_seq_stride;
  // From sequence to sequence of k, and of v.
  int64_t kv_batch_stride;
  // Pairs, table, positions.
  const nvte_rope_angles_t *angles;
} nvte_rope_qkv_args_t;

// Arguments of nvte_scaling_update: the caller's arrays over slots slots. Zero-initialise it and set struct_size.
typedef struct nvte_scaling_update_args_t {
  // sizeof(nvte_scaling_update_args_t).
  uint32_t struct_size;
  // NVTE_AMAX_MAX or NVTE_AMAX_MOST_RECENT.
  int32_t algo;
  // Number of slots.
  int64_t slots;
  // Window length L, the live amax included; at least 1.
  int64_t history_len;
  // [slots]: amaxes recorded in the period that ends; read, and set to 0 where they were taken.
  float *live;
  // [slots]: scales, read and written. They start at 1.
  float *scale;
  // The L - 1 older amaxes of slot i, j = 0 the oldest: history[i * slot_stride + j * step_stride]. They start at 0. Unused if L is 1.
  float *history;
  // Elements between slots.
  int64_t slot_stride;
  // Elements between steps.
  int64_t step_stride;
  // [slots]: largest finite value of each slot's format (448 or 57344).
  const float *format_max;
  // [slots]: counts the periods dropped because their amax was not finite; NULL: not counted.
  uint32_t *nonfinite;
  // [slots]: receives 1/scale, for information; NULL: not written.
  float *scale_inv;
  // One word that starts at 0: updates since scales last changed. May be NULL if interval is 1.
  uint32_t *counter;
  // Scales change at every interval-th update; 1 to 2^20.
  uint32_t interval;
  // Scales are divided by 2^margin; -64 to 64.
  int32_t margin;
  // Floor of the amax; finite, not negative.
  float epsilon;
  // 1: scales are rounded down to powers of two. Else 0.
  int32_t power_of_two;
} nvte_scaling_update_args_t;

// Arguments of nvte_softmax_fwd.
//
// Row r of x is query r % queries of matrix r / queries, and matrix m is head m % heads of batch m / heads.
typedef struct nvte_softmax_fwd_args_t {
  // sizeof(nvte_softmax_fwd_args_t).
  uint32_t struct_size;
  // 1: query i sees keys j <= i + offset only. 0: all.
  int32_t causal;
  // f32, f16 or bf16 [rows, cols].
  const nvte_tensor_t *x;
  // [rows, cols] of the type of x; may be x itself.
  const nvte_tensor_t *y;
  // Device, u8: an element whose byte is not 0 is hidden. NULL: none is.
  const uint8_t *mask;
  // Bytes from a batch's mask to the next; 0: the same for all.
  int64_t mask_batch_stride;
  // Bytes from a head's mask to the next; 0: the same for all.
  int64_t mask_head_stride;
  // Bytes from a query's mask to the next; 0: the same for all. The cols bytes of a row lie side by side.
  int64_t mask_query_stride;
  // Rows of a matrix, a divisor of rows; 0: all.
  int64_t queries;
  // Matrices of a batch; 0: 1.
  int64_t heads;
  // See causal. Anything.
  int64_t offset;
  // Multiplies x. Finite.
  float scale;
  // 0.
  uint32_t reserved;
} nvte_softmax_fwd_args_t;

// Arguments of nvte_softmax_bwd.
typedef struct nvte_softmax_bwd_args_t {
  // sizeof(nvte_softmax_bwd_args_t).
  uint32_t struct_size;
  // As in the forward pass.
  int32_t causal;
  // f32, f16 or bf16 [rows, cols]: gradient of the output.
  const nvte_tensor_t *dy;
  // [rows, cols] of the same type: the forward pass' output.
  const nvte_tensor_t *y;
  // [rows, cols] of the same type: receives the gradient of x; may be dy itself.
  const nvte_tensor_t *dx;
  // As in the forward pass.
  int64_t queries;
  // As in the forward pass.
  int64_t offset;
  // As in the forward pass.
  float scale;
  // 0.
  uint32_t reserved;
} nvte_softmax_bwd_args_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Version of the library, "major.minor.patch".
//
// Shapes: none. Units: none. Pointers: a static host string. Alignment: none. Aliasing: none. Stream order: none.
// Determinism: not applicable. Errors: none.
const char *nvte_version(void);

// The NVTE_ABI_VERSION of the library; that of the header may be another.
//
// Shapes: none. Units: none. Pointers: none. Alignment: none. Aliasing: none. Stream order: none. Determinism: not applicable.
// Errors: none.
uint32_t nvte_abi_version(void);

// Name of a status ("NVTE_ERROR_OVERLAP"), "unknown status" for a number that is none.
//
// Shapes: none. Units: none. Pointers: a static host string. Alignment: none. Aliasing: none. Stream order: none.
// Determinism: not applicable. Errors: none.
const char *nvte_status_name(nvte_status_t status);

// What a context's device can do.
//
// Shapes: none. Units: bytes for memory. Pointers: host. Alignment: natural. Aliasing: none. Stream order: none.
// Determinism: the same answer for the life of the context.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_MISALIGNED.
nvte_status_t nvte_capability(nvte_context_t ctx, nvte_capability_t *capability);

// A report for people and bug trackers, as JSON text: versions, driver, devices, NVRTC and cuBLASLt with their paths, every path tried,
// kernel cache, capabilities, environment variables. It probes for the driver and the libraries, so it may take a second.
//
// ctx: adds that context's part; NULL: the process alone. needed, if not NULL, receives the size in bytes with the ending zero; where
// size is smaller than that, the text is cut to fit (still ended by a zero if size is not 0). buffer may be NULL where size is 0.
//
// Shapes: none. Units: bytes. Pointers: host. Alignment: natural. Aliasing: none. Stream order: none. Determinism: not applicable.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER.
nvte_status_t nvte_info(nvte_context_t ctx, char *buffer, size_t size, size_t *needed);

// Makes a context on one device.
//
// Shapes: none. Units: ordinal counts the devices the driver reports; 0 for the CPU. Pointers: host. Alignment: natural. Aliasing: none.
// Stream order: none; the call may take milliseconds (it initialises the driver). Determinism: not applicable.
// The device's primary context is retained (the one PyTorch, JAX and the CUDA runtime use) and not made current.
//
// Errors: NVTE_ERROR_NO_DRIVER, NVTE_ERROR_DRIVER_TOO_OLD, NVTE_ERROR_NO_DEVICE, NVTE_ERROR_CUDA, NVTE_ERROR_INVALID_ENUM,
// NVTE_ERROR_NULL_POINTER. On an error *context is not written.
nvte_status_t nvte_context_create(int32_t device_type,
                                  int32_t ordinal,
                                  const nvte_context_options_t *options,
                                  nvte_context_t *context);

// Ends a context. NULL is accepted. Work already enqueued runs on; calls of other threads that hold it finish.
//
// Shapes: none. Units: none. Pointers: host handle. Alignment: none. Aliasing: none. Stream order: none. Determinism: not applicable.
//
// Errors: NVTE_ERROR_INVALID_HANDLE for one already destroyed.
nvte_status_t nvte_context_destroy(nvte_context_t context);

// Frees what the context can make again (GEMM plans). Loaded kernels stay, since captured graphs may use them.
//
// Shapes: none. Units: none. Pointers: host handle. Alignment: none. Aliasing: none. Stream order: none. Determinism: results do not change.
//
// Errors: NVTE_ERROR_INVALID_HANDLE.
nvte_status_t nvte_context_trim(nvte_context_t context);

// Waits until everything enqueued on stream has run: for programs with no CUDA runtime of their own. No other function waits.
//
// Shapes: none. Units: none. Pointers: host handles. Alignment: none. Aliasing: none. Stream order: returns when stream is idle;
// at once on a CPU context, whose calls have finished when they return. Determinism: not applicable.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_CUDA (also for an error of earlier work that comes to light here).
nvte_status_t nvte_context_synchronize(nvte_context_t context, nvte_stream_t stream);

// The message of the calling thread's last error: the argument, its value and the rule. Empty where there was none.
//
// Shapes: none. Units: none. Pointers: a host string that lives until the thread's next error. Alignment: none. Aliasing: none.
// Stream order: none. Determinism: not applicable. Errors: none.
const char *nvte_last_error(void);

// The number that the library below (CUDA driver, NVRTC or cuBLASLt, as the status says) returned for the thread's last error; 0 if none was involved.
//
// Shapes: none. Units: none. Pointers: none. Alignment: none. Aliasing: none. Stream order: none. Determinism: not applicable. Errors: none.
int32_t nvte_last_error_code(void);

// Sends the lines of NVTE_DEBUG to log instead of standard error; NULL restores that.
//
// Shapes: none. Units: none. Pointers: host; user is passed through. Alignment: none. Aliasing: none. Stream order: none.
// Determinism: not applicable. Errors: none.
nvte_status_t nvte_set_log(nvte_log_fn log, void *user);

// The table of all functions of this library: the way to call it that no other library's names can divert.
//
// abi_version: NVTE_ABI_VERSION of the header the caller was compiled with. Entries are only ever appended: an entry is there if
// struct_size reaches past it.
//
// Shapes: none. Units: none. Pointers: a static host struct; NULL where this library does not provide that version of the ABI.
// Alignment: none. Aliasing: none. Stream order: none. Determinism: not applicable. Errors: none.
const nvte_api_t *nvte_api(uint32_t abi_version);

// Applies an activation: y = f(x), or f(a) * b for a gated form, computed in f32 and rounded once to the output.
//
// Shapes: input f32, f16 or bf16 [rows, H], gated [rows, 2H]; output [rows, H]: f32, f16 or bf16 in its data, or E4M3 or E5M2 in its
// data, its data_t or both. Units: sizes and strides in elements. Pointers: tensors are host structs; data and slots are on the
// device. Alignment: that of the element type; rows that start on 16 bytes are faster. Aliasing: the output must not overlap the input
// or itself. Stream order: enqueued on stream, nothing waits. Determinism: the same bits every time on one back end; across back ends
// within a few f32 roundings before the one cast. Limits: f(-inf) is -0 (relu, srelu: +0), f(+inf) is +inf, NaN gives NaN.
// FP8: output.scale (NULL: 1) multiplies, 1/scale is written to output.scale_inv. The amax of the f32 values is recorded as a maximum in
// output.amax, for every output type, where it is not NULL.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE,
// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE,
// NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED (a transposed copy or a scale on an output that is not FP8),
// NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_activation_fwd(nvte_context_t ctx,
                                  int32_t kind,
                                  const nvte_tensor_t *input,
                                  const nvte_tensor_t *output,
                                  nvte_stream_t stream);

// Bytes of workspace that nvte_activation_bwd needs with a dbias; without one it needs none.
//
// Shapes: those of dy: rows, and hidden = H. Units: elements; *bytes in bytes. Pointers: host. Alignment: natural. Aliasing: none.
// Stream order: none. Determinism: a function of its arguments and the kind of device.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_SIZE_OVERFLOW,
// NVTE_ERROR_NULL_POINTER. On an error *bytes is not written.
nvte_status_t nvte_activation_bwd_workspace(nvte_context_t ctx, int32_t kind, int64_t rows, int64_t hidden, uint64_t *bytes);

// The gradient of an activation: dx = dy * f'(x); gated, side by side, da = dy * b * f'(a) and db = dy * f(a). Computed in f32 and rounded
// once to the output. With dbias also the column sums of the f32 values, before any cast.
//
// Shapes: dy f32, f16 or bf16 [rows, H]; input f32, f16 or bf16 [rows, H], gated [rows, 2H]; output of input's shape: f32, f16 or bf16
// in its data, or E4M3 or E5M2 in its data, its data_t or both; dbias one element per column of output. Units: sizes and strides in
// elements, workspace_bytes in bytes. Pointers: args and tensors are host structs; data, slots, dbias and workspace are on the device.
// Alignment: that of the element type (workspace: 16 bytes); dy and input of one type whose rows start on 16 bytes are faster.
// Aliasing: output, dbias and workspace must not overlap each other or an input. Stream order: enqueued on stream, nothing waits; the
// workspace is in use until then. Determinism: the same bits every time on one back end (sums have one order, no float atomics).
// Limits: f'(-inf) is 0, f'(+inf) is 1 (srelu: +inf), NaN gives NaN; products follow IEEE 754. With no rows the sums are 0.
// FP8: output.scale (NULL: 1) multiplies, 1/scale is written to output.scale_inv. The amax of the f32 values is recorded as a maximum in
// output.amax, for every output type, where it is not NULL.
//
// Errors: those of nvte_activation_fwd, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_WORKSPACE_TOO_SMALL.
nvte_status_t nvte_activation_bwd(nvte_context_t ctx, const nvte_activation_bwd_args_t *args, nvte_stream_t stream);

// Bytes of device memory that the table of an AdamW list takes: 136 per tensor, and four per 4096 elements (per 128 x 128 with FP8 copies).
//
// Shapes: those of the weights. Units: bytes. Pointers: host; device addresses are not looked at. Alignment: natural. Aliasing: none.
// Stream order: none. Determinism: depends on shapes and on which FP8 copies there are.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_SIZE_OVERFLOW.
nvte_status_t nvte_adamw_list_workspace(nvte_context_t ctx, const nvte_adamw_list_args_t *args, uint64_t *bytes);

// Makes the list of tensors for nvte_adamw: checks them, and writes the table in stream order. Do it once, and again when one has moved.
//
// Shapes: the tensors of one index share theirs; rows side by side, except FP8 copies. Units: sizes and strides in elements. Pointers:
// structs and arrays are on the host and may go once the call has returned; data, slots and list.data are on the device. Alignment:
// that of the element type, list.data 16 bytes; fastest where all but 16-bit tensors (8 bytes) begin at multiples of 16 bytes. Aliasing:
// nothing that is written may overlap anything else in the list. Stream order: enqueued on stream, nothing waits; the contents travel as
// kernel arguments, so that it is safe to capture. With NVTE_STREAM_PREPARE the struct is written and the table is not.
// Determinism: not applicable.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_DTYPE,
// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_OVERLAP,
// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_adamw_list(nvte_context_t ctx,
                              const nvte_adamw_list_args_t *args,
                              nvte_list_t *list,
                              nvte_stream_t stream);

// One step of AdamW for all tensors of a list, in one launch. With t = step + 1, in f32, each operation rounded by itself in this order,
// where what is the same for all elements is formed in f64 (clip / grad_scale in f32) and rounded once:
//
// - g = gradient * (clip / grad_scale); with decoupled = 0: g += weight_decay * w
// - m = beta1 * m + (1 - beta1) * g, v = beta2 * v + ((1 - beta2) * g) * g
// - w -= (lr / (1 - beta1^t)) * (m / (sqrt(v) * (1 / sqrt(1 - beta2^t)) + eps)) + (lr * weight_decay) * w
//
// w is the master where there is one, and the weight its rounded copy; m and v enter w before they are rounded to a narrower type. Without
// bias_correction both corrections are 1. FP8 copies are those of the weight as written. The step, an f32, counts to 2^24 and stays there.
//
// Shapes: those of the list. Units: none. Pointers: structs are on the host, all else on the device. Alignment: 4 bytes. Aliasing: step and
// the scalars must not lie in the list's tensors. Stream order: enqueued on stream, nothing waits; step, learning rate, found_inf and the
// factors are read on the device, so that a captured graph can be replayed. Determinism: bit-exact on every back end.
// A skipped step leaves everything as it was: weights, moments, step, codes, scale_inv and amax.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_ENUM,
// NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_SIZE_OVERFLOW,
// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_adamw(nvte_context_t ctx, const nvte_adamw_args_t *args, nvte_stream_t stream);

// Records the largest |x| of a tensor: the maximum, by bit pattern, with what the slot holds, so that NaN > infinity > finite.
//
// Shapes: input f32, f16 or bf16 [rows, cols]; amax one f32. Units: sizes and strides in elements. Pointers: the tensor is a host
// struct; data and amax are on the device. Alignment: that of the element type. Aliasing: amax must not lie in the input. Stream order:
// enqueued on stream, nothing waits. Determinism: bit-exact on every back end.
// A tensor with no elements records nothing.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_amax(nvte_context_t ctx, const nvte_tensor_t *input, float *amax, nvte_stream_t stream);

// Casts to FP8 with a given scale: q = encode(f32(x) * scale), one rounding to nearest even, saturating; NaN becomes 0x7F.
//
// Shapes: input f32, f16 or bf16 [rows, cols]; output E4M3 or E5M2 [rows, cols], its data, its data_t or both. Units: sizes and
// strides in elements. Pointers: tensors are host structs; data and slots are on the device. Alignment: that of the element type;
// fastest where bases and row strides are multiples of 16 bytes.
// Aliasing: outputs must not overlap the input or each other. Stream order: enqueued on stream, nothing waits.
// Determinism: bit-exact on every back end.
// Writes 1/scale to output.scale_inv, and records the amax of the input as a maximum in output.amax, where those are not NULL.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_cast_to_fp8(nvte_context_t ctx,
                               const nvte_tensor_t *input,
                               const nvte_tensor_t *output,
                               nvte_stream_t stream);

// Bytes of workspace that nvte_cast_to_fp8_current needs, whatever the shape.
//
// Shapes: none. Units: bytes. Pointers: bytes is on the host. Alignment: natural. Aliasing: none. Stream order: none.
// Determinism: depends on the device alone.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER.
nvte_status_t nvte_cast_to_fp8_current_workspace(nvte_context_t ctx, uint64_t *bytes);

// Casts to FP8 with current scaling in one call: the amax of this input, the scale from it (section 4 above, previous = 1), the cast.
//
// Shapes: input f32, f16 or bf16 [rows, cols]; output E4M3 or E5M2 [rows, cols], its data, its data_t or both. Units: sizes and
// strides in elements. Pointers: structs are on the host; data, slots and workspace on the device. Alignment: that of the element type,
// workspace 16 bytes. Aliasing: outputs and workspace must not overlap the input or each other. Stream order: enqueued on stream,
// nothing waits; the scale is made on the device. Determinism: bit-exact on every back end.
// Writes (does not record) output.amax, output.scale and output.scale_inv where those are not NULL; for an empty tensor 0, 1 and 1.
//
// Errors: those of nvte_cast_to_fp8, and NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_WORKSPACE_TOO_SMALL.
nvte_status_t nvte_cast_to_fp8_current(nvte_context_t ctx, const nvte_cast_current_args_t *args, nvte_stream_t stream);

// Bytes of workspace that nvte_cast_dbias needs for an input of this shape: it grows with rows / 128 * cols.
//
// Shapes: input [rows, cols]. Units: bytes. Pointers: bytes is on the host. Alignment: natural. Aliasing: none. Stream order: none.
// Determinism: depends on shape and device alone.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_SIZE_OVERFLOW.
nvte_status_t nvte_cast_dbias_workspace(nvte_context_t ctx, int64_t rows, int64_t cols, uint64_t *bytes);

// Casts a gradient to FP8 and, in the same pass, gives the bias gradient: dbias[c] = sum over rows of input[r, c], in f32.
//
// Shapes: input f32, f16 or bf16 [rows, cols]; output as in nvte_cast_to_fp8, or NULL; dbias [cols]. Units: sizes and strides in
// elements. Pointers: structs are on the host; data, slots, dbias and workspace on the device. Alignment: that of the element type,
// workspace 16 bytes. Aliasing: outputs and workspace must not overlap the input or each other. Stream order: enqueued on stream,
// nothing waits. Determinism: codes, scales and amax are bit-exact on every back end; the sums have one fixed order per device, shape and
// alignment (no atomics). With no rows the sums are 0.
//
// Errors: those of nvte_cast_to_fp8, and NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_WORKSPACE_TOO_SMALL,
// NVTE_ERROR_UNSUPPORTED (current scaling without an output).
nvte_status_t nvte_cast_dbias(nvte_context_t ctx, const nvte_cast_dbias_args_t *args, nvte_stream_t stream);

// Bytes of workspace of nvte_cross_entropy, _combine and _gradient with a reduction; with NVTE_REDUCTION_NONE they need none.
//
// Shapes: tokens >= 0. Units: bytes. Pointers: bytes is on the host. Alignment: natural. Aliasing: none. Stream order: none.
// Determinism: the same for one kind of device and version of the library.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_SIZE_OVERFLOW.
nvte_status_t nvte_cross_entropy_workspace(nvte_context_t ctx, int64_t tokens, uint64_t *bytes);

// Cross-entropy and, where dlogits is given, the gradient of the logits, in one pass: logits are read once, dlogits written once.
//
// With m the largest logit of a token, s the sum of exp(x - m) and e the label smoothing: logsumexp = m + ln s,
// loss = (1 - e) (logsumexp - x[target]) + e mean(logsumexp - x), and
// dlogits = dloss / count * (exp(x - m) / s - e / vocabulary - (1 - e) [target]), where count is 1 unless the reduction is the mean.
// An ignored target gives loss 0 and gradient 0; one outside the vocabulary gives NaN for both. The mean of no target is NaN.
//
// Shapes: logits and dlogits [tokens, vocabulary], any tokens and vocabulary; target, loss and logsumexp [tokens]; total one value. Units: sizes
// and strides in elements. Pointers: structs are on the host, everything else on the device. Alignment: that of the element type (logits and
// dlogits whose rows begin at the same offset from 16 bytes are faster); workspace 16 bytes. Aliasing: dlogits may be the logits, exactly;
// otherwise outputs and workspace must not overlap inputs or each other. Stream order: enqueued on stream, nothing waits. Determinism: the
// same bits every time on one back end: sums have one order, no float atomics.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE,
// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_WORKSPACE_TOO_SMALL,
// NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_UNSUPPORTED (a total without a reduction),
// NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_cross_entropy(nvte_context_t ctx,
                                 const nvte_cross_entropy_args_t *args,
                                 nvte_stream_t stream);

// Of a slice of the vocabulary, per token, four f32: the largest logit, the sum of exp(x - largest), the target's logit (0 where it is in
// another slice, ignored, or outside the vocabulary) and, with label smoothing, the sum of the logits. Exchange them between ranks, and call
// nvte_cross_entropy_combine.
//
// Shapes: logits [tokens, n]; target [tokens]; partial [tokens, 4]. Units: sizes and strides in elements. Pointers: structs are on the host,
// everything else on the device. Alignment: that of the element type; partial 16 bytes. Aliasing: partial must not overlap inputs.
// Stream order: enqueued on stream, nothing waits. Determinism: the same bits every time on one back end.
//
// Errors: those of nvte_cross_entropy; NVTE_ERROR_UNSUPPORTED for combined or dlogits.
nvte_status_t nvte_cross_entropy_partial(nvte_context_t ctx,
                                         const nvte_cross_entropy_slice_args_t *args,
                                         nvte_stream_t stream);

// Puts the numbers of all slices together and finishes the losses, as nvte_cross_entropy defines them.
//
// Shapes: partials [ranks, tokens, 4]; target, loss and logsumexp [tokens]; combined [tokens, 4]; total one value. Units: elements.
// Pointers: args is on the host, everything else on the device. Alignment: partials, combined and workspace 16 bytes, others that of their
// type. Aliasing: combined may be partials where ranks is 1; otherwise outputs and workspace must not overlap inputs or each other.
// Stream order: enqueued on stream, nothing waits. Determinism: the same bits on every rank that holds the same partials.
//
// Errors: those of nvte_cross_entropy.
nvte_status_t nvte_cross_entropy_combine(nvte_context_t ctx, const nvte_cross_entropy_combine_args_t *args, nvte_stream_t stream);

// The gradient of a slice's logits, from what all slices have together; logits are read once, dlogits written once.
//
// Shapes: logits and dlogits [tokens, n]; target [tokens]; combined [tokens, 4]. Units: sizes and strides in elements. Pointers: structs are
// on the host, everything else on the device. Alignment: that of the element type; combined and workspace 16 bytes. Aliasing: dlogits may be
// the logits, exactly; otherwise outputs and workspace must not overlap inputs or each other. Stream order: enqueued on stream, nothing waits.
// Determinism: the same bits every time on one back end.
//
// Errors: those of nvte_cross_entropy; NVTE_ERROR_UNSUPPORTED for partial.
nvte_status_t nvte_cross_entropy_gradient(nvte_context_t ctx,
                                          const nvte_cross_entropy_slice_args_t *args,
                                          nvte_stream_t stream);

// x[row] *= scale[row * stride], in place. Rows whose scale is 1 are neither read nor written: what the backward pass of a loss costs whose
// gradient was computed ahead.
//
// Shapes: x f32, f16 or bf16 [rows, cols]; scale f32, one value (stride 0) or [rows] (stride 1). Units: elements. Pointers: x is a host
// struct; its data and scale are on the device. Alignment: that of the element type. Aliasing: scale must not overlap x. Stream order: enqueued
// on stream, nothing waits. Determinism: bit-exact: one f32 product, rounded once.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE,
// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE,
// NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_scale_rows(nvte_context_t ctx,
                              const float *scale,
                              int64_t stride,
                              const nvte_tensor_t *x,
                              nvte_stream_t stream);

// Dequantizes: y = f32(q) * input.scale_inv in f32, rounded once to the output type; NaN becomes 0x7FFFFFFF (16-bit types: 0x7FFF).
//
// Shapes: input E4M3 or E5M2 [rows, cols]: data is read, data_t where data is NULL; output f32, f16 or bf16 [rows, cols]. Units: sizes
// and strides in elements. Pointers: tensors are host structs; data and scale_inv (NULL: 1) are on the device. Alignment: that of the
// element type. Aliasing: the output must not overlap the codes. Stream order: enqueued on stream, nothing waits.
// Determinism: bit-exact on every back end.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_dequantize(nvte_context_t ctx,
                              const nvte_tensor_t *input,
                              const nvte_tensor_t *output,
                              nvte_stream_t stream);

// Makes the missing layout of a quantized tensor: output.data_t from input.data, or, where input.data is NULL, output.data from input.data_t.
//
// Shapes: input and output E4M3 or E5M2, the same, [rows, cols]. Units: sizes and strides in elements. Pointers: tensors are host
// structs (one struct may serve as both); codes and slots are on the device. Alignment: bytes. Aliasing: the two layouts must not overlap.
// Stream order: enqueued on stream, nothing waits. Determinism: bit-exact on every back end.
// The layout of the output that is not written must be NULL or the input's. output.scale_inv receives input.scale_inv where it is not
// NULL; output.scale and output.amax are not touched.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_OVERLAP, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_fp8_transpose(nvte_context_t ctx,
                                 const nvte_tensor_t *input,
                                 const nvte_tensor_t *output,
                                 nvte_stream_t stream);

// Dropout with bias and residual: y = (x + bias) / (1 - p) + residual where an element is kept, 0 + residual where not.
//
// Which elements are kept: words of Philox4x32-10 with key = seed and counter = (offset + i div 4, rng_stream), of which element i takes word
// i mod 4, i = row * cols + column whatever the strides; kept if the word is at least round(p * 2^32). Seed and offset are read on the device
// when the call runs: a replayed graph draws what they then hold. With p = 0 everything is kept, with p = 1 nothing, and nothing is drawn.
//
// Shapes: x, residual and y [rows, cols] of one type; bias [1, cols] of any; mask [rows, ceil(cols / 8)] bytes. Units: strides in elements,
// of the mask in bytes. Pointers: structs are on the host, data, mask and rng on the device. Alignment: that of the element type, rng 8
// bytes (rows that start on 16 bytes and cols of a multiple of 8 are faster). Aliasing: y may be x or residual, exactly; otherwise outputs
// must not overlap inputs or each other. Stream order: enqueued on stream, nothing waits. Determinism: the same bits on every back
// end: f32, each operation rounded, then one rounding to the type of y. What x holds where an element is dropped does not matter.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE,
// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_OVERLAP,
// NVTE_ERROR_MISALIGNED, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_UNSUPPORTED (reserved fields),
// NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_dropout_fwd(nvte_context_t ctx,
                               const nvte_dropout_fwd_args_t *args,
                               nvte_stream_t stream);

// Bytes of workspace for nvte_dropout_bwd with a dbias.
//
// Shapes: rows and cols of dy, >= 0. Units: bytes. Pointers: bytes is on the host. Alignment: natural. Aliasing: none. Stream order: none.
// Determinism: the same for one device and version of the library.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_SIZE_OVERFLOW.
nvte_status_t nvte_dropout_bwd_workspace(nvte_context_t ctx, int64_t rows, int64_t cols, uint64_t *bytes);

// The gradient of nvte_dropout_fwd: dx = dy / (1 - p) where an element was kept, 0 where not; dbias the column sums of that, in f32. The
// gradient of the residual is dy itself.
//
// With a mask nothing is drawn: the mask takes memory, drawing again takes arithmetic (about 11 instructions per element).
//
// Shapes: dy and dx [rows, cols] of one type; dbias [cols]; mask as the forward pass wrote it. Units: strides in elements, of the mask in
// bytes. Pointers: structs are on the host, all data on the device. Alignment: as nvte_dropout_fwd; workspace 16 bytes. Aliasing: dx may be dy,
// exactly; otherwise outputs and workspace must not overlap inputs or each other. Stream order: enqueued on stream, nothing waits.
// Determinism: dx has the same bits on every back end; dbias is added up in an order that depends on shape, layout and device alone.
//
// Errors: as nvte_dropout_fwd; NVTE_ERROR_WORKSPACE_TOO_SMALL.
nvte_status_t nvte_dropout_bwd(nvte_context_t ctx,
                               const nvte_dropout_bwd_args_t *args,
                               nvte_stream_t stream);

// The product of FP8 operands, E4M3 and E5M2 in any pair, accumulated in f32 or as the tensor core does (args.accumulate), the bias
// added in f32 after scaling, rounded once.
//
// Shapes: see nvte_gemm_args_t; any M, N, K >= 0; with K = 0 the result is bias + beta * C. Units: sizes and strides in elements.
// Pointers: args and the tensors it names are host structs; data, slots, bias and workspace are on the device; alpha and beta are host
// values. Alignment: that of the element type, the workspace 16 bytes; operands whose rows run along K, with bases and row strides that
// are multiples of 16 bytes and M, N, K multiples of 16, take the fastest path.
// Aliasing: c may be d; otherwise outputs and workspace must not overlap anything. Stream order: enqueued on stream, nothing waits.
// Determinism: the same bits at each call with the same arguments on the same device and library versions; see the tolerances in
// docs for other devices.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED,
// NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_NOT_CAPTURABLE, NVTE_ERROR_CUBLASLT.
nvte_status_t nvte_fp8_gemm(nvte_context_t ctx, const nvte_gemm_args_t *args, nvte_stream_t stream);

// The product of f32, f16 or bf16 operands, both of one type, accumulated in f32 (f32 is never computed as TF32).
//
// Shapes: as nvte_fp8_gemm. Units: sizes and strides in elements. Pointers: as nvte_fp8_gemm. Alignment: that of the element type, the
// workspace 16 bytes. Aliasing: c may be d; otherwise outputs and workspace must not overlap anything. Stream order: enqueued on
// stream, nothing waits. Determinism: the same bits at each call with the same arguments on the same device and library versions.
//
// Errors: as nvte_fp8_gemm.
nvte_status_t nvte_gemm(nvte_context_t ctx, const nvte_gemm_args_t *args, nvte_stream_t stream);

// Bytes of workspace that nvte_fp8_gemm or nvte_gemm needs with these arguments.
//
// The answer depends on types, sizes, strides, layouts, flags and the device, and of the pointers only on which are NULL and which are
// multiples of 16 bytes. NULL counts as a multiple: ask with NULL data before there is memory, if it will be aligned so.
//
// Shapes: as nvte_fp8_gemm. Units: bytes. Pointers: host; nothing on the device is touched. Alignment: natural. Aliasing: none.
// Stream order: none. Determinism: the same answer for the life of the context.
//
// Errors: as nvte_fp8_gemm, but pointers are not checked. On an error *bytes is not written.
nvte_status_t nvte_gemm_workspace(nvte_context_t ctx, const nvte_gemm_args_t *args, uint64_t *bytes);

// Times up to candidates (1 to 64) ways to compute this product on the caller's buffers, OVERWRITING d, and keeps the fastest for
// later calls of this context with the same types, sizes, strides and alignments. Never needed; off unless called.
//
// Shapes: as nvte_fp8_gemm. Units: sizes and strides in elements. Pointers: as nvte_fp8_gemm. Alignment: as nvte_fp8_gemm.
// Aliasing: as nvte_fp8_gemm. Stream order: runs on stream and waits for it; not during a capture; with NVTE_STREAM_PREPARE nothing is timed.
// Determinism: the choice depends on timing; carry it to other processes with nvte_gemm_plans_export.
//
// Errors: as nvte_fp8_gemm, and NVTE_ERROR_INVALID_VALUE for candidates out of range.
nvte_status_t nvte_gemm_prepare(nvte_context_t ctx,
                                const nvte_gemm_args_t *args,
                                uint32_t candidates,
                                nvte_stream_t stream);

// The choices that nvte_gemm_prepare made in this context, or that were imported, as lines of text.
//
// needed, if not NULL, receives the size in bytes with the ending zero; where size is smaller than that, the text is cut to fit
// (still ended by a zero if size is not 0). buffer may be NULL where size is 0.
//
// Shapes: none. Units: bytes. Pointers: host. Alignment: none. Aliasing: none. Stream order: none. Determinism: lines are sorted.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER.
nvte_status_t nvte_gemm_plans_export(nvte_context_t ctx, char *buffer, size_t size, size_t *needed);

// Takes over choices that nvte_gemm_plans_export wrote on the same kind of device with the same versions of cuBLASLt and this library;
// all of the text, or nothing of it.
//
// Shapes: none. Units: none. Pointers: a host string. Alignment: none. Aliasing: none. Stream order: none; later calls use the choices.
// Determinism: calls then take the same kernels as where the choices were made.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_UNSUPPORTED for another device or version,
// NVTE_ERROR_INVALID_VALUE for a line that is none.
nvte_status_t nvte_gemm_plans_import(nvte_context_t ctx, const char *text);

// Bytes of device memory that the table of a list of gradients takes: 40 per tensor, four per 16 KiB of gradients, and 33 KiB.
//
// Shapes: count gradients. Units: bytes. Pointers: host; device addresses are not looked at. Alignment: natural. Aliasing: none.
// Stream order: none. Determinism: depends on shapes and types.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_SIZE_OVERFLOW.
nvte_status_t nvte_grad_list_workspace(nvte_context_t ctx, const nvte_tensor_t *const *gradients, int64_t count, uint64_t *bytes);

// Makes a list of gradients for nvte_grad_norm and nvte_grad_scale: checks them, and writes the table in stream order. Do it once, and
// again when one has moved (or nvte_list_gradients).
//
// Shapes: count gradients, f32, f16 or bf16 [rows, cols], rows side by side (ld = cols). Units: sizes and strides in elements. Pointers:
// structs and arrays are on the host and may go once the call has returned; gradients and list.data are on the device. Alignment: that of
// the element type, list.data 16 bytes. Aliasing: gradients must not overlap. Stream order: enqueued on stream, nothing waits; the
// contents travel as kernel arguments, so that it is safe to capture. With NVTE_STREAM_PREPARE the struct is written and the table is not.
// Determinism: not applicable.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_DTYPE,
// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_OVERLAP,
// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_grad_list(nvte_context_t ctx,
                             const nvte_tensor_t *const *gradients,
                             int64_t count,
                             nvte_list_t *list,
                             nvte_stream_t stream);

// The L2 norm of all gradients of a list, as one vector, in one launch; and what follows from it for the step: a factor, a flag.
//
// Shapes: those of the list. Units: none. Pointers: structs are on the host, all else on the device. Alignment: 4 bytes. Aliasing: results
// must not overlap each other or the list's memory. Stream order: enqueued on stream, nothing waits. Determinism: sums are f32 over some
// thousand elements and f64 beyond, in an order that depends on the list, the gradients' alignment and the device alone; no square
// overflows or vanishes, whatever the magnitudes. A NaN gives NaN, an infinity without a NaN infinity; a list of nothing gives 0.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_ENUM,
// NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_SIZE_OVERFLOW,
// NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_grad_norm(nvte_context_t ctx, const nvte_grad_norm_args_t *args, nvte_stream_t stream);

// Multiplies all gradients of a list, in place and in one launch, by a factor that lies on the device: in f32, rounded once. Where the
// factor is 1 nothing is read or written.
//
// Shapes: those of the list; factor: one f32. Units: none. Pointers: list is on the host, factor on the device. Alignment: 4 bytes.
// Aliasing: factor must not lie in the gradients. Stream order: enqueued on stream, nothing waits. Determinism: bit-exact on every
// back end.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_ENUM,
// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE,
// NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_grad_scale(nvte_context_t ctx, const nvte_list_t *list, const float *factor, nvte_stream_t stream);

// Describes a Linear layer: y = x W^T + b.
//
// Shapes: see nvte_layer_config_t. Units: features. Pointers: host. Alignment: natural. Aliasing: none. Stream order: none. Determinism: not
// applicable. Cheap; equal layers may share one handle.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED. On an error *layer is not written.
nvte_status_t nvte_linear_create(nvte_context_t ctx,
                                 const nvte_layer_config_t *config,
                                 nvte_layer_t *layer);

// Forward pass of a Linear layer: y = x W^T + b, casts included.
//
// Shapes: see the struct; any number of tokens and features. Units: sizes and strides in elements. Pointers: structs are on the host, all data
// on the device. Alignment: that of the element type (16 bytes for bases and row strides are faster); saved, workspace and the cache's data
// 16 bytes. Aliasing: outputs must not overlap inputs or each other. Stream order: enqueued on stream, nothing waits. Determinism: the same
// bits at each call with the same arguments.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_OVERLAP,
// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_NOT_CAPTURABLE,
// NVTE_ERROR_CUBLASLT.
nvte_status_t nvte_linear_fwd(nvte_layer_t layer,
                              const nvte_linear_fwd_args_t *args,
                              nvte_stream_t stream);

// Backward pass of a Linear layer: y = x W^T + b. Reads saved and never writes it.
//
// Shapes: see the struct. Units: as nvte_linear_fwd. Pointers: the same. Alignment: the same. Aliasing: the same. Stream order: the same.
// Determinism: the same.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_OVERLAP,
// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_NOT_CAPTURABLE,
// NVTE_ERROR_CUBLASLT.
nvte_status_t nvte_linear_bwd(nvte_layer_t layer,
                              const nvte_linear_bwd_args_t *args,
                              nvte_stream_t stream);

// Describes a norm and a Linear layer: y = norm(x) W^T + b.
//
// Shapes: see nvte_layer_config_t. Units: features. Pointers: host. Alignment: natural. Aliasing: none. Stream order: none. Determinism: not
// applicable. Cheap; equal layers may share one handle.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED. On an error *layer is not written.
nvte_status_t nvte_layernorm_linear_create(nvte_context_t ctx,
                                           const nvte_layer_config_t *config,
                                           nvte_layer_t *layer);

// Forward pass of a norm and a Linear layer: y = norm(x) W^T + b, casts included.
//
// Shapes: see the struct. Units: as nvte_linear_fwd. Pointers: the same. Alignment: the same. Aliasing: the same. Stream order: the same.
// Determinism: the same.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_OVERLAP,
// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_NOT_CAPTURABLE,
// NVTE_ERROR_CUBLASLT.
nvte_status_t nvte_layernorm_linear_fwd(nvte_layer_t layer,
                                        const nvte_layernorm_linear_fwd_args_t *args,
                                        nvte_stream_t stream);

// Backward pass of a norm and a Linear layer: y = norm(x) W^T + b. Reads saved and never writes it.
//
// Shapes: see the struct. Units: as nvte_linear_fwd. Pointers: the same. Alignment: the same. Aliasing: the same. Stream order: the same.
// Determinism: the same.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_OVERLAP,
// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_NOT_CAPTURABLE,
// NVTE_ERROR_CUBLASLT.
nvte_status_t nvte_layernorm_linear_bwd(nvte_layer_t layer,
                                        const nvte_layernorm_linear_bwd_args_t *args,
                                        nvte_stream_t stream);

// Describes a norm and an MLP: y = act(norm(x) W1^T + b1) W2^T + b2.
//
// Shapes: see nvte_layer_config_t. Units: features. Pointers: host. Alignment: natural. Aliasing: none. Stream order: none. Determinism: not
// applicable. Cheap; equal layers may share one handle.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED. On an error *layer is not written.
nvte_status_t nvte_layernorm_mlp_create(nvte_context_t ctx,
                                        const nvte_layer_config_t *config,
                                        nvte_layer_t *layer);

// Forward pass of a norm and an MLP: y = act(norm(x) W1^T + b1) W2^T + b2, casts included.
//
// Shapes: see the struct. Units: as nvte_linear_fwd. Pointers: the same. Alignment: the same. Aliasing: the same. Stream order: the same.
// Determinism: the same.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_OVERLAP,
// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_NOT_CAPTURABLE,
// NVTE_ERROR_CUBLASLT.
nvte_status_t nvte_layernorm_mlp_fwd(nvte_layer_t layer,
                                     const nvte_layernorm_mlp_fwd_args_t *args,
                                     nvte_stream_t stream);

// Backward pass of a norm and an MLP: y = act(norm(x) W1^T + b1) W2^T + b2. Reads saved and never writes it.
//
// Shapes: see the struct. Units: as nvte_linear_fwd. Pointers: the same. Alignment: the same. Aliasing: the same. Stream order: the same.
// Determinism: the same.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_OVERLAP,
// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_NOT_CAPTURABLE,
// NVTE_ERROR_CUBLASLT.
nvte_status_t nvte_layernorm_mlp_bwd(nvte_layer_t layer,
                                     const nvte_layernorm_mlp_bwd_args_t *args,
                                     nvte_stream_t stream);

// Sizes of the memory that calls with these flags need, and the number of scaling slots.
//
// Shapes: none. Units: bytes, per token and fixed. Pointers: sizes is on the host, its struct_size set. Alignment: natural. Aliasing: none.
// Stream order: none. Determinism: the same for one device and version of the library.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE.
nvte_status_t nvte_layer_sizes(nvte_layer_t layer, uint32_t flags, nvte_layer_sizes_t *sizes);

// Ends a layer's handle. NULL is accepted. Calls of other threads that use it finish.
//
// Shapes: none. Units: none. Pointers: host handle. Alignment: none. Aliasing: none. Stream order: none. Determinism: not applicable.
//
// Errors: NVTE_ERROR_INVALID_HANDLE for one already destroyed.
nvte_status_t nvte_layer_destroy(nvte_layer_t layer);

// Puts other gradients in place of those a list was made with, of the same types and sizes: what moves from step to step.
//
// Shapes: gradients: an array of count device addresses in the order of the list, count that of the list. Units: none. Pointers: the
// list and the array are on the host and may go once the call has returned; what they point to is on the device. Alignment: that of the
// element type. Aliasing: gradients must not overlap what the operation writes; not checked here.
// Stream order: enqueued on stream (8 bytes per tensor travel as kernel arguments), nothing waits; safe to capture.
// Determinism: not applicable.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_ENUM,
// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_SIZE_OVERFLOW,
// NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_list_gradients(nvte_context_t ctx,
                                  const nvte_list_t *list,
                                  const void *const *gradients,
                                  int64_t count,
                                  nvte_stream_t stream);

// Bytes of device memory that the table of a list of casts takes: 140 per tensor, and four per 128 x 128 elements.
//
// Shapes: those of count inputs. Units: bytes. Pointers: host; device addresses are not looked at. Alignment: natural. Aliasing: none.
// Stream order: none. Determinism: depends on shapes.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_SHAPE,
// NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_SIZE_OVERFLOW.
nvte_status_t nvte_cast_list_workspace(nvte_context_t ctx,
                                       const nvte_tensor_t *const *inputs,
                                       const nvte_tensor_t *const *outputs,
                                       int64_t count,
                                       uint64_t *bytes);

// Makes a list of casts for nvte_multi_cast_to_fp8: checks them, and writes the table in stream order. Do it once, and again when a tensor
// has moved.
//
// Shapes: count inputs f32, f16 or bf16 [rows, cols], each of its own shape; outputs E4M3 or E5M2 of the same, data, data_t or both.
// Units: sizes and strides in elements. Pointers: structs and arrays are on the host and may go once the call has returned; data, slots
// and list.data are on the device. Alignment: that of the element type, list.data 16 bytes; fastest where bases and row strides are
// multiples of 16 bytes. Aliasing: no output may overlap anything else in the list. Stream order: enqueued on stream, nothing waits;
// the contents travel as kernel arguments, so that it is safe to capture. With NVTE_STREAM_PREPARE the struct is written and the table is
// not. Determinism: not applicable.
//
// Errors: those of nvte_cast_to_fp8, and NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_SIZE_OVERFLOW.
nvte_status_t nvte_cast_list(nvte_context_t ctx,
                             const nvte_tensor_t *const *inputs,
                             const nvte_tensor_t *const *outputs,
                             int64_t count,
                             nvte_list_t *list,
                             nvte_stream_t stream);

// All casts of a list, with the bits of nvte_cast_to_fp8, in one launch; or, with current scaling, of nvte_cast_to_fp8_current, in two or three.
//
// Shapes: those of the list. Units: none. Pointers: structs are on the host, skip on the device. Alignment: 4 bytes. Aliasing: skip must not
// lie in an output. Stream order: enqueued on stream, nothing waits; scales are read, or made, on the device. Determinism: bit-exact on
// every back end.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_ENUM,
// NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_SIZE_OVERFLOW,
// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_multi_cast_to_fp8(nvte_context_t ctx,
                                     const nvte_multi_cast_args_t *args,
                                     nvte_stream_t stream);

// LayerNorm, row by row: y = (x - mean) * rsigma * weight + beta, with rsigma = 1/sqrt(var + eps). With args->residual, x stands for
// x + residual, rounded to x's type and written to args->sum.
//
// Shapes: x, residual, sum and y [rows, hidden], any rows and hidden; gamma and beta [1, hidden]; mu and rsigma [rows]. Units: sizes and strides in
// elements. Pointers: structs are on the host, data, slots, mu and rsigma on the device. Alignment: that of the element type (multiples
// of 16 bytes for base and row stride are faster). Aliasing: outputs must not overlap inputs or each other. Stream order: enqueued on
// stream, nothing waits. Determinism: two calls on one device give the same bits; back ends agree within 2 units of the last place of y.
// Statistics are f32 with a two-pass variance. Nothing is rounded before y: with an FP8 y the codes are encode(y * scale) of the f32 y,
// its amax is recorded as a maximum in y.amax, and 1/scale written to y.scale_inv, where those are not NULL.
// A row that holds NaN or infinity spoils that row of y only.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE,
// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED,
// NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_UNSUPPORTED (slots or data_t with a y that is not FP8), NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_layernorm_fwd(nvte_context_t ctx,
                                 const nvte_norm_fwd_args_t *args,
                                 nvte_stream_t stream);

// RMSNorm, row by row: y = x * rsigma * weight, with rsigma = 1/sqrt(mean(x^2) + eps). beta and mu must be NULL. args->residual: as for
// nvte_layernorm_fwd.
//
// Shapes: as nvte_layernorm_fwd. Units: the same. Pointers: the same. Alignment: the same. Aliasing: the same. Stream order: the same.
// Determinism: the same.
//
// Errors: as nvte_layernorm_fwd; NVTE_ERROR_UNSUPPORTED also for beta or mu.
nvte_status_t nvte_rmsnorm_fwd(nvte_context_t ctx, const nvte_norm_fwd_args_t *args, nvte_stream_t stream);

// Bytes of workspace for nvte_layernorm_bwd and nvte_rmsnorm_bwd where dgamma or dbeta is wanted. Does not depend on the number of rows.
//
// Shapes: hidden >= 0. Units: bytes. Pointers: bytes is on the host. Alignment: natural. Aliasing: none. Stream order: none.
// Determinism: the same for one device and version of the library.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_SIZE_OVERFLOW.
nvte_status_t nvte_norm_bwd_workspace(nvte_context_t ctx, int64_t hidden, uint64_t *bytes);

// Gradients of nvte_layernorm_fwd. With xhat = (x - mu) * rsigma and g = dy * weight:
// dx = (g - xhat * mean(g * xhat) - mean(g)) * rsigma, plus args->dsum where that is given, rounded once; over all rows
// dgamma = sum(dy * xhat) and dbeta = sum(dy).
//
// Shapes: dy, x, dsum and dx [rows, hidden], any rows and hidden; gamma, dgamma and dbeta [1, hidden]; mu and rsigma [rows]. Units: sizes and
// strides in elements. Pointers: structs are on the host, all data on the device. Alignment: that of the element type (one type for dy, x,
// dsum and dx, and multiples of 16 bytes for base and row stride are faster); workspace 16 bytes. Aliasing: outputs and workspace must not
// overlap inputs or each other. Stream order: enqueued on stream, nothing waits. Determinism: two calls on one device give the same
// bits: sums in f32 in a fixed order, no atomics.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE,
// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_OVERLAP,
// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_layernorm_bwd(nvte_context_t ctx,
                                 const nvte_norm_bwd_args_t *args,
                                 nvte_stream_t stream);

// Gradients of nvte_rmsnorm_fwd. With xhat = x * rsigma and g = dy * weight: dx = (g - xhat * mean(g * xhat)) * rsigma; over all rows
// dgamma = sum(dy * xhat). mu and dbeta must be NULL. args->dsum: as for nvte_layernorm_bwd.
//
// Shapes: as nvte_layernorm_bwd. Units: the same. Pointers: the same. Alignment: the same. Aliasing: the same. Stream order: the same.
// Determinism: the same.
//
// Errors: as nvte_layernorm_bwd; NVTE_ERROR_UNSUPPORTED for mu or dbeta.
nvte_status_t nvte_rmsnorm_bwd(nvte_context_t ctx, const nvte_norm_bwd_args_t *args, nvte_stream_t stream);

// The table of a rotary position embedding, on the host: the angle of pair i at position t is t * base^(-2i / rotary_dim).
//
// Row r is position start + r. Copy it to the device for a CUDA context.
//
// Shapes: cos and sin [rows, rotary_dim / 2], dense; rotary_dim even. Units: none. Pointers: host. Alignment: 4 bytes. Aliasing: cos and
// sin must not overlap. Stream order: none. Determinism: angles are formed in f64 and rounded once.
//
// Errors: NVTE_ERROR_NULL_POINTER, NVTE_ERROR_MISALIGNED, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_OVERLAP,
// NVTE_ERROR_SIZE_OVERFLOW.
nvte_status_t nvte_rope_table(int64_t start, int64_t rows, int64_t rotary_dim, double base, float *cos, float *sin);

// Rotary position embedding: a pair (a, b) of a head becomes (a cos - b sin, b cos + a sin), with the angle of its place in the head and
// of its token's position. What lies behind rotary_dim is copied.
//
// Shapes: x and y [seq, batch, heads, head_dim] by their strides, which serve every layout: sbhd, bshd, bhsd, and thd with cu_seqlens.
// Units: strides in elements. Pointers: structs are on the host, data, table and positions on the device. Alignment: that of the element
// type (multiples of 16 bytes for bases and strides, a rotary_dim of a multiple of 16 elements and a head_dim of 8 are faster). Aliasing: y
// may be x, with the same strides; otherwise it must not overlap an input, nor itself. Stream order: enqueued on stream, nothing waits.
// Determinism: the same bits on every back end: f32, each product and the sum rounded, then one rounding to the type of y.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE,
// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED,
// NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_UNSUPPORTED (reserved fields), NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_rope_fwd(nvte_context_t ctx, const nvte_rope_args_t *args, nvte_stream_t stream);

// The gradient of nvte_rope_fwd: the same with the opposite angle. x is the gradient of the output, y that of the input.
//
// Shapes: as nvte_rope_fwd. Units: the same. Pointers: the same. Alignment: the same. Aliasing: the same. Stream order: the same.
// Determinism: the same.
//
// Errors: as nvte_rope_fwd.
nvte_status_t nvte_rope_bwd(nvte_context_t ctx, const nvte_rope_args_t *args, nvte_stream_t stream);

// Splits packed QKV into q, k and v, and rotates q and k as nvte_rope_fwd does: each element is read once and written once.
//
// Shapes: qkv [seq, batch, (q_heads + 2 kv_heads) * head_dim], q [seq, batch, q_heads, head_dim], k and v [seq, batch, kv_heads, head_dim],
// tokens by their strides. Units: strides in elements. Pointers: structs are on the host, data, table and positions on the device.
// Alignment: as nvte_rope_fwd. Aliasing: outputs must not overlap inputs, each other or themselves. Stream order: enqueued on stream,
// nothing waits. Determinism: as nvte_rope_fwd.
//
// Errors: as nvte_rope_fwd.
nvte_status_t nvte_rope_qkv_fwd(nvte_context_t ctx, const nvte_rope_qkv_args_t *args, nvte_stream_t stream);

// The gradient of nvte_rope_qkv_fwd: from those of q, k and v, which are read, to that of qkv, which is written.
//
// Shapes: as nvte_rope_qkv_fwd. Units: the same. Pointers: the same. Alignment: the same. Aliasing: qkv must not overlap q, k, v or itself;
// those may share memory. Stream order: the same. Determinism: the same.
//
// Errors: as nvte_rope_fwd.
nvte_status_t nvte_rope_qkv_bwd(nvte_context_t ctx, const nvte_rope_qkv_args_t *args, nvte_stream_t stream);

// Ends a period for all slots in one launch: rolls the amax histories and makes the new scales (section 4 above).
//
// Shapes: arrays over slots, history of slots x (history_len - 1). Units: strides in elements. Pointers: the struct is on the host, the
// arrays on the device. Alignment: 4 bytes. Aliasing: arrays must not overlap, nor elements of the history. Stream order: enqueued on
// stream, nothing waits; the interval counter advances on the device, so a captured graph may be replayed.
// Determinism: bit-exact on every back end. With no slots nothing happens, to the counter neither.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE,
// NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_OVERLAP,
// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_scaling_update(nvte_context_t ctx, const nvte_scaling_update_args_t *args, nvte_stream_t stream);

// y = softmax(scale * x), row by row. A hidden element counts as -infinity.
//
// Shapes: x and y [rows, cols], any rows and cols; mask [batches, heads, queries, cols] by its strides. Units: sizes and strides in elements,
// those of the mask in bytes. Pointers: structs are on the host, data and mask on the device. Alignment: that of the element type
// (x and y whose rows begin at the same offset from 16 bytes are faster). Aliasing: y may be x, exactly; it must not overlap x otherwise,
// nor the mask. Stream order: enqueued on stream, nothing waits. Determinism: the same bits every time on one back end. A row whose
// visible elements are all -infinity, or that has none, is 0. NaN or +infinity that is visible makes its row NaN; hidden ones do nothing. With
// causal, what is hidden by it is not read.
//
// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE,
// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED,
// NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_NOT_CAPTURABLE.
nvte_status_t nvte_softmax_fwd(nvte_context_t ctx,
                               const nvte_softmax_fwd_args_t *args,
                               nvte_stream_t stream);

// The gradient of nvte_softmax_fwd: dx = scale * y * (dy - sum(y * dy)), row by row. It needs no mask: what was hidden is 0 in y.
//
// Shapes: dy, y and dx [rows, cols], any rows and cols. Units: sizes and strides in elements. Pointers: structs are on the host, data on
// the device. Alignment: that of the element type (rows that begin at the same offset from 16 bytes are faster). Aliasing: dx may be dy,
// exactly; it must not overlap dy otherwise, nor y. Stream order: enqueued on stream, nothing waits. Determinism: the same bits every time
// on one back end. With causal, what is hidden by it is written as 0 and not read.
//
// Errors: those of nvte_softmax_fwd.
nvte_status_t nvte_softmax_bwd(nvte_context_t ctx, const nvte_softmax_bwd_args_t *args, nvte_stream_t stream);

// Every function of this library, as returned by nvte_api. Entries are only appended: where struct_size ends before an entry, the
// library is older than this header and has no such function.
struct nvte_api_t {
  // sizeof(nvte_api_t) of the library.
  uint32_t struct_size;
  // 0.
  uint32_t reserved;
  const char *(*version)(void);
  uint32_t (*abi_version)(void);
  const char *(*status_name)(nvte_status_t status);
  const char *(*last_error)(void);
  int32_t (*last_error_code)(void);
  nvte_status_t (*set_log)(nvte_log_fn log, void *user);
  nvte_status_t (*info)(nvte_context_t ctx, char *buffer, size_t size, size_t *needed);
  nvte_status_t (*context_create)(int32_t device_type, int32_t ordinal, const nvte_context_options_t *options, nvte_context_t *context);
  nvte_status_t (*context_destroy)(nvte_context_t context);
  nvte_status_t (*context_trim)(nvte_context_t context);
  nvte_status_t (*context_synchronize)(nvte_context_t context, nvte_stream_t stream);
  nvte_status_t (*capability)(nvte_context_t ctx, nvte_capability_t *capability);
  nvte_status_t (*cast_to_fp8)(nvte_context_t ctx, const nvte_tensor_t *input, const nvte_tensor_t *output, nvte_stream_t stream);
  nvte_status_t (*cast_to_fp8_current_workspace)(nvte_context_t ctx, uint64_t *bytes);
  nvte_status_t (*cast_to_fp8_current)(nvte_context_t ctx, const nvte_cast_current_args_t *args, nvte_stream_t stream);
  nvte_status_t (*cast_dbias_workspace)(nvte_context_t ctx, int64_t rows, int64_t cols, uint64_t *bytes);
  nvte_status_t (*cast_dbias)(nvte_context_t ctx, const nvte_cast_dbias_args_t *args, nvte_stream_t stream);
  nvte_status_t (*amax)(nvte_context_t ctx, const nvte_tensor_t *input, float *amax, nvte_stream_t stream);
  nvte_status_t (*dequantize)(nvte_context_t ctx, const nvte_tensor_t *input, const nvte_tensor_t *output, nvte_stream_t stream);
  nvte_status_t (*fp8_transpose)(nvte_context_t ctx, const nvte_tensor_t *input, const nvte_tensor_t *output, nvte_stream_t stream);
  nvte_status_t (*scaling_update)(nvte_context_t ctx, const nvte_scaling_update_args_t *args, nvte_stream_t stream);
  nvte_status_t (*gemm_workspace)(nvte_context_t ctx, const nvte_gemm_args_t *args, uint64_t *bytes);
  nvte_status_t (*fp8_gemm)(nvte_context_t ctx, const nvte_gemm_args_t *args, nvte_stream_t stream);
  nvte_status_t (*gemm)(nvte_context_t ctx, const nvte_gemm_args_t *args, nvte_stream_t stream);
  nvte_status_t (*gemm_prepare)(nvte_context_t ctx, const nvte_gemm_args_t *args, uint32_t candidates, nvte_stream_t stream);
  nvte_status_t (*gemm_plans_export)(nvte_context_t ctx, char *buffer, size_t size, size_t *needed);
  nvte_status_t (*gemm_plans_import)(nvte_context_t ctx, const char *text);
  nvte_status_t (*layernorm_fwd)(nvte_context_t ctx, const nvte_norm_fwd_args_t *args, nvte_stream_t stream);
  nvte_status_t (*layernorm_bwd)(nvte_context_t ctx, const nvte_norm_bwd_args_t *args, nvte_stream_t stream);
  nvte_status_t (*rmsnorm_fwd)(nvte_context_t ctx, const nvte_norm_fwd_args_t *args, nvte_stream_t stream);
  nvte_status_t (*rmsnorm_bwd)(nvte_context_t ctx, const nvte_norm_bwd_args_t *args, nvte_stream_t stream);
  nvte_status_t (*norm_bwd_workspace)(nvte_context_t ctx, int64_t hidden, uint64_t *bytes);
  nvte_status_t (*activation_fwd)(nvte_context_t ctx, int32_t kind, const nvte_tensor_t *input, const nvte_tensor_t *output, nvte_stream_t stream);
  nvte_status_t (*activation_bwd_workspace)(nvte_context_t ctx, int32_t kind, int64_t rows, int64_t hidden, uint64_t *bytes);
  nvte_status_t (*activation_bwd)(nvte_context_t ctx, const nvte_activation_bwd_args_t *args, nvte_stream_t stream);
  nvte_status_t (*linear_create)(nvte_context_t ctx, const nvte_layer_config_t *config, nvte_layer_t *layer);
  nvte_status_t (*linear_fwd)(nvte_layer_t layer, const nvte_linear_fwd_args_t *args, nvte_stream_t stream);
  nvte_status_t (*linear_bwd)(nvte_layer_t layer, const nvte_linear_bwd_args_t *args, nvte_stream_t stream);
  nvte_status_t (*layernorm_linear_create)(nvte_context_t ctx, const nvte_layer_config_t *config, nvte_layer_t *layer);
  nvte_status_t (*layernorm_linear_fwd)(nvte_layer_t layer, const nvte_layernorm_linear_fwd_args_t *args, nvte_stream_t stream);
  nvte_status_t (*layernorm_linear_bwd)(nvte_layer_t layer, const nvte_layernorm_linear_bwd_args_t *args, nvte_stream_t stream);
  nvte_status_t (*layernorm_mlp_create)(nvte_context_t ctx, const nvte_layer_config_t *config, nvte_layer_t *layer);
  nvte_status_t (*layernorm_mlp_fwd)(nvte_layer_t layer, const nvte_layernorm_mlp_fwd_args_t *args, nvte_stream_t stream);
  nvte_status_t (*layernorm_mlp_bwd)(nvte_layer_t layer, const nvte_layernorm_mlp_bwd_args_t *args, nvte_stream_t stream);
  nvte_status_t (*layer_sizes)(nvte_layer_t layer, uint32_t flags, nvte_layer_sizes_t *sizes);
  nvte_status_t (*layer_destroy)(nvte_layer_t layer);
  nvte_status_t (*softmax_fwd)(nvte_context_t ctx, const nvte_softmax_fwd_args_t *args, nvte_stream_t stream);
  nvte_status_t (*softmax_bwd)(nvte_context_t ctx, const nvte_softmax_bwd_args_t *args, nvte_stream_t stream);
  nvte_status_t (*rope_table)(int64_t start, int64_t rows, int64_t rotary_dim, double base, float *cos, float *sin);
  nvte_status_t (*rope_fwd)(nvte_context_t ctx, const nvte_rope_args_t *args, nvte_stream_t stream);
  nvte_status_t (*rope_bwd)(nvte_context_t ctx, const nvte_rope_args_t *args, nvte_stream_t stream);
  nvte_status_t (*rope_qkv_fwd)(nvte_context_t ctx, const nvte_rope_qkv_args_t *args, nvte_stream_t stream);
  nvte_status_t (*rope_qkv_bwd)(nvte_context_t ctx, const nvte_rope_qkv_args_t *args, nvte_stream_t stream);
  nvte_status_t (*list_gradients)(nvte_context_t ctx, const nvte_list_t *list, const void *const *gradients, int64_t count, nvte_stream_t stream);
  nvte_status_t (*adamw_list_workspace)(nvte_context_t ctx, const nvte_adamw_list_args_t *args, uint64_t *bytes);
  nvte_status_t (*adamw_list)(nvte_context_t ctx, const nvte_adamw_list_args_t *args, nvte_list_t *list, nvte_stream_t stream);
  nvte_status_t (*adamw)(nvte_context_t ctx, const nvte_adamw_args_t *args, nvte_stream_t stream);
  nvte_status_t (*grad_list_workspace)(nvte_context_t ctx, const nvte_tensor_t *const *gradients, int64_t count, uint64_t *bytes);
  nvte_status_t (*grad_list)(nvte_context_t ctx, const nvte_tensor_t *const *gradients, int64_t count, nvte_list_t *list, nvte_stream_t stream);
  nvte_status_t (*grad_norm)(nvte_context_t ctx, const nvte_grad_norm_args_t *args, nvte_stream_t stream);
  nvte_status_t (*grad_scale)(nvte_context_t ctx, const nvte_list_t *list, const float *factor, nvte_stream_t stream);
  nvte_status_t (*cross_entropy_workspace)(nvte_context_t ctx, int64_t tokens, uint64_t *bytes);
  nvte_status_t (*cross_entropy)(nvte_context_t ctx, const nvte_cross_entropy_args_t *args, nvte_stream_t stream);
  nvte_status_t (*cross_entropy_partial)(nvte_context_t ctx, const nvte_cross_entropy_slice_args_t *args, nvte_stream_t stream);
  nvte_status_t (*cross_entropy_combine)(nvte_context_t ctx, const nvte_cross_entropy_combine_args_t *args, nvte_stream_t stream);
  nvte_status_t (*cross_entropy_gradient)(nvte_context_t ctx, const nvte_cross_entropy_slice_args_t *args, nvte_stream_t stream);
  nvte_status_t (*scale_rows)(nvte_context_t ctx, const float *scale, int64_t stride, const nvte_tensor_t *x, nvte_stream_t stream);
  nvte_status_t (*dropout_fwd)(nvte_context_t ctx, const nvte_dropout_fwd_args_t *args, nvte_stream_t stream);
  nvte_status_t (*dropout_bwd_workspace)(nvte_context_t ctx, int64_t rows, int64_t cols, uint64_t *bytes);
  nvte_status_t (*dropout_bwd)(nvte_context_t ctx, const nvte_dropout_bwd_args_t *args, nvte_stream_t stream);
  nvte_status_t (*cast_list_workspace)(nvte_context_t ctx, const nvte_tensor_t *const *inputs, const nvte_tensor_t *const *outputs, int64_t count, uint64_t *bytes);
  nvte_status_t (*cast_list)(nvte_context_t ctx, const nvte_tensor_t *const *inputs, const nvte_tensor_t *const *outputs, int64_t count, nvte_list_t *list, nvte_stream_t stream);
  nvte_status_t (*multi_cast_to_fp8)(nvte_context_t ctx, const nvte_multi_cast_args_t *args, nvte_stream_t stream);
};

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_H */
