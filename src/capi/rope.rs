//! Rotary position embedding, alone and fused with the split of packed QKV.

use std::{ffi::c_void, mem};

use super::{
    context::context,
    guard::guard,
    types::{flag, nvte_context_t, nvte_status_t, nvte_stream_t, read_struct, reserved, stream},
};
use crate::{
    error::{Error, Result, Status},
    ops::rope::{self, Heads, Places, QkvOrder, RopeArgs, RopeQkvArgs, Rotation},
    tensor::{DType, Ptr},
};

/// A row of packed QKV holds all query heads, then all key heads, then all value heads.
pub const NVTE_QKV_CONCATENATED: i32 = 0;
/// A row of packed QKV holds, for each key head, the query heads that share it, the key head and its value head.
pub const NVTE_QKV_GROUPED: i32 = 1;

/// The angles of a rotary position embedding: which elements make a pair, the table, and the position of each token.
///
/// A token's row of the table is start + place + start_positions[sequence]; one outside the table gives NaN. Zero-initialise it and set
/// struct_size, rotary_dim, cos, sin, table_rows and table_ld; the rest may stay 0.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_rope_angles_t {
    /// sizeof(nvte_rope_angles_t).
    pub struct_size: u32,
    /// 0: the pairs of a head are (i, i + rotary_dim / 2), as in GPT-NeoX; 1: (2i, 2i + 1), as in GPT-J.
    pub interleaved: i32,
    /// Elements of a head that are rotated, from its first on; the others are copied. Even, at most head_dim.
    pub rotary_dim: i64,
    /// Device, f32 [table_rows, rotary_dim / 2]: cosine of the angle of pair i at each position.
    pub cos: *const f32,
    /// Likewise: sines.
    pub sin: *const f32,
    /// Positions in the table.
    pub table_rows: i64,
    /// Row stride of both tables, in elements.
    pub table_ld: i64,
    /// Added to every position.
    pub start: i64,
    /// Device: the place of each token, int32_t or int64_t; NULL: its number within its sequence.
    pub positions: *const c_void,
    /// 1: positions are int64_t; 0: int32_t.
    pub positions_i64: i32,
    /// 0.
    pub reserved: u32,
    /// Elements of positions from one token of a sequence to the next.
    pub positions_seq_stride: i64,
    /// Elements of positions from one sequence of the batch to the next; 0: all share theirs.
    pub positions_batch_stride: i64,
    /// Device, int32_t [batch], with cu_seqlens [sequences]: added to the positions of a sequence; NULL: 0.
    pub start_positions: *const i32,
    /// Device, int32_t [sequences + 1], ascending: where each of the sequences packed along seq begins, and where the last one ends; batch is
    /// then 1. Tokens of no sequence are copied. NULL: sequences are not packed.
    pub cu_seqlens: *const i32,
    /// Sequences of cu_seqlens.
    pub sequences: i64,
}

/// Arguments of nvte_rope_fwd and nvte_rope_bwd. Strides are in elements; those of a head lie side by side.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_rope_args_t {
    /// sizeof(nvte_rope_args_t).
    pub struct_size: u32,
    /// NVTE_F32, NVTE_F16 or NVTE_BF16: of x and y.
    pub dtype: i32,
    /// Tokens of a sequence; of all sequences where they are packed.
    pub seq: i64,
    /// Sequences of this length.
    pub batch: i64,
    /// Heads of a token.
    pub heads: i64,
    /// Elements of a head.
    pub head_dim: i64,
    /// Device: input; backward: gradient of the output.
    pub x: *const c_void,
    /// From token to token of a sequence of x.
    pub x_seq_stride: i64,
    /// From sequence to sequence of x.
    pub x_batch_stride: i64,
    /// From head to head of x.
    pub x_head_stride: i64,
    /// Device: output; backward: gradient of the input. It may be x itself: same address, same strides.
    pub y: *mut c_void,
    /// From token to token of a sequence of y.
    pub y_seq_stride: i64,
    /// From sequence to sequence of y.
    pub y_batch_stride: i64,
    /// From head to head of y.
    pub y_head_stride: i64,
    /// Pairs, table, positions.
    pub angles: *const nvte_rope_angles_t,
}

