//! What wraps the body of every exported function: no panic leaves the library, and the last error is kept per thread.

use std::{
    cell::RefCell,
    ffi::{c_char, CString},
    panic::{catch_unwind, AssertUnwindSafe},
};

use crate::error::{Error, Result, Status};

struct Last {
    message: CString,
    code: i32,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::new(Last { message: CString::default(), code: 0 });
}

/// Runs `body`; an error or a panic becomes a status, and its message the thread's last error. Success leaves the last error as it was.
#[inline]
pub(crate) fn guard(body: impl FnOnce() -> Result<()>) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok as i32,
        Ok(Err(e)) => remember(&e),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
            remember(&Error::new(Status::Internal, format!("internal error: {}", text.unwrap_or_default())))
        }
    }
}

#[cold]
fn remember(e: &Error) -> i32 {
    let text = e.message().replace('\0', " ");
    let last = Last { message: CString::new(text).unwrap_or_default(), code: e.code() };
    // A thread that is ending has no last error any more.
    let _ = LAST.try_with(|l| *l.borrow_mut() = last);
    e.status() as i32
}

/// The thread's last message; lives until the thread's next error.
pub(crate) fn last_message() -> *const c_char {
    LAST.try_with(|l| l.borrow().message.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The code of the library below, of the thread's last error.
pub(crate) fn last_code() -> i32 {
    LAST.try_with(|l| l.borrow().code).unwrap_or(0)
}
