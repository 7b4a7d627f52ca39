//! The faults that follow from a description: what can be wrong with any matrix, pointer, workspace, argument struct or context.

use std::{ffi::c_void, ptr};

use nvte::capi::types::*;

use crate::{
    common::on_cuda,
    framework::{scaling, Call, Fault, Function, Layout, Matrix, Output, Passed, Pointer},
};

/// A host address that no device knows, aligned.
fn host_memory() -> *mut c_void {
    #[repr(align(64))]
    struct Aligned([u64; 64]);
    static HOST: Aligned = Aligned([0; 64]);
    HOST.0.as_ptr().cast_mut().cast()
}

/// Every fault of a function that needs no knowledge of it. `destroyed`: a handle that was one.
pub fn general(f: &Function, destroyed: usize, has_workspace: bool) -> Vec<Fault> {
    let mut all = context(f, destroyed);
    for m in &f.matrices {
        all.extend(structs(m));
        all.extend(shape(m, &f.matrices));
        if f.has_memory {
            all.extend(memory(m));
            all.extend(slots(m));
        }
    }
    if f.has_memory {
        f.pointers.iter().for_each(|p| all.extend(pointer(p)));
        all.extend(overlaps(f));
        all.extend(overflow(f));
    }
    if has_workspace {
        all.extend(workspace(f));
    }
    all
}

fn context(f: &Function, destroyed: usize) -> Vec<Fault> {
    let mut out = vec![
        Fault::new("context: NULL", NVTE_ERROR_INVALID_HANDLE, "context", |c| c.ctx = ptr::null_mut()),
        Fault::new("context: destroyed", NVTE_ERROR_INVALID_HANDLE, "destroyed", move |c| c.ctx = destroyed as nvte_context_t),
        Fault::new("context: never was one", NVTE_ERROR_INVALID_HANDLE, "never", |c| c.ctx = 0x1234_5678_9ABCusize as nvte_context_t),
    ];
    if f.has_args {
        out.push(Fault::new("args: NULL", NVTE_ERROR_NULL_POINTER, "args", |c| c.args = Passed::Null));
        out.push(Fault::new("args: misaligned", NVTE_ERROR_MISALIGNED, "args", |c| c.args = Passed::Misaligned));
        for error in [8, -1000, 1 << 20] {
            let change = move |c: &mut Call| c.size_error = error;
            out.push(Fault::new("args: struct_size", NVTE_ERROR_INVALID_STRUCT_SIZE, "args.struct_size", change));
        }
    }
    out
}

/// A change to one matrix; the message names it and `field`.
fn on(m: &Matrix, what: &str, status: i32, field: &str, change: impl Fn(&mut nvte_tensor_t) + 'static) -> Fault {
    let name = m.name;
    Fault::new(format!("{name}: {what}"), status, format!("{name}{field}"), move |c| change(c.tensor_mut(name)))
}

fn structs(m: &Matrix) -> Vec<Fault> {
    let name = m.name;
    let mut out = Vec::new();
    for size in [0u32, 4, 64, std::mem::size_of::<nvte_tensor_t>() as u32 + 8, u32::MAX] {
        out.push(on(m, "struct_size", NVTE_ERROR_INVALID_STRUCT_SIZE, ".struct_size", move |t| t.struct_size = size));
    }
    for dtype in [-1, 5, i32::MAX] {
        out.push(on(m, "unknown dtype", NVTE_ERROR_INVALID_ENUM, ".dtype", move |t| t.dtype = dtype));
    }
    let refused = m.refused;
    if refused != m.dtype {
        let change = move |t: &mut nvte_tensor_t| (t.dtype, t.scaling) = (refused as i32, scaling(refused));
        out.push(on(m, "refused dtype", NVTE_ERROR_INVALID_DTYPE, ".dtype", change));
    }
    out.push(on(m, "unknown scaling", NVTE_ERROR_INVALID_ENUM, ".scaling", |t| t.scaling = 77));
    out.push(on(m, "wrong scaling", NVTE_ERROR_UNSUPPORTED, ".scaling", |t| t.scaling = 1 - t.scaling));
    out.push(on(m, "flags", NVTE_ERROR_UNSUPPORTED, ".flags", |t| t.flags = 1));
    out.push(on(m, "scale_inv_ld", NVTE_ERROR_UNSUPPORTED, ".scale_inv_ld", |t| t.scale_inv_ld = 1));
    out.push(on(m, "scale_inv_t", NVTE_ERROR_UNSUPPORTED, ".scale_inv_t", |t| t.scale_inv_t = host_memory()));
    out.push(on(m, "scale_inv_t_ld", NVTE_ERROR_UNSUPPORTED, ".scale_inv_t_ld", |t| t.scale_inv_t_ld = 1));
    if m.required {
        out.push(Fault::new(format!("{name}: NULL"), NVTE_ERROR_NULL_POINTER, name, move |c| c.pass_tensor(name, Passed::Null)));
    }
    out.push(Fault::new(format!("{name}: misaligned struct"), NVTE_ERROR_MISALIGNED, name, move |c| {
        c.pass_tensor(name, Passed::Misaligned);
    }));
    out
}