/// Arguments of nvte_rope_qkv_fwd and nvte_rope_qkv_bwd. Strides are in elements; the heads of a token lie side by side.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_rope_qkv_args_t {
    /// sizeof(nvte_rope_qkv_args_t).
    pub struct_size: u32,
    /// NVTE_F32, NVTE_F16 or NVTE_BF16: of all tensors.
    pub dtype: i32,
    /// NVTE_QKV_CONCATENATED or NVTE_QKV_GROUPED.
    pub order: i32,
    /// 0.
    pub reserved: u32,
    /// Tokens of a sequence; of all sequences where they are packed.
    pub seq: i64,
    /// Sequences of this length.
    pub batch: i64,
    /// Query heads; grouped: a multiple of kv_heads.
    pub q_heads: i64,
    /// Key heads, and value heads.
    pub kv_heads: i64,
    /// Elements of a head.
    pub head_dim: i64,
    /// Device: packed QKV. Read by the forward pass, written by the backward pass.
    pub qkv: *mut c_void,
    /// From token to token of a sequence of qkv.
    pub qkv_seq_stride: i64,
    /// From sequence to sequence of qkv.
    pub qkv_batch_stride: i64,
    /// Device: queries, rotated. Written by the forward pass, read by the backward pass, as are k and v.
    pub q: *mut c_void,
    /// From token to token of a sequence of q.
    pub q_seq_stride: i64,
    /// From sequence to sequence of q.
    pub q_batch_stride: i64,
    /// Device: keys, rotated.
    pub k: *mut c_void,
    /// Device: values, copied.
    pub v: *mut c_void,
    /// From token to token of a sequence of k, and of v.
    pub kv_seq_stride: i64,
    /// From sequence to sequence of k, and of v.
    pub kv_batch_stride: i64,
    /// Pairs, table, positions.
    pub angles: *const nvte_rope_angles_t,
}

/// # Safety
/// As [`read_struct`].
unsafe fn angles(p: *const nvte_rope_angles_t) -> Result<(Rotation, Places)> {
    // SAFETY: forwarded contract.
    let a = unsafe { read_struct("angles", p, mem::size_of::<nvte_rope_angles_t>())? };
    reserved("angles.reserved", a.reserved)?;
    let rotation = Rotation {
        interleaved: flag("interleaved", a.interleaved)?,
        rotary_dim: a.rotary_dim,
        cos: Ptr::from(a.cos),
        sin: Ptr::from(a.sin),
        table_rows: a.table_rows,
        table_ld: a.table_ld,
    };
    let places = Places {
        start: a.start,
        positions: Ptr::from(a.positions),
        positions_i64: flag("positions_i64", a.positions_i64)?,
        positions_seq_stride: a.positions_seq_stride,
        positions_batch_stride: a.positions_batch_stride,
        starts: Ptr::from(a.start_positions),
        cu_seqlens: Ptr::from(a.cu_seqlens),
        sequences: a.sequences,
    };
    Ok((rotation, places))
}

/// # Safety
/// As [`read_struct`], and likewise for the angles.
unsafe fn plain(p: *const nvte_rope_args_t) -> Result<RopeArgs> {
    // SAFETY: forwarded contract.
    unsafe {
        let a = read_struct("args", p, mem::size_of::<nvte_rope_args_t>())?;
        let (rotation, places) = angles(a.angles)?;
        Ok(RopeArgs {
            dtype: DType::from_i32("dtype", a.dtype)?,
            seq: a.seq,
            batch: a.batch,
            heads: a.heads,
            head_dim: a.head_dim,
            x: Heads { data: Ptr::from(a.x), seq_stride: a.x_seq_stride, batch_stride: a.x_batch_stride, head_stride: a.x_head_stride },
            y: Heads { data: Ptr::from(a.y), seq_stride: a.y_seq_stride, batch_stride: a.y_batch_stride, head_stride: a.y_head_stride },
            rotation,
            places,
        })
    }
}

/// # Safety
/// As [`read_struct`], and likewise for the angles.
unsafe fn packed(p: *const nvte_rope_qkv_args_t) -> Result<RopeQkvArgs> {
    // SAFETY: forwarded contract.
    unsafe {
        let a = read_struct("args", p, mem::size_of::<nvte_rope_qkv_args_t>())?;
        reserved("reserved", a.reserved)?;
        let (rotation, places) = angles(a.angles)?;
        let side = |data, seq_stride, batch_stride| Heads { data: Ptr::from(data), seq_stride, batch_stride, head_stride: a.head_dim };
        Ok(RopeQkvArgs {
            dtype: DType::from_i32("dtype", a.dtype)?,
            seq: a.seq,
            batch: a.batch,
            q_heads: a.q_heads,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
            order: QkvOrder::from_i32("order", a.order)?,
            qkv: side(a.qkv, a.qkv_seq_stride, a.qkv_batch_stride),
            q: side(a.q, a.q_seq_stride, a.q_batch_stride),
            k: side(a.k, a.kv_seq_stride, a.kv_batch_stride),
            v: side(a.v, a.kv_seq_stride, a.kv_batch_stride),
            rotation,
            places,
        })
    }
}

