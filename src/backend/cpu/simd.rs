//! Lets the compiler vectorise hot loops with AVX2 where the processor has it, from one source.

/// Whether the wider code may run. The standard library caches the answer.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

/// Defines `fn name(args) -> ret` twice from one body, for the base architecture and for AVX2, and chooses at run time.
/// No fused multiply-add is enabled: results are the same on every processor.
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident < $($g:ident : $bound:path),* > ( $($arg:ident : $ty:ty),* $(,)? ) -> $ret:ty $body:block) => {
        $(#[$meta])*
        $vis fn $name<$($g: $bound),*>($($arg: $ty),*) -> $ret {
            #[inline(always)]
            fn body<$($g: $bound),*>($($arg: $ty),*) -> $ret $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                unsafe fn wide<$($g: $bound),*>($($arg: $ty),*) -> $ret {
                    body::<$($g),*>($($arg),*)
                }
                if crate::backend::cpu::simd::has_avx2() {
                    // SAFETY: the processor has AVX2.
                    return unsafe { wide::<$($g),*>($($arg),*) };
                }
            }
            body::<$($g),*>($($arg),*)
        }
    };
}
pub(crate) use multiversion;
