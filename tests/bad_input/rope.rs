//! Rotary position embedding.

use std::ptr;

use nvte::capi::{rope::*, types::*};

use super::framework::{message, Call, Fault, Function, Input, Output, Pointer};

const SEQ: usize = 5;
const BATCH: usize = 2;
const HEADS: usize = 3;
const DIM: usize = 16;
const ROWS: usize = 9;
const ELEMENTS: usize = SEQ * BATCH * HEADS * DIM;

/// Functions that take no context.
pub const BY_HAND: [&str; 1] = ["nvte_rope_table"];

fn angles(c: &Call) -> nvte_rope_angles_t {
    nvte_rope_angles_t {
        struct_size: c.number("angles.struct_size") as u32,
        interleaved: c.number("interleaved") as i32,
        rotary_dim: c.number("rotary_dim") as i64,
        cos: c.pointer("cos"),
        sin: c.pointer("sin"),
        table_rows: c.number("table_rows") as i64,
        table_ld: c.number("table_ld") as i64,
        start: 0,
        positions: c.pointer("positions"),
        positions_i64: c.number("positions_i64") as i32,
        reserved: c.number("angles.reserved") as u32,
        positions_seq_stride: c.number("positions_seq_stride") as i64,
        positions_batch_stride: c.number("positions_batch_stride") as i64,
        start_positions: c.pointer("start_positions"),
        cu_seqlens: if c.number("packed") == 1.0 { c.pointer("start_positions") } else { ptr::null() },
        sequences: c.number("sequences") as i64,
    }
}

fn args(c: &Call, angles: &nvte_rope_angles_t) -> nvte_rope_args_t {
    nvte_rope_args_t {
        struct_size: c.struct_size::<nvte_rope_args_t>(),
        dtype: c.number("dtype") as i32,
        seq: c.number("seq") as i64,
        batch: c.number("batch") as i64,
        heads: c.number("heads") as i64,
        head_dim: c.number("head_dim") as i64,
        x: c.pointer("x"),
        x_seq_stride: c.number("x_seq_stride") as i64,
        x_batch_stride: (HEADS * DIM) as i64,
        x_head_stride: DIM as i64,
        y: c.pointer("y"),
        y_seq_stride: c.number("y_seq_stride") as i64,
        y_batch_stride: c.number("y_batch_stride") as i64,
        y_head_stride: c.number("y_head_stride") as i64,
        angles: if c.number("no_angles") == 1.0 { ptr::null() } else { angles },
    }
}

fn qkv_args(c: &Call, angles: &nvte_rope_angles_t) -> nvte_rope_qkv_args_t {
    // Two query heads, one key head, one value head.
    let dim = DIM as i64;
    nvte_rope_qkv_args_t {
        struct_size: c.struct_size::<nvte_rope_qkv_args_t>(),
        dtype: c.number("dtype") as i32,
        order: c.number("order") as i32,
        reserved: c.number("reserved") as u32,
        seq: c.number("seq") as i64,
        batch: c.number("batch") as i64,
        q_heads: c.number("q_heads") as i64,
        kv_heads: c.number("kv_heads") as i64,
        head_dim: c.number("head_dim") as i64,
        qkv: c.pointer("qkv"),
        qkv_seq_stride: c.number("qkv_seq_stride") as i64,
        qkv_batch_stride: 4 * dim,
        q: c.pointer("q"),
        q_seq_stride: c.number("q_seq_stride") as i64,
        q_batch_stride: 2 * dim,
        k: c.pointer("k"),
        v: c.pointer("v"),
        kv_seq_stride: c.number("kv_seq_stride") as i64,
        kv_batch_stride: dim,
        angles: if c.number("no_angles") == 1.0 { ptr::null() } else { angles },
    }
}

