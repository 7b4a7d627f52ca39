//! What `NVTE_DEBUG` prints: one line per kernel choice (1) or per call (2), to standard error or to the caller's function.

use std::sync::{OnceLock, RwLock};

/// Receives one line (no newline at its end).
pub(crate) type Sink = Box<dyn Fn(&str) + Send + Sync>;

static SINK: RwLock<Option<Sink>> = RwLock::new(None);

/// The level in `NVTE_DEBUG`, read once.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) fn level() -> u32 {
    static LEVEL: OnceLock<u32> = OnceLock::new();
    *LEVEL.get_or_init(|| std::env::var("NVTE_DEBUG").ok().and_then(|v| v.trim().parse().ok()).unwrap_or(0))
}

/// Sends all lines to `sink` (`None`: standard error).
#[cfg_attr(not(feature = "capi"), allow(dead_code))]
pub(crate) fn set_sink(sink: Option<Sink>) {
    *SINK.write().unwrap_or_else(|e| e.into_inner()) = sink;
}

/// Prints a line if the level is at least `min`; the text is made only then.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) fn log(min: u32, text: impl FnOnce() -> String) {
    if level() < min {
        return;
    }
    let line = text();
    match &*SINK.read().unwrap_or_else(|e| e.into_inner()) {
        Some(sink) => sink(&line),
        None => eprintln!("nvte: {line}"),
    }
}
