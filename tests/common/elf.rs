//! As much of ELF as the tests of the shared library ask for, and where that library lies.

use std::path::PathBuf;

/// The shared library that belongs to this test: NVTE_TEST_LIBRARY, else beside the test's executable or one folder up.
pub fn library() -> PathBuf {
    if let Some(given) = std::env::var_os("NVTE_TEST_LIBRARY") {
        return given.into();
    }
    let exe = std::env::current_exe().unwrap();
    let folder = exe.parent().unwrap();
    [folder.join("libnvte.so"), folder.join("../libnvte.so")]
        .into_iter()
        .find(|p| p.exists())
        .unwrap_or_else(|| panic!("no libnvte.so in {} or above it; NVTE_TEST_LIBRARY can name it", folder.display()))
        .canonicalize()
        .unwrap()
}

/// What the dynamic linker sees of a 64-bit little-endian shared library.
#[derive(Debug, Default)]
pub struct Dynamic {
    /// Defined global and weak symbols, sorted.
    pub exports: Vec<String>,
    /// DT_NEEDED.
    pub needed: Vec<String>,
    /// DT_SONAME.
    pub soname: String,
    /// DT_FLAGS, with DF_SYMBOLIC also where DT_SYMBOLIC stands alone.
    pub flags: u64,
    /// DT_FLAGS_1.
    pub flags_1: u64,
}

pub const DF_SYMBOLIC: u64 = 2;
pub const DF_1_NODELETE: u64 = 8;

struct Section {
    kind: u64,
    offset: usize,
    size: usize,
    link: usize,
}

impl Dynamic {
    pub fn read(elf: &[u8]) -> Self {
        assert_eq!(&elf[..6], b"\x7fELF\x02\x01", "a 64-bit little-endian ELF file");
        let number = |at: usize, bytes: usize| elf[at..at + bytes].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        let text = |at: usize| String::from_utf8_lossy(elf[at..].split(|b| *b == 0).next().unwrap()).into_owned();
        let (table, entry, count) = (number(0x28, 8) as usize, number(0x3A, 2) as usize, number(0x3C, 2) as usize);
        let sections: Vec<Section> = (0..count)
            .map(|i| table + i * entry)
            .map(|at| Section {
                kind: number(at + 4, 4),
                offset: number(at + 0x18, 8) as usize,
                size: number(at + 0x20, 8) as usize,
                link: number(at + 0x28, 4) as usize,
            })
            .collect();
        let of_kind = |kind: u64| sections.iter().find(move |s| s.kind == kind).unwrap();
        let mut out = Self::default();

        const SHT_DYNSYM: u64 = 11;
        let symbols = of_kind(SHT_DYNSYM);
        let names = sections[symbols.link].offset;
        for at in (symbols.offset..symbols.offset + symbols.size).step_by(24) {
            let (name, binding, section) = (number(at, 4) as usize, elf[at + 4] >> 4, number(at + 6, 2));
            if section != 0 && matches!(binding, 1 | 2) {
                out.exports.push(text(names + name));
            }
        }
        out.exports.sort();

        const SHT_DYNAMIC: u64 = 6;
        let dynamic = of_kind(SHT_DYNAMIC);
        let names = sections[dynamic.link].offset;
        for at in (dynamic.offset..dynamic.offset + dynamic.size).step_by(16) {
            let (tag, value) = (number(at, 8), number(at + 8, 8));
            match tag {
                0 => break,
                1 => out.needed.push(text(names + value as usize)),
                14 => out.soname = text(names + value as usize),
                16 => out.flags |= DF_SYMBOLIC,
                30 => out.flags |= value,
                0x6FFF_FFFB => out.flags_1 = value,
                _ => {}
            }
        }
        out
    }
}
