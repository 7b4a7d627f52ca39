//! NVRTC: CUDA C++ to a cubin.

use std::{
    ffi::{c_char, c_int, c_void, CStr, CString},
    path::PathBuf,
    ptr,
    sync::OnceLock,
};

use super::library::{self, Library};
use crate::error::{Error, Result, Status};

type Program = *mut c_void;

macro_rules! table {
    ($($field:ident = $symbol:literal : fn($($arg:ty),*);)*) => {
        /// NVRTC's functions.
        pub(crate) struct Nvrtc {
            library: Library,
            $($field: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Nvrtc {
            fn resolve(library: Library) -> Result<Self> {
                Ok(Self {
                    $($field: {
                        let p = library.symbol($symbol).ok_or_else(|| Error::new(
                            Status::NvrtcNotFound,
                            format!("{} lacks {}", library.name(), $symbol.to_string_lossy()),
                        ))?;
                        // SAFETY: NVRTC's ABI fixes this function's signature.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> c_int>(p) }
                    },)*
                    library,
                })
            }
        }
    };
}

table! {
    version = c"nvrtcVersion": fn(*mut c_int, *mut c_int);
    create = c"nvrtcCreateProgram": fn(*mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
    compile = c"nvrtcCompileProgram": fn(Program, c_int, *const *const c_char);
    log_size = c"nvrtcGetProgramLogSize": fn(Program, *mut usize);
    log = c"nvrtcGetProgramLog": fn(Program, *mut c_char);
    cubin_size = c"nvrtcGetCUBINSize": fn(Program, *mut usize);
    cubin = c"nvrtcGetCUBIN": fn(Program, *mut c_char);
    destroy = c"nvrtcDestroyProgram": fn(*mut Program);
    archs_count = c"nvrtcGetNumSupportedArchs": fn(*mut c_int);
    archs = c"nvrtcGetSupportedArchs": fn(*mut c_int);
}

/// One source file to compile.
pub(crate) struct Source<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    /// (name as included, text)
    pub(crate) headers: &'a [(&'a str, &'a str)],
}

/// A compiled file: the machine code and ptxas' report (registers, spills, warnings).
pub(crate) struct Compiled {
    pub(crate) cubin: Vec<u8>,
    pub(crate) log: String,
}

impl Nvrtc {
    /// NVRTC, found and opened at first use; where it was not found, the next call looks again (a framework may have loaded it since).
    pub(crate) fn get(dirs: &[PathBuf]) -> Result<&'static Nvrtc> {
        static NVRTC: OnceLock<Nvrtc> = OnceLock::new();
        if let Some(n) = NVRTC.get() {
            return Ok(n);
        }
        let library = library::find(&library::NVRTC, dirs).ok_or_else(|| {
            Error::new(
                Status::NvrtcNotFound,
                "NVRTC (libnvrtc.so.13 or .12) was not found: `pip install nvidia-cuda-nvrtc`, or name its folder in NVTE_LIBRARY_PATH",
            )
        })?;
        let loaded = Self::resolve(library)?;
        Ok(NVRTC.get_or_init(|| loaded))
    }

    /// Where it was found.
    pub(crate) fn name(&self) -> &str {
        self.library.name()
    }

    /// Major and minor version.
    pub(crate) fn version(&self) -> (i32, i32) {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two out-pointers.
        unsafe { (self.version)(&mut major, &mut minor) };
        (major, minor)
    }

    fn knows(&self, arch: &str) -> bool {
        let number: i32 = arch.trim_start_matches("sm_").trim_end_matches(|c: char| c.is_alphabetic()).parse().unwrap_or(0);
        let mut n = 0;
        // SAFETY: an out-pointer.
        if unsafe { (self.archs_count)(&mut n) } != 0 || n <= 0 {
            return true;
        }
        let mut list = vec![0; n as usize];
        // SAFETY: room for as many numbers as it said.
        unsafe { (self.archs)(list.as_mut_ptr()) };
        list.contains(&number)
    }

    /// Compiles to a cubin for `arch` ("sm_90a"). `defines` are "NAME=VALUE".
    pub(crate) fn compile(&self, source: &Source<'_>, arch: &str, defines: &[String]) -> Result<Compiled> {
        if !self.knows(arch) {
            let (major, minor) = self.version();
            return Err(Error::new(
                Status::Nvrtc,
                format!("NVRTC {major}.{minor} ({}) does not know the device's architecture {arch}: a newer NVRTC is needed", self.name()),
            ));
        }
        let c = |s: &str| CString::new(s).map_err(|_| Error::new(Status::Internal, "a kernel source holds a zero byte"));
        let (text, name) = (c(source.text)?, c(source.name)?);
        let header_texts = source.headers.iter().map(|h| c(h.1)).collect::<Result<Vec<_>>>()?;
        let header_names = source.headers.iter().map(|h| c(h.0)).collect::<Result<Vec<_>>>()?;
        let mut options =
            vec![c(&format!("--gpu-architecture={arch}"))?, c("-default-device")?, c("--std=c++17")?, c("--ptxas-options=-v")?];
        for d in defines {
            options.push(c(&format!("-D{d}"))?);
        }
        let pointers = |v: &[CString]| v.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let mut program: Program = ptr::null_mut();
        // SAFETY: all strings outlive the calls; the arrays have the lengths passed; the program is destroyed once.
        unsafe {
            let (texts, names, options) = (pointers(&header_texts), pointers(&header_names), pointers(&options));
            let code = (self.create)(&mut program, text.as_ptr(), name.as_ptr(), texts.len() as c_int, texts.as_ptr(), names.as_ptr());
            if code != 0 {
                return Err(Error::with_code(Status::Nvrtc, code, format!("nvrtcCreateProgram returned {code} for {}", source.name)));
            }
            let code = (self.compile)(program, options.len() as c_int, options.as_ptr());
            let log = self.read_log(program);
            let result = if code != 0 {
                Err(Error::with_code(Status::Nvrtc, code, format!("NVRTC could not compile {} for {arch} ({code}):\n{log}", source.name)))
            } else {
                self.read_cubin(program).map(|cubin| Compiled { cubin, log })
            };
            (self.destroy)(&mut program);
            result
        }
    }

    /// # Safety
    /// A live program.
    unsafe fn read_log(&self, program: Program) -> String {
        let mut size = 0;
        // SAFETY: a live program; the buffer has the size it asked for.
        unsafe {
            if (self.log_size)(program, &mut size) != 0 || size == 0 {
                return String::new();
            }
            let mut text = vec![0u8; size];
            (self.log)(program, text.as_mut_ptr().cast());
            CStr::from_bytes_until_nul(&text).map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
        }
    }

    /// # Safety
    /// A live, compiled program.
    unsafe fn read_cubin(&self, program: Program) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: a live program; the buffer has the size it asked for.
        unsafe {
            let code = (self.cubin_size)(program, &mut size);
            if code != 0 || size == 0 {
                return Err(Error::with_code(Status::Nvrtc, code, "NVRTC compiled but gave no cubin"));
            }
            let mut cubin = vec![0u8; size];
            let code = (self.cubin)(program, cubin.as_mut_ptr().cast());
            if code != 0 {
                return Err(Error::with_code(Status::Nvrtc, code, format!("nvrtcGetCUBIN returned {code}")));
            }
            Ok(cubin)
        }
    }
}
