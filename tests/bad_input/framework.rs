//! A function is described by one valid call. Every fault is one change to it, and must give its status and a message that names the
//! argument, and leave all memory as it was.

use std::{
    ffi::{c_void, CStr},
    ptr,
};

use nvte::{
    capi::{context::*, types::*},
    Context, DType,
};

use crate::common::{context, on_cuda, sync, Guarded};

/// What a function does with an argument's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Input,
    Output,
}
pub use Role::{Input, Output};

/// A matrix argument.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// As errors name it.
    pub name: &'static str,
    pub role: Role,
    pub dtype: DType,
    /// A type the function refuses here; the same as `dtype`: it refuses none.
    pub refused: DType,
    pub rows: i64,
    pub cols: i64,
    /// NULL is refused.
    pub required: bool,
    /// It has a transposed copy too.
    pub transposed: bool,
    /// Names of matrices whose memory it may be, exactly.
    pub may_be: &'static [&'static str],
}

impl Matrix {
    pub fn new(name: &'static str, role: Role, dtype: DType, rows: i64, cols: i64) -> Self {
        let refused = if dtype.is_fp8() { DType::F32 } else { DType::E4m3 };
        Self { name, role, dtype, refused, rows, cols, required: true, transposed: false, may_be: &[] }
    }
    pub fn refusing(mut self, dtype: DType) -> Self {
        self.refused = dtype;
        self
    }
    pub fn optional(mut self) -> Self {
        self.required = false;
        self
    }
    pub fn with_transpose(mut self) -> Self {
        self.transposed = true;
        self
    }
    pub fn may_be(mut self, names: &'static [&'static str]) -> Self {
        self.may_be = names;
        self
    }
}

/// A plain device pointer.
#[derive(Clone, Debug)]
pub struct Pointer {
    pub name: &'static str,
    pub role: Role,
    pub bytes: usize,
    pub align: usize,
    pub required: bool,
    /// Whether the library knows how long it is and checks that outputs do not overlap it.
    pub overlap_checked: bool,
}

impl Pointer {
    pub fn new(name: &'static str, role: Role, bytes: usize, align: usize, required: bool) -> Self {
        Self { name, role, bytes, align, required, overlap_checked: false }
    }
    pub fn overlap_checked(mut self) -> Self {
        self.overlap_checked = true;
        self
    }
}

/// How a struct is passed.
#[derive(Clone, Copy)]
enum Passed {
    Yes,
    Null,
    Misaligned,
}

