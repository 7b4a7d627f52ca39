//! Lists of tensors: what the operations that take any number of them share.

use std::{ffi::c_void, mem};

use super::{
    context::context,
    guard::guard,
    types::{nvte_context_t, nvte_status_t, nvte_stream_t, nvte_tensor_t, optional, read_struct, stream, tensor},
};
use crate::{
    error::{Error, Result, Status},
    ops::list::{self, ListKind, TensorList},
    tensor::{Ptr, TensorView},
};

/// A list of tensors, in two parts: this struct on the host, and a table in device memory of yours that `data` points to.
///
/// Set struct_size, data and bytes and hand it to the function that makes the list (nvte_adamw_list, nvte_grad_list, nvte_cast_list): it writes the other
/// fields here, and the table in stream order. The operation then takes the struct as it is. The table holds the tensors' addresses, so it
/// serves as long as these stay; gradients can be exchanged (nvte_list_gradients). One list is used by one stream at a time. It owns
/// nothing: there is nothing to destroy.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_list_t {
    /// sizeof(nvte_list_t).
    pub struct_size: u32,
    /// Written: which operation it is for.
    pub kind: i32,
    /// Device memory, 16-byte aligned, of `bytes`.
    pub data: *mut c_void,
    /// Its size, at least what the workspace query says.
    pub bytes: u64,
    /// Written: number of tensors.
    pub count: i64,
    /// Written: blocks of work.
    pub blocks: u64,
    /// Written: blocks of work that write FP8 codes; of a list of casts, those of its largest tensor.
    pub tiles: u64,
}

/// # Safety
/// As [`read_struct`].
pub(crate) unsafe fn read_list(p: *const nvte_list_t) -> Result<TensorList> {
    // SAFETY: forwarded contract.
    let l = unsafe { read_struct("list", p, mem::size_of::<nvte_list_t>())? };
    let kind = ListKind::from_i32("list.kind", l.kind)?;
    Ok(TensorList { kind, data: Ptr::from(l.data), bytes: l.bytes, count: l.count, blocks: [l.blocks, l.tiles] })
}

/// Where the table of a list that is to be made goes.
///
/// # Safety
/// As [`read_struct`].
pub(crate) unsafe fn list_memory(p: *const nvte_list_t) -> Result<(Ptr, u64)> {
    // SAFETY: forwarded contract.
    let l = unsafe { read_struct("list", p, mem::size_of::<nvte_list_t>())? };
    Ok((Ptr::from(l.data), l.bytes))
}

/// # Safety
/// `p` was read by [`list_memory`] and is writable.
pub(crate) unsafe fn write_list(p: *mut nvte_list_t, made: &TensorList) {
    // SAFETY: by contract.
    let l = unsafe { &mut *p };
    (l.kind, l.count) = (made.kind as i32, made.count);
    [l.blocks, l.tiles] = made.blocks;
}

/// The number of tensors of a list.
pub(crate) fn length(count: i64) -> Result<usize> {
    let n = usize::try_from(count).map_err(|_| Error::argument(Status::InvalidShape, "count", count, "must not be negative"))?;
    // Before arrays of that length are looked at.
    list::count(n)?;
    Ok(n)
}

/// An array of `count` addresses; NULL only where there are none.
///
/// # Safety
/// Null, or `count` addresses.
pub(crate) unsafe fn addresses<'a, T>(name: &str, p: *const *const T, count: usize) -> Result<&'a [*const T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if p.is_null() {
        return Err(Error::argument(Status::NullPointer, name, "NULL", "is required"));
    }
    if p as usize % mem::align_of::<*const T>() != 0 {
        return Err(Error::argument(Status::Misaligned, name, format!("{p:?}"), "must be a multiple of 8 bytes"));
    }
    // SAFETY: by contract.
    Ok(unsafe { std::slice::from_raw_parts(p, count) })
}

/// The `count` tensors of an array.
///
/// # Safety
/// As [`addresses`], and each is null or a sized struct.
pub(crate) unsafe fn tensors(name: &str, p: *const *const nvte_tensor_t, count: usize) -> Result<Vec<TensorView>> {
    // SAFETY: forwarded contract.
    let all = unsafe { addresses(name, p, count)? };
    // SAFETY: as above.
    all.iter().enumerate().map(|(i, t)| unsafe { tensor(&format!("{name}[{i}]"), *t) }).collect()
}

/// Likewise where the array, or any of its tensors, may be NULL.
///
/// # Safety
/// As [`tensors`].
pub(crate) unsafe fn optional_tensors(name: &str, p: *const *const nvte_tensor_t, count: usize) -> Result<Vec<Option<TensorView>>> {
    if p.is_null() {
        return Ok(vec![None; count]);
    }
    // SAFETY: forwarded contract.
    let all = unsafe { addresses(name, p, count)? };
    // SAFETY: as above.
    all.iter().enumerate().map(|(i, t)| unsafe { optional(&format!("{name}[{i}]"), *t) }).collect()
}

/// Puts other gradients in place of those a list was made with, of the same types and sizes: what moves from step to step.
///
/// Shapes: gradients: an array of `count` device addresses in the order of the list, count that of the list. Units: none. Pointers: the
/// list and the array are on the host and may go once the call has returned; what they point to is on the device. Alignment: that of the
/// element type. Aliasing: gradients must not overlap what the operation writes; not checked here.
/// Stream order: enqueued on `stream` (8 bytes per tensor travel as kernel arguments), nothing waits; safe to capture.
/// Determinism: not applicable.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_ENUM,
/// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_SIZE_OVERFLOW,
/// NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// The struct is sized and live, the array holds `count` addresses; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_list_gradients(
    ctx: nvte_context_t,
    list: *const nvte_list_t,
    gradients: *const *const c_void,
    count: i64,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe {
            let list = read_list(list)?;
            let gradients: Vec<Ptr> = addresses("gradients", gradients, length(count)?)?.iter().map(|p| Ptr::from(*p)).collect();
            list::list_gradients(&ctx, &list, &gradients, stream(stream_))
        }
    })
}
