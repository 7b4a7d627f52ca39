//! A function is described by one valid call. Every fault is one change to it, and must give its status and a message that names the
//! argument, and leave all memory as it was.

use std::{
    ffi::{c_void, CStr},
    ptr,
};

use nvte::{
    capi::{context::*, types::*},
    Context, DType, Stream,
};

use crate::{
    common::{context, on_cuda, sync, Guarded, POISON},
    faults,
};

/// Set where kernels do not run, so that valid calls write nothing.
pub const NO_KERNELS: &str = "NVTE_TEST_NO_KERNELS";

/// What a function does with an argument's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Input,
    /// Also for what is read and written.
    Output,
}
pub use Role::{Input, Output};

/// Which layouts of a matrix are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    Rows,
    Transposed,
    Both,
    /// One row, whose stride means nothing.
    Vector,
}

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
    pub layout: Layout,
    /// Names of matrices whose memory it may be, exactly.
    pub may_be: &'static [&'static str],
}

impl Matrix {
    pub fn new(name: &'static str, role: Role, dtype: DType, rows: i64, cols: i64) -> Self {
        let refused = if dtype.is_fp8() { DType::F32 } else { DType::E4m3 };
        Self { name, role, dtype, refused, rows, cols, required: true, layout: Layout::Rows, may_be: &[] }
    }
    pub fn vector(name: &'static str, role: Role, dtype: DType, cols: i64) -> Self {
        Self::new(name, role, dtype, 1, cols).layout(Layout::Vector)
    }
    pub fn refusing(mut self, dtype: DType) -> Self {
        self.refused = dtype;
        self
    }
    pub fn optional(mut self) -> Self {
        self.required = false;
        self
    }
    pub fn with_transpose(self) -> Self {
        self.layout(Layout::Both)
    }
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }
    pub fn may_be(mut self, names: &'static [&'static str]) -> Self {
        self.may_be = names;
        self
    }
    pub fn bytes(&self) -> usize {
        (self.rows * self.cols) as usize * self.dtype.size()
    }
}

/// A plain device pointer whose length the library knows, so that it can see overlaps.
#[derive(Clone, Debug)]
pub struct Pointer {
    pub name: &'static str,
    pub role: Role,
    pub bytes: usize,
    pub align: usize,
    pub required: bool,
    /// Names of pointers whose memory it may be, exactly.
    pub may_be: &'static [&'static str],
}

impl Pointer {
    pub fn new(name: &'static str, role: Role, bytes: usize, align: usize, required: bool) -> Self {
        Self { name, role, bytes, align, required, may_be: &[] }
    }
    /// `count` words of four bytes.
    pub fn words(name: &'static str, role: Role, count: i64) -> Self {
        Self::new(name, role, 4 * count as usize, 4, true)
    }
    pub fn may_be(mut self, names: &'static [&'static str]) -> Self {
        self.may_be = names;
        self
    }
    pub fn optional(mut self) -> Self {
        self.required = false;
        self
    }
}

/// How a struct is passed.
#[derive(Clone, Copy)]
pub enum Passed {
    Yes,
    Null,
    Misaligned,
}

fn pass<T>(p: *const T, how: Passed) -> *const T {
    match how {
        Passed::Yes => p,
        Passed::Null => ptr::null(),
        Passed::Misaligned => p.wrapping_byte_add(4),
    }
}

