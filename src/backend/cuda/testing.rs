//! For this project's own tests: every kernel variant, to be compiled for every architecture with no GPU.

use std::path::PathBuf;

use super::{
    jit::{self, KernelSpec},
    nvrtc::Nvrtc,
    sources::SourceFile,
};
use crate::error::Result;

pub use super::gemm::testing::{Operand, OwnArgs, OwnGemm, OwnKernel};

/// One module as the library would compile it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// File.
    pub file: SourceFile,
    /// "NAME=VALUE".
    pub defines: Vec<String>,
    /// Least compute capability times ten on which the library asks for it.
    pub min_arch: i32,
    /// Greatest one.
    pub max_arch: i32,
}

impl Variant {
    pub(crate) fn of<S: KernelSpec>(spec: &S) -> Self {
        Self { file: S::SOURCE, defines: spec.defines(), min_arch: 80, max_arch: 999 }
    }

    #[allow(dead_code)]
    pub(crate) fn on(mut self, min_arch: i32, max_arch: i32) -> Self {
        (self.min_arch, self.max_arch) = (min_arch, max_arch);
        self
    }
}

/// All of them, without repetition.
pub fn variants() -> Vec<Variant> {
    let mut all: Vec<Variant> = Vec::new();
    // One line per family.
    let families = [
        super::activation::variants(),
        super::adamw::variants(),
        super::amax::variants(),
        super::cast::variants(),
        super::cross_entropy::variants(),
        super::dequantize::variants(),
        super::gemm::kernels::variants(),
        super::grad_norm::variants(),
        super::linear::variants(),
        super::list::variants(),
        super::multi_cast::variants(),
        super::norm::variants(),
        super::dropout::variants(),
        super::rope::variants(),
        super::scaling::variants(),
        super::softmax::variants(),
    ];
    for v in families.into_iter().flatten() {
        if !all.contains(&v) {
            all.push(v);
        }
    }
    all
}

/// Compiles a variant; returns the cubin and ptxas' report.
pub fn compile(v: &Variant, arch: &str, library_dirs: &[PathBuf]) -> Result<(Vec<u8>, String)> {
    let compiled = Nvrtc::get(library_dirs)?.compile(&jit::source(v.file), arch, &v.defines)?;
    Ok((compiled.cubin, compiled.log))
}

/// Path and version of the NVRTC in use.
pub fn nvrtc(library_dirs: &[PathBuf]) -> Result<String> {
    let n = Nvrtc::get(library_dirs)?;
    let (major, minor) = n.version();
    Ok(format!("{} ({major}.{minor})", n.name()))
}

/// Every function the driver must have.
pub fn driver_symbols() -> Vec<&'static str> {
    super::driver::SYMBOLS.iter().filter_map(|s| s.to_str().ok()).collect()
}
