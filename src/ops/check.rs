//! The checks that all operations share. Each error names the argument, the value and the rule.

use std::fmt::Display;

use crate::{
    backend::Backend,
    error::{Error, Result, Status},
    tensor::{DType, Ptr, TensorView},
};

/// One layout of a matrix as an address range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) name: &'static str,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// Bytes from the first to past the last element of `[rows, cols]` with row stride `ld`; 0 if it has none.
pub(crate) fn extent(name: &str, dtype: DType, rows: i64, cols: i64, ld: i64) -> Result<u64> {
    if rows == 0 || cols == 0 {
        return Ok(0);
    }
    let bytes = (rows - 1).checked_mul(ld).and_then(|n| n.checked_add(cols)).and_then(|n| n.checked_mul(dtype.size() as i64));
    bytes.map(|b| b as u64).ok_or_else(|| {
        Error::argument(Status::SizeOverflow, name, format!("[{rows}, {cols}] with stride {ld}"), "its size in bytes must fit 63 bits")
    })
}

fn list(allowed: &[DType]) -> String {
    allowed.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ")
}

/// f32, f16, bf16.
pub(crate) const HIGH: &[DType] = &[DType::F32, DType::F16, DType::Bf16];
/// E4M3, E5M2.
pub(crate) const FP8: &[DType] = &[DType::E4m3, DType::E5m2];

/// The data type is one of `allowed`.
pub(crate) fn dtype(name: &str, t: &TensorView, allowed: &[DType]) -> Result<()> {
    if allowed.contains(&t.dtype) {
        return Ok(());
    }
    Err(Error::argument(Status::InvalidDType, format_args!("{name}.dtype"), t.dtype.name(), format!("must be one of {}", list(allowed))))
}

/// Sizes are not negative.
pub(crate) fn sizes(name: &str, t: &TensorView) -> Result<()> {
    for (what, v) in [("rows", t.rows), ("cols", t.cols)] {
        if v < 0 {
            return Err(Error::argument(Status::InvalidShape, format_args!("{name}.{what}"), v, "must not be negative"));
        }
    }
    Ok(())
}

/// A pointer to elements of `dtype` is aligned and, as far as one can see, on the device. Null passes.
pub(crate) fn pointer(backend: &dyn Backend, name: impl Display, p: Ptr, align: usize) -> Result<()> {
    if p.is_null() {
        return Ok(());
    }
    if p.0 % align as u64 != 0 {
        return Err(Error::argument(Status::Misaligned, name, format!("{:#x}", p.0), format!("must be a multiple of {align} bytes")));
    }
    backend.check_pointer(&name, p)
}

/// A pointer that must not be null.
pub(crate) fn required(backend: &dyn Backend, name: impl Display, p: Ptr, align: usize) -> Result<()> {
    if p.is_null() {
        return Err(Error::argument(Status::NullPointer, name, "NULL", "is required here"));
    }
    pointer(backend, name, p, align)
}

/// The row-wise layout: present (unless empty), stride at least the row, aligned. Returns its range.
pub(crate) fn rowwise(backend: &dyn Backend, name: &'static str, t: &TensorView) -> Result<Range> {
    sizes(name, t)?;
    layout(backend, name, "data", t.dtype, t.data, t.rows, t.cols, t.ld, "cols")
}

/// The transposed layout, likewise.
pub(crate) fn transposed(backend: &dyn Backend, name: &'static str, t: &TensorView) -> Result<Range> {
    sizes(name, t)?;
    layout(backend, name, "data_t", t.dtype, t.data_t, t.cols, t.rows, t.ld_t, "rows")
}

fn layout(
    backend: &dyn Backend,
    name: &'static str,
    field: &str,
    dtype: DType,
    p: Ptr,
    rows: i64,
    cols: i64,
    ld: i64,
    width: &str,
) -> Result<Range> {
    // Names are put together only where there is an error: this runs in every call.
    let stride = if field == "data" { "ld" } else { "ld_t" };
    if ld < cols {
        return Err(Error::argument(
            Status::InvalidStride,
            format_args!("{name}.{stride}"),
            ld,
            format!("must be at least {width} = {cols}"),
        ));
    }
    let bytes = extent(name, dtype, rows, cols, ld)?;
    if bytes == 0 {
        return Ok(Range { name, start: 0, end: 0 });
    }
    required(backend, format_args!("{name}.{field}"), p, dtype.size())?;
    span(name, format_args!("{name}.{field}"), p, bytes)
}

/// The range of `bytes` from `p`, which ends within the address space.
fn span(name: &'static str, full: impl Display, p: Ptr, bytes: u64) -> Result<Range> {
    match p.0.checked_add(bytes) {
        Some(end) => Ok(Range { name, start: p.0, end }),
        None => Err(Error::argument(Status::SizeOverflow, full, format!("{:#x}", p.0), "address and size must fit 64 bits")),
    }
}

/// A vector of `len` elements. Null passes where `optional`.
pub(crate) fn vector(backend: &dyn Backend, name: &'static str, p: Ptr, dtype: DType, len: i64, optional: bool) -> Result<Range> {
    let empty = Range { name, start: 0, end: 0 };
    if len == 0 || (optional && p.is_null()) {
        return Ok(empty);
    }
    required(backend, name, p, dtype.size())?;
    let bytes = extent(name, dtype, 1, len, len)?;
    span(name, name, p, bytes)
}

/// Same rows and columns.
pub(crate) fn same_shape(name: &str, t: &TensorView, other: &str, o: &TensorView) -> Result<()> {
    if (t.rows, t.cols) == (o.rows, o.cols) {
        return Ok(());
    }
    Err(Error::argument(
        Status::InvalidShape,
        name,
        format!("[{}, {}]", t.rows, t.cols),
        format!("must have the shape of {other}, [{}, {}]", o.rows, o.cols),
    ))
}

/// No output shares memory with an input or with another output.
pub(crate) fn disjoint(inputs: &[Range], outputs: &[Range]) -> Result<()> {
    for (i, out) in outputs.iter().enumerate() {
        for other in inputs.iter().chain(&outputs[i + 1..]) {
            if out.start < other.end && other.start < out.end {
                return Err(Error::argument(
                    Status::Overlap,
                    out.name,
                    format!("{:#x}..{:#x}", out.start, out.end),
                    format!("must not overlap {} ({:#x}..{:#x})", other.name, other.start, other.end),
                ));
            }
        }
    }
    Ok(())
}

/// The workspace is there and large enough.
pub(crate) fn workspace(backend: &dyn Backend, p: Ptr, bytes: u64, needed: u64) -> Result<()> {
    if needed == 0 {
        return Ok(());
    }
    if bytes < needed {
        return Err(Error::argument(Status::WorkspaceTooSmall, "workspace_bytes", bytes, format!("must be at least {needed}")));
    }
    required(backend, "workspace", p, 16)
}

/// The workspace as a range, for the check that nothing overlaps it.
pub(crate) fn workspace_range(backend: &dyn Backend, p: Ptr, bytes: u64, needed: u64) -> Result<Range> {
    workspace(backend, p, bytes, needed)?;
    let end = if needed == 0 { p.0 } else { p.0.saturating_add(needed) };
    Ok(Range { name: "workspace", start: p.0, end })
}