/// The table of a rotary position embedding, on the host: the angle of pair i at position t is t * base^(-2i / rotary_dim).
///
/// Row r is position start + r. Copy it to the device for a CUDA context.
///
/// Shapes: cos and sin [rows, rotary_dim / 2], dense; rotary_dim even. Units: none. Pointers: host. Alignment: 4 bytes. Aliasing: cos and
/// sin must not overlap. Stream order: none. Determinism: angles are formed in f64 and rounded once.
///
/// Errors: NVTE_ERROR_NULL_POINTER, NVTE_ERROR_MISALIGNED, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_OVERLAP,
/// NVTE_ERROR_SIZE_OVERFLOW.
///
/// # Safety
/// cos and sin have room for rows * rotary_dim / 2 elements each.
#[no_mangle]
pub unsafe extern "C" fn nvte_rope_table(start: i64, rows: i64, rotary_dim: i64, base: f64, cos: *mut f32, sin: *mut f32) -> nvte_status_t {
    guard(|| {
        if rows < 0 {
            return Err(Error::argument(Status::InvalidShape, "rows", rows, "must not be negative"));
        }
        // Sizes and base are judged before memory is looked at.
        rope::rope_table(start, rotary_dim, base, &mut [], &mut [])?;
        let bytes = rows
            .checked_mul(rotary_dim / 2)
            .and_then(|n| n.checked_mul(4))
            .ok_or_else(|| Error::argument(Status::SizeOverflow, "rows", rows, "the size of the table must fit 63 bits"))?;
        let n = (bytes / 4) as usize;
        if n == 0 {
            return Ok(());
        }
        for (name, p) in [("cos", cos), ("sin", sin)] {
            if p.is_null() {
                return Err(Error::argument(Status::NullPointer, name, "NULL", "is required"));
            }
            if !p.is_aligned() {
                return Err(Error::argument(Status::Misaligned, name, format!("{p:?}"), "must be a multiple of 4 bytes"));
            }
        }
        if cos.addr().abs_diff(sin.addr()) < bytes as usize {
            return Err(Error::argument(Status::Overlap, "sin", format!("{sin:?}"), format!("must not overlap cos ({cos:?})")));
        }
        // SAFETY: room for as many elements by contract, apart from each other.
        let (cos, sin) = unsafe { (std::slice::from_raw_parts_mut(cos, n), std::slice::from_raw_parts_mut(sin, n)) };
        rope::rope_table(start, rotary_dim, base, cos, sin)
    })
}

/// Rotary position embedding: a pair (a, b) of a head becomes (a cos - b sin, b cos + a sin), with the angle of its place in the head and
/// of its token's position. What lies behind rotary_dim is copied.
///
/// Shapes: x and y [seq, batch, heads, head_dim] by their strides, which serve every layout: sbhd, bshd, bhsd, and thd with cu_seqlens.
/// Units: strides in elements. Pointers: structs are on the host, data, table and positions on the device. Alignment: that of the element
/// type (multiples of 16 bytes for bases and strides, a rotary_dim of a multiple of 16 elements and a head_dim of 8 are faster). Aliasing: y
/// may be x, with the same strides; otherwise it must not overlap an input, nor itself. Stream order: enqueued on `stream`, nothing waits.
/// Determinism: the same bits on every back end: f32, each product and the sum rounded, then one rounding to the type of y.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE,
/// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED,
/// NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_UNSUPPORTED (reserved fields), NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_rope_fwd(ctx: nvte_context_t, args: *const nvte_rope_args_t, stream_: nvte_stream_t) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { rope::rope_fwd(&ctx, &plain(args)?, stream(stream_)) }
    })
}

/// The gradient of nvte_rope_fwd: the same with the opposite angle. x is the gradient of the output, y that of the input.
///
/// Shapes: as nvte_rope_fwd. Units: the same. Pointers: the same. Alignment: the same. Aliasing: the same. Stream order: the same.
/// Determinism: the same.
///
/// Errors: as nvte_rope_fwd.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_rope_bwd(ctx: nvte_context_t, args: *const nvte_rope_args_t, stream_: nvte_stream_t) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { rope::rope_bwd(&ctx, &plain(args)?, stream(stream_)) }
    })
}

/// Splits packed QKV into q, k and v, and rotates q and k as nvte_rope_fwd does: each element is read once and written once.
///
/// Shapes: qkv [seq, batch, (q_heads + 2 kv_heads) * head_dim], q [seq, batch, q_heads, head_dim], k and v [seq, batch, kv_heads, head_dim],
/// tokens by their strides. Units: strides in elements. Pointers: structs are on the host, data, table and positions on the device.
/// Alignment: as nvte_rope_fwd. Aliasing: outputs must not overlap inputs, each other or themselves. Stream order: enqueued on `stream`,
/// nothing waits. Determinism: as nvte_rope_fwd.
///
/// Errors: as nvte_rope_fwd.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_rope_qkv_fwd(
    ctx: nvte_context_t,
    args: *const nvte_rope_qkv_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { rope::rope_qkv_fwd(&ctx, &packed(args)?, stream(stream_)) }
    })
}

/// The gradient of nvte_rope_qkv_fwd: from those of q, k and v, which are read, to that of qkv, which is written.
///
/// Shapes: as nvte_rope_qkv_fwd. Units: the same. Pointers: the same. Alignment: the same. Aliasing: qkv must not overlap q, k, v or itself;
/// those may share memory. Stream order: the same. Determinism: the same.
///
/// Errors: as nvte_rope_fwd.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_rope_qkv_bwd(
    ctx: nvte_context_t,
    args: *const nvte_rope_qkv_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { rope::rope_qkv_bwd(&ctx, &packed(args)?, stream(stream_)) }
    })
}
