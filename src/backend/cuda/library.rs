//! Opening shared libraries softly, and finding NVRTC and cuBLASLt: already loaded in the process, then the caller's folders, then
//! pip's `nvidia/*` folders, then the system loader, then CUDA_HOME.

use std::{
    ffi::{c_void, CStr, CString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Mutex,
};

/// An open shared library; never closed (functions of it are held by tables that live as long as the process).
#[derive(Clone, Debug)]
pub(crate) struct Library {
    handle: *mut c_void,
    name: String,
}

// SAFETY: a dlopen handle may be used from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    fn open(name: &CStr, flags: i32) -> Option<Self> {
        // SAFETY: a C string and flags.
        let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
        (!handle.is_null()).then(|| Self { handle, name: name.to_string_lossy().into_owned() })
    }

    /// The first of these that the system loader opens.
    pub(crate) fn open_first(names: &[&CStr]) -> Option<Self> {
        names.iter().find_map(|n| Self::open(n, libc::RTLD_NOW | libc::RTLD_LOCAL))
    }

    /// Address of a symbol.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: an open library and a C string.
        let p = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!p.is_null()).then_some(p)
    }

    /// The name or path by which it was opened.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// What to look for: file names in order of preference, and a library that must be loaded before it, by prefix, from the same folder.
pub(crate) struct Wanted {
    pub(crate) names: &'static [&'static str],
    pub(crate) companion: Option<&'static str>,
}

/// NVRTC; 13.0's wheel does not find its builtins library unless that is loaded first.
pub(crate) const NVRTC: Wanted = Wanted { names: &["libnvrtc.so.13", "libnvrtc.so.12"], companion: Some("libnvrtc-builtins.so.") };
/// cuBLASLt; its wheel keeps what it needs beside it.
pub(crate) const CUBLAS_LT: Wanted = Wanted { names: &["libcublasLt.so.13", "libcublasLt.so.12"], companion: None };

/// Paths tried so far, for `nvte_info` and error messages.
static TRIED: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note(what: String) {
    let mut tried = TRIED.lock().unwrap_or_else(|e| e.into_inner());
    if !tried.contains(&what) {
        tried.push(what);
    }
}

/// Everything that was tried, one line each, in the order of the first attempt.
pub(crate) fn tried() -> Vec<String> {
    TRIED.lock().unwrap_or_else(|e| e.into_inner()).clone()
}

/// Folders in which pip puts NVIDIA's libraries, below one `site-packages`.
fn nvidia_folders(site: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(site.join("nvidia")) else {
        return Vec::new();
    };
    let mut folders: Vec<PathBuf> = entries.flatten().map(|e| e.path().join("lib")).filter(|p| p.is_dir()).collect();
    // Newest first: cu13 before cuda_nvrtc of CUDA 12.
    folders.sort_by(|a, b| b.cmp(a));
    folders
}

/// `site-packages` of the active Python environment, where there is one.
fn site_packages() -> Vec<PathBuf> {
    let roots = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(|r| PathBuf::from(r).join("lib"));
    roots
        .filter_map(|lib| std::fs::read_dir(lib).ok())
        .flat_map(|entries| entries.flatten())
        .map(|e| e.path().join("site-packages"))
        .filter(|p| p.is_dir())
        .collect()
}

fn open_in(folder: &Path, wanted: &Wanted) -> Option<Library> {
    for name in wanted.names {
        let path = folder.join(name);
        if !path.exists() {
            note(format!("{}: not there", path.display()));
            continue;
        }
        if let Some(prefix) = wanted.companion {
            let companions = std::fs::read_dir(folder).into_iter().flatten().flatten();
            for c in companions.filter(|e| e.file_name().to_string_lossy().starts_with(prefix)) {
                if let Ok(p) = CString::new(c.path().as_os_str().as_bytes()) {
                    // Kept open on purpose: the library finds it by its soname.
                    let _ = Library::open(&p, libc::RTLD_NOW | libc::RTLD_GLOBAL);
                }
            }
        }
        let c = CString::new(path.as_os_str().as_bytes()).ok()?;
        let found = Library::open(&c, libc::RTLD_NOW | libc::RTLD_LOCAL);
        note(format!("{}: {}", path.display(), if found.is_some() { "opened" } else { "does not open" }));
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Finds a library in the order of this file's head. What was found once stays what is found: there is one of each in a process.
pub(crate) fn find(wanted: &Wanted, given: &[PathBuf]) -> Option<Library> {
    static FOUND: Mutex<Vec<(&str, Library)>> = Mutex::new(Vec::new());
    let mut found = FOUND.lock().unwrap_or_else(|e| e.into_inner());
    let kind = wanted.names[0];
    if let Some((_, l)) = found.iter().find(|(k, _)| *k == kind) {
        return Some(l.clone());
    }
    let library = search(wanted, given)?;
    found.push((kind, library.clone()));
    Some(library)
}

fn search(wanted: &Wanted, given: &[PathBuf]) -> Option<Library> {
    let names: Vec<CString> = wanted.names.iter().filter_map(|n| CString::new(*n).ok()).collect();
    if let Some(l) = names.iter().find_map(|n| Library::open(n, libc::RTLD_NOW | libc::RTLD_NOLOAD)) {
        note(format!("{}: already loaded", l.name()));
        return Some(l);
    }
    let from_env = std::env::var_os("NVTE_LIBRARY_PATH");
    let env_dirs = from_env.iter().flat_map(std::env::split_paths);
    let dirs: Vec<PathBuf> = given.iter().cloned().chain(env_dirs).chain(site_packages().iter().flat_map(|s| nvidia_folders(s))).collect();
    if let Some(l) = dirs.iter().find_map(|d| open_in(d, wanted)) {
        return Some(l);
    }
    let refs: Vec<&CStr> = names.iter().map(CString::as_c_str).collect();
    if let Some(l) = Library::open_first(&refs) {
        note(format!("{}: opened by the system loader", l.name()));
        return Some(l);
    }
    let homes = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    let homes: Vec<PathBuf> = homes.chain([PathBuf::from("/usr/local/cuda")]).collect();
    homes.iter().flat_map(|h| [h.join("lib64"), h.join("targets/x86_64-linux/lib")]).find_map(|d| open_in(&d, wanted))
}