/// One call: what a description's `call` reads.
pub struct Call {
    pub ctx: nvte_context_t,
    pub stream: nvte_stream_t,
    pub workspace: *mut c_void,
    pub workspace_bytes: u64,
    /// Added to sizeof of the argument struct.
    pub size_error: i32,
    pub args: Passed,
    tensors: Vec<(&'static str, nvte_tensor_t, Passed)>,
    pointers: Vec<(&'static str, *mut c_void)>,
    numbers: Vec<(&'static str, f64)>,
}

impl Call {
    /// A call that has nothing but a context, for queries.
    pub fn of_context(ctx: nvte_context_t) -> Self {
        Self {
            ctx,
            stream: ptr::null_mut(),
            workspace: ptr::null_mut(),
            workspace_bytes: 0,
            size_error: 0,
            args: Passed::Yes,
            tensors: vec![],
            pointers: vec![],
            numbers: vec![],
        }
    }
    fn at(&mut self, name: &str) -> &mut (&'static str, nvte_tensor_t, Passed) {
        self.tensors.iter_mut().find(|t| t.0 == name).unwrap_or_else(|| panic!("no matrix {name}"))
    }
    /// A matrix, as the function takes it.
    pub fn tensor(&self, name: &str) -> *const nvte_tensor_t {
        let t = self.tensors.iter().find(|t| t.0 == name).unwrap_or_else(|| panic!("no matrix {name}"));
        pass(&t.1, t.2)
    }
    pub fn tensor_mut(&mut self, name: &str) -> &mut nvte_tensor_t {
        &mut self.at(name).1
    }
    pub fn leave_out(&mut self, name: &str) {
        self.pass_tensor(name, Passed::Null);
    }
    pub fn pass_tensor(&mut self, name: &str, how: Passed) {
        self.at(name).2 = how;
    }
    /// A plain pointer.
    pub fn pointer<T>(&self, name: &str) -> *mut T {
        self.pointers.iter().find(|p| p.0 == name).unwrap_or_else(|| panic!("no pointer {name}")).1.cast()
    }
    pub fn set_pointer(&mut self, name: &str, p: *mut c_void) {
        self.pointers.iter_mut().find(|q| q.0 == name).unwrap_or_else(|| panic!("no pointer {name}")).1 = p;
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
        (std::mem::size_of::<T>() as i32).wrapping_add(self.size_error) as u32
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
    /// A number out of its range, by its name.
    pub fn number(name: &'static str, v: f64, status: i32) -> Self {
        Self::new(format!("{name} = {v}"), status, name, move |c| c.set(name, v))
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
    /// Bytes of workspace that the library asks for with this call.
    pub workspace: Option<fn(&Call) -> u64>,
    /// It takes an argument struct.
    pub has_args: bool,
    /// It looks at memory; a query does not.
    pub has_memory: bool,
    /// It has a stream, which may be the prepare stream.
    pub prepares: bool,
    /// The valid call writes every output.
    pub writes: bool,
    pub call: fn(&Call) -> nvte_status_t,
    /// What only this function can be given.
    pub faults: Vec<Fault>,
}

impl Function {
    pub fn new(name: &'static str, call: fn(&Call) -> nvte_status_t) -> Self {
        Self {
            name,
            matrices: vec![],
            pointers: vec![],
            numbers: vec![],
            workspace: None,
            has_args: false,
            has_memory: true,
            prepares: true,
            writes: true,
            call,
            faults: vec![],
        }
    }
}

/// The `scaling` that goes with a type.
pub fn scaling(dtype: DType) -> i32 {
    if dtype.is_fp8() {
        NVTE_SCALING_PER_TENSOR
    } else {
        NVTE_SCALING_NONE
    }
}

/// Memory of a matrix: its layouts and its slots.
struct Memory {
    data: Option<Guarded>,
    data_t: Option<Guarded>,
    slots: [Guarded; 3],
}

/// The function's memory and its valid call.
struct Stage<'a> {
    f: &'a Function,
    ctx: nvte_context_t,
    matrices: Vec<Memory>,
    pointers: Vec<Guarded>,
    workspace: Option<Guarded>,
}

fn address(g: &Option<Guarded>) -> *mut c_void {
    g.as_ref().map_or(ptr::null_mut(), |g| g.ptr().as_ptr())
}

impl<'a> Stage<'a> {
    fn new(f: &'a Function, device: &Context, ctx: nvte_context_t) -> Self {
        // Inputs: the code of a small normal number in every format.
        let fill = |role: Role, bytes: usize| match role {
            Input => Guarded::from_bytes(device, &vec![0x3C; bytes], 0),
            Output => Guarded::new(device, bytes, 0),
        };
        let matrices = f.matrices.iter().map(|m| Memory {
            data: (m.layout != Layout::Transposed).then(|| fill(m.role, m.bytes())),
            data_t: matches!(m.layout, Layout::Transposed | Layout::Both).then(|| fill(m.role, m.bytes())),
            slots: [Input, m.role, m.role].map(|role| fill(role, 4)),
        });
        let matrices = matrices.collect();
        let pointers = f.pointers.iter().map(|p| fill(p.role, p.bytes)).collect();
        let mut stage = Self { f, ctx, matrices, pointers, workspace: None };
        if let Some(query) = f.workspace {
            let needed = query(&stage.valid()) as usize;
            stage.workspace = (needed > 0).then(|| Guarded::new(device, needed, 0));
        }
        stage
    }

    fn contents(&self) -> Vec<Vec<u8>> {
        let layouts = self.matrices.iter().flat_map(|m| [&m.data, &m.data_t].into_iter().flatten().chain(&m.slots));
        // A product's workspace is large, and a fault that reached it would start at one of its ends.
        layouts.chain(&self.pointers).chain(&self.workspace).map(|g| g.read_ends(1 << 16)).collect()
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
                data: address(&memory.data),
                rows: m.rows,
                cols: m.cols,
                ld: m.cols,
                data_t: address(&memory.data_t),
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
            workspace: address(&self.workspace),
            workspace_bytes: self.workspace.as_ref().map_or(0, |g| g.bytes() as u64),
            size_error: 0,
            args: Passed::Yes,
            tensors: tensors.collect(),
            pointers: self.f.pointers.iter().zip(&self.pointers).map(|(p, g)| (p.name, g.ptr().as_ptr())).collect(),
            numbers: self.f.numbers.clone(),
        }
    }
}

/// The message of this thread's last error.
pub fn message() -> String {
    // SAFETY: a C string that lives until this thread's next error.
    unsafe { CStr::from_ptr(nvte_last_error()) }.to_string_lossy().into_owned()
}

/// A context of the back end under test, through the C API.
pub fn create() -> nvte_context_t {
    let mut ctx = ptr::null_mut();
    let kind = if on_cuda() { NVTE_DEVICE_CUDA } else { NVTE_DEVICE_CPU };
    // SAFETY: an out-pointer.
    assert_eq!(unsafe { nvte_context_create(kind, 0, ptr::null(), &mut ctx) }, NVTE_OK, "{}", message());
    ctx
}

/// Throws everything at one function, and at last makes the valid call for real. Returns what was not as it should be.
pub fn try_everything(f: &Function) -> Vec<String> {
    let gone = create();
    assert_eq!(nvte_context_destroy(gone), NVTE_OK);
    let (ctx, device) = (create(), context());
    let stage = Stage::new(f, &device, ctx);
    let before = stage.contents();
    if f.prepares {
        let prepared = Call { stream: Stream::PREPARE.0, ..stage.valid() };
        assert_eq!((f.call)(&prepared), NVTE_OK, "{}: the valid call, prepared: {}", f.name, message());
        assert!(stage.contents() == before, "{}: preparing wrote something", f.name);
    }

    let general = faults::general(f, gone as usize, stage.workspace.is_some());
    let mut wrong = Vec::new();
    for fault in general.iter().chain(&f.faults) {
        // The last line tells where a test died that found a guard byte written.
        println!("{}: {}", f.name, fault.what);
        let mut call = stage.valid();
        (fault.change)(&mut call);
        let status = (f.call)(&call);
        let message = message();
        sync(&device);
        if !fault.statuses.contains(&status) {
            wrong.push(format!("{}: {}: status {status} ({message}), not {:?}", f.name, fault.what, fault.statuses));
        } else if !fault.texts.iter().any(|t| message.contains(t.as_str())) {
            wrong.push(format!("{}: {}: \"{message}\" does not say {:?}", f.name, fault.what, fault.texts));
        }
        if stage.contents() != before {
            // Nothing after it could be trusted.
            wrong.push(format!("{}: {}: memory was written", f.name, fault.what));
            return wrong;
        }
    }
    assert_eq!((f.call)(&stage.valid()), NVTE_OK, "{}: the valid call: {}", f.name, message());
    sync(&device);
    for (m, memory) in f.matrices.iter().zip(&stage.matrices).filter(|_| f.has_memory && f.writes && std::env::var_os(NO_KERNELS).is_none())
    {
        let layouts = [&memory.data, &memory.data_t].into_iter().flatten();
        let written = layouts.map(Guarded::read).all(|bytes| bytes.iter().any(|b| *b != POISON));
        if !written {
            wrong.push(format!("{}: the valid call did not write {}", f.name, m.name));
        }
    }
    assert_eq!(nvte_context_destroy(ctx), NVTE_OK);
    wrong
}