/// What all four have.
fn common(f: &mut Function) {
    let half = DIM / 2;
    f.pointers.extend([
        Pointer::words("cos", Input, (ROWS * half) as i64),
        Pointer::words("sin", Input, (ROWS * half) as i64),
        Pointer::words("positions", Input, (SEQ * BATCH) as i64).optional(),
        Pointer::words("start_positions", Input, BATCH as i64).optional(),
    ]);
    f.numbers.extend([
        ("dtype", f64::from(NVTE_BF16)),
        ("seq", SEQ as f64),
        ("batch", BATCH as f64),
        ("head_dim", DIM as f64),
        ("angles.struct_size", size_of::<nvte_rope_angles_t>() as f64),
        ("angles.reserved", 0.0),
        ("no_angles", 0.0),
        ("interleaved", 1.0),
        ("rotary_dim", DIM as f64),
        ("table_rows", ROWS as f64),
        ("table_ld", half as f64),
        ("positions_i64", 0.0),
        ("positions_seq_stride", BATCH as f64),
        ("positions_batch_stride", 1.0),
        ("packed", 0.0),
        ("sequences", 1.0),
    ]);
    f.has_args = true;
    for (name, value, status) in [
        ("dtype", 5.0, NVTE_ERROR_INVALID_ENUM),
        ("dtype", -1.0, NVTE_ERROR_INVALID_ENUM),
        ("dtype", f64::from(NVTE_E4M3), NVTE_ERROR_INVALID_DTYPE),
        ("seq", -1.0, NVTE_ERROR_INVALID_SHAPE),
        ("seq", 9e18, NVTE_ERROR_SIZE_OVERFLOW),
        ("batch", -1.0, NVTE_ERROR_INVALID_SHAPE),
        ("head_dim", -1.0, NVTE_ERROR_INVALID_SHAPE),
        ("rotary_dim", -2.0, NVTE_ERROR_INVALID_SHAPE),
        ("rotary_dim", 15.0, NVTE_ERROR_INVALID_SHAPE),
        ("rotary_dim", 18.0, NVTE_ERROR_INVALID_SHAPE),
        ("interleaved", 2.0, NVTE_ERROR_INVALID_ENUM),
        ("table_rows", -1.0, NVTE_ERROR_INVALID_SHAPE),
        ("table_ld", 7.0, NVTE_ERROR_INVALID_STRIDE),
        ("positions_i64", -1.0, NVTE_ERROR_INVALID_ENUM),
        ("positions_seq_stride", -1.0, NVTE_ERROR_INVALID_STRIDE),
        ("positions_batch_stride", -1.0, NVTE_ERROR_INVALID_STRIDE),
        ("sequences", -1.0, NVTE_ERROR_INVALID_SHAPE),
        ("angles.struct_size", 8.0, NVTE_ERROR_INVALID_STRUCT_SIZE),
        ("angles.reserved", 1.0, NVTE_ERROR_UNSUPPORTED),
    ] {
        let fault = Fault::number(name, value, status);
        // What follows from a size may be seen first.
        f.faults.push(if status == NVTE_ERROR_SIZE_OVERFLOW { fault.or_text("positions") } else { fault });
    }
    f.faults.push(Fault::new("angles: NULL", NVTE_ERROR_NULL_POINTER, "angles", |c| c.set("no_angles", 1.0)));
    f.faults.push(Fault::new("packed, with a batch", NVTE_ERROR_INVALID_SHAPE, "batch", |c| c.set("packed", 1.0)));
    let huge = |c: &mut Call| c.set("table_ld", 9e18);
    f.faults.push(Fault::new("huge table_ld", NVTE_ERROR_SIZE_OVERFLOW, "cos", huge));
    let huge = |c: &mut Call| c.set("positions_seq_stride", 9e18);
    f.faults.push(Fault::new("huge positions_seq_stride", NVTE_ERROR_SIZE_OVERFLOW, "positions", huge));
}