/// Sizes. Where two matrices do not fit, the message may name either.
fn shape(m: &Matrix, all: &[Matrix]) -> Vec<Fault> {
    let mut out = vec![
        on(m, "negative rows", NVTE_ERROR_INVALID_SHAPE, "", |t| t.rows = -1),
        on(m, "negative cols", NVTE_ERROR_INVALID_SHAPE, "", |t| t.cols = i64::MIN),
    ];
    if all.len() > 1 {
        out.push(on(m, "one more row", NVTE_ERROR_INVALID_SHAPE, "", |t| (t.rows, t.ld_t) = (t.rows + 1, t.ld_t + 1)));
        out.push(on(m, "one more column", NVTE_ERROR_INVALID_SHAPE, "", |t| (t.cols, t.ld) = (t.cols + 1, t.ld + 1)));
    }
    out.into_iter().map(|fault| all.iter().fold(fault, |f, other| f.or_text(other.name))).collect()
}

fn memory(m: &Matrix) -> Vec<Fault> {
    let mut out = Vec::new();
    if matches!(m.layout, Layout::Rows | Layout::Both) {
        out.push(on(m, "stride below the row", NVTE_ERROR_INVALID_STRIDE, ".ld", |t| t.ld = t.cols - 1));
        out.push(on(m, "negative stride", NVTE_ERROR_INVALID_STRIDE, ".ld", |t| t.ld = -t.cols));
        out.push(on(m, "overflowing stride", NVTE_ERROR_SIZE_OVERFLOW, "", |t| t.ld = i64::MAX));
    }
    if matches!(m.layout, Layout::Transposed | Layout::Both) {
        out.push(on(m, "transposed stride below the row", NVTE_ERROR_INVALID_STRIDE, ".ld_t", |t| t.ld_t = t.rows - 1));
        out.push(on(m, "overflowing transposed stride", NVTE_ERROR_SIZE_OVERFLOW, "", |t| t.ld_t = i64::MAX));
    }
    let none = |t: &mut nvte_tensor_t| (t.data, t.data_t) = (ptr::null_mut(), ptr::null_mut());
    out.push(on(m, "no data", NVTE_ERROR_NULL_POINTER, "", none));
    // Every layout there is: moved by one byte, to the host, to the end of memory.
    type Field = fn(&mut nvte_tensor_t) -> &mut *mut c_void;
    let layouts: &[(&str, Field)] = match m.layout {
        Layout::Rows | Layout::Vector => &[("data", |t| &mut t.data)],
        Layout::Transposed => &[("data_t", |t| &mut t.data_t)],
        Layout::Both => &[("data", |t| &mut t.data), ("data_t", |t| &mut t.data_t)],
    };
    for &(name, field) in layouts {
        let named = if m.layout == Layout::Vector { String::new() } else { format!(".{name}") };
        let change = move |t: &mut nvte_tensor_t| *field(t) = field(t).wrapping_byte_add(1);
        if m.dtype.size() > 1 {
            out.push(on(m, &format!("misaligned {name}"), NVTE_ERROR_MISALIGNED, &named, change));
        }
        if on_cuda() {
            out.push(on(m, &format!("host {name}"), NVTE_ERROR_WRONG_DEVICE, &named, move |t| *field(t) = host_memory()));
        }
        if m.bytes() > 16 {
            let end = move |t: &mut nvte_tensor_t| *field(t) = ptr::without_provenance_mut(usize::MAX - 15);
            let fault = on(m, &format!("{name} at the end of memory"), NVTE_ERROR_SIZE_OVERFLOW, &named, end);
            // A device says first that it has no such memory.
            out.push(if on_cuda() { fault.or_status(NVTE_ERROR_WRONG_DEVICE) } else { fault });
        }
    }
    out
}

