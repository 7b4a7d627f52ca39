//! The project's own GEMM kernels as compile-time variants, and the structure they all take.

use super::tile::{Tile, SM90_TILES};
use crate::{
    backend::cuda::{
        jit::{kernel_spec, KernelSpec},
        sources::SourceFile,
        testing::Variant,
    },
    tensor::DType,
};

/// `GemmOut` of `kernels/common/gemm_epilogue.cuh`. Null addresses: bias none, scale_inv 1, amax not recorded, d_scale_inv not written.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct GemmOut {
    pub(crate) d: u64,
    pub(crate) c: u64,
    pub(crate) bias: u64,
    pub(crate) scale_inv_a: u64,
    pub(crate) scale_inv_b: u64,
    pub(crate) d_scale: u64,
    pub(crate) d_scale_inv: u64,
    pub(crate) amax: u64,
    pub(crate) ldd: i64,
    pub(crate) ldc: i64,
    pub(crate) alpha: f32,
    pub(crate) beta: f32,
    pub(crate) c_dtype: i32,
    pub(crate) bias_dtype: i32,
}

const _: () = assert!(std::mem::size_of::<GemmOut>() == 96);

/// `kernels/gemm_pack.cu`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackKernel {
    pub(crate) input: DType,
    /// FP8 codes are decoded to f16.
    pub(crate) decode: bool,
    /// The input is not K-major.
    pub(crate) transposed: bool,
}

impl KernelSpec for PackKernel {
    const SOURCE: SourceFile = SourceFile::GemmPack;

    fn id(&self) -> u64 {
        // Copies of one element size are one kernel.
        let what = if self.decode { self.input as u64 } else { 8 + self.input.size() as u64 };
        what << 1 | u64::from(self.transposed)
    }

    fn defines(&self) -> Vec<String> {
        let mut d = vec![format!("ES={}", self.input.size()), format!("TRANS={}", i32::from(self.transposed))];
        d.push(format!("DECODE={}", if self.decode { self.input as i32 } else { 0 }));
        if self.decode {
            d.push(format!("OUT_DT={}", DType::F16 as i32));
        }
        d
    }

    fn entry(&self) -> &'static str {
        "gemm_pack"
    }
}

/// `kernels/gemm_sm90.cu`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sm90Kernel {
    pub(crate) a: DType,
    pub(crate) b: DType,
    pub(crate) d: DType,
    pub(crate) precise: bool,
    pub(crate) tile: Tile,
}

impl KernelSpec for Sm90Kernel {
    const SOURCE: SourceFile = SourceFile::GemmSm90;

    fn id(&self) -> u64 {
        let types = self.a as u64 | (self.b as u64) << 4 | (self.d as u64) << 8;
        types
            | u64::from(self.precise) << 12
            | u64::from(self.tile.cluster) << 13
            | u64::from(self.tile.bm) << 16
            | u64::from(self.tile.bn) << 32
    }

    fn defines(&self) -> Vec<String> {
        vec![
            format!("A_DT={}", self.a as i32),
            format!("B_DT={}", self.b as i32),
            format!("D_DT={}", self.d as i32),
            format!("PRECISE={}", i32::from(self.precise)),
            format!("BM={}", self.tile.bm),
            format!("BN={}", self.tile.bn),
            format!("STAGES={}", self.tile.stages),
            format!("CLUSTER={}", self.tile.cluster),
        ]
    }

    fn entry(&self) -> &'static str {
        "gemm_sm90"
    }

    fn dynamic_smem(&self) -> u32 {
        // As the file counts: alignment, stages, eight staging areas, eight slots of scales, two barriers per stage.
        1024 + self.tile.stages * (self.tile.bm + self.tile.bn) * 128 + 8 * 4096 + 8 * 32 + 16 * self.tile.stages
    }
}

/// `kernels/gemm_mma.cu`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MmaKernel {
    pub(crate) input: DType,
    pub(crate) d: DType,
    pub(crate) large: bool,
}