fn plain(name: &'static str, call: fn(&Call) -> nvte_status_t) -> Function {
    let mut f = Function::new(name, call);
    let row = (HEADS * DIM) as f64;
    f.pointers = vec![
        Pointer::new("x", Input, 2 * ELEMENTS, 2, true),
        // In place.
        Pointer::new("y", Output, 2 * ELEMENTS, 2, true).may_be(&["x"]),
    ];
    f.numbers = vec![
        ("heads", HEADS as f64),
        ("x_seq_stride", BATCH as f64 * row),
        ("y_seq_stride", BATCH as f64 * row),
        ("y_batch_stride", row),
        ("y_head_stride", DIM as f64),
    ];
    common(&mut f);
    for (name, value, status) in [
        ("heads", -3.0, NVTE_ERROR_INVALID_SHAPE),
        ("x_seq_stride", -1.0, NVTE_ERROR_INVALID_STRIDE),
        ("y_seq_stride", -1.0, NVTE_ERROR_INVALID_STRIDE),
        ("y_seq_stride", 90.0, NVTE_ERROR_INVALID_STRIDE),
        ("y_batch_stride", 47.0, NVTE_ERROR_INVALID_STRIDE),
        ("y_head_stride", 15.0, NVTE_ERROR_INVALID_STRIDE),
        ("y_head_stride", 0.0, NVTE_ERROR_INVALID_STRIDE),
    ] {
        f.faults.push(Fault::number(name, value, status));
    }
    let huge = |c: &mut Call| c.set("x_seq_stride", 9e18);
    f.faults.push(Fault::new("huge x_seq_stride", NVTE_ERROR_SIZE_OVERFLOW, "x", huge));
    let in_place = |c: &mut Call| {
        let x = c.pointer("x");
        c.set_pointer("y", x);
        c.set("x_seq_stride", 0.0);
    };
    f.faults.push(Fault::new("in place with other strides", NVTE_ERROR_OVERLAP, "y", in_place));
    f
}

fn packed(name: &'static str, backward: bool, call: fn(&Call) -> nvte_status_t) -> Function {
    let mut f = Function::new(name, call);
    let (whole, part) = if backward { (Output, Input) } else { (Input, Output) };
    let bytes = |heads: usize| 2 * SEQ * BATCH * heads * DIM;
    f.pointers = vec![
        Pointer::new("qkv", whole, bytes(4), 2, true),
        Pointer::new("q", part, bytes(2), 2, true),
        Pointer::new("k", part, bytes(1), 2, true),
        Pointer::new("v", part, bytes(1), 2, true),
    ];
    let token = (BATCH * DIM) as f64;
    f.numbers = vec![
        ("order", f64::from(NVTE_QKV_GROUPED)),
        ("reserved", 0.0),
        ("q_heads", 2.0),
        ("kv_heads", 1.0),
        ("qkv_seq_stride", 4.0 * token),
        ("q_seq_stride", 2.0 * token),
        ("kv_seq_stride", token),
    ];
    common(&mut f);
    for (name, value, status) in [
        ("order", 2.0, NVTE_ERROR_INVALID_ENUM),
        ("order", -1.0, NVTE_ERROR_INVALID_ENUM),
        ("reserved", 1.0, NVTE_ERROR_UNSUPPORTED),
        ("q_heads", -1.0, NVTE_ERROR_INVALID_SHAPE),
        ("kv_heads", -1.0, NVTE_ERROR_INVALID_SHAPE),
        ("qkv_seq_stride", -1.0, NVTE_ERROR_INVALID_STRIDE),
        ("q_seq_stride", -1.0, NVTE_ERROR_INVALID_STRIDE),
    ] {
        f.faults.push(Fault::number(name, value, status));
    }
    f.faults.push(Fault::new("kv_heads that do not divide q_heads", NVTE_ERROR_INVALID_SHAPE, "q_heads", |c| c.set("kv_heads", 3.0)));
    f.faults.push(Fault::new("no kv_heads to group by", NVTE_ERROR_INVALID_SHAPE, "q_heads", |c| c.set("kv_heads", 0.0)));
    let (name, small) = if backward { ("qkv_seq_stride", 4.0 * token - 1.0) } else { ("kv_seq_stride", token - 1.0) };
    let text = if backward { "qkv_seq_stride" } else { "_seq_stride" };
    f.faults.push(Fault::new("tokens share memory", NVTE_ERROR_INVALID_STRIDE, text, move |c| c.set(name, small)));
    let endless = |c: &mut Call| {
        c.set("q_heads", 8e18);
        c.set("kv_heads", 8e18);
    };
    f.faults.push(Fault::new("heads without end", NVTE_ERROR_SIZE_OVERFLOW, "head_dim", endless));
    f
}