fn slots(m: &Matrix) -> Vec<Fault> {
    let name = m.name;
    if !m.dtype.is_fp8() {
        return Vec::new();
    }
    let slot = |slot: &str, status: i32, change: fn(&mut nvte_tensor_t)| {
        Fault::new(format!("{name}: bad {slot}"), status, slot, move |c| change(c.tensor_mut(name)))
    };
    let mut out = vec![slot("scale_inv", NVTE_ERROR_MISALIGNED, |t| t.scale_inv = t.scale_inv.wrapping_byte_add(2))];
    if m.role == Output {
        out.push(slot("scale", NVTE_ERROR_MISALIGNED, |t| t.scale = t.scale.wrapping_byte_add(1)));
        out.push(slot("amax", NVTE_ERROR_MISALIGNED, |t| t.amax = t.amax.wrapping_byte_add(2)));
    }
    if on_cuda() {
        out.push(slot("scale_inv", NVTE_ERROR_WRONG_DEVICE, |t| t.scale_inv = host_memory()));
        if m.role == Output {
            out.push(slot("scale", NVTE_ERROR_WRONG_DEVICE, |t| t.scale = host_memory().cast()));
            out.push(slot("amax", NVTE_ERROR_WRONG_DEVICE, |t| t.amax = host_memory().cast()));
        }
    }
    out
}

fn pointer(p: &Pointer) -> Vec<Fault> {
    let (name, half) = (p.name, p.align / 2);
    let mut out = Vec::new();
    if half > 0 {
        out.push(Fault::new(format!("{name}: misaligned"), NVTE_ERROR_MISALIGNED, name, move |c| {
            let q = c.pointer::<c_void>(name).wrapping_byte_add(half);
            c.set_pointer(name, q);
        }));
    }
    if p.required {
        out.push(Fault::new(format!("{name}: NULL"), NVTE_ERROR_NULL_POINTER, name, move |c| c.set_pointer(name, ptr::null_mut())));
    }
    if on_cuda() {
        out.push(Fault::new(format!("{name}: host memory"), NVTE_ERROR_WRONG_DEVICE, name, move |c| c.set_pointer(name, host_memory())));
    }
    out
}

/// Where a layout or a pointer of a call lies, and how to move it.
type Get = Box<dyn Fn(&mut Call) -> *mut c_void>;
type Set = Box<dyn Fn(&mut Call, *mut c_void)>;
struct Place {
    name: &'static str,
    what: String,
    output: bool,
    align: usize,
    bytes: usize,
    get: Get,
    set: Set,
}

