//! Errors: what went wrong, with which argument, which value and which rule.

use std::fmt;

/// Kind of an error. The numbers are the C ABI's (`NVTE_ERROR_*`) and only ever grow; families leave gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Status {
    /// No error.
    Ok = 0,
    /// A required pointer is null.
    NullPointer = 100,
    /// A data type is not accepted here.
    InvalidDType = 101,
    /// A size is negative, or sizes do not fit each other.
    InvalidShape = 102,
    /// A row stride is smaller than the row.
    InvalidStride = 103,
    /// An enum argument holds an unknown number.
    InvalidEnum = 104,
    /// The workspace is smaller than the query says.
    WorkspaceTooSmall = 105,
    /// Two arguments share memory where they must not.
    Overlap = 106,
    /// A handle is null, destroyed or never was one.
    InvalidHandle = 107,
    /// A pointer does not belong to the context's device.
    WrongDevice = 108,
    /// A number is outside its range.
    InvalidValue = 109,
    /// A struct's `struct_size` is not one this library knows.
    InvalidStructSize = 110,
    /// A pointer is not aligned to its element type.
    Misaligned = 111,
    /// A size in bytes does not fit 63 bits.
    SizeOverflow = 112,
    /// The combination of options has no path here.
    Unsupported = 200,
    /// The call would have to compile or load while its stream is capturing. It enqueued nothing, and the capture stays valid: it can go on
    /// with other calls, and be ended as usual.
    NotCapturable = 201,
    /// No CUDA driver was found.
    NoDriver = 300,
    /// The CUDA driver lacks a function this library needs.
    DriverTooOld = 301,
    /// The driver reports no such device.
    NoDevice = 302,
    /// The CUDA driver returned an error; its code is in [`Error::code`].
    Cuda = 303,
    /// NVRTC was not found.
    NvrtcNotFound = 400,
    /// NVRTC refused a kernel; its code is in [`Error::code`].
    Nvrtc = 401,
    /// cuBLASLt was not found.
    CublasLtNotFound = 500,
    /// cuBLASLt returned an error; its code is in [`Error::code`].
    CublasLt = 501,
    /// A defect of this library: a panic was caught at its border.
    Internal = 900,
    /// Memory could not be allocated.
    OutOfMemory = 901,
}

/// An error of any nvte function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: Status,
    code: i32,
    message: String,
}

/// Result of nvte functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A new error.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, code: 0, message: message.into() }
    }

    /// An error that carries the code of the library below (CUDA driver, NVRTC, cuBLASLt).
    pub fn with_code(status: Status, code: i32, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    /// `argument`: name; `value`: what was passed; `rule`: what it must satisfy.
    pub fn argument(status: Status, argument: impl fmt::Display, value: impl fmt::Display, rule: impl fmt::Display) -> Self {
        Self::new(status, format!("{argument} = {value}: {rule}"))
    }

    /// Kind of the error.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Code of the library below (CUDA driver, NVRTC, cuBLASLt), 0 where none was involved.
    pub fn code(&self) -> i32 {
        self.code
    }

    /// The message alone.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
