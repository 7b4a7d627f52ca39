//! The delayed-scaling update.

use super::{
    context::context,
    guard::guard,
    types::{flag, nvte_context_t, nvte_status_t, nvte_stream_t, read_struct, stream},
};
use crate::{
    error::{Error, Status},
    numerics::AmaxComputeAlgo,
    ops::scaling::{self, ScalingUpdateArgs},
    tensor::Ptr,
};

/// The amax of a period is the largest of its window.
pub const NVTE_AMAX_MAX: i32 = 0;
/// The amax of a period is the newest.
pub const NVTE_AMAX_MOST_RECENT: i32 = 1;

/// Arguments of nvte_scaling_update: the caller's arrays over `slots` slots. Zero-initialise it and set struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_scaling_update_args_t {
    /// sizeof(nvte_scaling_update_args_t).
    pub struct_size: u32,
    /// NVTE_AMAX_MAX or NVTE_AMAX_MOST_RECENT.
    pub algo: i32,
    /// Number of slots.
    pub slots: i64,
    /// Window length L, the live amax included; at least 1.
    pub history_len: i64,
    /// [slots]: amaxes recorded in the period that ends; read, and set to 0 where they were taken.
    pub live: *mut f32,
    /// [slots]: scales, read and written. They start at 1.
    pub scale: *mut f32,
    /// The L - 1 older amaxes of slot i, j = 0 the oldest: history[i * slot_stride + j * step_stride]. They start at 0. Unused if L is 1.
    pub history: *mut f32,
    /// Elements between slots.
    pub slot_stride: i64,
    /// Elements between steps.
    pub step_stride: i64,
    /// [slots]: largest finite value of each slot's format (448 or 57344).
    pub format_max: *const f32,
    /// [slots]: counts the periods dropped because their amax was not finite; NULL: not counted.
    pub nonfinite: *mut u32,
    /// [slots]: receives 1/scale, for information; NULL: not written.
    pub scale_inv: *mut f32,
    /// One word that starts at 0: updates since scales last changed. May be NULL if interval is 1.
    pub counter: *mut u32,
    /// Scales change at every interval-th update; 1 to 2^20.
    pub interval: u32,
    /// Scales are divided by 2^margin; -64 to 64.
    pub margin: i32,
    /// Floor of the amax; finite, not negative.
    pub epsilon: f32,
    /// 1: scales are rounded down to powers of two. Else 0.
    pub power_of_two: i32,
}

/// Ends a period for all slots in one launch: rolls the amax histories and makes the new scales (section 4 above).
///
/// Shapes: arrays over slots, history of slots x (history_len - 1). Units: strides in elements. Pointers: the struct is on the host, the
/// arrays on the device. Alignment: 4 bytes. Aliasing: arrays must not overlap, nor elements of the history. Stream order: enqueued on
/// `stream`, nothing waits; the interval counter advances on the device, so a captured graph may be replayed.
/// Determinism: bit-exact on every back end. With no slots nothing happens, to the counter neither.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE,
/// NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_OVERLAP,
/// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// The struct is sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_scaling_update(
    ctx: nvte_context_t,
    args: *const nvte_scaling_update_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract, here and below.
        let a = unsafe { read_struct("args", args, std::mem::size_of::<nvte_scaling_update_args_t>())? };
        let args = ScalingUpdateArgs {
            slots: a.slots,
            live: Ptr::from(a.live),
            scale: Ptr::from(a.scale),
            history: Ptr::from(a.history),
            slot_stride: a.slot_stride,
            step_stride: a.step_stride,
            history_len: a.history_len,
            format_max: Ptr::from(a.format_max),
            nonfinite: Ptr::from(a.nonfinite),
            scale_inv: Ptr::from(a.scale_inv),
            counter: Ptr::from(a.counter),
            interval: a.interval,
            margin: a.margin,
            epsilon: a.epsilon,
            power_of_two: flag("power_of_two", a.power_of_two)?,
            algo: match a.algo {
                NVTE_AMAX_MAX => AmaxComputeAlgo::Max,
                NVTE_AMAX_MOST_RECENT => AmaxComputeAlgo::MostRecent,
                other => return Err(Error::argument(Status::InvalidEnum, "algo", other, "must be 0 (max) or 1 (most recent)")),
            },
        };
        // SAFETY: as above.
        unsafe { scaling::scaling_update(&ctx, &args, stream(stream_)) }
    })
}