/// Warps along M and N of a block: tiles of 128 x 128 or 64 x 64.
fn warps(large: bool) -> [u32; 2] {
    if large {
        [4, 2]
    } else {
        [2, 1]
    }
}

impl MmaKernel {
    fn stages(&self) -> u32 {
        // 96 KiB and 64 KiB: sm_89 and sm_120 have 99.
        if self.large {
            3
        } else {
            4
        }
    }

    pub(crate) fn threads(&self) -> u32 {
        let [m, n] = warps(self.large);
        32 * m * n
    }
}

kernel_spec!(
    MmaKernel: GemmMma, s => "gemm_mma",
    "IN_DT" = s.input, "D_DT" = s.d, "WARPS_M" = warps(s.large)[0], "WARPS_N" = warps(s.large)[1], "STAGES" = s.stages();
    smem = s.stages() * (32 * warps(s.large)[0] + 64 * warps(s.large)[1]) * 128
);

/// `kernels/gemm_simt.cu`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimtKernel {
    pub(crate) a: DType,
    pub(crate) b: DType,
    pub(crate) d: DType,
    pub(crate) large: bool,
}

impl SimtKernel {
    pub(crate) fn threads(&self) -> u32 {
        let [m, n] = warps(self.large);
        32 * m * n
    }
}

kernel_spec!(
    SimtKernel: GemmSimt, s => "gemm_simt",
    "A_DT" = s.a, "B_DT" = s.b, "D_DT" = s.d, "WARPS_M" = warps(s.large)[0], "WARPS_N" = warps(s.large)[1]
);

/// `kernels/gemm_epilogue_only.cu`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EpilogueOnly {
    pub(crate) d: DType,
}

kernel_spec!(EpilogueOnly: GemmEpilogueOnly, s => "gemm_epilogue_only", "D_DT" = s.d);

/// Modules of this family: every kernel, tile and output type, and every operand type. Not every product of them: an operand type changes
/// one word of one instruction (Sm90, Mma) or one conversion (Simt), which no tile or output type depends on.
pub(crate) fn variants() -> Vec<Variant> {
    use DType::{Bf16, E4m3, E5m2, F16, F32};
    let mut all = Vec::new();
    for (input, decode) in [(E4m3, false), (Bf16, false), (E4m3, true), (E5m2, true)] {
        for transposed in [false, true] {
            all.push(Variant::of(&PackKernel { input, decode, transposed }));
        }
    }
    for precise in [false, true] {
        for (i, tile) in SM90_TILES.iter().filter(|t| t.serves(precise)).enumerate() {
            for d in DType::ALL {
                all.push(Variant::of(&Sm90Kernel { a: E4m3, b: E4m3, d, precise, tile: *tile }).on(90, 90));
            }
            if i == 0 {
                for (a, b) in [(E4m3, E5m2), (E5m2, E4m3), (E5m2, E5m2)] {
                    all.push(Variant::of(&Sm90Kernel { a, b, d: Bf16, precise, tile: *tile }).on(90, 90));
                }
            }
        }
    }
    for (input, d, large) in [
        (F16, F32, true),
        (F16, Bf16, true),
        (F16, E4m3, true),
        (Bf16, Bf16, true),
        (F16, F16, false),
        (F16, E5m2, false),
        (Bf16, F32, false),
    ] {
        all.push(Variant::of(&MmaKernel { input, d, large }));
    }
    for (a, b, d, large) in [
        (F32, F32, F32, true),
        (F32, F32, Bf16, true),
        (F32, F32, E4m3, true),
        (F32, F32, F32, false),
        (F32, F32, F16, false),
        (F32, F32, E5m2, false),
        (E4m3, E5m2, F32, true),
        (F16, Bf16, F32, false),
    ] {
        all.push(Variant::of(&SimtKernel { a, b, d, large }));
    }
    all.extend(DType::ALL.map(|d| Variant::of(&EpilogueOnly { d })));
    all
}
