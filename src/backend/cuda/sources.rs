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
            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
            pub(crate) fn text(self) -> &'static str {
                match self { $(Self::$variant => include_str!(concat!("../../../kernels/", $name)),)* }
            }
        }
    };
}

sources! {
    Cast = "cast.cu",
}

/// What the files include, under the names they use.
pub(crate) const HEADERS: &[(&str, &str)] = &[("common/base.cuh", include_str!("../../../kernels/common/base.cuh"))];
