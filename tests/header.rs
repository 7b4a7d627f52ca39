//! include/nvte.h is what the sources say. `NVTE_BLESS=1 cargo test --test header` writes it anew.
//!
//! cbindgen makes declarations and documentation; the table of functions (`nvte_api_t`) is then written from the declarations, in the
//! order of `capi::api::NAMES`, so that each signature is written once.
#![cfg(feature = "capi")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use nvte::capi::api::NAMES;

/// The families in the order in which a reader wants them; the rest follows by name.
const FIRST: [&str; 4] = ["types", "info", "context", "api"];

/// The sources of the C API, or nothing where this binary was carried away from them.
fn sources(root: &Path) -> Option<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(root.join("src/capi")).ok()?.flatten().map(|e| e.path()).collect();
    // mod.rs would have cbindgen read its modules a second time.
    files.retain(|p| p.extension().is_some_and(|e| e == "rs") && !p.ends_with("mod.rs"));
    let stem = |p: &PathBuf| p.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    files.sort_by_key(|p| (FIRST.iter().position(|f| *f == stem(p)).unwrap_or(FIRST.len()), stem(p)));
    Some(files)
}

/// What only a Rust reader needs is left out: `# Safety` sections, links, code marks, the underscore that keeps an argument from
/// shadowing a function.
fn for_c_readers(source: &str) -> String {
    let (mut out, mut in_safety) = (String::new(), false);
    for line in source.lines() {
        let text = line.trim_start();
        if let Some(doc) = text.strip_prefix("///") {
            in_safety |= doc.trim() == "# Safety";
            if in_safety {
                continue;
            }
            out.push_str(&line.replace("[`", "").replace("`]", "").replace('`', ""));
        } else {
            in_safety = false;
            out.push_str(&line.replace("stream_: nvte_stream_t", "stream: nvte_stream_t"));
        }
        out.push('\n');
    }
    // A blank line of documentation that stood before a section left out.
    out.replace("///\n#[", "#[").replace("///\npub ", "pub ")
}

fn one_space(s: &str) -> String {
    s.split_whitespace().collect::<Vec<_>>().join(" ").replace("( ", "(").replace(" )", ")")
}

/// (return type, arguments) of a function declared in the header.
fn declaration(header: &str, name: &str) -> (String, String) {
    let call = format!("{name}(");
    // Not a mention in a comment: a line that starts with the type and has nothing else before the name.
    let declared = header.match_indices(&call).map(|(at, _)| (header[..at].rfind('\n').map_or(0, |n| n + 1), at)).find(|(start, at)| {
        let before = &header[*start..*at];
        before.starts_with(|c: char| c.is_alphabetic()) && before.ends_with([' ', '*'])
    });
    let (start, at) = declared.unwrap_or_else(|| panic!("{name} is in the table, but not declared"));
    let end = at + header[at..].find(");").unwrap();
    (one_space(&header[start..at]), one_space(&header[at + name.len() + 1..end]))
}

/// The table as a C struct.
fn table(header: &str) -> String {
    let mut out = String::from(
        "// Every function of this library, as returned by nvte_api. Entries are only appended: where struct_size ends before an entry, the\n\
         // library is older than this header and has no such function.\n\
         struct nvte_api_t {\n  // sizeof(nvte_api_t) of the library.\n  uint32_t struct_size;\n  // 0.\n  uint32_t reserved;\n",
    );
    for name in NAMES {
        let (result, arguments) = declaration(header, name);
        let space = if result.ends_with('*') { "" } else { " " };
        let field = name.strip_prefix("nvte_").unwrap();
        out.push_str(&format!("  {result}{space}(*{field})({arguments});\n"));
    }
    out + "};\n"
}

fn generate(root: &Path, files: &[PathBuf]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut builder = cbindgen::Builder::new().with_config(cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap());
    for file in files {
        let copy = folder.path().join(file.file_name().unwrap());
        fs::write(&copy, for_c_readers(&fs::read_to_string(file).unwrap())).unwrap();
        builder = builder.with_src(copy);
    }
    let mut bytes = Vec::new();
    builder.generate().expect("cbindgen reads src/capi").write(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    // Structs have typedefs of the same name.
    let text: String = text
        .split_inclusive('\n')
        .map(|l| if l.starts_with("typedef struct") { l.to_owned() } else { l.replace("struct nvte_", "nvte_") })
        .collect();
    let end = text.rfind("#ifdef __cplusplus").unwrap();
    format!("{}{}\n{}", &text[..end], table(&text), &text[end..])
}

#[test]
fn header_is_what_the_sources_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some(files) = sources(root) else { return println!("not run: no sources at {}", root.display()) };
    let (path, new) = (root.join("include/nvte.h"), generate(root, &files));
    if std::env::var_os("NVTE_BLESS").is_some() {
        return fs::write(path, new).unwrap();
    }
    let old = fs::read_to_string(&path).unwrap_or_default();
    if old != new {
        let first = old.lines().zip(new.lines()).position(|(a, b)| a != b).unwrap_or_else(|| old.lines().count().min(new.lines().count()));
        panic!(
            "include/nvte.h is not what src/capi says; NVTE_BLESS=1 writes it. First difference in line {}:\n- {}\n+ {}",
            first + 1,
            old.lines().nth(first).unwrap_or_default(),
            new.lines().nth(first).unwrap_or_default()
        );
    }
}
