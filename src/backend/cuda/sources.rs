//! The kernel files, embedded.

macro_rules! sources {
    ($($variant:ident = $name:literal),* $(,)?) => {
        /// A kernel file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum SourceFile {
            $(#[doc = concat!("`kernels/", $name, "`")] $variant,)*
        }

        impl SourceFile {
            /// Name of the file.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
            #[cfg(test)]
            const ALL: &'static [Self] = &[$(Self::$variant),*];
            pub(crate) fn text(self) -> &'static str {
                match self { $(Self::$variant => include_str!(concat!("../../../kernels/", $name)),)* }
            }
        }
    };
}

sources! {
    Activation = "activation.cu",
    ActivationAny = "activation_any.cu",
    ActivationHigh = "activation_high.cu",
    Adamw = "adamw.cu",
    Cast = "cast.cu",
    GemmEpilogueOnly = "gemm_epilogue_only.cu",
    GemmMma = "gemm_mma.cu",
    GemmPack = "gemm_pack.cu",
    GemmSimt = "gemm_simt.cu",
    GemmSm90 = "gemm_sm90.cu",
    GradNorm = "grad_norm.cu",
    LinearSmall = "linear_small.cu",
    List = "list.cu",
    MultiCast = "multi_cast.cu",
    NormBwd = "norm_bwd.cu",
    NormBwdAny = "norm_bwd_any.cu",
    NormFwd = "norm_fwd.cu",
    NormFwdAny = "norm_fwd_any.cu",
    NormFwdRing = "norm_fwd_ring.cu",
    NormFwdRow = "norm_fwd_row.cu",
    NormFwdRows = "norm_fwd_rows.cu",
    NormFwdSets = "norm_fwd_sets.cu",
    NormFwdTile = "norm_fwd_tile.cu",
    Dropout = "dropout.cu",
    Rope = "rope.cu",
    RopeAny = "rope_any.cu",
    Amax = "amax.cu",
    CrossEntropy = "cross_entropy.cu",
    CrossEntropyRing = "cross_entropy_ring.cu",
    Dbias = "dbias.cu",
    Dequantize = "dequantize.cu",
    Loss = "loss.cu",
    Transpose = "transpose.cu",
    Scaling = "scaling.cu",
    Softmax = "softmax.cu",
}

/// What the files include, under the names they use.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("common/activation.cuh", include_str!("../../../kernels/common/activation.cuh")),
    ("common/base.cuh", include_str!("../../../kernels/common/base.cuh")),
    ("common/cross_entropy.cuh", include_str!("../../../kernels/common/cross_entropy.cuh")),
    ("common/dbias.cuh", include_str!("../../../kernels/common/dbias.cuh")),
    ("common/functions.cuh", include_str!("../../../kernels/common/functions.cuh")),
    ("common/gemm_epilogue.cuh", include_str!("../../../kernels/common/gemm_epilogue.cuh")),
    ("common/list.cuh", include_str!("../../../kernels/common/list.cuh")),
    ("common/norm.cuh", include_str!("../../../kernels/common/norm.cuh")),
    ("common/norm_fwd.cuh", include_str!("../../../kernels/common/norm_fwd.cuh")),
    ("common/norm_output.cuh", include_str!("../../../kernels/common/norm_output.cuh")),
    ("common/norm_row.cuh", include_str!("../../../kernels/common/norm_row.cuh")),
    ("common/norm_sums.cuh", include_str!("../../../kernels/common/norm_sums.cuh")),
    ("common/ptx_mma.cuh", include_str!("../../../kernels/common/ptx_mma.cuh")),
    ("common/ptx_sm90.cuh", include_str!("../../../kernels/common/ptx_sm90.cuh")),
    ("common/quads.cuh", include_str!("../../../kernels/common/quads.cuh")),
    ("common/rows.cuh", include_str!("../../../kernels/common/rows.cuh")),
    ("common/rope.cuh", include_str!("../../../kernels/common/rope.cuh")),
    ("common/smem.cuh", include_str!("../../../kernels/common/smem.cuh")),
    ("common/tile.cuh", include_str!("../../../kernels/common/tile.cuh")),
];

#[cfg(test)]
mod tests {
    use super::SourceFile;

    /// How kernels begin. The last is for a kernel that follows one with the second beginning: it waits later.
    const BEGINNINGS: [&str; 3] = ["after_previous();", "after_previous_before_next();", "if (!p.partials) after_previous();"];

    /// What may come ahead of that: L2 is asked for what will be read, or a block's share is worked out.
    const ASKS: [&str; 16] = [
        "ask_ahead(a);",
        "ask_for_rows(a);",
        "if (blockIdx.x < a.early) ask_for(a);",
        "#if FP8 && !GATED",
        "if (blockIdx.x < p.early) ask_for(p, blockIdx.x);",
        "if (blockIdx.x < p.first.early && blockIdx.x < p.blocks) ask_for(p.first, blockIdx.x);",
        "#endif",
        "ask_for_first(p);",
        "HeldTiles at(p);",
        "const LowTile at(p.rows, p.cols, p.col_tiles);",
        "const In *const x = p.x + at.row * p.ldx + at.col;",
        "const LowTile at(p.rows, p.hidden, p.col_tiles);",
        "const In *const x = (const In *)p.x + at.row * p.ldx + at.col, *const dy = (const In *)p.dy + at.row * p.lddy + at.col;",
        "at.ask(x, p.ldx);",
        "if (GATED) at.ask(x + p.hidden, p.ldx);",
        "if (BACKWARD) at.ask(dy, p.lddy);",
    ];

    /// A kernel launched as a dependent that reads or ends before it has waited would be wrong now and then only.
    #[test]
    fn every_kernel_waits_for_the_one_before() {
        let mut kernels = 0;
        for file in SourceFile::ALL {
            for definition in file.text().split("__global__").skip(1) {
                let body = definition.split_once(") {").expect("a kernel has a body").1;
                let first = body.lines().map(str::trim).find(|l| !l.is_empty() && !ASKS.contains(l)).expect("a kernel has a statement");
                assert!(BEGINNINGS.iter().any(|b| first.starts_with(b)), "{}: {}", file.name(), &definition[..120.min(definition.len())]);
                kernels += 1;
            }
        }
        assert!(kernels >= SourceFile::ALL.len());
    }
}
