//! What a bug report needs: versions, what was found where, capabilities, environment. Written as JSON.

use std::fmt::Write;

use crate::{
    context::{Capability, Context},
    error::Result,
};

/// Every environment variable the library reads, nowhere on a call's hot path.
pub(crate) const ENVIRONMENT: &[&str] = &[
    "NVTE_CACHE_DIR",
    "NVTE_DEBUG",
    "NVTE_LIBRARY_PATH",
    "NVTE_NUM_THREADS",
    "CONDA_PREFIX",
    "CUDA_HOME",
    "CUDA_PATH",
    "HOME",
    "VIRTUAL_ENV",
    "XDG_CACHE_HOME",
];

/// A JSON value: as much of it as the report uses.
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(i64),
    Text(String),
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    pub(crate) fn text(s: impl Into<String>) -> Self {
        Json::Text(s.into())
    }

    pub(crate) fn object<const N: usize>(fields: [(&str, Json); N]) -> Self {
        Json::Object(fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
    }

    /// `{"error": message}` where there is no value.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn or_error(value: Result<Json>) -> Self {
        value.unwrap_or_else(|e| Json::object([("error", Json::text(e.message()))]))
    }

    fn write(&self, out: &mut String, indent: usize) {
        match self {
            Json::Null => out.push_str("null"),
            Json::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Json::Number(n) => _ = write!(out, "{n}"),
            Json::Text(s) => quote(s, out),
            Json::List(items) => block(out, indent, '[', ']', items, |v, out| v.write(out, indent + 2)),
            Json::Object(fields) => block(out, indent, '{', '}', fields, |(k, v), out| {
                quote(k, out);
                out.push_str(": ");
                v.write(out, indent + 2);
            }),
        }
    }
}

fn block<T>(out: &mut String, indent: usize, open: char, close: char, items: &[T], mut each: impl FnMut(&T, &mut String)) {
    out.push(open);
    for (i, item) in items.iter().enumerate() {
        out.push_str(if i == 0 { "\n" } else { ",\n" });
        out.extend(std::iter::repeat_n(' ', indent + 2));
        each(item, out);
    }
    if !items.is_empty() {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent));
    }
    out.push(close);
}

fn quote(s: &str, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => _ = write!(out, "\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A capability as JSON.
pub(crate) fn capability(c: &Capability) -> Json {
    Json::object([
        ("name", Json::text(&c.name)),
        ("arch", Json::Number(c.arch.into())),
        ("multiprocessors", Json::Number(c.multiprocessors.into())),
        ("fp8_cast_hardware", Json::Bool(c.fp8_cast_hardware)),
        ("fp8_gemm_hardware", Json::Bool(c.fp8_gemm_hardware)),
        ("fp8_gemm_k_major_only", Json::Bool(c.fp8_gemm_k_major_only)),
        ("total_memory", Json::Number(c.total_memory as i64)),
    ])
}

/// The report about this process and, where given, one context. Probes for a driver, NVRTC and cuBLASLt; never fails.
pub fn info(context: Option<&Context>) -> String {
    let environment = ENVIRONMENT.iter().map(|name| {
        let value = std::env::var_os(name).map_or(Json::Null, |v| Json::text(v.to_string_lossy()));
        ((*name).to_owned(), value)
    });
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    // First, so that the paths tried for it are among those of the process.
    let context = context.map_or(Json::Null, |c| {
        let mut fields =
            vec![("device".to_owned(), Json::text(c.device().to_string())), ("capability".to_owned(), capability(&c.capability()))];
        fields.extend(c.backend().info());
        Json::Object(fields)
    });
    #[cfg(feature = "cuda")]
    let cuda = crate::backend::cuda::info::describe();
    #[cfg(not(feature = "cuda"))]
    let cuda = Json::object([("error", Json::text("this library was built without its `cuda` feature"))]);
    let report = Json::object([
        ("version", Json::text(crate::VERSION)),
        #[cfg(feature = "capi")]
        ("abi_version", Json::Number(crate::capi::api::NVTE_ABI_VERSION.into())),
        ("target", Json::text(format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS))),
        ("cpu_threads", Json::Number(threads as i64)),
        ("cuda", cuda),
        ("context", context),
        ("environment", Json::Object(environment.collect())),
    ]);
    let mut out = String::new();
    report.write(&mut out, 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_escaped_and_indented() {
        let mut out = String::new();
        let value = Json::object([
            ("a\"b", Json::text("\\\n\u{1f}é")),
            ("list", Json::List(vec![Json::Null, Json::Bool(true), Json::Number(-7)])),
            ("empty", Json::List(Vec::new())),
        ]);
        value.write(&mut out, 0);
        assert_eq!(out, "{\n  \"a\\\"b\": \"\\\\\\u000a\\u001fé\",\n  \"list\": [\n    null,\n    true,\n    -7\n  ],\n  \"empty\": []\n}");
    }

    /// A variable that the sources read and the report leaves out would be missing from every bug report.
    #[test]
    fn every_variable_read_is_reported() {
        let sources = [
            include_str!("debug.rs"),
            include_str!("backend/cpu/parallel.rs"),
            #[cfg(feature = "cuda")]
            include_str!("backend/cuda/cache.rs"),
            #[cfg(feature = "cuda")]
            include_str!("backend/cuda/library.rs"),
        ];
        for text in sources {
            for name in text.split('"').filter(|s| s.starts_with("NVTE_")) {
                assert!(ENVIRONMENT.contains(&name), "{name} is not in the report");
            }
        }
        assert!(info(None).contains("NVTE_DEBUG"));
    }
}
