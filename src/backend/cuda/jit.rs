//! From a kernel's description to a function of the driver: memory → disk cache → NVRTC.

use std::{
    collections::HashMap,
    path::PathBuf,
    ptr,
    sync::{Mutex, RwLock},
    time::Instant,
};

use super::{
    cache::{DiskCache, Key},
    driver::{Driver, Handle},
    nvrtc::{Nvrtc, Source},
    sources::{SourceFile, HEADERS},
};
use crate::{
    context::Stream,
    error::{Error, Result, Status},
};

/// A kernel specialised by compile-time constants. `id` packs them and the entry; it is unique within the source file.
pub(crate) trait KernelSpec {
    const SOURCE: SourceFile;
    fn id(&self) -> u64;
    /// "NAME=VALUE" for the compiler. Kernels with equal defines share a module.
    fn defines(&self) -> Vec<String>;
    /// The `extern "C"` name.
    fn entry(&self) -> &'static str;
    /// Dynamic shared memory in bytes, at most, of which the driver is told.
    fn dynamic_smem(&self) -> u32 {
        0
    }
}

/// Implements [`KernelSpec`] for a structure whose fields are what the compiler is told:
/// `kernel_spec!(Cast: Cast, s => entry, "IN" = s.input, …; also s.kernel; smem = s.smem)`. `also`: what else tells two kernels of the file
/// apart. For an enumeration of the kernels of one module: `kernel_spec!(enum List: List, Write = "list_write", …)`.
macro_rules! kernel_spec {
    (enum $spec:ident: $file:ident, $($kernel:ident = $entry:literal),+ $(,)?) => {
        impl crate::backend::cuda::jit::KernelSpec for $spec {
            const SOURCE: SourceFile = SourceFile::$file;

            fn id(&self) -> u64 {
                *self as u64
            }

            fn defines(&self) -> Vec<String> {
                Vec::new()
            }

            fn entry(&self) -> &'static str {
                match self {
                    $(Self::$kernel => $entry,)+
                }
            }
        }
    };
    ($spec:ty: $file:ident, $s:ident => $entry:expr $(, $name:literal = $value:expr)* $(; also $more:expr)? $(; smem = $smem:expr)?) => {
        impl crate::backend::cuda::jit::KernelSpec for $spec {
            const SOURCE: SourceFile = SourceFile::$file;

            fn id(&self) -> u64 {
                let $s = self;
                // Not every expression looks at it.
                let _ = $s;
                crate::backend::cuda::jit::pack(&[$($value as u64,)* $($more as u64)?])
            }

            fn defines(&self) -> Vec<String> {
                let $s = self;
                let _ = $s;
                vec![$(format!("{}={}", $name, $value as u64)),*]
            }

            fn entry(&self) -> &'static str {
                let $s = self;
                let _ = $s;
                $entry
            }

            $(fn dynamic_smem(&self) -> u32 {
                let $s = self;
                let _ = $s;
                $smem
            })?
        }
    };
}
pub(crate) use kernel_spec;

/// An id of at most seven values below 512.
#[inline]
pub(crate) fn pack(values: &[u64]) -> u64 {
    debug_assert!(values.len() <= 7 && values.iter().all(|v| *v < 512), "{values:?} do not fit a kernel's id");
    values.iter().fold(0, |id, v| id << 9 | v)
}

/// A loaded kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function(pub(crate) Handle);

// SAFETY: a driver handle, usable from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

struct Module(Handle);
// SAFETY: a driver handle, usable from any thread.
unsafe impl Send for Module {}

/// Kernels of one device.
pub(crate) struct Jit {
    arch: String,
    cache: DiskCache,
    library_dirs: Vec<PathBuf>,
    functions: RwLock<HashMap<(u8, u64), Function>>,
    modules: Mutex<HashMap<(u8, Vec<String>), Module>>,
}

impl Jit {
    pub(crate) fn new(arch: String, cache: DiskCache, library_dirs: Vec<PathBuf>) -> Self {
        Self { arch, cache, library_dirs, functions: RwLock::default(), modules: Mutex::default() }
    }

    pub(crate) fn arch(&self) -> &str {
        &self.arch
    }

    pub(crate) fn cache_folder(&self) -> Option<&PathBuf> {
        self.cache.folder()
    }

