//! Streams of other priorities than the default, from the driver that the library loaded.

use std::ffi::{c_int, c_uint, c_void, CStr};

use nvte::{Context, Stream};

use super::on_cuda;

type Handle = *mut c_void;

/// A function of the driver; the device's context exists already.
pub fn driver_symbol(name: &CStr) -> Handle {
    // SAFETY: C strings; the library is loaded already and stays.
    let p = unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null());
        libc::dlsym(library, name.as_ptr())
    };
    assert!(!p.is_null(), "{name:?}");
    p
}

/// Streams of the least, a middle and the greatest priority, none of which waits for the default stream; on the CPU its only stream.
pub struct Streams(pub Vec<Stream>);

impl Streams {
    pub fn of_each_priority(_: &Context) -> Self {
        if !on_cuda() {
            return Self(vec![Stream::NULL]);
        }
        use std::mem::transmute as cast;
        // SAFETY: the driver's ABI fixes these signatures; out-pointers; the device exists.
        unsafe {
            let retain = cast::<Handle, unsafe extern "C" fn(*mut Handle, c_int) -> c_int>(driver_symbol(c"cuDevicePrimaryCtxRetain"));
            let push = cast::<Handle, unsafe extern "C" fn(Handle) -> c_int>(driver_symbol(c"cuCtxPushCurrent_v2"));
            let range =
                cast::<Handle, unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>(driver_symbol(c"cuCtxGetStreamPriorityRange"));
            let create =
                cast::<Handle, unsafe extern "C" fn(*mut Handle, c_uint, c_int) -> c_int>(driver_symbol(c"cuStreamCreateWithPriority"));
            const NON_BLOCKING: c_uint = 1;
            let (mut primary, mut least, mut greatest) = (std::ptr::null_mut(), 0, 0);
            assert_eq!(retain(&mut primary, 0), 0, "cuDevicePrimaryCtxRetain");
            assert_eq!(push(primary), 0, "cuCtxPushCurrent");
            assert_eq!(range(&mut least, &mut greatest), 0, "cuCtxGetStreamPriorityRange");
            assert!(greatest < least, "the device has one priority");
            let of = |priority| {
                let mut stream = std::ptr::null_mut();
                assert_eq!(create(&mut stream, NON_BLOCKING, priority), 0, "cuStreamCreateWithPriority");
                Stream(stream)
            };
            Self([least, (least + greatest) / 2, greatest].map(of).to_vec())
        }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for stream in self.0.iter().filter(|s| **s != Stream::NULL) {
            // SAFETY: the driver's ABI fixes the signature; made once, destroyed once.
            unsafe { std::mem::transmute::<Handle, unsafe extern "C" fn(Handle) -> c_int>(driver_symbol(c"cuStreamDestroy_v2"))(stream.0) };
        }
    }
}