fn places(f: &Function) -> Vec<Place> {
    let mut all = Vec::new();
    for m in &f.matrices {
        let (name, output, align, bytes) = (m.name, m.role == Output, m.dtype.size(), m.bytes());
        if m.layout != Layout::Transposed {
            let (get, set): (Get, Set) = (Box::new(move |c| c.tensor_mut(name).data), Box::new(move |c, p| c.tensor_mut(name).data = p));
            all.push(Place { name, what: format!("{name}.data"), output, align, bytes, get, set });
        }
        if matches!(m.layout, Layout::Transposed | Layout::Both) {
            let (get, set): (Get, Set) =
                (Box::new(move |c| c.tensor_mut(name).data_t), Box::new(move |c, p| c.tensor_mut(name).data_t = p));
            all.push(Place { name, what: format!("{name}.data_t"), output, align, bytes, get, set });
        }
        // A transpose takes the codes' slots as they are.
        if output && m.dtype.is_fp8() && f.name != "nvte_fp8_transpose" {
            type Field = (&'static str, bool, fn(&mut nvte_tensor_t) -> *mut c_void, fn(&mut nvte_tensor_t, *mut c_void));
            let slots: [Field; 3] = [
                ("scale", false, |t| t.scale.cast_mut().cast(), |t, p| t.scale = p.cast()),
                ("scale_inv", true, |t| t.scale_inv, |t, p| t.scale_inv = p),
                ("amax", true, |t| t.amax.cast(), |t, p| t.amax = p.cast()),
            ];
            for (slot, output, get, set) in slots {
                let (get, set): (Get, Set) = (Box::new(move |c| get(c.tensor_mut(name))), Box::new(move |c, p| set(c.tensor_mut(name), p)));
                all.push(Place { name: slot, what: format!("{name}.{slot}"), output, align: 4, bytes: 4, get, set });
            }
        }
    }
    for p in &f.pointers {
        let name = p.name;
        let (get, set): (Get, Set) = (Box::new(move |c| c.pointer(name)), Box::new(move |c, q| c.set_pointer(name, q)));
        all.push(Place { name, what: name.to_owned(), output: p.role == Output, align: p.align, bytes: p.bytes, get, set });
    }
    all
}

/// Every output on the memory of every other layout and pointer, exactly and in part.
fn overlaps(f: &Function) -> Vec<Fault> {
    let count = places(f).len();
    let mut out = Vec::new();
    for to in (0..count).filter(|i| places(f)[*i].output) {
        for from in (0..count).filter(|i| *i != to) {
            for shift in [0, 4] {
                let (to, from) = (places(f).swap_remove(to), places(f).swap_remove(from));
                let may_be = f.matrices.iter().any(|m| m.name == to.name && m.may_be.contains(&from.name))
                    || f.matrices.iter().any(|m| m.name == from.name && m.may_be.contains(&to.name))
                    || f.pointers.iter().any(|p| p.name == to.name && p.may_be.contains(&from.name));
                if (shift == 0 && may_be) || shift % to.align != 0 || shift >= from.bytes {
                    continue;
                }
                let (text, other) = (to.name, from.name);
                let what = format!("{} is {} + {shift}", to.what, from.what);
                let change = move |c: &mut Call| {
                    let p = (from.get)(c).wrapping_byte_add(shift);
                    (to.set)(c, p);
                };
                out.push(Fault::new(what, NVTE_ERROR_OVERLAP, text, change).or_text(other));
            }
        }
    }
    out
}

/// Sizes so large that a matrix does not fit 63 bits of bytes, the same in every argument that shares them.
fn overflow(f: &Function) -> Vec<Fault> {
    let Some(rows) = f.matrices.first().map(|m| m.rows) else { return Vec::new() };
    let tall: Vec<&'static str> = f.matrices.iter().filter(|m| m.rows == rows).map(|m| m.name).collect();
    let wide: Vec<&'static str> = f.matrices.iter().filter(|m| m.cols == rows && m.rows != rows).map(|m| m.name).collect();
    let mut out = Vec::new();
    for huge in [1i64 << 62, i64::MAX] {
        let (tall, wide) = (tall.clone(), wide.clone());
        out.push(Fault::new(format!("all rows: {huge}"), NVTE_ERROR_SIZE_OVERFLOW, "", move |c| {
            for name in &tall {
                let t = c.tensor_mut(name);
                (t.rows, t.ld_t) = (huge, huge);
            }
            for name in &wide {
                let t = c.tensor_mut(name);
                (t.cols, t.ld) = (huge, huge);
            }
        }));
    }
    out
}

fn workspace(f: &Function) -> Vec<Fault> {
    let mut out = vec![
        Fault::new("workspace: one byte less", NVTE_ERROR_WORKSPACE_TOO_SMALL, "workspace_bytes", |c| c.workspace_bytes -= 1),
        Fault::new("workspace: no bytes", NVTE_ERROR_WORKSPACE_TOO_SMALL, "workspace_bytes", |c| c.workspace_bytes = 0),
        Fault::new("workspace: NULL", NVTE_ERROR_NULL_POINTER, "workspace", |c| c.workspace = ptr::null_mut()),
        Fault::new("workspace: misaligned", NVTE_ERROR_MISALIGNED, "workspace", |c| c.workspace = c.workspace.wrapping_byte_add(8)),
    ];
    if on_cuda() {
        out.push(Fault::new("workspace: host memory", NVTE_ERROR_WRONG_DEVICE, "workspace", |c| c.workspace = host_memory()));
    }
    for place in places(f) {
        let (what, name) = (format!("{} is the workspace", place.what), place.name);
        let change = move |c: &mut Call| {
            let p = c.workspace;
            (place.set)(c, p);
        };
        out.push(Fault::new(what, NVTE_ERROR_OVERLAP, "workspace", change).or_text(name));
    }
    out
}
