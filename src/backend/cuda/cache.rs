//! Compiled kernels on disk: one file per kernel, written to a temporary name and renamed, so that many processes can share a folder.
//! A damaged file is the same as none.

use std::{fs, io::Write, path::PathBuf};

use sha2::{Digest, Sha256};

use super::nvrtc::Source;

const MAGIC: &[u8; 8] = b"nvtecub1";

/// The folder, or nothing where caching is off or impossible.
#[derive(Debug)]
pub(crate) struct DiskCache {
    folder: Option<PathBuf>,
}

/// Hash of everything that decides the machine code, except the NVRTC version: knowing that would mean loading it.
pub(crate) struct Key(String);

impl Key {
    pub(crate) fn new(source: &Source<'_>, arch: &str, defines: &[String]) -> Self {
        let mut h = Sha256::new();
        let mut add = |s: &str| {
            h.update((s.len() as u64).to_le_bytes());
            h.update(s.as_bytes());
        };
        add(crate::VERSION);
        add(arch);
        add(source.name);
        add(source.text);
        source.headers.iter().for_each(|(n, t)| {
            add(n);
            add(t);
        });
        defines.iter().for_each(|d| add(d));
        Self(format!("{}-{arch}-{}", source.name.trim_end_matches(".cu"), hex(&h.finalize()[..16])))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl DiskCache {
    /// `given`: the caller's folder (empty: off); otherwise `NVTE_CACHE_DIR`, `XDG_CACHE_HOME`, `HOME`.
    pub(crate) fn new(given: Option<PathBuf>) -> Self {
        let var = |n: &str| std::env::var_os(n).map(PathBuf::from);
        let folder = given
            .or_else(|| var("NVTE_CACHE_DIR"))
            .or_else(|| var("XDG_CACHE_HOME").filter(|p| !p.as_os_str().is_empty()).map(|p| p.join("nvte")))
            .or_else(|| var("HOME").filter(|p| !p.as_os_str().is_empty()).map(|p| p.join(".cache/nvte")));
        Self { folder: folder.filter(|p| !p.as_os_str().is_empty()) }
    }

    pub(crate) fn folder(&self) -> Option<&PathBuf> {
        self.folder.as_ref()
    }

    /// The cubin, if the file is there and whole.
    pub(crate) fn load(&self, key: &Key) -> Option<Vec<u8>> {
        let bytes = fs::read(self.folder.as_ref()?.join(&key.0)).ok()?;
        // magic, length of the note, note, digest of the cubin, cubin
        let rest = bytes.strip_prefix(MAGIC)?;
        let (n, rest) = rest.split_first_chunk::<4>()?;
        let rest = rest.get(u32::from_le_bytes(*n) as usize..)?;
        let (digest, cubin) = rest.split_first_chunk::<32>()?;
        (Sha256::digest(cubin).as_slice() == digest).then(|| cubin.to_vec())
    }

    /// Stores it; `note` (the compiler's version) is for people. Failure to store is not an error: the next process compiles again.
    pub(crate) fn store(&self, key: &Key, note: &str, cubin: &[u8]) {
        let Some(folder) = &self.folder else { return };
        let write = || -> std::io::Result<()> {
            fs::create_dir_all(folder)?;
            let unique = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
            let temporary = folder.join(format!(".{}.{}.{unique}", key.0, std::process::id()));
            let mut file = fs::File::create(&temporary)?;
            file.write_all(MAGIC)?;
            file.write_all(&(note.len() as u32).to_le_bytes())?;
            file.write_all(note.as_bytes())?;
            file.write_all(&Sha256::digest(cubin))?;
            file.write_all(cubin)?;
            drop(file);
            fs::rename(&temporary, folder.join(&key.0)).inspect_err(|_| {
                let _ = fs::remove_file(&temporary);
            })
        };
        if let Err(e) = write() {
            crate::debug::log(1, || format!("kernel cache {}: {e}", folder.display()));
        }
    }
}