/// One call: what a description's `call` reads.
pub struct Call {
    pub ctx: nvte_context_t,
    pub stream: nvte_stream_t,
    /// Added to sizeof of the argument struct.
    pub size_error: i32,
    args: Passed,
    tensors: Vec<(&'static str, nvte_tensor_t, Passed)>,
    pointers: Vec<(&'static str, *mut c_void)>,
    numbers: Vec<(&'static str, f64)>,
}

fn pass<T>(p: *const T, how: Passed) -> *const T {
    match how {
        Passed::Yes => p,
        Passed::Null => ptr::null(),
        Passed::Misaligned => p.wrapping_byte_add(4),
    }
}

impl Call {
    fn at(&self, name: &str) -> usize {
        self.tensors.iter().position(|t| t.0 == name).unwrap_or_else(|| panic!("no matrix {name}"))
    }
    /// A matrix, as the function takes it.
    pub fn tensor(&self, name: &str) -> *const nvte_tensor_t {
        let t = &self.tensors[self.at(name)];
        pass(&t.1, t.2)
    }
    pub fn tensor_mut(&mut self, name: &str) -> &mut nvte_tensor_t {
        let i = self.at(name);
        &mut self.tensors[i].1
    }
    pub fn leave_out(&mut self, name: &str) {
        let i = self.at(name);
        self.tensors[i].2 = Passed::Null;
    }
    /// A plain pointer.
    pub fn pointer<T>(&self, name: &str) -> *mut T {
        self.pointers.iter().find(|p| p.0 == name).unwrap_or_else(|| panic!("no pointer {name}")).1.cast()
    }
    pub fn set_pointer(&mut self, name: &str, p: *mut c_void) {
        self.pointers.iter_mut().find(|q| q.0 == name).unwrap().1 = p;
    }
    /// A number.
    pub fn number(&self, name: &str) -> f64 {
        self.numbers.iter().find(|n| n.0 == name).unwrap_or_else(|| panic!("no number {name}")).1
    }
    pub fn set(&mut self, name: &str, v: f64) {
        self.numbers.iter_mut().find(|n| n.0 == name).unwrap_or_else(|| panic!("no number {name}")).1 = v;
    }
    /// The argument struct, as the function takes it.
    pub fn args<T>(&self, args: &T) -> *const T {
        pass(args, self.args)
    }
    /// Its size field.
    pub fn struct_size<T>(&self) -> u32 {
        (std::mem::size_of::<T>() as i32 + self.size_error) as u32
    }
}

/// A change that must be refused.
pub struct Fault {
    what: String,
    statuses: Vec<i32>,
    /// One of these is in the message.
    texts: Vec<String>,
    change: Box<dyn Fn(&mut Call)>,
}

impl Fault {
    pub fn new(what: impl Into<String>, status: i32, text: impl Into<String>, change: impl Fn(&mut Call) + 'static) -> Self {
        Self { what: what.into(), statuses: vec![status], texts: vec![text.into()], change: Box::new(change) }
    }
    pub fn or_status(mut self, status: i32) -> Self {
        self.statuses.push(status);
        self
    }
    pub fn or_text(mut self, text: impl Into<String>) -> Self {
        self.texts.push(text.into());
        self
    }
}

/// A function and its valid call.
pub struct Function {
    pub name: &'static str,
    pub matrices: Vec<Matrix>,
    pub pointers: Vec<Pointer>,
    pub numbers: Vec<(&'static str, f64)>,
    /// It takes an argument struct.
    pub has_args: bool,
    pub call: fn(&Call) -> nvte_status_t,
    /// What only this function can be given.
    pub faults: Vec<Fault>,
}

impl Function {
    pub fn new(name: &'static str, call: fn(&Call) -> nvte_status_t) -> Self {
        Self { name, matrices: vec![], pointers: vec![], numbers: vec![], has_args: false, call, faults: vec![] }
    }
}

fn scaling(dtype: DType) -> i32 {
    if dtype.is_fp8() {
        NVTE_SCALING_PER_TENSOR
    } else {
        NVTE_SCALING_NONE
    }
}

/// Memory of a matrix: its layouts and its slots.
struct Memory {
    data: Guarded,
    data_t: Option<Guarded>,
    slots: [Guarded; 3],
}

/// The function's memory and its valid call.
struct Stage<'a> {
    f: &'a Function,
    device: Context,
    ctx: nvte_context_t,
    matrices: Vec<Memory>,
    pointers: Vec<Guarded>,
    before: Vec<Vec<u8>>,
}

impl<'a> Stage<'a> {
    fn new(f: &'a Function, ctx: nvte_context_t) -> Self {
        let device = context();
        // Inputs: the code of a small normal number in every format, near enough to a plausible scale or statistic.
        let fill = |role: Role, bytes: usize| match role {
            Input => Guarded::from_bytes(&device, &vec![0x3C; bytes], 0),
            Output => Guarded::new(&device, bytes, 0),
        };
        let matrices = f.matrices.iter().map(|m| {
            let bytes = (m.rows * m.cols) as usize * m.dtype.size();
            Memory {
                data: fill(m.role, bytes),
                data_t: m.transposed.then(|| fill(m.role, bytes)),
                slots: [Input, m.role, m.role].map(|role| fill(role, 4)),
            }
        });
        let matrices = matrices.collect();
        let pointers = f.pointers.iter().map(|p| fill(p.role, p.bytes)).collect();
        let mut stage = Self { f, device, ctx, matrices, pointers, before: Vec::new() };
        stage.before = stage.contents();
        stage
    }

    fn contents(&self) -> Vec<Vec<u8>> {
        let matrices = self.matrices.iter().flat_map(|m| [Some(&m.data), m.data_t.as_ref()].into_iter().flatten().chain(&m.slots));
        matrices.chain(&self.pointers).map(Guarded::read).collect()
    }

    fn valid(&self) -> Call {
        let tensors = self.f.matrices.iter().zip(&self.matrices).map(|(m, memory)| {
            let [scale, scale_inv, amax] = memory.slots.each_ref().map(|s| s.ptr().as_ptr());
            let fp8 = m.dtype.is_fp8();
            let t = nvte_tensor_t {
                struct_size: std::mem::size_of::<nvte_tensor_t>() as u32,
                dtype: m.dtype as i32,
                scaling: scaling(m.dtype),
                flags: 0,
                data: memory.data.ptr().as_ptr(),
                rows: m.rows,
                cols: m.cols,
                ld: m.cols,
                data_t: memory.data_t.as_ref().map_or(ptr::null_mut(), |g| g.ptr().as_ptr()),
                ld_t: m.rows,
                scale: if fp8 { scale } else { ptr::null_mut() },
                scale_inv: if fp8 { scale_inv.cast() } else { ptr::null_mut() },
                scale_inv_ld: 0,
                scale_inv_t: ptr::null_mut(),
                scale_inv_t_ld: 0,
                amax: if fp8 && m.role == Output { amax } else { ptr::null_mut() },
            };
            (m.name, t, Passed::Yes)
        });
        Call {
            ctx: self.ctx,
            stream: ptr::null_mut(),
            size_error: 0,
            args: Passed::Yes,
            tensors: tensors.collect(),
            pointers: self.f.pointers.iter().zip(&self.pointers).map(|(p, g)| (p.name, g.ptr().as_ptr())).collect(),
            numbers: self.f.numbers.clone(),
        }
    }
}

fn last_error() -> String {
    // SAFETY: a C string that lives until this thread's next error.
    unsafe { CStr::from_ptr(nvte_last_error()) }.to_string_lossy().into_owned()
}

/// A host address that no device knows, aligned.
fn host_memory() -> *mut c_void {
    static HOST: [u64; 64] = [0; 64];
    HOST.as_ptr().cast_mut().cast()
}

fn matrix_faults(m: &Matrix, all: &[Matrix]) -> Vec<Fault> {
    let name = m.name;
    let mut out = Vec::new();
    let mut add = |what: &str, status: i32, field: &str, change: Box<dyn Fn(&mut nvte_tensor_t)>| {
        out.push(Fault::new(format!("{name}: {what}"), status, format!("{name}{field}"), move |c| change(c.tensor_mut(name))));
    };
    for size in [0u32, 4, 64, std::mem::size_of::<nvte_tensor_t>() as u32 + 8, u32::MAX] {
        add("struct_size", NVTE_ERROR_INVALID_STRUCT_SIZE, ".struct_size", Box::new(move |t| t.struct_size = size));
    }
    for dtype in [-1, 5, i32::MAX] {
        add("unknown dtype", NVTE_ERROR_INVALID_ENUM, ".dtype", Box::new(move |t| t.dtype = dtype));
    }
    let refused = m.refused;
    if refused != m.dtype {
        let change = move |t: &mut nvte_tensor_t| (t.dtype, t.scaling) = (refused as i32, scaling(refused));
        add("refused dtype", NVTE_ERROR_INVALID_DTYPE, ".dtype", Box::new(change));
    }
    add("unknown scaling", NVTE_ERROR_INVALID_ENUM, ".scaling", Box::new(|t| t.scaling = 77));
    add("wrong scaling", NVTE_ERROR_UNSUPPORTED, ".scaling", Box::new(|t| t.scaling = 1 - t.scaling));
    add("flags", NVTE_ERROR_UNSUPPORTED, ".flags", Box::new(|t| t.flags = 1));
    add("scale_inv_ld", NVTE_ERROR_UNSUPPORTED, ".scale_inv_ld", Box::new(|t| t.scale_inv_ld = 1));
    add("scale_inv_t", NVTE_ERROR_UNSUPPORTED, ".scale_inv_t", Box::new(|t| t.scale_inv_t = host_memory()));
    add("scale_inv_t_ld", NVTE_ERROR_UNSUPPORTED, ".scale_inv_t_ld", Box::new(|t| t.scale_inv_t_ld = 1));
    add("negative rows", NVTE_ERROR_INVALID_SHAPE, "", Box::new(|t| t.rows = -1));
    add("negative cols", NVTE_ERROR_INVALID_SHAPE, "", Box::new(|t| t.cols = i64::MIN));
    add("stride below the row", NVTE_ERROR_INVALID_STRIDE, ".ld", Box::new(|t| t.ld = t.cols - 1));
    add("negative stride", NVTE_ERROR_INVALID_STRIDE, ".ld", Box::new(|t| t.ld = -t.cols));
    if m.rows > 1 {
        add("overflowing stride", NVTE_ERROR_SIZE_OVERFLOW, "", Box::new(|t| t.ld = i64::MAX));
    }
    if m.transposed {
        add("transposed stride below the row", NVTE_ERROR_INVALID_STRIDE, ".ld_t", Box::new(|t| t.ld_t = t.rows - 1));
        add("overflowing transposed stride", NVTE_ERROR_SIZE_OVERFLOW, "", Box::new(|t| t.ld_t = i64::MAX));
        add("no layout", NVTE_ERROR_NULL_POINTER, ".data", Box::new(|t| (t.data, t.data_t) = (ptr::null_mut(), ptr::null_mut())));
    } else {
        add("no data", NVTE_ERROR_NULL_POINTER, ".data", Box::new(|t| t.data = ptr::null_mut()));
    }
    if m.dtype.size() > 1 {
        add("misaligned data", NVTE_ERROR_MISALIGNED, ".data", Box::new(|t| t.data = t.data.wrapping_byte_add(1)));
    }
    if on_cuda() {
        add("host data", NVTE_ERROR_WRONG_DEVICE, ".data", Box::new(|t| t.data = host_memory()));
    }
    let end_of_memory = |t: &mut nvte_tensor_t| t.data = ptr::without_provenance_mut(usize::MAX - 15);
    if (m.rows * m.cols) as usize * m.dtype.size() > 16 {
        add("data at the end of memory", NVTE_ERROR_SIZE_OVERFLOW, ".data", Box::new(end_of_memory));
        let last = out.pop().unwrap();
        out.push(if on_cuda() { last.or_status(NVTE_ERROR_WRONG_DEVICE) } else { last });
    }
    // Another shape: some argument's, not always this one's, is named.
    let sizes: &[&str] = if all.len() > 1 { &["rows", "cols"] } else { &[] };
    for what in sizes.iter().copied() {
        let change = move |c: &mut Call| {
            let t = c.tensor_mut(name);
            (t.rows, t.cols) = if what == "rows" { (t.rows + 1, t.cols) } else { (t.rows, t.cols + 1) };
            (t.ld, t.ld_t) = (t.ld + 1, t.ld_t + 1);
        };
        let fault = Fault::new(format!("{name}: one more of {what}"), NVTE_ERROR_INVALID_SHAPE, name, change);
        out.push(all.iter().fold(fault, |f, other| f.or_text(other.name)));
    }
    if m.required {
        out.push(Fault::new(format!("{name}: NULL"), NVTE_ERROR_NULL_POINTER, name, move |c| c.leave_out(name)));
    }
    out.push(Fault::new(format!("{name}: misaligned struct"), NVTE_ERROR_MISALIGNED, name, move |c| {
        let i = c.at(name);
        c.tensors[i].2 = Passed::Misaligned;
    }));
    out.extend(slot_faults(m));
    out
}

fn slot_faults(m: &Matrix) -> Vec<Fault> {
    let name = m.name;
    let mut out = Vec::new();
    if m.dtype.is_fp8() {
        let mut add = |slot: &str, change: fn(&mut nvte_tensor_t)| {
            out.push(Fault::new(format!("{name}: misaligned {slot}"), NVTE_ERROR_MISALIGNED, slot, move |c| change(c.tensor_mut(name))));
        };
        add("scale_inv", |t| t.scale_inv = t.scale_inv.wrapping_byte_add(2));
        if m.role == Output {
            add("scale", |t| t.scale = t.scale.wrapping_byte_add(1));
            add("amax", |t| t.amax = t.amax.wrapping_byte_add(2));
        }
        if on_cuda() {
            let change = |t: &mut nvte_tensor_t| t.scale_inv = host_memory();
            out.push(Fault::new(format!("{name}: host scale_inv"), NVTE_ERROR_WRONG_DEVICE, "scale_inv", move |c| {
                change(c.tensor_mut(name))
            }));
        }
    }
    out
}

/// Every output on every other argument's memory, exactly and in part.
fn overlap_faults(f: &Function) -> Vec<Fault> {
    let mut out = Vec::new();
    for o in f.matrices.iter().filter(|m| m.role == Output) {
        for other in f.matrices.iter().filter(|m| m.name != o.name) {
            let (name, from) = (o.name, other.name);
            for shift in [0, 8usize] {
                if shift == 0 && o.may_be.contains(&from) {
                    continue;
                }
                let change = move |c: &mut Call| {
                    let p = c.tensor_mut(from).data;
                    c.tensor_mut(name).data = p.wrapping_byte_add(shift);
                };
                out.push(Fault::new(format!("{name}.data is {from}.data + {shift}"), NVTE_ERROR_OVERLAP, name, change).or_text(from));
                if o.transposed {
                    let change = move |c: &mut Call| {
                        let p = c.tensor_mut(from).data;
                        c.tensor_mut(name).data_t = p.wrapping_byte_add(shift);
                    };
                    out.push(Fault::new(format!("{name}.data_t is {from}.data + {shift}"), NVTE_ERROR_OVERLAP, name, change).or_text(from));
                }
            }
        }
        if o.transposed {
            let name = o.name;
            out.push(Fault::new(format!("{name}.data_t is {name}.data"), NVTE_ERROR_OVERLAP, name, move |c| {
                let t = c.tensor_mut(name);
                t.data_t = t.data;
            }));
        }
        for p in f.pointers.iter().filter(|p| p.overlap_checked) {
            let (name, from) = (o.name, p.name);
            let change = move |c: &mut Call| {
                let q = c.tensor_mut(name).data;
                c.set_pointer(from, q);
            };
            out.push(Fault::new(format!("{from} is {name}.data"), NVTE_ERROR_OVERLAP, name, change).or_text(from));
        }
    }
    out
}

fn pointer_faults(p: &Pointer) -> Vec<Fault> {
    let (name, mut out) = (p.name, Vec::new());
    if p.required {
        out.push(Fault::new(format!("{name}: NULL"), NVTE_ERROR_NULL_POINTER, name, move |c| c.set_pointer(name, ptr::null_mut())));
    }
    if p.align > 1 {
        let half = p.align / 2;
        out.push(Fault::new(format!("{name}: misaligned"), NVTE_ERROR_MISALIGNED, name, move |c| {
            let q = c.pointer::<c_void>(name).wrapping_byte_add(half);
            c.set_pointer(name, q);
        }));
    }
    if on_cuda() {
        out.push(Fault::new(format!("{name}: host memory"), NVTE_ERROR_WRONG_DEVICE, name, move |c| c.set_pointer(name, host_memory())));
    }
    out
}

/// Sizes so large that a matrix does not fit 63 bits of bytes, the same in every argument that shares them.
fn overflow_faults(f: &Function) -> Vec<Fault> {
    if f.matrices.is_empty() {
        return Vec::new();
    }
    let rows = f.matrices.first().map_or(0, |m| m.rows);
    let names: Vec<&'static str> = f.matrices.iter().filter(|m| m.rows == rows).map(|m| m.name).collect();
    let others: Vec<&'static str> = f.matrices.iter().filter(|m| m.cols == rows && m.rows != rows).map(|m| m.name).collect();
    let mut out = Vec::new();
    for huge in [1i64 << 62, i64::MAX] {
        let (names, others) = (names.clone(), others.clone());
        let fault = Fault::new(format!("all rows: {huge}"), NVTE_ERROR_SIZE_OVERFLOW, "", move |c| {
            for n in &names {
                let t = c.tensor_mut(n);
                (t.rows, t.ld_t) = (huge, huge);
            }
            for n in &others {
                let t = c.tensor_mut(n);
                (t.cols, t.ld) = (huge, huge);
            }
        });
        // A function with rules of its own about sizes may say those first.
        out.push(fault.or_status(NVTE_ERROR_INVALID_SHAPE));
    }
    out
}

fn context_faults(destroyed: usize, f: &Function) -> Vec<Fault> {
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

/// A context of the back end under test, through the C API.
pub fn create() -> nvte_context_t {
    let mut ctx = ptr::null_mut();
    let kind = if on_cuda() { NVTE_DEVICE_CUDA } else { NVTE_DEVICE_CPU };
    // SAFETY: an out-pointer.
    assert_eq!(unsafe { nvte_context_create(kind, 0, ptr::null(), &mut ctx) }, NVTE_OK, "{}", last_error());
    ctx
}

/// Throws everything at one function, and at last makes the valid call for real.
pub fn try_everything(f: &Function) {
    let gone = create();
    assert_eq!(nvte_context_destroy(gone), NVTE_OK);
    let ctx = create();
    let stage = Stage::new(f, ctx);
    let mut prepared = stage.valid();
    prepared.stream = nvte::Stream::PREPARE.0;
    assert_eq!((f.call)(&prepared), NVTE_OK, "{}: the valid call, prepared: {}", f.name, last_error());
    assert_eq!(stage.contents(), stage.before, "{}: preparing wrote something", f.name);

    let mut faults = context_faults(gone as usize, f);
    f.matrices.iter().for_each(|m| faults.extend(matrix_faults(m, &f.matrices)));
    f.pointers.iter().for_each(|p| faults.extend(pointer_faults(p)));
    faults.extend(overlap_faults(f));
    faults.extend(overflow_faults(f));
    let mut wrong = Vec::new();
    for fault in faults.iter().chain(&f.faults) {
        let mut call = stage.valid();
        (fault.change)(&mut call);
        let status = (f.call)(&call);
        sync(&stage.device);
        let message = last_error();
        if !fault.statuses.contains(&status) {
            wrong.push(format!("{}: {}: status {status} ({message}), not {:?}", f.name, fault.what, fault.statuses));
        } else if !fault.texts.iter().any(|t| message.contains(t.as_str())) {
            wrong.push(format!("{}: {}: \"{message}\" does not say {:?}", f.name, fault.what, fault.texts));
        }
        if stage.contents() != stage.before {
            // Nothing after it could be trusted.
            wrong.push(format!("{}: {}: memory was written", f.name, fault.what));
            break;
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), faults.len() + f.faults.len(), wrong.join("\n"));

    assert_eq!((f.call)(&stage.valid()), NVTE_OK, "{}: the valid call: {}", f.name, last_error());
    sync(&stage.device);
    for (m, memory) in f.matrices.iter().zip(&stage.matrices) {
        let written = memory.data.read().iter().any(|b| *b != crate::common::POISON);
        assert!(written, "{}: the valid call did not write {}", f.name, m.name);
    }
    assert_eq!(nvte_context_destroy(ctx), NVTE_OK);
}