    pub(crate) fn library_dirs(&self) -> &[PathBuf] {
        &self.library_dirs
    }

    /// The function for `spec`; the device's context is current. `stream` is asked only where something must be loaded.
    #[inline]
    pub(crate) fn get<S: KernelSpec>(&self, spec: &S, driver: &Driver, stream: Stream) -> Result<Function> {
        let key = (S::SOURCE as u8, spec.id());
        let found = self.functions.read().unwrap_or_else(|e| e.into_inner()).get(&key).copied();
        match found {
            Some(f) => Ok(f),
            None => self.load(key, S::SOURCE, spec.defines(), spec.entry(), spec.dynamic_smem(), driver, stream),
        }
    }

    #[cold]
    fn load(
        &self,
        key: (u8, u64),
        file: SourceFile,
        defines: Vec<String>,
        entry: &'static str,
        smem: u32,
        driver: &Driver,
        stream: Stream,
    ) -> Result<Function> {
        not_capturing(driver, stream, &format!("kernel {entry} is not loaded yet"))?;
        let mut modules = self.modules.lock().unwrap_or_else(|e| e.into_inner());
        let module_key = (file as u8, defines);
        if !modules.contains_key(&module_key) {
            let cubin = self.cubin(file, &module_key.1)?;
            let mut module = ptr::null_mut();
            // SAFETY: a complete cubin image and an out-pointer; the context is current.
            driver.check("cuModuleLoadData", unsafe { (driver.module_load_data)(&mut module, cubin.as_ptr().cast()) })?;
            modules.insert(module_key.clone(), Module(module));
        }
        let module = modules[&module_key].0;
        let name = std::ffi::CString::new(entry).expect("entry names hold no zero byte");
        let mut function = ptr::null_mut();
        // SAFETY: a loaded module, a C string and an out-pointer.
        driver.check("cuModuleGetFunction", unsafe { (driver.module_get_function)(&mut function, module, name.as_ptr()) })?;
        // Untold, the driver allows 48 KiB with the kernel's static arrays.
        if smem > 0 {
            const MAX_DYNAMIC_SHARED_SIZE_BYTES: i32 = 8;
            // SAFETY: a loaded function.
            driver.check("cuFuncSetAttribute", unsafe {
                (driver.func_set_attribute)(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, smem as i32)
            })?;
        }
        let function = Function(function);
        self.functions.write().unwrap_or_else(|e| e.into_inner()).insert(key, function);
        crate::debug::log(1, || format!("kernel {entry} {:?} for {}", module_key.1, self.arch));
        Ok(function)
    }

    fn cubin(&self, file: SourceFile, defines: &[String]) -> Result<Vec<u8>> {
        let source = source(file);
        let key = Key::new(&source, &self.arch, defines);
        if let Some(cubin) = self.cache.load(&key) {
            return Ok(cubin);
        }
        let started = Instant::now();
        let nvrtc = Nvrtc::get(&self.library_dirs)?;
        let compiled = nvrtc.compile(&source, &self.arch, defines)?;
        let (major, minor) = nvrtc.version();
        self.cache.store(&key, &format!("NVRTC {major}.{minor}"), &compiled.cubin);
        crate::debug::log(1, || format!("compiled {} {defines:?} in {:.0} ms", file.name(), started.elapsed().as_secs_f64() * 1e3));
        Ok(compiled.cubin)
    }
}

/// A kernel file with everything it may include.
pub(crate) fn source(file: SourceFile) -> Source<'static> {
    Source { name: file.name(), text: file.text(), headers: HEADERS }
}

/// Compiling, loading and allocating would break a capture, so they are refused while one is under way.
pub(crate) fn not_capturing(driver: &Driver, stream: Stream, what: &str) -> Result<()> {
    if stream.is_prepare() {
        return Ok(());
    }
    let mut status = 0;
    // SAFETY: a stream of the caller's and an out-pointer.
    let code = unsafe { (driver.stream_is_capturing)(stream.0, &mut status) };
    if code == 0 && status == 0 {
        return Ok(());
    }
    Err(Error::with_code(
        Status::NotCapturable,
        code,
        format!("stream is capturing: {what}; make the same call once before the capture, or ahead with the prepare stream"),
    ))
}