/// Calls with the structs that a call describes.
fn call_plain(c: &Call, f: unsafe extern "C" fn(nvte_context_t, *const nvte_rope_args_t, nvte_stream_t) -> nvte_status_t) -> nvte_status_t {
    // SAFETY: the structs live here; faults are what the function must see.
    unsafe { f(c.ctx, c.args(&args(c, &angles(c))), c.stream) }
}

fn call_packed(
    c: &Call,
    f: unsafe extern "C" fn(nvte_context_t, *const nvte_rope_qkv_args_t, nvte_stream_t) -> nvte_status_t,
) -> nvte_status_t {
    // SAFETY: as above.
    unsafe { f(c.ctx, c.args(&qkv_args(c, &angles(c))), c.stream) }
}

pub fn functions() -> Vec<Function> {
    vec![
        plain("nvte_rope_fwd", |c| call_plain(c, nvte_rope_fwd)),
        plain("nvte_rope_bwd", |c| call_plain(c, nvte_rope_bwd)),
        packed("nvte_rope_qkv_fwd", false, |c| call_packed(c, nvte_rope_qkv_fwd)),
        packed("nvte_rope_qkv_bwd", true, |c| call_packed(c, nvte_rope_qkv_bwd)),
    ]
}

/// The table, which is made on the host.
pub fn the_rest() {
    let (mut cos, mut sin) = ([7f32; 12], [7f32; 12]);
    let (c, s) = (cos.as_mut_ptr(), sin.as_mut_ptr());
    let odd = c.wrapping_byte_add(2);
    for (rows, dim, base, c, s, status, text) in [
        (-1, 8, 1e4, c, s, NVTE_ERROR_INVALID_SHAPE, "rows"),
        (3, -2, 1e4, c, s, NVTE_ERROR_INVALID_SHAPE, "rotary_dim"),
        (3, 7, 1e4, c, s, NVTE_ERROR_INVALID_SHAPE, "rotary_dim"),
        (i64::MAX, 8, 1e4, c, s, NVTE_ERROR_SIZE_OVERFLOW, "rows"),
        (3, 8, 0.0, c, s, NVTE_ERROR_INVALID_VALUE, "base"),
        (3, 8, f64::NAN, c, s, NVTE_ERROR_INVALID_VALUE, "base"),
        (3, 8, 1e4, ptr::null_mut(), s, NVTE_ERROR_NULL_POINTER, "cos"),
        (3, 8, 1e4, c, ptr::null_mut(), NVTE_ERROR_NULL_POINTER, "sin"),
        (3, 8, 1e4, odd, s, NVTE_ERROR_MISALIGNED, "cos"),
        (3, 8, 1e4, c, c, NVTE_ERROR_OVERLAP, "sin"),
        (2, 8, 1e4, c, c.wrapping_add(7), NVTE_ERROR_OVERLAP, "sin"),
    ] {
        // SAFETY: nothing is written on an error.
        assert_eq!(unsafe { nvte_rope_table(0, rows, dim, base, c, s) }, status, "{}", message());
        assert!(message().contains(text), "{}", message());
    }
    assert!(cos.iter().chain(&sin).all(|v| *v == 7.0), "a refused call wrote");
    // SAFETY: room for three rows of four.
    unsafe {
        assert_eq!(nvte_rope_table(0, 0, 8, 1e4, ptr::null_mut(), ptr::null_mut()), NVTE_OK);
        assert_eq!(nvte_rope_table(0, 3, 8, 1e4, c, s), NVTE_OK);
    }
    assert!(cos[0] == 1.0 && sin[0] == 0.0 && cos[11] != 7.0);
}
